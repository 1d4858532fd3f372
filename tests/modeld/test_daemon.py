import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cereal.clock import ManualClock
from cereal.frames import Frame, FrameFormat, MemoryFrameSource
from cereal.pubsub import PubMaster
from cereal.schema import read_event
from cereal.transport import MemoryTransport, Subscriber
from modeld.calibration import Camera, DeviceCameras
from modeld.config import Config
from modeld.daemon import PUBLICATIONS, Daemon, StepResult
from modeld.errors import CameraConfigError
from modeld.inputs import SUBSCRIPTIONS
from tests.modeld.fake_program import FakeProgram, make_interface

FrameOf = Callable[..., Frame]
START_NS = 1_000_000_000
CAMERAS = DeviceCameras(Camera(64, 32, 90.0), Camera(64, 32, 45.0))


class Bench:
    """A daemon with a scripted program, both cameras, and the rest of the car on the same bus."""

    def __init__(
        self, program: FakeProgram, frame_of: FrameOf, config: Config, *, wide: bool = True
    ) -> None:
        self.program = program
        self.frame_of = frame_of
        self.clock = ManualClock(START_NS)
        self.transport = MemoryTransport()
        self.received: dict[str, Subscriber] = {
            name: self.transport.subscriber(name) for name in PUBLICATIONS
        }
        self.car = PubMaster(SUBSCRIPTIONS, self.transport, self.clock)
        form = frame_of(0).format
        self.road = MemoryFrameSource(form)
        self.wide = MemoryFrameSource(form) if wide else None
        self.daemon = Daemon(config, program, self.transport, self.clock, self.road, self.wide)

    def send(self, service: str, **values: Any) -> None:
        event = self.car.new(service)
        event.valid = True
        for name, value in values.items():
            setattr(getattr(event, service), name, value)
        self.car.send(service, event)

    def calibrate(self) -> None:
        self.send("liveCalibration", rpyCalib=[0.0, 0.0, 0.0])

    def step(self, frame_id: int) -> StepResult | None:
        self.clock.advance_ns(50_000_000)
        self.road.push(self.frame_of(frame_id))
        if self.wide is not None:
            self.wide.push(self.frame_of(frame_id))
        return self.daemon.step()

    def messages(self) -> dict[str, Any] | None:
        """The messages of one frame; None if there are none."""
        data = {name: subscriber.receive(0) for name, subscriber in self.received.items()}
        if all(value is None for value in data.values()):
            return None
        return {name: read_event(value) for name, value in data.items() if value is not None}

    def inputs(self) -> dict[str, np.ndarray]:
        return self.program.calls[-1][1]


@pytest.fixture
def bench(small_program: FakeProgram, frame_of: FrameOf) -> Bench:
    return Bench(small_program, frame_of, Config(cameras=CAMERAS))


def test_step_without_frames_does_nothing(bench: Bench) -> None:
    assert bench.daemon.step() is None
    assert bench.messages() is None
    assert bench.program.calls == []


def test_one_frame_gives_three_messages(bench: Bench) -> None:
    bench.calibrate()
    result = bench.step(5)
    assert result is not None
    assert (result.frame_id, result.dropped, result.published, result.valid) == (5, 0, True, True)
    messages = bench.messages()
    assert messages is not None
    assert set(messages) == set(PUBLICATIONS)
    assert all(event.valid for event in messages.values())
    assert all(event.logMonoTime == START_NS + 50_000_000 for event in messages.values())
    model = messages["modelV2"].modelV2
    assert (model.frameId, model.frameIdExtra) == (5, 5)
    assert model.timestampEof == bench.frame_of(5).timestamp_eof_ns
    # The clock stood still while the model ran; the result has the time that it took.
    assert model.modelExecutionTime == 0.0
    assert result.execution_time_s > 0.0
    assert bench.messages() is None


