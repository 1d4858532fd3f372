"""How cars choose their speed behind others: numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.tools.world.roads import uniform_road
from tools.world.speed import (
    CAREFUL,
    HARDEST_BRAKING_MPS2,
    QUICK,
    STEPS_S,
    Following,
    following_acceleration,
    plan_speeds,
    speed_limits,
)


def test_following_is_that_of_the_intelligent_driver_model() -> None:
    # At 20 m/s, 5 faster than the car ahead, with T = 2 s and b = 1.4: 2 sqrt(a b) is 2.8, the gap
    # wanted 6 + 20 (2 + 5 / 2.8) = 81.714 m, and 1.4 (1 - (81.714 / 60)^2) = -1.1967 m/s^2.
    style = Following(2.0, 1.4)
    assert following_acceleration(60.0, 20.0, 15.0, style) == pytest.approx(-1.1967, abs=1e-4)
    # At the wanted gap of equal speeds, 6 + 40 m, nothing is to be done.
    assert following_acceleration(46.0, 20.0, 20.0, style) == pytest.approx(0.0)
    # A car that goes away does not draw: 1.4 (1 - (6 / 30)^2).
    assert following_acceleration(30.0, 20.0, 60.0, style) == pytest.approx(1.4 * 0.96)
    assert following_acceleration(0.0, 20.0, 0.0, style) == -HARDEST_BRAKING_MPS2


@pytest.mark.parametrize(("gap_m", "lead_mps"), [(70.0, 20.0), (90.0, 15.0), (50.0, 24.0)])
def test_the_careful_brake_earlier(gap_m: float, lead_mps: float) -> None:
    quick = following_acceleration(gap_m, 25.0, lead_mps, QUICK)
    assert following_acceleration(gap_m, 25.0, lead_mps, CAREFUL) < quick - 0.4


def test_brakes_are_put_on_faster_behind_a_car_than_for_the_road() -> None:
    limits = speed_limits(uniform_road(), 0.0, 20.0)
    # From 23 m/s down to 20 the road asks for 3 / 1.2 = 2.5 m/s^2 at once.
    for_road = plan_speeds(limits, 0.0, 23.0, 0.0)
    assert for_road.jerk_mps3[0] == pytest.approx(-2.0)
    # Behind a car as fast as this one, sqrt(1 + 2.5 / 1.4) too near, the same.
    gap = (6.0 + 20.0 * CAREFUL.time_gap_s) / math.sqrt(1.0 + 2.5 / 1.4)
    ahead = (gap + 20.0 * STEPS_S, np.full(STEPS_S.size, 20.0))
    behind = plan_speeds(limits, 0.0, 20.0, 0.0, ahead)
    assert behind.jerk_mps3[0] == pytest.approx(-5.0)
    # Brakes come off as gently as before.
    free = (np.full(STEPS_S.size, 500.0), np.full(STEPS_S.size, 20.0))
    assert plan_speeds(limits, 0.0, 15.0, -2.0, free).jerk_mps3[0] == pytest.approx(2.0)
