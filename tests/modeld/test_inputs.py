import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cereal.schema import new_event
from modeld.desire import VehicleState
from modeld.inputs import (
    DEMO_CAR,
    ActionTimes,
    BusInputs,
    CarParameters,
    DesirePulse,
    HostInputs,
    action_times,
    read_car_parameters,
    write_traffic_convention,
)
from modeld.validity import Reason
from tests.modeld.fake_program import SPLIT_ACTION


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


CAR = CarParameters(longitudinal_actuator_delay_s=0.5, name="x", steer_actuator_delay_s=0.12)


@pytest.mark.parametrize(
    ("changes", "lateral_delay", "lateral", "longitudinal"),
    [
        # August 2025: .2 measured + .1; .5 + .3; one period more.
        ({}, 0.3, 0.35, 0.85),
        # 2026: no lateral filter, a period and a half.
        ({"lat_smooth_s": 0.0, "frame_delay_s": 0.075}, 0.2, 0.275, 0.875),
        # Until May 2025: the car's own .12 + .2 + .3 of the filter.
        (
            {
                "lateral_delay": "steerActuatorDelay",
                "lateral_delay_extra_s": 0.2,
                "lat_smooth_s": 0.3,
            },
            0.62,
            0.67,
            0.85,
        ),
        # 2024: .12 + .2 and nothing else.
        (
            {
                "lateral_delay": "steerActuatorDelay",
                "lateral_delay_extra_s": 0.2,
                "lat_smooth_s": 0.0,
                "long_smooth_s": 0.0,
                "frame_delay_s": 0.0,
            },
            0.32,
            0.32,
            0.5,
        ),
    ],
)
def test_delays_and_action_times_of_the_generations(
    changes: dict[str, Any], lateral_delay: float, lateral: float, longitudinal: float
) -> None:
    times = action_times(0.2, CAR, replace(SPLIT_ACTION, **changes))
    assert (times.lateral_delay_s, times.lateral_s, times.longitudinal_s) == pytest.approx(
        (lateral_delay, lateral, longitudinal)
    )


def test_host_inputs_are_rewritten_in_place() -> None:
    host = HostInputs()
    arrays = (host.traffic_convention, host.lateral_control_params, host.action_t)
    bus = BusInputs(VehicleState(v_ego_mps=12.5), is_rhd=True, lateral_delay_s=0, road_frame_id=0)
    times = ActionTimes(lateral_s=0.35, longitudinal_s=0.85, lateral_delay_s=0.3)
    host.update(bus, times)
    assert [array.shape for array in arrays] == [(1, 2)] * 3
    assert [array.dtype for array in arrays] == [np.float32] * 3
    traffic, params, action_t = (array[0].tolist() for array in arrays)
    assert traffic == [0, 1]
    assert params == pytest.approx([12.5, 0.3])
    assert action_t == pytest.approx([0.35, 0.85])


def test_car_parameters_are_read_and_checked() -> None:
    message = SimpleNamespace(
        longitudinalActuatorDelay=0.15, carFingerprint="A CAR", steerActuatorDelay=0.1
    )
    assert read_car_parameters(message) == CarParameters(0.15, "A CAR", 0.1)
    message.longitudinalActuatorDelay, message.steerActuatorDelay = 0.0, 5.0
    assert read_car_parameters(message) == CarParameters(0.0, "A CAR", 5.0)
    assert DEMO_CAR.longitudinal_actuator_delay_s > 0
    assert DEMO_CAR.steer_actuator_delay_s > 0


@pytest.mark.parametrize(
    ("value", "found"),
    [(math.nan, "nan"), (math.inf, "inf"), (-0.1, "-0.1"), (5.1, "5.1"), (1e9, "1e+09")],
)
def test_a_delay_out_of_bounds_counts_as_zero_and_is_a_reason(value: float, found: str) -> None:
    event = new_event("carParams", mono_time_ns=1)
    event.carParams.carFingerprint = "A CAR"
    event.carParams.steerActuatorDelay = 0.25
    event.carParams.longitudinalActuatorDelay = value
    car = read_car_parameters(event.carParams)
    assert (car.longitudinal_actuator_delay_s, car.steer_actuator_delay_s) == (0.0, 0.25)
    name = "carParams.longitudinalActuatorDelay"
    text = f"{name}: expected 0 to 5 s, found {found}; it counts as 0"
    assert car.reasons == (Reason(f"{name} out of bounds", text),)
    event.carParams.steerActuatorDelay = value
    car = read_car_parameters(event.carParams)
    assert car.steer_actuator_delay_s == 0.0
    assert [one.kind.partition(" ")[0] for one in car.reasons] == [
        name,
        "carParams.steerActuatorDelay",
    ]
