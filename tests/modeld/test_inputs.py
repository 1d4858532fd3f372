"""What the model is told of driver and car."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from modeld.vehicle.inputs import (
    DEMO_CAR,
    CarParameters,
    DesirePulse,
    action_times,
    read_car_parameters,
)
from modeld.vehicle.validity import Reason
from tests.modeld.bench import car_event
from tests.modeld.fake_program import SPLIT_ACTION


@pytest.mark.parametrize(
    ("desires", "pulses"),
    [
        # At the rising edge only, and when it changes.
        ([0, 3, 3, 3, 0, 3], [[], [3], [], [], [], [3]]),
        ([3, 4, 4, 3], [[3], [4], [], [3]]),
        # None and what is no desire never pulse.
        ([0, 8, -1, 7], [[], [], [], [7]]),
    ],
)
def test_desires_become_pulses(desires: list[int], pulses: list[list[int]]) -> None:
    pulse = DesirePulse()
    for desire, expected in zip(desires, pulses, strict=True):
        found = pulse.update(desire)
        assert found.dtype == np.float32
        assert found.tolist() == [float(index in expected) for index in range(8)]


CAR = CarParameters(longitudinal_actuator_delay_s=0.5, name="x", steer_actuator_delay_s=0.12)
OLD = {"lateral_delay": "steerActuatorDelay", "lateral_delay_extra_s": 0.2}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        # August 2025: .2 measured + .1; .5 + .3; one period more.
        ({}, (0.3, 0.35, 0.85)),
        # 2026: no lateral filter, a period and a half.
        ({"lat_smooth_s": 0.0, "frame_delay_s": 0.075}, (0.2, 0.275, 0.875)),
        # Until May 2025: the car's own .12 + .2 + .3 of the filter.
        ({**OLD, "lat_smooth_s": 0.3}, (0.62, 0.67, 0.85)),
        # 2024: .12 + .2 and nothing else.
        (
            {**OLD, "lat_smooth_s": 0.0, "long_smooth_s": 0.0, "frame_delay_s": 0.0},
            (0.32, 0.32, 0.5),
        ),
    ],
)
def test_delays_and_action_times_of_the_generations(
    changes: dict[str, Any], expected: tuple[float, float, float]
) -> None:
    times = action_times(0.2, CAR, replace(SPLIT_ACTION, **changes))
    found = (times.lateral_delay_s, times.lateral_s, times.longitudinal_s)
    assert found == pytest.approx(expected)


LONG, STEER = "carParams.longitudinalActuatorDelay", "carParams.steerActuatorDelay"


def test_the_car_is_read_from_its_fields() -> None:
    for name, delay_s, steer_s in (("A CAR", 0.25, 0.125), ("x", 0.0, 5.0)):
        car = read_car_parameters(car_event(name, delay_s, steer_s).carParams)
        assert car == CarParameters(delay_s, name, steer_s)
    assert DEMO_CAR.longitudinal_actuator_delay_s > 0
    assert DEMO_CAR.steer_actuator_delay_s > 0


@pytest.mark.parametrize(
    ("value", "found"),
    [(math.nan, "nan"), (math.inf, "inf"), (-0.1, "-0.1"), (5.1, "5.1"), (1e9, "1e+09")],
)
def test_a_delay_out_of_bounds_counts_as_zero_and_is_a_reason(value: float, found: str) -> None:
    car = read_car_parameters(car_event("A CAR", value, 0.25).carParams)
    assert (car.longitudinal_actuator_delay_s, car.steer_actuator_delay_s) == (0.0, 0.25)
    text = f"{LONG}: expected 0 to 5 s, found {found}; it counts as 0"
    assert car.reasons == (Reason(f"{LONG} out of bounds", text),)
    car = read_car_parameters(car_event("A CAR", value, value).carParams)
    assert car.steer_actuator_delay_s == 0.0
    assert [one.kind.partition(" ")[0] for one in car.reasons] == [LONG, STEER]
