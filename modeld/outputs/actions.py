"""The driving command read out of the outputs: curvature, acceleration and whether to stop.

Which outputs, and the constants, are the interface's `ActionRule` (see ADR 0021). Formulas:
openpilot, 2024-2026.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from modeld.constants import (
    DT_MODEL_S,
    PLAN_ACCELERATION,
    PLAN_ORIENTATION,
    PLAN_ORIENTATION_RATE,
    PLAN_VELOCITY,
    T_IDXS,
)
from modeld.outputs.parse_outputs import DrivingOutputs
from modeld.vehicle.inputs import ActionTimes
from runtime.format.driving_interface import ActionRule

# Below this speed both points of the planned speed mean "stand still".
STOPPING_SPEED_MPS: Final = 0.05
# The second point is looked up this long after the action time.
STOPPING_LOOKAHEAD_S: Final = 1.0
# A curvature is a ratio to speed: near standstill the plan says nothing about it.
MIN_CURVATURE_SPEED_MPS: Final = 1.0
# Without any delay the quotients over time would be 0/0.
MIN_ACTION_TIME_S: Final = 1e-3
# Stopping rule by speed and acceleration.
ACTION_STOP_SPEED_MPS: Final = 0.3
ACTION_STOP_ACCELERATION_MPS2: Final = 0.1

_TIMES_S: Final[list[float]] = T_IDXS.tolist()
_FORWARD_SPEED: Final = PLAN_VELOCITY.start
_FORWARD_ACCELERATION: Final = PLAN_ACCELERATION.start
_YAW: Final = PLAN_ORIENTATION.start + 2
_YAW_RATE: Final = PLAN_ORIENTATION_RATE.start + 2


@dataclass(frozen=True, slots=True)
class Action:
    """A driving command."""

    curvature_1pm: float = 0.0  # 1/m, positive to the right (device frame)
    acceleration_mps2: float = 0.0
    should_stop: bool = False  # come to and stay at a standstill


def smooth(value: float, previous: float, tau_s: float, dt_s: float = DT_MODEL_S) -> float:
    """Return one step of a first-order low-pass filter; ``tau_s`` 0 passes the value through."""
    alpha = 1.0 - math.exp(-dt_s / tau_s) if tau_s > 0 else 1.0
    return alpha * value + (1.0 - alpha) * previous


def at(time_s: float, values: Sequence[float]) -> float:
    """Return a plan's value `time_s` after the frame, between its (33,) samples at ``T_IDXS``.

    The last sample holds beyond it. ``numpy.interp`` takes ten times as long for one value.
    """
    after = bisect_right(_TIMES_S, time_s)
    if after == 0 or after == len(_TIMES_S):
        return values[max(after - 1, 0)]
    before = after - 1
    slope = (values[after] - values[before]) / (_TIMES_S[after] - _TIMES_S[before])
    return slope * (time_s - _TIMES_S[before]) + values[before]


def acceleration_from_plan(plan: NDArray[np.float32], action_t_s: float) -> tuple[float, bool]:
    """Return the constant-jerk acceleration that meets the planned speed at ``action_t_s``.

    The plan is (33, 15) float32. With v(t) = v0 + a0*t + j*t^2/2 the acceleration reached at t is
    2*(v(t) - v0)/t - a0, in m/s^2. Also returns whether the plan stands still from then on.
    """
    action_t_s = max(action_t_s, MIN_ACTION_TIME_S)
    speeds = plan[:, _FORWARD_SPEED].tolist()
    target, later = at(action_t_s, speeds), at(action_t_s + STOPPING_LOOKAHEAD_S, speeds)
    acceleration = 2.0 * (target - speeds[0]) / action_t_s - float(plan[0, _FORWARD_ACCELERATION])
    return acceleration, target < STOPPING_SPEED_MPS and later < STOPPING_SPEED_MPS


def curvature_from_plan(plan: NDArray[np.float32], v_ego_mps: float, action_t_s: float) -> float:
    """Return the curvature that meets the planned heading at ``action_t_s``, 1/m.

    The plan is (33, 15) float32. The same constant-change rule as for acceleration: 2*psi(t)/(v*t)
    - psi_rate(0)/v.
    """
    action_t_s = max(action_t_s, MIN_ACTION_TIME_S)
    speed = max(v_ego_mps, MIN_CURVATURE_SPEED_MPS)
    heading = at(action_t_s, plan[:, _YAW].tolist())
    return 2.0 * heading / (speed * action_t_s) - float(plan[0, _YAW_RATE]) / speed


def rule_in_force(
    rule: ActionRule, lat_smooth_s: float | None, long_smooth_s: float | None
) -> ActionRule:
    """Return the rule of an interface with the time constants that the configuration sets."""
    return replace(
        rule,
        lat_smooth_s=rule.lat_smooth_s if lat_smooth_s is None else lat_smooth_s,
        long_smooth_s=rule.long_smooth_s if long_smooth_s is None else long_smooth_s,
    )


@dataclass(slots=True)
class ActionFilter:
    """Derives the command of each frame and smooths it."""

    rule: ActionRule  # with the time constants in force
    action: Action = Action()  # of the previous frame

    def update(self, outputs: DrivingOutputs, v_ego_mps: float, times: ActionTimes) -> Action:
        """Return the command for one frame; the outputs have the heads that the rule names."""
        rule, previous = self.rule, self.action
        acceleration, should_stop = self._longitudinal(outputs, v_ego_mps, times.longitudinal_s)
        if rule.hold_below_mps > 0.0 and v_ego_mps <= rule.hold_below_mps:
            curvature = previous.curvature_1pm
        else:
            curvature = smooth(
                self._lateral(outputs, v_ego_mps, times.lateral_s),
                previous.curvature_1pm,
                rule.lat_smooth_s,
            )
        acceleration = smooth(acceleration, previous.acceleration_mps2, rule.long_smooth_s)
        self.action = Action(curvature, acceleration, should_stop)
        return self.action

    def _lateral(self, outputs: DrivingOutputs, v_ego_mps: float, action_t_s: float) -> float:
        """Return the curvature before smoothing, 1/m."""
        if self.rule.lateral == "plan":
            return curvature_from_plan(outputs.plan, v_ego_mps, action_t_s)
        if self.rule.lateral == "desired_curvature":
            assert outputs.desired_curvature is not None  # heads were checked
            return float(outputs.desired_curvature[0])
        assert outputs.action is not None
        # The model names the lateral acceleration: v^2 times the curvature.
        return float(outputs.action[0]) / max(v_ego_mps, MIN_CURVATURE_SPEED_MPS) ** 2

    def _longitudinal(
        self, outputs: DrivingOutputs, v_ego_mps: float, action_t_s: float
    ) -> tuple[float, bool]:
        """Return the acceleration before smoothing, m/s^2, and whether to stop."""
        if self.rule.longitudinal == "none":
            return 0.0, False
        if self.rule.longitudinal == "plan":
            acceleration, should_stop = acceleration_from_plan(outputs.plan, action_t_s)
        else:
            assert outputs.action is not None
            acceleration, should_stop = float(outputs.action[1]), False
        if self.rule.stop == "speed":
            should_stop = stops_by_speed(v_ego_mps, acceleration)
        elif self.rule.longitudinal == "action":
            should_stop = acceleration_from_plan(outputs.plan, action_t_s)[1]
        return acceleration, should_stop


def stops_by_speed(v_ego_mps: float, acceleration_mps2: float) -> bool:
    """Whether a car that hardly moves, and is not to start moving, should stop."""
    return v_ego_mps < ACTION_STOP_SPEED_MPS and acceleration_mps2 < ACTION_STOP_ACCELERATION_MPS2
