"""The health message and its facts: what it says of loop, model, process and machine."""

import gc
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import runtime
from cereal.clock import ManualClock
from cereal.errors import TransportError
from cereal.schema import content, member_name, read_event
from cereal.transport.base import MemoryTransport
from modeld.health import reporter as health_module
from modeld.health.metrics import MetricsFile
from modeld.health.reporter import HEALTH_SERVICES, HealthReporter
from modeld.health.snapshot import SelfTestFacts, ServiceFacts, Temperature, TestResult
from modeld.model.load_models import LoadedModel, facts_of, versions
from modeld.service.realtime import Effect
from modeld.state.loop_state import BOUNDS_MS, NS_PER_MS, Fault, LoopState, Phase
from tests.modeld.bench import Patch, check_fields, eventually, small_artifacts

NS_PER_S = 1_000_000_000
FACTS = ServiceFacts(
    "driving",
    model="driving.pkl",
    sha256="ab" * 32,
    program_sha256="cd" * 32,
    lineage={"commit": "1a2b3c", "vision.producer": "pytorch 2.3"},
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

    def __init__(
        self,
        facts: ServiceFacts = FACTS,
        service: str = "modeldHealth",
        metrics: MetricsFile | None = None,
    ) -> None:
        self.state = LoopState()
        self.clock = ManualClock(7)
        self.transport = MemoryTransport()
        self.bus = self.transport.subscriber(service)
        ends = (self.state, self.transport, self.clock, service)
        self.reporter = HealthReporter(facts, *ends, metrics)

    def event(self, now_s: float, log_lost: int = 0) -> Any:
        self.reporter.report(int(now_s * NS_PER_S), log_lost)
        data = self.bus.receive()
        assert data is not None
        return read_event(data)

    def at(self, now_s: float, log_lost: int = 0) -> Any:
        return content(self.event(now_s, log_lost))


@pytest.fixture
def line() -> Iterator[Line]:
    made = Line()
    yield made
    made.reporter.close()


def faults(health: Any) -> dict[str, tuple[int, int]]:
    return {fault.name: (fault.count, fault.recent) for fault in health.faults}


def test_facts_are_in_the_message_and_nothing_has_happened_yet(line: Line) -> None:
    health = line.at(15.0)
    strings = {
        "kind": "driving",
        "versions.0.name": "modeld",
        "versions.0.version": "1.0",
        "versions.1.name": "python",
        "versions.1.version": "3.11",
        "phase": "starting",
        "model": "driving.pkl",
        "modelSha256": "ab" * 32,
        "programSha256": "cd" * 32,
        "lineage.0.name": "commit",
        "lineage.0.value": "1a2b3c",
        "lineage.1.name": "vision.producer",
        "lineage.1.value": "pytorch 2.3",
        "checkpoints.0.role": "vision",
        "checkpoints.0.name": "big/1",
        "checkpoints.1.role": "policy",
        "checkpoints.1.name": "small/2",
        "device": "a device",
        "driver": "a driver 1.2",
        "selfTest.result": "passed",
        "realtime.0.name": "cpus",
        "realtime.0.wanted": "7",
        "realtime.0.reason": "no CPU 7",
        "fallbackReason": "",
    }
    numbers = {"processId": os.getpid(), "uptime": 10.0, "selfTest.duration": 12.5}
    numbers["publicationAge"] = -1.0
    for name in ("realtime.0.effective", "isFallback", "frames", "published", "publishedValid"):
        numbers[name] = 0
    for name in ("dropped", "frameWait", "runTime", "warmUpRunsLeft"):
        numbers[name] = 0
    check_fields(health, {**strings, **numbers, "invalidReasons": []})
    assert [len(health.versions), len(health.checkpoints), len(health.realtime)] == [2, 2, 1]
    assert faults(health) == dict.fromkeys(Fault, (0, 0))
    assert [sum(stage.counts) for stage in health.stages] == [0, 0, 0, 0]
    # Figures are those of this process.
    assert 1 << 20 < health.memory <= health.memoryPeak
    assert health.threads >= 1
    assert health.openFiles >= 3
    assert health.cpuTime > 0


def test_the_loop_is_in_the_message(line: Line) -> None:
    state = line.state
    state.phase, state.fallback = Phase.RUNNING, "run took longer than 300 ms"
    state.frames, state.published, state.valid, state.dropped = 100, 90, 80, 7
    state.frame_id, state.warm_up_left = 4711, 88
    state.reasons = ("no liveCalibration since 4.0 s", "wide camera lost")
    state.published_ns = 14 * NS_PER_S
    state.awaiting_ns, state.running_ns = 14_500_000_000, 14_750_000_000
    state.count(Fault.NOT_FINITE, 3)
    state.stages.begin(0)
    state.stages.mark("wait", 2 * NS_PER_MS)
    state.stages.mark("inputs", 5_000 * NS_PER_MS)
    health = line.at(15.0, log_lost=4)
    expected = {
        "phase": "running",
        "model": "driving.pkl",
        "isFallback": True,
        "fallbackReason": "run took longer than 300 ms",
        "frames": 100,
        "published": 90,
        "publishedValid": 80,
        "dropped": 7,
        "frameId": 4711,
        "warmUpRunsLeft": 88,
        "publicationAge": 1.0,
        "frameWait": 0.5,
        "runTime": 0.25,
        "stageBounds": list(BOUNDS_MS),
    }
    check_fields(health, expected)
    assert list(health.invalidReasons) == ["no liveCalibration since 4.0 s", "wide camera lost"]
    counts = {name: count for name, (count, _) in faults(health).items() if count}
    assert counts == {"notFinite": 3, "logLost": 4}
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
    assert faults(first)["noFrame"] == (5, 5)
    for second in range(7, 16):
        line.state.published += 20
        line.at(float(second))
    line.state.published += 20
    health = line.at(16.0)
    assert (health.recentTime, health.recentPublished) == (10.0, 200)
    assert faults(health)["noFrame"] == (5, 0)


@pytest.mark.parametrize(("kind", "service"), HEALTH_SERVICES.items())
def test_event_is_valid_stamped_and_of_its_service(kind: str, service: str) -> None:
    assert set(HEALTH_SERVICES.values()) == {"modeldHealth", "dmonitoringmodeldHealth"}
    line = Line(ServiceFacts(kind), service)
    event = line.event(1.0)
    line.reporter.close()
    assert (member_name(event), event.valid, event.logMonoTime) == (service, True, 7)
    assert content(event).kind == kind


def test_temperatures_are_read_with_each_tenth_report(monkeypatch: Patch) -> None:
    warm = Temperature("cpu", 54.5)
    read: list[object] = []
    monkeypatch.setattr(health_module, "find_sensors", lambda: ("sensor",))

    def reading(sensors: object) -> tuple[Temperature, ...]:
        read.append(sensors)
        return (warm,)

    monkeypatch.setattr(health_module, "read_temperatures", reading)
    other = Line(service="dmonitoringmodeldHealth")
    for second in range(21):
        other.at(float(second))
        eventually(lambda: not other.reporter._aside._offered)
        eventually(lambda: len(read) > second // 10)  # noqa: B023 -- asked before the next second
    assert read == [("sensor",)] * 3
    assert other.reporter.report(0).temperatures == (warm,)
    other.reporter.close()


def test_facts_and_loop_may_be_replaced(line: Line) -> None:
    line.at(15.0)
    line.reporter.facts = ServiceFacts("driving", sha256="cd" * 32)
    line.reporter.state = LoopState(model="other.pkl", phase=Phase.WAITING_CAMERA)
    health = line.at(16.0)
    assert (health.modelSha256, health.model) == ("cd" * 32, "other.pkl")
    assert health.phase == "waiting for cameras"


def test_the_service_is_given_up(line: Line) -> None:
    ends = (line.state, line.transport, line.clock, "modeldHealth")
    with pytest.raises(TransportError, match="expected one publisher"):
        HealthReporter(FACTS, *ends)
    line.reporter.close()
    HealthReporter(FACTS, *ends).close()


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
            counts = [health.frames, faults(health)["noFrame"][0], sum(health.stages[2].counts)]
            assert all(new >= old for new, old in zip(counts, last, strict=False))
            last = counts
    finally:
        stop.set()
        thread.join()


@pytest.mark.slow
def test_reports_leave_nothing_behind(tmp_path: Path) -> None:
    """The collector does not run while the daemon drives: nothing may need it."""
    reporter = Line(metrics=MetricsFile(tmp_path / "modeld.prom")).reporter
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


# --- facts of a model that is loaded ----------------------------------------------------------


def test_versions_begin_with_ours() -> None:
    assert list(versions()) == ["modeld", "python", "numpy", "pyopencl"]
    assert all(versions().values())


@pytest.mark.opencl
@pytest.mark.parametrize(
    ("kind", "name", "checkpoints"),
    [
        ("driving", "a", {"vision": "tiny-vision", "policy": "tiny-policy"}),
        ("monitoring", "m", None),
    ],
)
def test_facts_of_a_model(kind: str, name: str, checkpoints: dict[str, str] | None) -> None:
    path = small_artifacts() / f"{name}.pkl"
    artifact = runtime.read_artifact(path)
    with runtime.load_program(artifact) as program:
        digests = (artifact.sha256, program, SelfTestFacts(), artifact.program_sha256)
        facts = facts_of(LoadedModel(path, *digests), started_ns=7)
        assert (facts.device, facts.driver) == (program.stats.device, program.stats.driver)
    assert (facts.kind, facts.model, facts.started_ns) == (kind, str(path), 7)
    assert (len(facts.sha256), facts.sha256) == (64, artifact.sha256)
    assert (len(facts.program_sha256), facts.program_sha256) == (64, artifact.program_sha256)
    assert facts.lineage == artifact.manifest.lineage
    assert facts.checkpoints == (checkpoints or facts.checkpoints)
    assert len(facts.checkpoints) == (2 if checkpoints else 1)
    assert facts.driver
