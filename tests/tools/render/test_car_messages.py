"""The messages of a simulated car, by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from cereal.schema import read_event
from modeld.outputs.verdict import Action
from tools.simulator.render.messages import CarReport, Motion, ReportedValues
from tools.simulator.world.expert import LEFT, RIGHT

# To the right, on a circle of 50 m; once round and 0.3 rad more.
MOTION = Motion(
    speed_mps=10.0,
    acceleration_mps2=0.5,
    curvature_1pm=0.02,
    rpy_rad=(0.01, -0.02, 2.0 * math.pi + 0.3),
    blinker=RIGHT,
    nudge=RIGHT,
)
# Seen from the device, which is turned to the left, the car drives to the right.
REPORT = CarReport(
    motion=MOTION,
    wanted=Action(0.03, -1.0),
    reported=ReportedValues((0.0, 0.0, 0.2), lateral_delay_s=0.1, speed_mps=12.0),
    rpy_rad=(0.0, 0.0, 0.1),
    height_m=1.3,
    set_speed_mps=20.0,
    device="mici",
)


def message(report: CarReport, service: str) -> Any:
    """Return a message of the first frame."""
    every = (*report.start_messages(1), *report.tick_messages(1), *report.frame_messages(0, 1))
    (found,) = (one for one in every if one.service == service)
    return getattr(read_event(found.data), service)


def test_car_state_is_positive_to_the_left() -> None:
    state = message(REPORT, "carState")
    assert (state.leftBlinker, state.rightBlinker) == (False, True)
    assert (state.steeringPressed, state.steeringTorque) == (True, -2.5)
    # The wheel is turned by curvature times wheelbase, 15 times as far.
    assert state.steeringAngleDeg == pytest.approx(-math.degrees(0.02 * 2.7 * 15.0), rel=1e-6)
    assert state.yawRate == pytest.approx(-0.2)
    assert (state.cruiseState.enabled, state.cruiseState.speed) == (True, 20.0)
    # What is said of the speed may be wrong.
    assert state.vEgo == state.wheelSpeeds.fl == 12.0
    still = replace(MOTION, blinker=LEFT, nudge=0, speed_mps=0.0)
    state = message(replace(REPORT, motion=still, is_engaged=False), "carState")
    assert (state.leftBlinker, state.rightBlinker) == (True, False)
    assert (state.steeringPressed, state.steeringTorque) == (False, 0.0)
    assert (state.standstill, state.cruiseState.enabled) == (True, False)


def test_control_tells_what_is_wanted_and_what_is() -> None:
    control = message(REPORT, "carControl")
    assert control.latActive
    assert control.longActive
    assert control.actuators.accel == -1.0
    assert control.actuators.curvature == pytest.approx(0.03)
    wheel_deg = -math.degrees(0.03 * 2.7 * 15.0)
    assert control.actuators.steeringAngleDeg == pytest.approx(wheel_deg, rel=1e-6)
    assert control.currentCurvature == pytest.approx(0.02)
    assert list(control.orientationNED) == pytest.approx([0.0, 0.0, 0.3])
    assert list(control.angularVelocity) == pytest.approx([0.0, 0.0, 0.2])


def test_pose_is_that_of_the_device_whatever_the_calibration_says() -> None:
    pose = message(REPORT, "livePose")
    velocity, turn = pose.velocityDevice, pose.angularVelocityDevice
    assert velocity.x == pytest.approx(10.0 * math.cos(0.1), rel=1e-6)
    assert velocity.y == pytest.approx(10.0 * math.sin(0.1), rel=1e-6)
    assert (turn.x, turn.y, turn.z) == pytest.approx((0.0, 0.0, 0.2), abs=1e-7)
    assert pose.orientationNED.z == pytest.approx(0.3, abs=1e-6)
    calibration = message(REPORT, "liveCalibration")
    assert list(calibration.rpyCalib) == pytest.approx([0.0, 0.0, 0.2])
    assert list(calibration.height) == pytest.approx([1.3])


def test_params_are_those_of_the_car_with_the_delays_that_are_said() -> None:
    params = message(REPORT, "carParams")
    assert params.steerRatio == 15.0
    found = (params.wheelbase, params.steerActuatorDelay, params.longitudinalActuatorDelay)
    assert found == pytest.approx((2.7, 0.1, 0.3))
    assert message(REPORT, "liveDelay").lateralDelay == pytest.approx(0.1)


def test_slow_messages_come_with_every_fifth_and_tenth_frame() -> None:
    names = [[one.service for one in REPORT.frame_messages(frame, 1)] for frame in range(11)]
    for service, every in (("livePose", 1), ("liveCalibration", 5), ("deviceState", 10)):
        assert [service in row for row in names] == [frame % every == 0 for frame in range(11)]
