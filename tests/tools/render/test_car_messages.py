"""The messages of a simulated car, by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from cereal.schema import new_event
from tools.render import messages
from tools.world.car import FAMILY_CAR
from tools.world.expert import LEFT, RIGHT

# To the right, on a circle of 50 m; once round and 0.3 rad more.
MOTION = messages.Motion(
    speed_mps=10.0,
    acceleration_mps2=0.5,
    curvature_1pm=0.02,
    rpy_rad=(0.01, -0.02, 2.0 * math.pi + 0.3),
    steering_angle_deg=-46.4,
    blinker=RIGHT,
    nudge=RIGHT,
)


def builder(service: str) -> Any:
    """Return the builder of a message."""
    return getattr(new_event(service, mono_time_ns=1), service)


def test_car_state_is_positive_to_the_left() -> None:
    state = builder("carState")
    messages.fill_car_state(state, MOTION, 12.0, is_engaged=True, set_speed_mps=20.0)
    assert (state.leftBlinker, state.rightBlinker) == (False, True)
    assert (state.steeringPressed, state.steeringTorque) == (True, -2.5)
    assert state.steeringAngleDeg == pytest.approx(-46.4)
    assert state.yawRate == pytest.approx(-0.2)
    # What is said of the speed may be wrong.
    assert state.vEgo == state.wheelSpeeds.fl == 12.0
    other = replace(MOTION, blinker=LEFT, nudge=0, speed_mps=0.0)
    messages.fill_car_state(state, other, 0.0, is_engaged=False, set_speed_mps=20.0)
    assert (state.leftBlinker, state.rightBlinker) == (True, False)
    assert (state.steeringPressed, state.steeringTorque) == (False, 0.0)
    assert state.standstill


def test_control_tells_what_is_wanted_and_what_is() -> None:
    control = builder("carControl")
    wanted = messages.Control(
        is_engaged=True, acceleration_mps2=-1.0, curvature_1pm=0.03, steering_angle_deg=-70.0
    )
    messages.fill_car_control(control, MOTION, wanted)
    assert control.latActive
    assert control.longActive
    assert control.actuators.accel == -1.0
    assert control.actuators.curvature == pytest.approx(0.03)
    assert control.currentCurvature == pytest.approx(0.02)
    assert list(control.orientationNED) == pytest.approx([0.0, 0.0, 0.3])
    assert list(control.angularVelocity) == pytest.approx([0.0, 0.0, 0.2])


def test_pose_is_that_of_the_device() -> None:
    pose = builder("livePose")
    # Seen from the device, which is turned to the left, the car drives to the right.
    messages.fill_live_pose(pose, MOTION, (0.0, 0.0, 0.1))
    velocity, turn = pose.velocityDevice, pose.angularVelocityDevice
    assert velocity.x == pytest.approx(10.0 * math.cos(0.1), rel=1e-6)
    assert velocity.y == pytest.approx(10.0 * math.sin(0.1), rel=1e-6)
    assert (turn.x, turn.y, turn.z) == pytest.approx((0.0, 0.0, 0.2), abs=1e-7)
    assert pose.orientationNED.z == pytest.approx(0.3, abs=1e-6)


def test_params_are_those_of_the_car_with_the_delays_that_are_said() -> None:
    params = builder("carParams")
    messages.fill_car_params(params, FAMILY_CAR, (0.1, 0.15))
    assert params.steerRatio == 15.0
    found = (params.wheelbase, params.steerActuatorDelay, params.longitudinalActuatorDelay)
    assert found == pytest.approx((2.7, 0.1, 0.15))
