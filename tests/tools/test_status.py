"""``modeld status``: what is healthy, what is said, and the exit codes; on a real bus."""

import json
import re
import signal
import subprocess
import sys
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cereal.clock import MonotonicClock
from cereal.schema import content, read_event
from cereal.transport.base import MemoryTransport
from modeld.health.reporter import HEALTH_SERVICES, HealthReporter
from modeld.health.snapshot import SelfTestFacts, ServiceFacts, TestResult
from modeld.service.realtime import Effect
from modeld.state.loop_state import Fault, LoopState, Phase
from modeld.store.model_store import ModelStore
from modeld.store.records import ModelId, Selected
from runtime.format.artifact import from_memory
from runtime.opencl.device import choose_device
from tests.runtime import tiny
from tests.tools.conftest import Modeld
from tests.tools.messages import event_of, repeating
from tools.messages.message_values import to_plain
from tools.regress.run_facts import describe_environment
from tools.service.health import (
    Painter,
    duration_text,
    health_text,
    problems_of,
    quantile_ms,
    stages_since,
)
from tools.service.running_models import comparison

NS_PER_S = 1_000_000_000
NOW_NS = 100 * NS_PER_S
FACTS = ServiceFacts(
    "driving",
    sha256="0123456789abcdef" * 4,
    checkpoints={"vision": "big/1"},
    device="a device",
    driver="a driver",
    self_test=SelfTestFacts(TestResult.PASSED, 12.5),
    versions={"modeld": "1.2"},
    started_ns=NOW_NS - 65 * NS_PER_S,
)


def running() -> LoopState:
    """Return a loop that has just published a valid message."""
    state = LoopState(phase=Phase.RUNNING, model="m.pkl", frames=40, published=40, valid=40)
    state.published_ns = NOW_NS - NS_PER_S // 20
    state.stages.begin(0)
    state.stages.mark("model", 22_000_000)
    return state


def health_event(state: LoopState, facts: ServiceFacts = FACTS) -> bytes:
    transport = MemoryTransport()
    service = HEALTH_SERVICES[facts.kind]
    bus = transport.subscriber(service)
    reporter = HealthReporter(facts, state, transport, MonotonicClock(), service)
    reporter.report(NOW_NS)
    reporter.close()
    data = bus.receive()
    assert data is not None
    return data


def health(state: LoopState, facts: ServiceFacts = FACTS) -> dict[str, Any]:
    return to_plain(content(read_event(health_event(state, facts))))


@pytest.mark.parametrize(
    ("state", "problems"),
    [
        (running(), []),
        (LoopState(phase=Phase.WAITING_CAMERA), []),
        (LoopState(phase=Phase.WAITING_CAR), []),
        (LoopState(), ["starting"]),
    ],
    ids=["running", "waiting for a camera", "waiting for a car", "starting"],
)
def test_a_loop_that_runs_or_waits_is_healthy(state: LoopState, problems: list[str]) -> None:
    assert problems_of(health(state)) == problems


def test_without_a_camera_its_frames_are_not_missed() -> None:
    state = LoopState(phase=Phase.WAITING_CAMERA)
    state.count(Fault.NO_FRAME, 3)
    assert problems_of(health(state)) == []
    state.count(Fault.DEVICE_ERROR)
    assert problems_of(health(state)) == ["faults in the last 10 s: deviceError 1"]


def test_models_that_cannot_be_used_are_said() -> None:
    facts = replace(FACTS, start_problems=("fallback model not usable: gone.pkl: no such file",))
    assert problems_of(health(running(), facts)) == list(facts.start_problems)


def test_what_is_not_healthy_is_said() -> None:
    state = running()
    state.fallback = "device failed"
    state.reasons = ("no calibration", "wide camera lost")
    state.count(Fault.NOT_FINITE, 3)
    failed = ServiceFacts("driving", self_test=SelfTestFacts(TestResult.FAILED, 1.0, "seed 2"))
    assert problems_of(health(state, failed)) == [
        "fallback model in use: device failed",
        "self-test failed: seed 2",
        "not valid: no calibration",
        "not valid: wide camera lost",
        "faults in the last 10 s: notFinite 3",
    ]


