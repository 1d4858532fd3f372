"""The loop, frame by frame: what the model is given, what is published, and whether it is valid."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cereal.clock import ManualClock
from cereal.frames import Frame, MemoryFrameSource
from cereal.pubsub import PubMaster
from cereal.transport import MemoryTransport
from modeld.daemon import PUBLICATIONS, Daemon, StepResult
from modeld.errors import CameraConfigError
from modeld.service.config import Config
from modeld.state.loop_state import Fault, LoopState, Phase
from modeld.vehicle.inputs import DEMO_CAR
from modeld.vehicle.model_params import CarWatch
from modeld.vehicle.params import Params
from tests.modeld.bench import (
    CAMERAS,
    MS,
    NUDGE,
    START_NS,
    Bench,
    Log,
    Patch,
    car_event,
    car_parameter,
    frame_of,
)
from tests.modeld.fake_program import SMALL, FakeProgram, make_interface


def test_one_frame_gives_three_messages(bench: Bench) -> None:
    assert bench.daemon.step() is None
    assert bench.hear() == {}
    assert bench.program.calls == []
    bench.calibrate()
    result = bench.step(5)
    assert (result.frame_id, result.dropped, result.published, result.valid) == (5, 0, True, True)
    assert set(bench.said) == set(PUBLICATIONS)
    assert bench.valid == [True] * 3
    assert all(event.logMonoTime == START_NS + 50 * MS for event in bench.said.values())
    assert (bench.model.frameId, bench.model.frameIdExtra) == (5, 5)
    assert bench.model.timestampEof == frame_of(5).timestamp_eof_ns
    # The clock stood still while the model ran; the result has the time that it took.
    assert bench.model.modelExecutionTime == 0.0
    assert result.execution_time_s > 0.0
    assert bench.hear() == {}


def test_the_loop_tells_of_itself(bench: Bench) -> None:
    state = bench.daemon.state
    seen: list[int] = []
    bench.program.on_run = lambda: seen.extend((state.running_ns, state.awaiting_ns))
    for frame_id in (5, 6, 8, 9):
        if frame_id == 6:
            bench.calibrate()
        bench.step(frame_id)
    # Frame 7 never came: frame 8 only enters the histories.
    assert (state.frames, state.published, state.valid, state.dropped) == (4, 3, 2, 1)
    assert (state.frame_id, state.warm_up_left) == (9, 97)
    assert all(at_ns > 0 for at_ns in seen)
    assert (state.running_ns, state.awaiting_ns) == (0, 0)
    assert 0 < state.iterated_ns < state.published_ns
    assert state.model == "vision-test, policy-test"
    before_ns = state.iterated_ns
    assert bench.daemon.step() is None
    assert state.iterated_ns > before_ns


def test_published_time_is_that_of_the_clock(bench: Bench) -> None:
    bench.program.on_run = lambda: bench.clock.advance_ns(30 * MS)
    bench.step(5)
    for message in (bench.model, bench.brief):
        assert message.modelExecutionTime == pytest.approx(0.03)


@pytest.mark.parametrize(("gap_ms", "valid"), [(0, True), (24, True), (25, False), (10_000, False)])
def test_frames_of_two_moments_give_invalid_messages(
    bench: Bench, gap_ms: int, valid: bool
) -> None:
    bench.calibrate()
    result = bench.offer(frame_of(2, 0), frame_of(9, gap_ms * MS))
    assert result is not None
    assert (result.published, result.valid) == (True, valid)
    assert bench.valid == [valid] * 3
    # The extra frame's id is that of the wide camera.
    for message in (bench.model, bench.brief):
        assert (message.frameId, message.frameIdExtra) == (2, 9)
    assert bench.said["cameraOdometry"].cameraOdometry.frameId == 2


def test_messages_are_sent_in_the_published_order(bench: Bench, monkeypatch: Patch) -> None:
    order: list[str] = []
    send = PubMaster.send

    def recording(self: PubMaster, service: str, message: Any) -> None:
        order.append(service)
        send(self, service, message)

    monkeypatch.setattr(PubMaster, "send", recording)
    bench.step(0)
    assert order == ["modelV2", "drivingModelData", "cameraOdometry"]


def test_dropped_frame_prepares_and_publishes_nothing(bench: Bench, caplog: Log) -> None:
    bench.calibrate()
    bench.step(0)
    assert bench.step(2) == StepResult(2, 1, False, False, 0.0)
    assert bench.said == {}
    assert "frames dropped: 1, before frame 2; model not run" in caplog.messages
    assert bench.step(3).published
    assert [entry for entry, _ in bench.program.calls] == ["run", "prepare", "run"]


def test_frame_age_is_how_far_the_camera_is_ahead_and_the_side_is_the_drivers(bench: Bench) -> None:
    for frame_id, announced, age in ((4, 7, 3), (5, 5, 0), (6, 2, 0)):
        bench.send("roadCameraState", frameId=announced)
        bench.step(frame_id)
        assert bench.model.frameAge == age
        assert bench.inputs["traffic_convention"].tolist() == [[1, 0]]
    bench.send("driverMonitoringState", isRHD=True)
    bench.step(7)
    assert bench.inputs["traffic_convention"].tolist() == [[0, 1]]


def change_lanes(bench: Bench, frame_ids: range, blinks: int, **more: Any) -> list[list[int]]:
    """Steer, and blink to the left from a frame on; the desires that the model is given."""
    bench.program.policy[0, 990 + 3] = 10.0
    bench.send("carControl", latActive=True)
    desires = []
    for frame_id in frame_ids:
        bench.send("carState", leftBlinker=frame_id >= blinks, **NUDGE, **more)
        bench.step(frame_id)
        desires.append(np.flatnonzero(bench.inputs["desire"]).tolist())
    return desires


def test_lane_change_reaches_the_model_one_frame_later_as_a_pulse(bench: Bench) -> None:
    states = []
    step = bench.step

    def noting(frame_id: int) -> StepResult:
        result = step(frame_id)
        states.append(str(bench.model.meta.laneChangeState))
        assert str(bench.brief.meta.laneChangeState) == states[-1]
        return result

    bench.step = noting  # type: ignore[method-assign]  # the states of each frame are noted
    assert change_lanes(bench, range(6), 1) == [[], [], [], [3], [], []]
    assert states == ["off", "preLaneChange", *["laneChangeStarting"] * 4]


@pytest.mark.parametrize(("logit", "state"), [(10.0, "STARTING"), (-10.0, "OFF")])
def test_lane_change_ends_when_the_model_says_so(bench: Bench, logit: float, state: str) -> None:
    change_lanes(bench, range(2), 1)
    # Left and right lane change together are all of the desire state, or next to nothing.
    bench.program.policy[0, 990 + 3 : 990 + 5] = logit
    bench.step(2)
    # Ten frames to fade out, twenty to come back.
    for frame_id in range(3, 33):
        bench.send("carState", leftBlinker=False, **NUDGE)
        bench.send("carControl", latActive=True)
        bench.step(frame_id)
    assert bench.daemon.lane_change.state.name == state


def test_a_desire_that_lasts_is_sent_again_after_a_reset(bench: Bench) -> None:
    def fail_once() -> None:
        bench.program.vision[0, 0] = np.nan if len(bench.program.calls) == 4 else 0.0

    bench.program.on_run = fail_once
    # The pulse of frame 3 is wiped by the reset that its own outputs cause.
    assert change_lanes(bench, range(6), 1) == [[], [], [], [3], [3], []]
    assert bench.program.resets == 1


def test_a_desire_that_rises_on_a_dropped_frame_is_not_lost(bench: Bench) -> None:
    change_lanes(bench, range(3), 1)
    # The machine has begun at frame 2, so the pulse is due with the next one, which follows a gap.
    bench.step(4)
    entry, inputs = bench.program.calls[-1]
    assert (entry, np.flatnonzero(inputs["desire"]).tolist()) == ("prepare", [3])
    bench.step(5)
    assert not bench.inputs["desire"].any()


def test_configured_time_constants_are_those_of_the_action() -> None:
    bench = Bench(lat_smooth_s=0.0, long_smooth_s=0.5)
    # Constant yaw rate 0.2 rad/s at 10 m/s: curvature 0.02 whatever the delay.
    times = np.arange(33) ** 2 / 1024 * 10
    plan = np.zeros((33, 15), np.float32)
    plan[:, 3] = 10 + 0.5 * times**2
    plan[:, 11], plan[:, 14] = 0.2 * times, 0.2
    bench.program.policy[0, :495] = plan.reshape(-1)
    bench.send("carState", vEgo=10.0)
    bench.step(0)
    assert bench.model.action.desiredCurvature == pytest.approx(0.02, rel=1e-4)
    # Speed gained after the actuator's 0.5 s, the filter and 0.05 s, read from the plan, gives
    # 2 dv / t, smoothed.
    ahead_s = 0.5 + 0.5 + 0.05
    gained = np.interp(ahead_s, times, plan[:, 3]) - 10
    expected = 2 * gained / ahead_s * (1 - np.exp(-0.05 / 0.5))
    assert bench.model.action.desiredAcceleration == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_outputs_are_published_as_invalid_and_finite(
    bench: Bench, bad: float, caplog: Log
) -> None:
    bench.calibrate()
    bench.program.vision[0, 87:93] = 4.0
    bench.step(0)
    bench.program.vision[0, 87], bench.program.policy[0, 999] = 6.0, bad
    result = bench.step(1)
    assert (result.published, result.valid) == (True, False)
    assert bench.valid == [False] * 3
    assert bench.daemon.state.reasons == ("outputs not finite",)
    assert list(bench.said["cameraOdometry"].cameraOdometry.trans) == [4.0, 4.0, 4.0]
    assert "not finite" in caplog.text
    assert bench.program.resets == 1
    bench.program.policy[0, 999] = 1.0
    assert bench.step(2).valid


@pytest.mark.parametrize("wanted", [False, True])
def test_raw_predictions_on_request(wanted: bool) -> None:
    bench = Bench(send_raw_predictions=wanted)
    bench.program.vision[0, 0], bench.program.policy[0, 0] = 1.5, 2.5
    bench.step(0)
    raw = np.frombuffer(bench.model.rawPredictions, np.float32)
    assert raw.size == (2576 if wanted else 0)
    assert not wanted or (raw[0], raw[1576]) == (1.5, 2.5)


def test_wide_camera_alone_is_the_main_one_and_no_camera_is_rejected() -> None:
    wide, program, clock = MemoryFrameSource(SMALL), FakeProgram(), ManualClock()
    config = Config(cameras=CAMERAS)
    with pytest.raises(CameraConfigError, match="expected a road or a wide camera"):
        Daemon(config, program, MemoryTransport(), clock, None, None)
    daemon = Daemon(config, program, MemoryTransport(), clock, None, wide)
    daemon.calibration.update([0.0, 0.0, 0.0], "", "")
    wide.push(frame_of(1))
    assert daemon.step() is not None
    assert program.calls[-1][1]["road_transform"][0, 0] == pytest.approx(45 / 910)


def test_run_forever_ends_when_stopped(bench: Bench) -> None:
    stop = threading.Event()
    for frame_id in range(3):
        bench.road.push(frame_of(frame_id))
        bench.wide.push(frame_of(frame_id))
    bench.program.on_run = lambda: stop.set() if len(bench.program.calls) == 3 else None
    assert bench.daemon.state.phase is LoopState().phase
    bench.daemon.run_forever(stop)
    assert len(bench.program.calls) == 3
    assert bench.daemon.state.phase is Phase.RUNNING


class Ending(MemoryFrameSource):
    """A camera without frames; with the last of so many waits the loop is told to end."""

    def __init__(self, waits: int, stop: threading.Event) -> None:
        super().__init__(SMALL)
        self.waits, self.stop = waits, stop

    def receive(self, timeout_ms: int) -> Frame | None:
        del timeout_ms
        self.waits -= 1
        if not self.waits:
            self.stop.set()
        return None


@pytest.mark.parametrize("waits", [1, 3])
def test_a_wait_that_ends_with_the_loop_misses_no_frame(waits: int, caplog: Log) -> None:
    stop, clock = threading.Event(), ManualClock(START_NS)
    ends = (MemoryTransport(), clock, Ending(waits, stop), None)
    daemon = Daemon(Config(cameras=CAMERAS), FakeProgram(), *ends)
    daemon.run_forever(stop)
    assert daemon.state.faults.get(Fault.NO_FRAME, 0) == waits - 1
    assert ("no frame from the road camera" in caplog.text) == (waits > 1)


def test_two_runs_publish_the_same_bytes() -> None:
    program = FakeProgram()

    def record() -> list[bytes | None]:
        bench = Bench(program)
        bench.calibrate()
        data = []
        for frame_id in range(5):
            bench.road.push(frame_of(frame_id))
            bench.wide.push(frame_of(frame_id))
            bench.daemon.step()
            data += [subscriber.receive(0) for subscriber in bench.received.values()]
        assert None not in data
        return data

    program.policy[0, :990] = np.random.default_rng(5).normal(size=990)
    assert record() == record()


@pytest.mark.parametrize(
    ("stack", "expected"),
    [
        ("sunnypilot", [0.0] * 60 + [0.25] * 60 + [0.5] * 10),
        ("openpilot-2025", [0.0] + [0.25] * 129),
    ],
)
def test_delay_of_sunnypilot_is_read_each_60_frames_and_may_be_the_users(
    tmp_path: Path, stack: str, expected: list[float]
) -> None:
    program = FakeProgram(make_interface(host_inputs=("traffic_convention", "action_t")))
    bench = Bench(program, stack=stack, params_dir=tmp_path)
    found = []
    for frame_id in range(130):
        if frame_id == 1:
            bench.send("liveDelay", lateralDelay=0.25)
        if frame_id == 70:
            (tmp_path / "LagdValueCache").write_bytes(b"0.5")
            (tmp_path / "LagdToggle").write_bytes(b"1")
        bench.step(frame_id)
        found.append(float(bench.inputs["action_t"][0, 0]))
    assert [value - found[0] for value in found] == pytest.approx(expected)


def test_the_next_drives_car_gives_the_delays_from_then_on(tmp_path: Path) -> None:
    program = FakeProgram(make_interface(host_inputs=("traffic_convention", "action_t")))
    bench = Bench(program)
    bench.daemon.car_watch = CarWatch(Params(tmp_path))
    found = []
    for frame_id in range(70):
        if frame_id == 1:
            (tmp_path / "CarParams").write_bytes(car_parameter(car_event("B CAR", 1.5)))
        bench.step(frame_id)
        found.append(float(bench.inputs["action_t"][0, 1]))
    more_s = 1.5 - DEMO_CAR.longitudinal_actuator_delay_s
    assert [value - found[0] for value in found] == pytest.approx([0.0] * 60 + [more_s] * 10)
    assert bench.daemon.car.name == "B CAR"
