"""What is looked at beside the loop: the road, rings, open files; limits that were decided."""

import importlib
import resource

import pytest

from cereal.cameras import RingCameras
from cereal.schema import new_event
from modeld.errors import ModeldError
from modeld.health.side_reports import CameraReport, RoadState
from modeld.startup import check_open_files
from modeld.state.loop_state import LoopState, Phase
from tests.modeld.bench import Car, Log, Patch

NS_PER_S = 1_000_000_000


def test_a_car_is_on_the_road_until_it_says_otherwise_or_falls_silent() -> None:
    car = Car()
    road = RoadState(car.transport)
    wrong = new_event("carState", mono_time_ns=1).to_bytes()
    for seconds, said, started in (
        (1.0, None, False),
        (2.0, True, True),
        (3.0, None, True),
        # What cannot be read is as if it had not come.
        (4.0, b"garbage!", True),
        (5.0, wrong, True),
        (12.0, None, True),
        (12.000000001, None, False),
        (13.0, True, True),
        (14.0, False, False),
    ):
        if isinstance(said, bytes):
            car.bus.send("deviceState", said)
        elif said is not None:
            car.send("deviceState", started=said)
        road(round(seconds * NS_PER_S))
        assert road.started is started, seconds


def test_rings_that_cannot_be_read_are_said_when_that_changes(
    caplog: Log,
) -> None:
    found: dict[str, str] = {}

    class Refused(RingCameras):
        def unusable_streams(self) -> dict[str, str]:
            return found

    state = LoopState()
    report = CameraReport(Refused("cams"), ("road", "wideRoad"), state)

    def look() -> list[str]:
        report(0)
        said = list(caplog.messages)
        caplog.clear()
        return said

    refused = "cameras cannot be read: road is another's"
    # A ring that is not read concerns nobody.
    found["driver"] = "driver is another's"
    found["road"] = "road is another's"
    assert look() == []  # the wait for cameras says it
    state.phase = Phase.RUNNING
    assert look() == [refused]
    assert look() == []
    state.valid += 1
    assert look() == []
    found["wideRoad"] = "wide too"
    assert look() == [f"{refused}; wide too"]
    del found["road"], found["wideRoad"]
    assert look() == ["cameras can be read again"]
    # While valid messages go out, nobody looks.
    found["road"] = "road is another's"
    state.valid += 1
    assert look() == []
    assert look() == [refused]


@pytest.mark.parametrize(
    ("limit", "enough"), [(0, False), (63, False), (64, True), (resource.RLIM_INFINITY, True)]
)
def test_too_few_open_files_are_refused(limit: int, enough: bool, monkeypatch: Patch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (limit, limit))
    if enough:
        check_open_files()
    else:
        with pytest.raises(ModeldError, match=f"at least 64, found {limit}; raise"):
            check_open_files()


# Limits that other tests take from the code: whoever changes one changes it here, too.
@pytest.mark.parametrize(
    ("module", "name", "value"),
    [
        ("modeld.service.config", "LONGEST_WAIT_MS", 800),
        ("modeld.frames.frame_judge", "FROZEN_FRAMES", 20),
        ("modeld.frames.frame_judge", "MOVING_MPS", 1.0),
        ("modeld.frames.frame_judge", "SAMPLES", 256),
        ("modeld.frames.frame_sync", "EXTRA_WAIT_MS", 100),
        ("modeld.frames.frame_sync", "LOST_AFTER_MS", 300),
        ("modeld.frames.frame_sync", "RETURN_PAIRS", 4),
        ("modeld.frames.frame_sync", "RETURN_WAIT_MS", 40),
        ("modeld.health.reporter", "_SENSOR_REPORTS", 10),
        ("modeld.model.load_models", "SELF_TEST_RUNS", 3),
        ("modeld.service.log_format", "MAX_FRAMES", 6),
        ("modeld.service.log_format", "MAX_MESSAGE", 3000),
        ("modeld.service.log_format", "MAX_KINDS", 512),
        ("modeld.service.log_format", "MOST", 10),
        ("modeld.service.log_format", "PERIOD_NS", 10 * NS_PER_S),
        ("modeld.store.model_store", "LOCK_WAIT_S", 30.0),
        ("modeld.service.notify", "READY_WAIT_S", 2.0),
        ("modeld.vehicle.params", "LIMIT_BYTES", 1 << 20),
        ("tools.service.running_models", "ANSWER_S", 1.6),
        ("modeld.process", "BUILD_S", 60.0),
        ("modeld.health.snapshot", "MOST_TEMPERATURES", 16),
        ("modeld.service.realtime", "STACK_BYTES", 256 << 10),
        ("modeld.service.realtime", "SWITCH_INTERVAL_S", 0.0005),
        ("modeld.service.service_log", "CAPACITY", 1024),
        ("modeld.service.service_log", "CHUNK_BYTES", 4096),
        ("modeld.service.service_log", "CLOSE_S", 1.0),
        ("modeld.service.service_log", "RESERVED", 256),
        ("modeld.startup", "POLL_S", 0.1),
        ("modeld.supervisor", "IDLE_TICK_S", 0.1),
        ("modeld.supervisor", "JOIN_S", 3.0),
        ("modeld.supervisor", "LONGEST_PATIENCE_NS", 3 * NS_PER_S // 2),
        ("modeld.supervisor", "PARKED_NS", 5 * NS_PER_S),
        ("modeld.supervisor", "PROGRESS_NS", NS_PER_S),
        ("modeld.supervisor", "TICK_S", 0.025),
        ("modeld.frames.frame_log", "MAX_RECEIVES", 60),
    ],
)
def test_limits_are_those_that_were_decided(module: str, name: str, value: float) -> None:
    assert getattr(importlib.import_module(module), name) == value