def test_silence_is_not_healthy() -> None:
    state = running()
    state.published_ns = NOW_NS - NS_PER_S
    assert problems_of(health(state)) == []
    state.published_ns = NOW_NS - 11 * NS_PER_S // 10
    assert problems_of(health(state)) == ["nothing published for 1.1 s: no frame came"]
    state.published_ns = NOW_NS - 3 * NS_PER_S
    assert problems_of(health(state)) == ["nothing published for 3.0 s: no frame came"]
    state.awaiting_ns = NOW_NS - 2 * NS_PER_S
    assert problems_of(health(state)) == ["nothing published for 3.0 s: a frame waits"]
    state.published_ns = state.awaiting_ns = 0
    assert problems_of(health(state)) == ["nothing published yet"]


def test_frames_that_are_refused_are_not_taken_for_none() -> None:
    state = running()
    state.published_ns = NOW_NS - 3 * NS_PER_S
    state.refused = (NOW_NS, "road camera: expected others")
    refused = "frames not used: road camera: expected others"
    assert problems_of(health(state)) == [f"nothing published for 3.0 s: {refused}"]
    state.published_ns = 0
    assert problems_of(health(state)) == ["nothing published yet", refused]


@pytest.mark.parametrize(
    ("counts", "share", "expected"),
    [
        ([0, 0, 0], 0.5, None),
        ([10, 0, 0], 0.5, 5.0),  # halfway between 0 and 10
        ([0, 10, 0], 0.5, 15.0),  # halfway between 10 and 20
        ([5, 5, 0], 0.5, 10.0),
        ([90, 9, 1], 0.99, 20.0),
        ([0, 0, 4], 0.5, 20.0),  # beyond: the largest bound
        ([4, 0, 0], 1.0, 10.0),
    ],
)
def test_quantile_of_a_histogram(counts: list[int], share: float, expected: float | None) -> None:
    assert quantile_ms([10.0, 20.0], counts, share) == expected


def test_stages_since_an_earlier_message_of_the_same_process() -> None:
    state = running()
    before = health(state)
    state.stages.begin(0)
    state.stages.mark("model", 500_000)
    after = health(state)
    model = stages_since(after, before)[2]
    assert (sum(model["counts"]), model["counts"][1], model["sum"]) == (1, 1, 0.5)
    other = {**before, "processId": 1}
    assert sum(stages_since(after, other)[2]["counts"]) == 2


def test_text_is_for_a_person() -> None:
    state = running()
    state.warm_up_left = 12
    state.count(Fault.NO_FRAME)
    facts = ServiceFacts(
        "monitoring",
        sha256="0123456789abcdef" * 4,
        program_sha256="fedcba9876543210" * 4,
        lineage={"commit": "1a2b3c", "vision.producer": "pytorch 2.3"},
        realtime=(Effect("cpus", "7", effective=True), Effect("priority", "5", False, "refused")),
        versions={"modeld": "1.2"},
        started_ns=FACTS.started_ns,
    )
    found = health(state, facts)
    text = health_text(
        "dmonitoringmodeldHealth", found, problems_of(found), None, Painter(is_coloured=False)
    )
    lines = {line[:11].strip(): line for line in text.splitlines() if line[2] != " "}
    assert text.startswith("monitoring: NOT HEALTHY\n  faults in the last 10 s: noFrame 1\n")
    assert "running, up 1 min 05 s" in lines["doing"]
    assert "m.pkl, sha256 0123456789ab, program fedcba987654" in lines["model"]
    assert lines["lineage"].endswith("commit=1a2b3c, vision.producer=pytorch 2.3")
    assert "store" not in lines
    assert lines["histories"].endswith("full after 12 more runs")
    assert "40 published, 40 valid, 0 dropped" in lines["frames"]
    # 22 ms lie in the bucket from 20 to 25.
    [stage] = [line.split() for line in text.splitlines() if line.startswith(" " * 13 + "model")]
    assert stage[1:] == ["22.5", "24.9", "22.0", "1"]
    assert "noFrame 1 (1 now)" in lines["faults"]
    assert "priority 5 NOT in force: refused" in text
    assert "\x1b" not in text
    coloured = health_text("", found, ["a"], None, Painter(is_coloured=True))
    assert "\x1b[31m" in coloured
    assert re.sub(r"\x1b\[\d+m", "", coloured).startswith("monitoring: NOT HEALTHY\n  a\n")


