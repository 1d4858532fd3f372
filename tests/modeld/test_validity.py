"""What makes messages not valid, and how it is said; the daemon on a clock set by hand."""

import logging
import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cereal.frames import Frame, FrameFormat, nv12_format
from cereal.schema import new_event
from modeld.calibration import Camera, DeviceCameras
from modeld.config import Config
from modeld.inputs import SUBSCRIPTIONS, read_car_parameters
from modeld.loop_state import Fault, LoopState
from modeld.validity import INPUTS, Reason, ValidityLog
from tests.modeld.fake_program import FakeProgram, make_interface
from tests.modeld.test_daemon import CAMERAS, Bench

FrameOf = Callable[..., Frame]
MS = 1_000_000
PAGE = Path(__file__).parents[2] / "docs/inputs.md"


@pytest.fixture
def bench(small_program: FakeProgram, frame_of: FrameOf) -> Bench:
    return Bench(small_program, frame_of, Config(cameras=CAMERAS))


def told(state: LoopState) -> list[str]:
    return list(state.reasons)


def run(bench: Bench, first: int, count: int) -> list[tuple[str, ...]]:
    """Reasons of each frame; what is published says the same."""
    found = []
    for frame_id in range(first, first + count):
        result = bench.step(frame_id)
        assert result is not None
        messages = bench.messages()
        reasons = bench.daemon.state.reasons
        assert messages is not None
        assert [event.valid for event in messages.values()] == [not reasons] * 3
        assert result.valid is (not reasons)
        found.append(reasons)
    return found