def test_published_time_is_that_of_the_clock(bench: Bench) -> None:
    bench.program.on_run = lambda: bench.clock.advance_ns(30_000_000)
    bench.step(5)
    messages = bench.messages()
    assert messages is not None
    for name in ("modelV2", "drivingModelData"):
        assert getattr(messages[name], name).modelExecutionTime == pytest.approx(0.03)


def test_extra_frame_id_is_that_of_the_wide_camera(bench: Bench) -> None:
    assert bench.wide is not None
    bench.wide.push(bench.frame_of(9, 0))
    bench.road.push(bench.frame_of(2, 0))
    bench.daemon.step()
    messages = bench.messages()
    assert messages is not None
    for name in ("modelV2", "drivingModelData"):
        message = getattr(messages[name], name)
        assert (message.frameId, message.frameIdExtra) == (2, 9)
    assert messages["cameraOdometry"].cameraOdometry.frameId == 2


@pytest.mark.parametrize(("gap_ms", "valid"), [(24, True), (25, False), (10_000, False)])
def test_frames_of_two_moments_give_invalid_messages(
    bench: Bench, gap_ms: int, valid: bool
) -> None:
    bench.calibrate()
    assert bench.wide is not None
    bench.wide.push(bench.frame_of(3, gap_ms * 1_000_000))
    bench.road.push(bench.frame_of(2, 0))
    result = bench.daemon.step()
    assert result is not None
    assert (result.published, result.valid) == (True, valid)
    messages = bench.messages()
    assert messages is not None
    assert all(event.valid is valid for event in messages.values())


