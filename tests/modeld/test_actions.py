import math

import numpy as np
import pytest
from numpy.typing import NDArray

from modeld.actions import (
    Action,
    ActionFilter,
    acceleration_from_plan,
    curvature_from_plan,
    smooth,
)
from modeld.constants import T_IDXS
from modeld.inputs import ActionTimes

Plan = NDArray[np.float32]


def make_plan(speed: float = 0.0, acceleration: float = 0.0, yaw_rate: float = 0.0) -> Plan:
    plan = np.zeros((33, 15), np.float32)
    plan[:, 3] = speed + acceleration * T_IDXS
    plan[:, 6] = acceleration
    plan[:, 11] = yaw_rate * T_IDXS
    plan[:, 14] = yaw_rate
    return plan


def test_smooth_one_time_constant() -> None:
    # alpha = 1 - exp(-0.05/0.1) = 0.39346934
    assert smooth(1.0, 0.0, 0.1) == pytest.approx(0.39346934)
    assert smooth(0.0, 1.0, 0.1) == pytest.approx(0.60653066)
    assert smooth(3.0, 1.0, 0.0) == 3.0


def test_acceleration_of_a_constant_acceleration_is_that() -> None:
    acceleration, stop = acceleration_from_plan(make_plan(10.0, 1.5), 0.5)
    assert acceleration == pytest.approx(1.5, rel=1e-5)
    assert not stop


def test_acceleration_with_jerk() -> None:
    # v(t) = 10 + t^2/2 sampled at T_IDXS, interpolated at 0.5 s. Samples around it: t[7] =
    # 0.478516, t[8] = 0.625: v = 10.114489 and 10.195312, so v(0.5) = 10.126343;
    # a = 2 * 0.126343 / 0.5 - 0 = 0.505371.
    plan = make_plan(10.0)
    plan[:, 3] += (T_IDXS**2 / 2).astype(np.float32)
    assert acceleration_from_plan(plan, 0.5)[0] == pytest.approx(0.505371, abs=1e-4)


@pytest.mark.parametrize(
    ("speeds", "expected"),
    [((0.04, 0.04), True), ((0.04, 0.06), False), ((0.06, 0.04), False), ((0.05, 0.05), False)],
)
def test_should_stop_needs_both_moments_below_5_cm_per_s(
    speeds: tuple[float, float], expected: bool
) -> None:
    plan = make_plan()
    plan[:, 3] = np.where(T_IDXS < 0.9, speeds[0], speeds[1])
    assert acceleration_from_plan(plan, 0.5)[1] is expected


def test_curvature_of_a_constant_turn() -> None:
    # Heading = rate * t: 2 r t/(v t) - r/v = r/v.
    assert curvature_from_plan(make_plan(yaw_rate=0.2), 10.0, 0.25) == pytest.approx(0.02)


def test_curvature_uses_at_least_1_mps() -> None:
    assert curvature_from_plan(make_plan(yaw_rate=0.2), 0.5, 0.25) == pytest.approx(0.2)


def test_curvature_with_growing_rate() -> None:
    # Heading 0.3 rad at every time, rate 0.1 rad/s now: 2*0.3/(20*0.25) - 0.1/20 = 0.115.
    plan = make_plan()
    plan[:, 11] = 0.3
    plan[0, 14] = 0.1
    assert curvature_from_plan(plan, 20.0, 0.25) == pytest.approx(0.115)


TIMES = ActionTimes(lateral_s=0.25, longitudinal_s=0.5)


def test_filter_smooths_both() -> None:
    actions = ActionFilter(lat_smooth_s=0.1, long_smooth_s=0.3)
    action = actions.update(make_plan(10.0, 1.0, 0.2), None, 10.0, TIMES)
    assert action.curvature_1pm == pytest.approx(0.02 * (1 - math.exp(-0.5)))
    assert action.acceleration_mps2 == pytest.approx(1 - math.exp(-1 / 6), rel=1e-5)
    assert not action.should_stop
    assert actions.action is action


@pytest.mark.parametrize(("speed", "held"), [(0.3, True), (0.31, False)])
def test_filter_holds_curvature_at_standstill(speed: float, held: bool) -> None:
    actions = ActionFilter(0.0, 0.0, Action(curvature_1pm=0.07))
    action = actions.update(make_plan(yaw_rate=0.2), None, speed, TIMES)
    assert action.curvature_1pm == pytest.approx(0.07 if held else 0.2)


def test_filter_uses_the_models_own_action() -> None:
    actions = ActionFilter(0.0, 0.0)
    own = np.array([2.0, -0.5], np.float32)
    moving = actions.update(make_plan(10.0, 1.0, 0.2), own, 10.0, TIMES)
    assert moving.curvature_1pm == pytest.approx(0.02)
    assert moving.acceleration_mps2 == pytest.approx(-0.5)
    assert not moving.should_stop
    assert actions.update(make_plan(), own, 0.2, TIMES).should_stop
    assert not actions.update(make_plan(), -own, 0.2, TIMES).should_stop
