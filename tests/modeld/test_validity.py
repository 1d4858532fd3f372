"""What makes messages not valid, and how it is said; the daemon on a clock set by hand."""

import logging
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cereal.frames import FrameFormat, nv12_format
from cereal.schema import new_event
from modeld.daemon import StepResult
from modeld.state.loop_state import Fault, LoopState
from modeld.vehicle.inputs import SUBSCRIPTIONS, read_car_parameters
from modeld.vehicle.validity import INPUTS, Reason, ValidityLog
from tests.modeld.bench import MS, Bench, Log, car_event, frame_of
from tests.modeld.fake_program import SMALL, TICI, FakeProgram

PAGE = Path(__file__).parents[2] / "docs/inputs.md"


def run(bench: Bench, first: int, count: int = 1) -> list[tuple[str, ...]]:
    """Reasons of each frame; what is published says the same."""
    found = []
    for frame_id in range(first, first + count):
        result = bench.step(frame_id)
        reasons = bench.daemon.state.reasons
        assert bench.valid == [not reasons] * 3
        assert result.valid is (not reasons)
        found.append(reasons)
    return found


def test_a_calibration_that_is_gone_makes_messages_not_valid(bench: Bench, caplog: Log) -> None:
    assert run(bench, 0) == [("no liveCalibration yet",)]
    bench.calibrate()
    # Ten periods of 4 Hz; the calibration is taken with the first of these frames.
    found = run(bench, 1, 81)
    assert found[:50] == [()] * 50
    assert found[50] == ("no liveCalibration since 2.5 s",)
    assert found[80] == ("no liveCalibration since 4.0 s",)
    # The last matrices stay in use.
    assert bench.inputs["road_transform"][0, 0] == pytest.approx(90 / 910)
    bench.calibrate()
    assert run(bench, 82, 25) == [()] * 25
    assert caplog.messages == [
        "not valid: no liveCalibration yet",
        "valid again after 0.1 s",
        "not valid: no liveCalibration since 2.5 s",
        "valid again after 1.6 s",
    ]


def test_a_simulation_may_fall_silent() -> None:
    bench = Bench(simulation=True)
    bench.calibrate()
    assert run(bench, 0, 200) == [()] * 200


def test_angles_out_of_bounds_are_not_used_and_mark(bench: Bench) -> None:
    bench.calibrate()
    run(bench, 0)
    before = bench.inputs["road_transform"]
    bench.send("liveCalibration", rpyCalib=[0.0, 1.5, 0.0])
    for (reason,) in run(bench, 1, 3):
        assert reason.startswith("liveCalibration.rpyCalib[1]: expected -0.1931 to 0.27236 rad")
    np.testing.assert_array_equal(bench.inputs["road_transform"], before)
    assert bench.daemon.state.faults[Fault.INPUT_REJECTED] == 1
    bench.calibrate()
    assert run(bench, 4) == [()]


def test_a_calibration_beyond_the_limits_is_used_and_marks(bench: Bench) -> None:
    bench.send("liveCalibration", rpyCalib=[0.0, 0.02, 0.0], calStatus="invalid")
    ((reason,),) = run(bench, 0)
    assert reason.startswith("liveCalibration.calStatus is invalid")
    # The angles count, or calibration would never come back into the limits.
    assert bench.inputs["road_transform"][1, 2] != 0
    # A status that is newer than our schema is not `invalid`.
    for frame_id, status in enumerate(("uncalibrated", "recalibrating", "calibrated", 9), 1):
        bench.send("liveCalibration", rpyCalib=[0.0, 0.02, 0.0], calStatus=status)
        assert run(bench, frame_id) == [()]


def test_a_calibration_counts_whatever_its_sender_thinks_of_it(bench: Bench) -> None:
    """Until our messages are there its sender marks it as not valid."""
    event = bench.bus.new("liveCalibration")
    event.valid = False
    event.liveCalibration.rpyCalib = [0.0, 0.0, 0.0]
    bench.bus.send("liveCalibration", event)
    assert run(bench, 0) == [()]


def test_what_is_missing_for_a_calibration_is_named() -> None:
    bench = Bench(FakeProgram(capacity_bytes=TICI.size), form=TICI, cameras=None)
    bench.calibrate()
    assert run(bench, 0) == [("no deviceState and roadCameraState yet",)]
    bench.send("deviceState", deviceType="tici")
    assert run(bench, 1) == [("no roadCameraState yet",)]
    bench.send("roadCameraState", sensor="ox03c10")
    assert run(bench, 2) == [("no liveCalibration yet",)]
    # The calibration that came too early is not remembered, the next one is used.
    bench.calibrate()
    assert run(bench, 3) == [()]
    # A sensor newer than our schema has a number; the matrices stay.
    bench.send("roadCameraState", sensor=9)
    bench.calibrate()
    ((reason,),) = run(bench, 4)
    assert "no cameras for device 'tici' with sensor '#9'" in reason
    assert bench.inputs["road_transform"][0, 0] == pytest.approx(2648 / 910)
    assert bench.inputs["wide_transform"][0, 0] == pytest.approx(567 / 455)


def test_a_speed_that_is_no_number_marks(bench: Bench) -> None:
    bench.calibrate()
    bench.send("carState", vEgo=math.nan)
    assert run(bench, 0) == [("carState.vEgo: expected -20 to 100 m/s, found nan",)]
    bench.send("carState", vEgo=3.0)
    assert run(bench, 1) == [()]