def test_a_terminal_does_not_obey_what_a_message_says() -> None:
    state = running()
    state.reasons = ("\x1b[2Jgone",)
    found = health(state)
    assert "\x1b" not in health_text(
        "", found, problems_of(found), None, Painter(is_coloured=False)
    )


def test_durations() -> None:
    texts = [duration_text(seconds) for seconds in (0.25, 59.9, 60, 3599, 3600, 100_000)]
    assert texts == ["0.2 s", "59.9 s", "1 min 00 s", "59 min 59 s", "1 h 00 min", "27 h 46 min"]


def speaking(bus: str, **states: LoopState) -> AbstractContextManager[None]:
    """Have daemons say how they are, more often than real ones."""
    said = [
        (HEALTH_SERVICES[kind], health_event(state, ServiceFacts(kind)))
        for kind, state in states.items()
    ]
    return repeating(bus, *said)


@pytest.fixture
def status(tmp_path: Path) -> tuple[str, ...]:
    """The command for a bus of the test; its address is the third word."""
    return ("status", "--bus", f"ipc://{tmp_path}", "--timeout", "20")


def test_both_daemons_are_told_and_one_that_is_not_well_decides(
    status: tuple[str, ...], modeld: Modeld
) -> None:
    bad = running()
    bad.reasons = ("frames overwritten",)
    with speaking(status[2], driving=bad, monitoring=running()):
        text = modeld(1, *status).out
        found = modeld(1, *status, "--json").json
    assert text.startswith("driving: NOT HEALTHY\n  not valid: frames overwritten\n")
    assert "\n\nmonitoring: healthy\n" in text
    assert found["healthy"] is False
    driving = found["daemons"]["modeldHealth"]
    assert driving["problems"] == ["not valid: frames overwritten"]
    assert driving["stageTimes"]["model"]["p50"] == pytest.approx(22.5)
    assert driving["health"]["faults"][0] == {"name": "deviceError", "count": 0, "recent": 0}
    assert found["daemons"]["dmonitoringmodeldHealth"]["problems"] == []


def test_one_healthy_daemon_is_enough(status: tuple[str, ...], modeld: Modeld) -> None:
    with speaking(status[2], monitoring=LoopState(phase=Phase.WAITING_CAMERA)):
        assert modeld(0, *status).out.startswith("monitoring: healthy\n")


def test_what_is_no_health_message_is_told_and_left_out(
    status: tuple[str, ...], modeld: Modeld
) -> None:
    others = [("modeldHealth", data) for data in (b"no event", event_of("carState"))]
    with repeating(status[2], *others):
        assert "found none" in modeld(1, *status[:-1], "1").err


@pytest.mark.slow
@pytest.mark.alone
def test_watching_goes_on_until_it_is_stopped(tmp_path: Path) -> None:
    bus = f"ipc://{tmp_path}"
    command = [sys.executable, "-m", "tools.cli", "status", "--watch", "--json", "--bus", bus]
    with (
        speaking(bus, driving=running()),
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process,
    ):
        assert process.stdout is not None
        objects = [json.loads(process.stdout.readline()) for _ in range(4)]
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert process.wait(30) == 130
    assert all(one["healthy"] for one in objects)
    # From the second on, times are those since the first: no frame.
    times = [one["daemons"]["modeldHealth"]["stageTimes"]["model"]["p50"] for one in objects]
    assert times == [pytest.approx(22.5), None, None, None]


def test_what_is_selected_is_told_of_the_role_that_runs(tmp_path: Path) -> None:
    store, before = ModelStore(tmp_path), health(LoopState())
    selection = {"driving": Selected(ModelId("a", "2"))}
    of_store = {**before, "model": f"{tmp_path}/a@1/artifact.pkl"}
    assert comparison(store, selection, of_store) == "selected a@2, running a@1"
    elsewhere = {**before, "model": "/b@1/artifact.pkl"}
    assert comparison(store, selection, elsewhere) == "selected a@2, running /b@1/artifact.pkl"
    fallback = {**of_store, "isFallback": True}
    assert comparison(store, selection, fallback) == "nothing selected for fallback, running a@1"


@pytest.mark.opencl
def test_a_reference_says_where_its_model_came_from() -> None:
    raw = tiny.manifest(lineage={"commit": "1a2b3c"})
    manifest = from_memory(raw, tiny.data_blob()).manifest
    found = describe_environment(choose_device(None).info, manifest)
    assert found["lineage commit"] == "1a2b3c"
