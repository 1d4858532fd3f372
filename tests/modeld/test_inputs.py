import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cereal.schema import new_event
from modeld.desire import VehicleState
from modeld.inputs import (
    DEMO_CAR,
    SUBSCRIPTIONS,
    ActionTimes,
    CarParameters,
    DesirePulse,
    action_times,
    read_bus_inputs,
    read_car_parameters,
    write_traffic_convention,
)


def indices(pulse: DesirePulse, desires: list[int]) -> list[list[int]]:
    return [np.flatnonzero(pulse.update(desire)).tolist() for desire in desires]


def test_desire_pulses_at_the_rising_edge_only() -> None:
    assert indices(DesirePulse(), [0, 3, 3, 3, 0, 3]) == [[], [3], [], [], [], [3]]


def test_desire_pulses_when_it_changes() -> None:
    assert indices(DesirePulse(), [3, 4, 4, 3]) == [[3], [4], [], [3]]


def test_desire_none_and_out_of_range_never_pulse() -> None:
    assert indices(DesirePulse(), [0, 8, -1, 7]) == [[], [], [], [7]]


def test_desire_pulse_is_one() -> None:
    pulse = DesirePulse().update(4)
    assert pulse.dtype == np.float32
    assert pulse.tolist() == [0, 0, 0, 0, 1, 0, 0, 0]


@pytest.mark.parametrize(("is_rhd", "expected"), [(False, [[1, 0]]), (True, [[0, 1]])])
def test_traffic_convention(is_rhd: bool, expected: list[list[int]]) -> None:
    out = np.full((1, 2), 9, np.float32)
    write_traffic_convention(out, is_rhd=is_rhd)
    assert out.tolist() == expected


def messages() -> dict[str, Any]:
    return {name: getattr(new_event(name, mono_time_ns=0), name) for name in SUBSCRIPTIONS}


def test_bus_inputs_before_any_message() -> None:
    inputs = read_bus_inputs(messages())
    assert inputs.vehicle == VehicleState()
    assert not inputs.is_rhd
    assert inputs.lateral_delay_s == 0.0
    assert inputs.road_frame_id == 0


def test_bus_inputs_are_read_from_their_fields() -> None:
    sources = messages()
    car = sources["carState"]
    car.vEgo, car.leftBlinker, car.steeringPressed = 12.5, True, True
    car.steeringTorque, car.rightBlindspot = -3.0, True
    sources["carControl"].latActive = True
    sources["driverMonitoringState"].isRHD = True
    sources["liveDelay"].lateralDelay = 0.25
    sources["roadCameraState"].frameId = 77
    inputs = read_bus_inputs(sources)
    assert inputs.vehicle == VehicleState(
        v_ego_mps=12.5,
        left_blinker=True,
        right_blinker=False,
        steering_pressed=True,
        steering_torque=-3.0,
        left_blindspot=False,
        right_blindspot=True,
        lateral_active=True,
    )
    assert (inputs.is_rhd, inputs.lateral_delay_s, inputs.road_frame_id) == (True, 0.25, 77)


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_impossible_speed_and_delay_count_as_zero(value: float) -> None:
    sources = messages()
    sources["carState"].vEgo = value
    sources["liveDelay"].lateralDelay = value
    inputs = read_bus_inputs(sources)
    assert (inputs.vehicle.v_ego_mps, inputs.lateral_delay_s) == (0.0, 0.0)


def test_action_times_add_smoothing_and_one_model_period() -> None:
    car = CarParameters(longitudinal_actuator_delay_s=0.5, name="x")
    times = action_times(0.2, car, lat_smooth_s=0.1, long_smooth_s=0.3)
    assert (times.lateral_s, times.longitudinal_s) == pytest.approx((0.35, 0.85))
    assert isinstance(times, ActionTimes)


def test_car_parameters_are_read_and_checked() -> None:
    message = SimpleNamespace(longitudinalActuatorDelay=0.15, carFingerprint="A CAR")
    assert read_car_parameters(message) == CarParameters(0.15, "A CAR")
    message.longitudinalActuatorDelay = math.nan
    assert read_car_parameters(message).longitudinal_actuator_delay_s == 0.0
    assert DEMO_CAR.longitudinal_actuator_delay_s > 0