def test_a_car_whose_delays_cannot_be_marks_and_is_said_once(bench: Bench, caplog: Log) -> None:
    bench.daemon.car = read_car_parameters(car_event(delay_s=1e9).carParams)
    bench.calibrate()
    said = "carParams.longitudinalActuatorDelay: expected 0 to 5 s, found 1e+09; it counts as 0"
    assert run(bench, 0, 40) == [(said,)] * 40
    assert caplog.messages == [f"not valid: {said}"]


def test_ids_that_go_back_begin_with_empty_histories(bench: Bench, caplog: Log) -> None:
    bench.calibrate()
    run(bench, 75, 5)
    assert bench.program.resets == 0
    found = run(bench, 30, 6)
    said = tuple(f"{camera} camera: ids go back from 79 to 30" for camera in ("road", "wide"))
    assert found == [said] * 5 + [()]
    assert bench.program.resets == 1
    state = bench.daemon.state
    assert state.faults[Fault.FRAME_IDS_BACK] == 2
    assert (state.frames, state.dropped) == (11, 0)
    assert said[0] in caplog.text


@pytest.mark.parametrize(("speed", "marked"), [(20.0, True), (0.0, False)])
def test_a_camera_that_hangs_while_the_car_moves_marks(
    bench: Bench, speed: float, marked: bool
) -> None:
    still = frame_of(0)

    def step(frame_id: int, v_ego_mps: float) -> None:
        frame = replace(still, frame_id=frame_id, timestamp_sof_ns=frame_id * 50 * MS)
        bench.send("carState", vEgo=v_ego_mps)
        bench.calibrate()
        bench.offer(frame, replace(frame))

    for frame_id in range(25):
        step(frame_id, speed)
    said = tuple(f"{camera} camera: the same picture since 1.2 s" for camera in ("road", "wide"))
    assert bench.daemon.state.reasons == (said if marked else ())
    step(25, 0.0)
    assert bench.daemon.state.reasons == ()


WRONG = nv12_format(64, 64)


@pytest.mark.parametrize(
    ("room", "said"),
    [
        (WRONG.size, "main camera: expected frames of 64x32 for"),
        (SMALL.payload_bytes, f"road camera, frame 1: expected at most {SMALL.payload_bytes} "),
    ],
    ids=["configuration", "program"],
)
def test_frames_that_cannot_be_used_are_waited_out(room: int, said: str, caplog: Log) -> None:
    bench = Bench(FakeProgram(capacity_bytes=room))
    bench.calibrate()
    state = bench.daemon.state

    def offer(frame_id: int, form: FrameFormat) -> StepResult | None:
        bench.road._format = bench.wide._format = form
        return bench.offer(*(frame_of(frame_id, form=form) for _ in range(2)))

    assert offer(0, SMALL)
    for frame_id in range(1, 201):
        assert offer(frame_id, WRONG) is None
        assert bench.said == {}
    assert (state.faults[Fault.FRAME_REFUSED], state.awaiting_ns) == (200, 0)
    assert len(bench.program.calls) == 1
    refusal = state.refusal(time.monotonic_ns())
    assert refusal.startswith("frames not used: ")
    # Ten seconds: one line when it began.
    (record,) = caplog.records
    assert record.getMessage().startswith(f"frames not used, waiting for others: {said}")
    assert "64x64" in record.getMessage()
    assert record.levelno == logging.ERROR
    # One of the configured size ends the wait; the gap is a drop like any other.
    assert offer(201, SMALL) == StepResult(201, 200, False, False, 0.0)
    assert all(offer(frame_id, SMALL) for frame_id in range(202, 226))
    assert state.refusal(time.monotonic_ns()) == ""
    over = [text for text in caplog.messages if "frames can" in text]
    assert over == ["frames can be used again after 9.9 s, 200 frames"]


def test_what_holds_with_the_log_of_changes(caplog: Log) -> None:
    caplog.set_level(logging.INFO)
    state = LoopState()
    log = ValidityLog(logging.getLogger("modeld.test"), state)

    def at(second: float, *texts: str) -> None:
        # One line for a kind, whatever its text.
        log.update(tuple(Reason(text.split()[0], text) for text in texts), round(second * 1e9))

    at(0)
    for tenth in range(30):
        at(1 + tenth / 10, f"slow since {tenth / 10:.1f} s")
    assert state.reasons == ("slow since 2.9 s",)
    at(4, "slow", "torn")
    # Flapping: what holds after a second is said.
    for tenth in range(1, 30):
        at(4 + tenth / 10, *(["slow"] if tenth % 2 else []))
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
    assert list(state.reasons) == []


def test_all_inputs_are_in_the_table_and_on_its_page() -> None:
    # The car is taken once, before the loop subscribes to what changes.
    assert {rule.service for rule in INPUTS} == {*SUBSCRIPTIONS, "carParams"}
    text = PAGE.read_text(encoding="utf-8")
    for rule in INPUTS:
        message: Any = getattr(new_event(rule.service, mono_time_ns=0), rule.service)
        for name in rule.field.split(", "):
            assert hasattr(message, name.partition("[")[0]), rule.field
            assert f"`{name}`" in text, rule.field
        bounds = "any" if rule.bounds is None else f"{rule.bounds[0]:g} to {rule.bounds[1]:g}"
        silence = "" if rule.silent_s is None else f"{rule.silent_s:g} s"
        row = next(line for line in text.splitlines() if f"`{rule.field.split(', ')[0]}`" in line)
        for told in (bounds, silence, rule.unseen, rule.instead):
            assert told in row, (rule.field, told)
