"""The health message: what it says of facts, loop and process."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cereal.clock import ManualClock
from cereal.errors import TransportError
from cereal.schema import content, member_name, read_event
from cereal.transport.memory import MemoryTransport
from modeld.health import HEALTH_SERVICES, HealthReporter
from modeld.health_snapshot import SelfTestFacts, ServiceFacts, TestResult
from modeld.loop_state import Fault, LoopState, Phase
from modeld.metrics import MetricsFile
from modeld.process_figures import FigureReader
from modeld.realtime import Effect
from modeld.stages import BOUNDS_MS, NS_PER_MS

NS_PER_S = 1_000_000_000
FACTS = ServiceFacts(
    "driving",
    model="driving.pkl",
    sha256="ab" * 32,
    checkpoints={"vision": "big/1", "policy": "small/2"},
    device="a device",
    driver="a driver 1.2",
    self_test=SelfTestFacts(TestResult.PASSED, 12.5),
    realtime=(Effect("cpus", "7", effective=False, reason="no CPU 7"),),
    versions={"modeld": "1.0", "python": "3.11"},
    started_ns=5 * NS_PER_S,
)


class Line:
    """A reporter, its clock, and what comes of it."""

    def __init__(self, facts: ServiceFacts = FACTS, service: str = "modeldHealth") -> None:
        self.state = LoopState()
        self.clock = ManualClock(7)
        self.transport = MemoryTransport()
        self.bus = self.transport.subscriber(service)
        self.reporter = HealthReporter(facts, self.state, self.transport, self.clock, service)

    def at(self, now_s: float, log_lost: int = 0) -> Any:
        self.reporter.report(int(now_s * NS_PER_S), log_lost)
        data = self.bus.receive()
        assert data is not None
        return content(read_event(data))


@pytest.fixture
def line() -> Iterator[Line]:
    made = Line()
    yield made
    made.reporter.close()


def test_facts_are_in_the_message(line: Line) -> None:
    health = line.at(15.0)
    assert health.kind == "driving"
    assert [(v.name, v.version) for v in health.versions] == [("modeld", "1.0"), ("python", "3.11")]
    assert health.processId == os.getpid()
    assert health.uptime == 10.0
    assert health.phase == "starting"
    assert (health.model, health.modelSha256) == ("driving.pkl", "ab" * 32)
    assert [(c.role, c.name) for c in health.checkpoints] == [
        ("vision", "big/1"),
        ("policy", "small/2"),
    ]
    assert (health.device, health.driver) == ("a device", "a driver 1.2")
    assert (str(health.selfTest.result), health.selfTest.duration) == ("passed", 12.5)
    [setting] = health.realtime
    assert (setting.name, setting.wanted) == ("cpus", "7")
    assert (setting.effective, setting.reason) == (False, "no CPU 7")


def test_nothing_has_happened_yet(line: Line) -> None:
    health = line.at(15.0)
    assert (health.isFallback, health.fallbackReason) == (False, "")
    assert (health.frames, health.published, health.publishedValid) == (0, 0, 0)
    assert health.publicationAge == -1.0
    assert (health.frameWait, health.runTime) == (0.0, 0.0)
    assert list(health.invalidReasons) == []
    assert {f.name: (f.count, f.recent) for f in health.faults} == dict.fromkeys(Fault, (0, 0))
    assert [sum(stage.counts) for stage in health.stages] == [0, 0, 0, 0]


def test_the_loop_is_in_the_message(line: Line) -> None:
    state = line.state
    state.phase = Phase.RUNNING
    state.fallback = "run took longer than 300 ms"
    state.frames, state.published, state.valid, state.dropped = 100, 90, 80, 7
    state.frame_id = 4711
    state.warm_up_left = 88
    state.reasons = ("no liveCalibration since 4.0 s", "wide camera lost")
    state.published_ns = 14 * NS_PER_S
    state.awaiting_ns = 14_500_000_000
    state.running_ns = 14_750_000_000
    state.count(Fault.NOT_FINITE, 3)
    state.stages.begin(0)
    state.stages.mark("wait", 2 * NS_PER_MS)
    state.stages.mark("inputs", 5_000 * NS_PER_MS)
    health = line.at(15.0, log_lost=4)
    assert (health.phase, health.model) == ("running", "driving.pkl")
    assert (health.isFallback, health.fallbackReason) == (True, "run took longer than 300 ms")
    assert (health.frames, health.published, health.publishedValid) == (100, 90, 80)
    assert health.dropped == 7
    assert health.frameId == 4711
    assert health.warmUpRunsLeft == 88
    assert list(health.invalidReasons) == ["no liveCalibration since 4.0 s", "wide camera lost"]
    assert (health.publicationAge, health.frameWait, health.runTime) == (1.0, 0.5, 0.25)
    counts = {fault.name: fault.count for fault in health.faults}
    assert (counts["notFinite"], counts["logLost"], counts["noFrame"]) == (3, 4, 0)
    assert list(health.stageBounds) == list(BOUNDS_MS)
    stages = {stage.name: stage for stage in health.stages}
    assert list(stages) == ["wait", "inputs", "model", "publish"]
    # A bound counts what takes at most so long.
    assert list(stages["wait"].counts) == [int(bound == 2.0) for bound in (*BOUNDS_MS, None)]
    assert list(stages["inputs"].counts) == [0] * len(BOUNDS_MS) + [1]
    assert (stages["wait"].sum, stages["inputs"].sum) == (2.0, 4998.0)


def test_frames_that_are_refused_are_a_reason_while_they_come(line: Line) -> None:
    state = line.state
    state.reasons, state.published_ns = ("wide camera lost",), 14 * NS_PER_S
    state.refused = (14_500_000_000, "road camera: expected others")
    refused = "frames not used: road camera: expected others"
    assert list(line.at(15.0).invalidReasons) == [refused, "wide camera lost"]
    assert list(line.at(15.6).invalidReasons) == ["wide camera lost"]
    state.refused = (16 * NS_PER_S, "road camera: expected others")
    state.published_ns = 16_100_000_000
    assert list(line.at(16.2).invalidReasons) == ["wide camera lost"]


def test_recent_is_what_came_in_the_last_ten_reports(line: Line) -> None:
    line.state.count(Fault.NO_FRAME, 5)
    first = line.at(6.0)
    assert first.recentTime == 1.0  # since the start
    assert next(f.recent for f in first.faults if f.name == "noFrame") == 5
    for second in range(7, 16):
        line.state.published += 20
        line.at(float(second))
    line.state.published += 20
    health = line.at(16.0)
    assert health.recentTime == 10.0
    assert health.recentPublished == 200
    assert next((f.count, f.recent) for f in health.faults if f.name == "noFrame") == (5, 0)


def test_event_is_valid_stamped_and_of_its_service() -> None:
    assert set(HEALTH_SERVICES.values()) == {"modeldHealth", "dmonitoringmodeldHealth"}
    for kind, service in HEALTH_SERVICES.items():
        line = Line(ServiceFacts(kind), service)
        line.reporter.report(NS_PER_S)
        data = line.bus.receive()
        line.reporter.close()
        assert data is not None
        event = read_event(data)
        assert (member_name(event), event.valid, event.logMonoTime) == (service, True, 7)
        assert content(event).kind == kind


def test_facts_and_loop_may_be_replaced(line: Line) -> None:
    line.at(15.0)
    line.reporter.facts = ServiceFacts("driving", sha256="cd" * 32)
    line.reporter.state = LoopState(model="other.pkl", phase=Phase.WAITING_CAMERA)
    health = line.at(16.0)
    assert (health.modelSha256, health.model) == ("cd" * 32, "other.pkl")
    assert health.phase == "waiting for cameras"


def test_the_service_is_given_up(line: Line) -> None:
    with pytest.raises(TransportError, match="expected one publisher"):
        HealthReporter(FACTS, line.state, line.transport, line.clock, "modeldHealth")
    line.reporter.close()
    HealthReporter(FACTS, line.state, line.transport, line.clock, "modeldHealth").close()


def test_figures_are_those_of_this_process(line: Line) -> None:
    health = line.at(15.0)
    assert 1 << 20 < health.memory <= health.memoryPeak
    assert health.threads >= 1
    assert health.openFiles >= 3
    assert health.cpuTime > 0


def test_an_open_file_and_a_thread_are_counted() -> None:
    reader = FigureReader()
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    before = reader.read()
    thread.start()
    with Path(os.devnull).open(encoding="utf-8"):
        during = reader.read()
    stop.set()
    thread.join()
    reader.close()
    assert (during.open_files, during.threads) == (before.open_files + 1, before.threads + 1)


def test_long_and_broken_texts_do_not_matter(line: Line) -> None:
    line.state.reasons = ("x" * 100_000, "path \udcff of bytes")
    reasons = list(line.at(15.0).invalidReasons)
    assert len(reasons[0]) < 1000
    assert reasons[1] == "path ? of bytes"


def test_the_loop_writes_while_it_is_looked_at(line: Line) -> None:
    """Whatever a report sees of a loop that runs, no count goes back."""
    stop = threading.Event()

    def loop() -> None:
        state, n = line.state, 0
        while not stop.is_set():
            n += 1
            state.frames = state.published = n
            state.published_ns = n
            state.count(Fault.NO_FRAME)
            state.reasons = (f"reason {n}",)
            state.stages.begin(0)
            state.stages.mark("model", n * 1000)

    thread = threading.Thread(target=loop)
    thread.start()
    last: list[int] = []
    try:
        for second in range(200):
            health = line.at(1e6 + second)
            counts = [health.frames, next(f.count for f in health.faults if f.name == "noFrame")]
            counts.append(sum(health.stages[2].counts))
            assert all(new >= old for new, old in zip(counts, last, strict=False))
            last = counts
    finally:
        stop.set()
        thread.join()


def test_reports_leave_nothing_behind(tmp_path: Path) -> None:
    """The collector does not run while the daemon drives: nothing may need it."""
    transport = MemoryTransport()
    reporter = HealthReporter(
        FACTS,
        LoopState(),
        transport,
        ManualClock(),
        "modeldHealth",
        MetricsFile(tmp_path / "modeld.prom"),
    )
    reporter.report(NS_PER_S)
    gc.collect()
    gc.disable()
    try:
        for second in range(50):
            reporter.report(second * NS_PER_S)
        reporter.close()
        assert gc.collect() < 50
    finally:
        gc.enable()