def test_a_calibration_that_is_gone_makes_messages_not_valid(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    assert run(bench, 0, 1) == [("no liveCalibration yet",)]
    bench.calibrate()
    # Ten periods of 4 Hz; the calibration is taken with the first of these frames.
    found = run(bench, 1, 81)
    assert found[:50] == [()] * 50
    assert (found[50], found[80]) == (
        ("no liveCalibration since 2.5 s",),
        ("no liveCalibration since 4.0 s",),
    )
    # The last matrices stay in use.
    assert bench.inputs()["road_transform"][0, 0] == pytest.approx(90 / 910)
    bench.calibrate()
    assert run(bench, 82, 25) == [()] * 25
    assert caplog.messages == [
        "not valid: no liveCalibration yet",
        "valid again after 0.1 s",
        "not valid: no liveCalibration since 2.5 s",
        "valid again after 1.6 s",
    ]


def test_a_simulation_may_fall_silent(small_program: FakeProgram, frame_of: FrameOf) -> None:
    bench = Bench(small_program, frame_of, Config(cameras=CAMERAS, simulation=True))
    bench.calibrate()
    assert run(bench, 0, 200) == [()] * 200


@pytest.mark.parametrize(
    ("angles", "said"),
    [
        ([0.0, 1.5, 0.0], "liveCalibration.rpyCalib[1]: expected -0.1931 to 0.27236 rad"),
        ([math.nan, 0.0, 0.0], "liveCalibration.rpyCalib: expected 3 finite angles"),
        ([0.0], "liveCalibration.rpyCalib: expected 3 finite angles"),
    ],
)
def test_angles_out_of_bounds_are_not_used_and_mark(
    bench: Bench, angles: list[float], said: str
) -> None:
    bench.calibrate()
    run(bench, 0, 1)
    before = bench.inputs()["road_transform"]
    bench.send("liveCalibration", rpyCalib=angles)
    for (reason,) in run(bench, 1, 3):
        assert reason.startswith(said)
    np.testing.assert_array_equal(bench.inputs()["road_transform"], before)
    assert bench.daemon.state.faults[Fault.INPUT_REJECTED] == 1
    bench.calibrate()
    assert run(bench, 4, 1) == [()]


def test_a_calibration_beyond_the_limits_is_used_and_marks(bench: Bench) -> None:
    bench.send("liveCalibration", rpyCalib=[0.0, 0.02, 0.0], calStatus="invalid")
    ((reason,),) = run(bench, 0, 1)
    assert reason.startswith("liveCalibration.calStatus is invalid")
    # The angles count, or calibration would never come back into the limits.
    assert bench.inputs()["road_transform"][1, 2] != 0
    for frame_id, status in enumerate(("uncalibrated", "recalibrating", "calibrated"), 1):
        bench.send("liveCalibration", rpyCalib=[0.0, 0.02, 0.0], calStatus=status)
        assert run(bench, frame_id, 1) == [()]


def test_a_calibration_counts_whatever_its_sender_thinks_of_it(bench: Bench) -> None:
    """Until our messages are there its sender marks it as not valid."""
    event = bench.car.new("liveCalibration")
    event.valid = False
    event.liveCalibration.rpyCalib = [0.0, 0.0, 0.0]
    bench.car.send("liveCalibration", event)
    assert run(bench, 0, 1) == [()]


def test_what_is_missing_for_a_calibration_is_named(
    tici_program: FakeProgram, tici_format: FrameFormat
) -> None:
    data = np.zeros(tici_format.size, np.uint8)

    def frame_of(frame_id: int) -> Frame:
        return Frame(data, tici_format, frame_id, frame_id * 50 * MS, 0)

    bench = Bench(tici_program, frame_of, Config())
    bench.calibrate()
    assert run(bench, 0, 1) == [("no deviceState and roadCameraState yet",)]
    bench.send("deviceState", deviceType="tici")
    assert run(bench, 1, 1) == [("no roadCameraState yet",)]
    bench.send("roadCameraState", sensor="ox03c10")
    assert run(bench, 2, 1) == [("no liveCalibration yet",)]
    bench.calibrate()
    assert run(bench, 3, 1) == [()]


def test_a_speed_that_is_no_number_marks(bench: Bench) -> None:
    bench.calibrate()
    bench.send("carState", vEgo=math.nan)
    ((reason,),) = run(bench, 0, 1)
    assert reason == "carState.vEgo: expected -20 to 100 m/s, found nan"
    bench.send("carState", vEgo=3.0)
    assert run(bench, 1, 1) == [()]


def test_a_car_whose_delays_cannot_be_marks_and_is_said_once(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    event = new_event("carParams", mono_time_ns=1)
    event.carParams.longitudinalActuatorDelay = 1e9
    bench.daemon.car = read_car_parameters(event.carParams)
    bench.calibrate()
    said = "carParams.longitudinalActuatorDelay: expected 0 to 5 s, found 1e+09; it counts as 0"
    assert run(bench, 0, 40) == [(said,)] * 40
    assert caplog.messages == [f"not valid: {said}"]


def test_a_car_that_was_never_heard_is_as_in_openpilot(bench: Bench) -> None:
    bench.calibrate()
    assert run(bench, 0, 40) == [()] * 40


def test_ids_that_go_back_begin_with_empty_histories(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.calibrate()
    run(bench, 75, 5)
    assert bench.program.resets == 0
    found = run(bench, 30, 6)
    assert [len(reasons) for reasons in found] == [2] * 5 + [0]
    assert found[0] == (
        "road camera: ids go back from 79 to 30",
        "wide camera: ids go back from 79 to 30",
    )
    assert bench.program.resets == 1
    state = bench.daemon.state
    assert state.faults[Fault.FRAME_IDS_BACK] == 2
    assert (state.frames, state.dropped) == (11, 0)
    assert "road camera: ids go back from 79 to 30" in caplog.text


def test_a_camera_that_hangs_while_the_car_moves_marks(bench: Bench) -> None:
    still = bench.frame_of(0)
    bench.frame_of = lambda frame_id: replace(
        still, frame_id=frame_id, timestamp_sof_ns=frame_id * 50 * MS
    )
    for frame_id in range(25):
        bench.send("carState", vEgo=20.0)
        bench.calibrate()
        bench.step(frame_id)
    assert told(bench.daemon.state) == [
        "road camera: the same picture since 1.2 s",
        "wide camera: the same picture since 1.2 s",
    ]
    bench.send("carState", vEgo=0.0)
    bench.step(25)
    assert told(bench.daemon.state) == []


def test_frames_that_are_not_of_the_configured_camera_are_waited_out(
    small_program: FakeProgram, frame_of: FrameOf, caplog: pytest.LogCaptureFixture
) -> None:
    config = Config(cameras=DeviceCameras(Camera(960, 540, 800.0), Camera(960, 540, 400.0)))
    bench = Bench(small_program, frame_of, config)
    bench.calibrate()
    assert [bench.step(frame_id) for frame_id in range(200)] == [None] * 200
    assert bench.messages() is None
    state = bench.daemon.state
    assert (state.faults[Fault.FRAME_REFUSED], state.awaiting_ns) == (200, 0)
    refusal = state.refusal(time.monotonic_ns())
    assert refusal.startswith("frames not used: main camera: expected frames of 960x540 for")
    # Ten seconds: one line when it began.
    (said,) = caplog.messages
    assert said.startswith("frames not used, waiting for others: main camera: expected frames of")
    assert "got 64x32" in said


def test_a_camera_of_the_configured_size_ends_the_wait(
    frame_of: FrameOf, caplog: pytest.LogCaptureFixture
) -> None:
    wrong, right = nv12_format(64, 64), frame_of(0).format
    program = FakeProgram(make_interface(), max(wrong.size, right.size))
    bench = Bench(program, frame_of, Config(cameras=CAMERAS))
    bench.calibrate()
    small = bench.frame_of

    def tall(frame_id: int) -> Frame:
        return replace(small(frame_id), format=wrong, data=np.zeros(wrong.size, np.uint8))

    assert bench.road._format == right
    for frame_id in range(40):
        for source in (bench.road, bench.wide):
            assert source is not None
            source._format = wrong if frame_id < 20 else right
        bench.frame_of = tall if frame_id < 20 else small
        result = bench.step(frame_id)
        assert (result is None) is (frame_id < 20)
    for frame_id in range(40, 45):
        bench.step(frame_id)
    assert bench.daemon.state.refusal(time.monotonic_ns()) == ""
    assert [text.split(":")[0] for text in caplog.messages if "frames" in text] == [
        "frames not used, waiting for others",
        "frames can be used again after 0.9 s, 20 frames",
    ]


def test_what_holds_with_the_log_of_changes(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    state = LoopState()
    log = ValidityLog(logging.getLogger("modeld.test"), state)
    slow = Reason("slow", "")

    def at(second: float, *reasons: Reason) -> None:
        log.update(reasons, round(second * 1e9))

    at(0)
    # One line for a kind, whatever its text.
    for tenth in range(30):
        at(1 + tenth / 10, slow._replace(text=f"slow since {tenth / 10:.1f} s"))
    assert told(state) == ["slow since 2.9 s"]
    at(4, slow._replace(text="slow"), Reason("torn", "torn"))
    # Flapping: what holds after a second is said.
    for tenth in range(1, 30):
        at(4 + tenth / 10, *([slow._replace(text="slow")] if tenth % 2 else []))
    for tenth in range(1, 30):
        at(7 + tenth / 10)
    assert caplog.messages == [
        "valid",
        "not valid: slow since 0.0 s",
        "not valid: slow; torn",
        "valid again after 4.0 s",
        "not valid: slow",
        "valid again after 1.0 s",
    ]
    assert told(state) == []


def test_all_inputs_are_in_the_table_and_on_its_page() -> None:
    # The car is taken once, before the loop subscribes to what changes.
    assert {rule.service for rule in INPUTS} == {*SUBSCRIPTIONS, "carParams"}
    text = PAGE.read_text(encoding="utf-8")
    for rule in INPUTS:
        message = getattr(new_event(rule.service, mono_time_ns=0), rule.service)
        for name in rule.field.split(", "):
            assert hasattr(message, name.partition("[")[0]), rule.field
            assert f"`{name}`" in text, rule.field
        bounds = "any" if rule.bounds is None else f"{rule.bounds[0]:g} to {rule.bounds[1]:g}"
        silence = "" if rule.silent_s is None else f"{rule.silent_s:g} s"
        row = next(line for line in text.splitlines() if f"`{rule.field.split(', ')[0]}`" in line)
        assert bounds in row, (rule.field, bounds)
        assert silence in row, (rule.field, silence)
        assert rule.unseen in row
        assert rule.instead in row