def test_messages_are_sent_in_the_published_order(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    send = PubMaster.send

    def recording(self: PubMaster, service: str, message: Any) -> None:
        order.append(service)
        send(self, service, message)

    monkeypatch.setattr(PubMaster, "send", recording)
    bench.step(0)
    assert order == ["modelV2", "drivingModelData", "cameraOdometry"]


def test_everything_is_invalid_and_transforms_zero_until_calibrated(bench: Bench) -> None:
    result = bench.step(0)
    assert result is not None
    assert (result.published, result.valid) == (True, False)
    messages = bench.messages()
    assert messages is not None
    assert not any(event.valid for event in messages.values())
    assert not bench.inputs()["road_transform"].any()
    bench.calibrate()
    bench.step(1)
    assert bench.inputs()["road_transform"][0, 0] == pytest.approx(90 / 910)
    assert bench.inputs()["wide_transform"][0, 0] == pytest.approx(45 / 455)
    messages = bench.messages()
    assert messages is not None
    assert all(event.valid for event in messages.values())
    # Nothing new on the bus: the calibration stays.
    last = bench.step(2)
    assert last is not None
    assert last.valid


def test_device_cameras_need_device_and_sensor_first(
    make_tici: "Callable[[Config], Bench]",
) -> None:
    bench = make_tici(Config())
    valid = []
    bench.calibrate()
    valid.append(bench.step(0))
    bench.send("deviceState", deviceType="tici")
    bench.send("roadCameraState", sensor="ox03c10", frameId=1)
    # The calibration that came too early is not remembered, the next one is used.
    valid.append(bench.step(1))
    bench.calibrate()
    valid.append(bench.step(2))
    assert [result is not None and result.valid for result in valid] == [False, False, True]
    assert bench.inputs()["road_transform"][0, 0] == pytest.approx(2648 / 910)
    assert bench.inputs()["wide_transform"][0, 0] == pytest.approx(567 / 455)


@pytest.fixture
def make_tici(tici_format: FrameFormat, tici_program: FakeProgram) -> "Callable[[Config], Bench]":
    data = np.zeros(tici_format.size, np.uint8)

    def frame_of(frame_id: int) -> Frame:
        return Frame(data, tici_format, frame_id, frame_id * 50_000_000, frame_id * 50_000_000)

    return lambda config: Bench(tici_program, frame_of, config)


def test_dropped_frame_prepares_and_publishes_nothing(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.calibrate()
    bench.step(0)
    bench.messages()
    with caplog.at_level(logging.ERROR):
        result = bench.step(2)
    assert result == StepResult(2, 1, False, False, 0.0)
    assert bench.messages() is None
    assert "frames dropped: 1, before frame 2; model not run" in caplog.messages
    after = bench.step(3)
    assert after is not None
    assert after.published
    assert [entry for entry, _ in bench.program.calls] == [
        "run",
        "prepare",
        "run",
    ]


def test_dropped_frame_is_run_where_the_model_says_so(
    small_format: FrameFormat, frame_of: FrameOf, caplog: pytest.LogCaptureFixture
) -> None:
    program = FakeProgram(make_interface(drop_policy="run"), small_format.size)
    bench = Bench(program, frame_of, Config(cameras=CAMERAS))
    bench.calibrate()
    bench.step(0)
    bench.messages()
    bench.step(2)
    messages = bench.messages()
    assert messages is not None
    assert messages["modelV2"].valid
    assert not messages["cameraOdometry"].valid
    assert "frames dropped: 1, before frame 2" in caplog.messages


def test_drop_percentage_is_published(bench: Bench) -> None:
    for frame_id in [*range(10), 11]:
        bench.step(frame_id)
        bench.messages()
    bench.step(12)
    messages = bench.messages()
    assert messages is not None
    alpha = 0.05 / 10.05
    left = alpha * (1 - alpha)
    expected = 100 * left / (1 + left)
    assert messages["modelV2"].modelV2.frameDropPerc == pytest.approx(expected, rel=1e-5)
    assert messages["drivingModelData"].drivingModelData.frameDropPerc == pytest.approx(
        expected, rel=1e-5
    )


def test_frame_age_is_how_far_the_camera_is_ahead(bench: Bench) -> None:
    ages = []
    for frame_id, announced in ((4, 7), (5, 5), (6, 2)):
        bench.send("roadCameraState", frameId=announced)
        bench.step(frame_id)
        messages = bench.messages()
        assert messages is not None
        ages.append(messages["modelV2"].modelV2.frameAge)
    assert ages == [3, 0, 0]


def test_right_hand_drive_reaches_the_model(bench: Bench) -> None:
    bench.step(0)
    assert bench.inputs()["traffic_convention"].tolist() == [[1, 0]]
    bench.send("driverMonitoringState", isRHD=True)
    bench.step(1)
    assert bench.inputs()["traffic_convention"].tolist() == [[0, 1]]


def test_lane_change_reaches_the_model_one_frame_later_as_a_pulse(bench: Bench) -> None:
    desires, states = [], []
    bench.program.policy[0, 990 + 3] = 10.0
    bench.send("carControl", latActive=True)
    for frame_id in range(6):
        bench.send(
            "carState",
            vEgo=20.0,
            leftBlinker=frame_id >= 1,
            steeringPressed=frame_id >= 2,
            steeringTorque=1.0,
        )
        bench.step(frame_id)
        desires.append(np.flatnonzero(bench.inputs()["desire"]).tolist())
        messages = bench.messages()
        assert messages is not None
        states.append(str(messages["modelV2"].modelV2.meta.laneChangeState))
        brief = messages["drivingModelData"].drivingModelData.meta
        assert str(brief.laneChangeState) == states[-1]
    assert states == ["off", "preLaneChange", *["laneChangeStarting"] * 4]
    assert desires == [[], [], [], [3], [], []]


@pytest.mark.parametrize(("logit", "state"), [(10.0, "STARTING"), (-10.0, "OFF")])
def test_lane_change_ends_when_the_model_says_so(bench: Bench, logit: float, state: str) -> None:
    # Left and right lane change together are all of the desire state, or next to nothing.
    bench.program.policy[0, 990 + 3 : 990 + 5] = logit
    bench.send("carControl", latActive=True)
    driver = {"vEgo": 20.0, "steeringPressed": True, "steeringTorque": 1.0}
    for frame_id in range(2):
        bench.send("carState", leftBlinker=frame_id == 1, **driver)
        bench.step(frame_id)
    bench.step(2)
    # Ten frames to fade out, twenty to come back.
    states = []
    for frame_id in range(3, 33):
        bench.send("carState", leftBlinker=False, **driver)
        bench.send("carControl", latActive=True)
        bench.step(frame_id)
        states.append(bench.daemon.lane_change.state.name)
    assert states[-1] == state


def test_action_uses_the_delays_of_car_and_steering(bench: Bench) -> None:
    # Constant yaw rate 0.2 rad/s at 10 m/s: curvature 0.02 whatever the delay, smoothed once.
    times = np.arange(33) ** 2 / 1024 * 10
    plan = np.zeros((33, 15), np.float32)
    plan[:, 3] = 10 + 0.5 * times**2
    plan[:, 11], plan[:, 14] = 0.2 * times, 0.2
    bench.program.policy[0, :495] = plan.reshape(-1)
    bench.send("carState", vEgo=10.0)
    bench.step(0)
    messages = bench.messages()
    assert messages is not None
    action = messages["modelV2"].modelV2.action
    assert action.desiredCurvature == pytest.approx(0.02 * (1 - np.exp(-0.5)), rel=1e-4)
    # Speed gained at 0.5 + 0.3 + 0.05 s, read from the plan, gives 2 dv / t, smoothed over 0.3 s.
    gained = np.interp(0.85, times, plan[:, 3]) - 10
    expected = 2 * gained / 0.85 * (1 - np.exp(-0.05 / 0.3))
    assert action.desiredAcceleration == pytest.approx(expected, rel=1e-4)


def test_non_finite_outputs_are_published_as_invalid_and_finite(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.calibrate()
    bench.program.vision[0, 87:93] = 4.0
    bench.step(0)
    bench.messages()
    bench.program.vision[0, 87] = np.nan
    with caplog.at_level(logging.ERROR):
        result = bench.step(1)
    assert result is not None
    assert (result.published, result.valid) == (True, False)
    messages = bench.messages()
    assert messages is not None
    assert not any(event.valid for event in messages.values())
    assert list(messages["cameraOdometry"].cameraOdometry.trans) == [4.0, 4.0, 4.0]
    assert "not finite" in caplog.text
    bench.program.vision[0, 87] = 1.0
    result = bench.step(2)
    assert result is not None
    assert result.valid


def test_a_desire_that_lasts_is_sent_again_after_a_reset(bench: Bench) -> None:
    bench.program.policy[0, 990 + 3] = 10.0
    bench.send("carControl", latActive=True)
    desires = []
    for frame_id in range(6):
        driver = {"vEgo": 20.0, "steeringPressed": True, "steeringTorque": 1.0}
        bench.send("carState", leftBlinker=frame_id >= 1, **driver)
        bench.program.vision[0, 0] = np.nan if frame_id == 3 else 0.0
        bench.step(frame_id)
        desires.append(np.flatnonzero(bench.inputs()["desire"]).tolist())
    # The pulse of frame 3 is wiped by the reset that its own outputs cause.
    assert desires == [[], [], [], [3], [3], []]
    assert bench.program.resets == 1


def test_frame_overwritten_during_the_run_is_invalid(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench.calibrate()

    def lap() -> None:
        monkeypatch.setattr(bench.road, "is_intact", lambda: False)

    bench.program.on_run = lap
    with caplog.at_level(logging.ERROR):
        result = bench.step(0)
    assert result is not None
    assert (result.published, result.valid) == (True, False)
    assert "overwritten" in caplog.text


@pytest.mark.parametrize("wanted", [False, True])
def test_raw_predictions_on_request(
    small_program: FakeProgram, frame_of: FrameOf, wanted: bool
) -> None:
    small_program.vision[0, 0], small_program.policy[0, 0] = 1.5, 2.5
    bench = Bench(small_program, frame_of, Config(cameras=CAMERAS, send_raw_predictions=wanted))
    bench.step(0)
    messages = bench.messages()
    assert messages is not None
    raw = np.frombuffer(messages["modelV2"].modelV2.rawPredictions, np.float32)
    assert raw.size == (2576 if wanted else 0)
    if wanted:
        assert (raw[0], raw[1576]) == (1.5, 2.5)


def test_single_camera_feeds_both_views(small_program: FakeProgram, frame_of: FrameOf) -> None:
    bench = Bench(
        small_program,
        frame_of,
        Config(cameras=DeviceCameras(Camera(64, 32, 90.0), None)),
        wide=False,
    )
    bench.calibrate()
    result = bench.step(3)
    assert result is not None
    assert result.valid
    inputs = bench.inputs()
    assert (inputs["road_frame"][0], inputs["wide_frame"][0]) == (3, 3)
    assert inputs["wide_transform"][0, 0] == pytest.approx(90 / 455)
    messages = bench.messages()
    assert messages is not None
    assert messages["modelV2"].modelV2.frameIdExtra == 3


def test_wide_camera_alone_is_the_main_one(
    small_program: FakeProgram, small_format: FrameFormat, frame_of: FrameOf
) -> None:
    wide = MemoryFrameSource(small_format)
    transport, clock = MemoryTransport(), ManualClock()
    daemon = Daemon(Config(cameras=CAMERAS), small_program, transport, clock, None, wide)
    daemon.calibration.update([0.0, 0.0, 0.0], "", "")
    wide.push(frame_of(1))
    assert daemon.step() is not None
    assert small_program.calls[-1][1]["road_transform"][0, 0] == pytest.approx(45 / 910)


def test_no_camera_is_rejected(small_program: FakeProgram) -> None:
    transport, clock = MemoryTransport(), ManualClock()
    with pytest.raises(CameraConfigError, match="expected a road or a wide camera"):
        Daemon(Config(), small_program, transport, clock, None, None)


def test_run_forever_ends_when_stopped(bench: Bench) -> None:
    stop = threading.Event()
    for frame_id in range(3):
        bench.road.push(bench.frame_of(frame_id))
        assert bench.wide is not None
        bench.wide.push(bench.frame_of(frame_id))

    def stop_at_third() -> None:
        if len(bench.program.calls) == 3:
            stop.set()

    bench.program.on_run = stop_at_third
    bench.daemon.run_forever(stop)
    assert len(bench.program.calls) == 3


def test_two_runs_publish_the_same_bytes(small_program: FakeProgram, frame_of: FrameOf) -> None:
    def record() -> list[bytes]:
        bench = Bench(small_program, frame_of, Config(cameras=CAMERAS))
        bench.calibrate()
        data = []
        for frame_id in range(5):
            bench.step(frame_id)
            for subscriber in bench.received.values():
                message = subscriber.receive(0)
                assert message is not None
                data.append(message)
        return data

    small_program.policy[0, :990] = np.random.default_rng(5).normal(size=990)
    assert record() == record()


def test_delay_of_sunnypilot_is_read_each_60_frames_and_may_be_the_users(
    small_format: FrameFormat, frame_of: FrameOf, tmp_path: Path
) -> None:
    def delays(stack: str) -> list[float]:
        interface = make_interface(host_inputs=("traffic_convention", "action_t"))
        program = FakeProgram(interface, small_format.size)
        config = Config(cameras=CAMERAS, stack=stack, params_dir=tmp_path)
        bench = Bench(program, frame_of, config)
        found = []
        for frame_id in range(130):
            if frame_id == 1:
                bench.send("liveDelay", lateralDelay=0.25)
            if frame_id == 70:
                (tmp_path / "LagdValueCache").write_bytes(b"0.5")
                (tmp_path / "LagdToggle").write_bytes(b"1")
            bench.step(frame_id)
            found.append(float(bench.inputs()["action_t"][0, 0]))
        return [value - found[0] for value in found]

    assert delays("sunnypilot") == pytest.approx([0.0] * 60 + [0.25] * 60 + [0.5] * 10)
    assert delays("openpilot-2025") == pytest.approx([0.0] + [0.25] * 129)
