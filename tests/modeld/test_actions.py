"""Curvature, acceleration and stop of every generation's rule; what was known of frames before."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from modeld.constants import T_IDXS
from modeld.frames.frame_judge import DropFilter
from modeld.outputs.parse_outputs import DrivingOutputs, OutputParser
from modeld.outputs.verdict import (
    Action,
    ActionFilter,
    acceleration_from_plan,
    curvature_from_plan,
    rule_in_force,
    smooth,
)
from modeld.vehicle.inputs import ActionTimes
from tests.modeld.fake_program import SPLIT_ACTION, make_interface, with_heads

Plan = NDArray[np.float32]
TIMES = ActionTimes(lateral_s=0.25, longitudinal_s=0.5)
RAW = replace(SPLIT_ACTION, lat_smooth_s=0.0, long_smooth_s=0.0)
OWN = replace(RAW, lateral="action", longitudinal="action", stop="speed")


def make_plan(speed: float = 0.0, acceleration: float = 0.0, yaw_rate: float = 0.0) -> Plan:
    plan = np.zeros((33, 15), np.float32)
    plan[:, 3] = speed + acceleration * T_IDXS
    plan[:, 6] = acceleration
    plan[:, 11] = yaw_rate * T_IDXS
    plan[:, 14] = yaw_rate
    return plan


def outputs_of(plan: Plan | None = None, **heads: list[float]) -> DrivingOutputs:
    """Outputs with that plan and those heads; all others are zeros or not there."""
    layout = make_interface()
    widths = {name: 2 * len(values) for name, values in heads.items()}
    outputs = OutputParser(with_heads(layout, **widths) if widths else layout).outputs
    outputs.plan[...] = make_plan() if plan is None else plan
    for name, values in heads.items():
        getattr(outputs, name)[...] = values
    return outputs


def test_smooth_and_acceleration_of_a_plan() -> None:
    # alpha = 1 - exp(-0.05/0.1) = 0.39346934
    assert smooth(1.0, 0.0, 0.1) == pytest.approx(0.39346934)
    assert smooth(0.0, 1.0, 0.1) == pytest.approx(0.60653066)
    assert smooth(3.0, 1.0, 0.0) == 3.0
    # A constant acceleration is that.
    acceleration, stops = acceleration_from_plan(make_plan(10.0, 1.5), 0.5)
    assert (acceleration, stops) == pytest.approx((1.5, False))
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


def test_curvature_of_a_plan() -> None:
    # Heading = rate * t: 2 r t/(v t) - r/v = r/v, where the speed counts as at least 1 m/s.
    turn = make_plan(yaw_rate=0.2)
    for speed, curvature in ((10.0, 0.02), (1.0, 0.2), (0.5, 0.2)):
        assert curvature_from_plan(turn, speed, 0.25) == pytest.approx(curvature)
    # Heading 0.3 rad at every time, rate 0.1 rad/s now: 2*0.3/(20*0.25) - 0.1/20 = 0.115.
    plan = make_plan()
    plan[:, 11] = 0.3
    plan[0, 14] = 0.1
    assert curvature_from_plan(plan, 20.0, 0.25) == pytest.approx(0.115)


def test_filter_smooths_both() -> None:
    actions = ActionFilter(SPLIT_ACTION)
    action = actions.update(outputs_of(make_plan(10.0, 1.0, 0.2)), 10.0, TIMES)
    # Curvature 0.02, a filter of 0.1 s; acceleration 1, a filter of 0.3 s: 1 - exp(-1/6).
    assert action.curvature_1pm == pytest.approx(0.02 * 0.39346934)
    assert action.acceleration_mps2 == pytest.approx(0.15351828, rel=1e-5)
    assert not action.should_stop
    assert actions.action is action
    # One frame later: 0.02 * (0.39346934 + 0.60653066 * 0.39346934).
    action = actions.update(outputs_of(make_plan(10.0, 1.0, 0.2)), 10.0, TIMES)
    assert action.curvature_1pm == pytest.approx(0.02 * 0.63212056)


@pytest.mark.parametrize(
    ("hold_below", "speed", "held"),
    [(0.3, 0.3, True), (0.3, 0.31, False), (0.3, -1.0, True), (0.0, 0.0, False)],
)
def test_filter_holds_curvature_at_standstill(hold_below: float, speed: float, held: bool) -> None:
    actions = ActionFilter(replace(RAW, hold_below_mps=hold_below), Action(curvature_1pm=0.07))
    action = actions.update(outputs_of(make_plan(yaw_rate=0.2)), speed, TIMES)
    assert action.curvature_1pm == pytest.approx(0.07 if held else 0.2)


# Below 1 m/s the speed counts as 1 m/s.
@pytest.mark.parametrize(("speed", "curvature"), [(10.0, 0.02), (0.5, 2.0)])
def test_the_models_own_action(speed: float, curvature: float) -> None:
    # 2 m/s^2 to the side at 10 m/s is 2 / 10^2; the plan, another one, does not count.
    own = outputs_of(make_plan(10.0, 1.0, 0.2), action=[2.0, -0.5])
    action = ActionFilter(OWN).update(own, speed, TIMES)
    assert action.curvature_1pm == pytest.approx(curvature)
    assert (action.acceleration_mps2, action.should_stop) == (-0.5, False)


@pytest.mark.parametrize(
    ("speed", "acceleration", "stops"),
    [(0.29, 0.09, True), (0.3, 0.09, False), (0.29, 0.1, False), (0.0, -3.0, True)],
)
def test_the_stop_rule_by_speed_looks_at_the_acceleration_before_smoothing(
    speed: float, acceleration: float, stops: bool
) -> None:
    # The filter has it at 1 m/s^2 or near.
    actions = ActionFilter(replace(OWN, long_smooth_s=5.0), Action(acceleration_mps2=1.0))
    action = actions.update(outputs_of(action=[0.0, acceleration]), speed, TIMES)
    assert action.should_stop is stops
    assert action.acceleration_mps2 > 0.9


@pytest.mark.parametrize(
    ("changes", "outputs", "speed", "stops"),
    [
        # By speed with the plan: 1 m/s^2 starts.
        ({"stop": "speed"}, outputs_of(make_plan(10.0, 1.0)), 0.2, False),
        ({"stop": "speed"}, outputs_of(make_plan(10.0, -1.0)), 0.2, True),
        ({"stop": "plan"}, outputs_of(make_plan(10.0, -1.0)), 0.2, False),  # the plan moves
        # By plan with the model's own acceleration.
        ({"stop": "plan", "longitudinal": "action"}, outputs_of(action=[0.0, 1.0]), 9.0, True),
    ],
)
def test_stop_rules_go_with_either_acceleration(
    changes: dict[str, Any], outputs: DrivingOutputs, speed: float, stops: bool
) -> None:
    assert ActionFilter(replace(RAW, **changes)).update(outputs, speed, TIMES).should_stop is stops


def test_desired_curvature_as_the_model_says_it_and_smoothed_by_the_rules_constant() -> None:
    rule = replace(RAW, lateral="desired_curvature", longitudinal="none", hold_below_mps=0.0)
    # Standing still the plan would stop; without a rule the fields stay empty.
    outputs = outputs_of(make_plan(), desired_curvature=[-0.125])
    assert ActionFilter(rule).update(outputs, 0.0, TIMES) == Action(-0.125, 0.0, should_stop=False)
    # TR2, April 2025: 0.3 s, alpha = 1 - exp(-1/6).
    rule = replace(RAW, lateral="desired_curvature", lat_smooth_s=0.3)
    outputs = outputs_of(make_plan(10.0, 1.5), desired_curvature=[0.01])
    action = ActionFilter(rule).update(outputs, 10.0, TIMES)
    assert action.curvature_1pm == pytest.approx(0.0015351828)
    assert action.acceleration_mps2 == pytest.approx(1.5, rel=1e-5)


@pytest.mark.parametrize(
    ("configured", "expected"),
    [((None, None), (0.1, 0.3)), ((0.0, None), (0.0, 0.3)), ((None, 0.7), (0.1, 0.7))],
)
def test_the_configuration_overrides_time_constants(
    configured: tuple[float | None, float | None], expected: tuple[float, float]
) -> None:
    rule = rule_in_force(SPLIT_ACTION, *configured)
    assert (rule.lat_smooth_s, rule.long_smooth_s) == expected
    assert replace(rule, lat_smooth_s=0.1, long_smooth_s=0.3) == SPLIT_ACTION


def test_without_any_delay_the_command_stays_finite() -> None:
    at_once = ActionTimes(lateral_s=0.0, longitudinal_s=0.0)
    action = ActionFilter(RAW).update(outputs_of(make_plan(10.0, 1.5, 0.2)), 10.0, at_once)
    # As of the constant turn and acceleration that the plan is.
    assert action.curvature_1pm == pytest.approx(0.02, rel=1e-3)
    assert action.acceleration_mps2 == pytest.approx(1.5, abs=0.01)


ALPHA = 0.05 / 10.05


@pytest.mark.parametrize(
    ("ids", "dropped", "filtered"),
    [
        # The first frame may have any id; ids that repeat or begin anew drop nothing.
        ([5000, 5001], [0, 0], 0.0),
        ([1, 2, 4, 5, 9], [0, 0, 1, 0, 3], 0.0),
        ([7, 7, 3, 4], [0, 0, 0, 0], 0.0),
        # The filter stays zero for ten frames.
        ([2 * index for index in range(10)], [0] + [1] * 9, 0.0),
        # Then it moves by alpha, and decays; a long gap counts as ten.
        ([*range(10), 11], [0] * 10 + [1], ALPHA),
        ([*range(10), 11, 12], [0] * 10 + [1, 0], ALPHA * (1 - ALPHA)),
        ([*range(10), 20], [0] * 10 + [10], 10 * ALPHA),
        ([*range(10), 1000], [0] * 10 + [990], 10 * ALPHA),
    ],
)
def test_drops_are_the_missing_ids(ids: list[int], dropped: list[int], filtered: float) -> None:
    drops = DropFilter()
    found = [drops.update(frame_id) for frame_id in ids]
    assert [status.dropped for status in found] == dropped
    assert found[-1].percent == pytest.approx(100 * filtered / (1 + filtered))
