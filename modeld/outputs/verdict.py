"""Derives the driving command, the confidence and the hard-braking warning from the outputs.

The driving command is curvature, acceleration and whether to stop. The interface's `ActionRule`
specifies the outputs from which it is computed, and its constants (see ADR 0021). Confidence and
the warning are computed from the predicted disengagement probabilities of recent frames. Formulas
and constants: openpilot, 2023-2026.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from modeld.constants import (
    DISENGAGE_HORIZONS_S,
    DT_MODEL_S,
    META_LAYOUTS,
    MODEL_RUN_HZ,
    PLAN_ACCELERATION,
    PLAN_ORIENTATION,
    PLAN_ORIENTATION_RATE,
    PLAN_VELOCITY,
    T_IDXS,
)
from modeld.outputs.parse_outputs import DrivingOutputs
from modeld.vehicle.desire import LaneChangeDirection, LaneChangeState
from modeld.vehicle.inputs import ActionTimes
from runtime.format.interfaces import ActionRule

# The plan stands still if its speed is below this at the action time and a moment later.
STOPPING_SPEED_MPS: Final = 0.05
# Delay of that later moment after the action time.
STOPPING_LOOKAHEAD_S: Final = 1.0
# Curvature is computed by dividing by the speed, which is at least this.
MIN_CURVATURE_SPEED_MPS: Final = 1.0
# Without any delay, the quotients over time would be 0/0.
MIN_ACTION_TIME_S: Final = 1e-3
# Limits of the stopping rule "speed": the car stops if it is slower and accelerates less.
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
    should_stop: bool = False  # stop and stay stopped


def smooth(value: float, previous: float, tau_s: float, dt_s: float = DT_MODEL_S) -> float:
    """Return one step of a first-order low-pass filter; with ``tau_s`` 0, ``value`` itself."""
    alpha = 1.0 - math.exp(-dt_s / tau_s) if tau_s > 0 else 1.0
    return alpha * value + (1.0 - alpha) * previous


def at(time_s: float, values: Sequence[float]) -> float:
    """Interpolate a plan's (33,) values at ``T_IDXS`` linearly, `time_s` after the frame.

    The last value is used beyond the last time. ``numpy.interp`` is ten times slower for one value.
    """
    after = bisect_right(_TIMES_S, time_s)
    if after == 0 or after == len(_TIMES_S):
        return values[max(after - 1, 0)]
    before = after - 1
    slope = (values[after] - values[before]) / (_TIMES_S[after] - _TIMES_S[before])
    return slope * (time_s - _TIMES_S[before]) + values[before]


def acceleration_from_plan(plan: NDArray[np.float32], action_t_s: float) -> tuple[float, bool]:
    """Return the acceleration at ``action_t_s`` in m/s^2, and whether the plan then stands still.

    The plan is (33, 15) float32. With constant jerk j, v(t) = v0 + a0*t + j*t^2/2, so the
    acceleration reached at t is 2*(v(t) - v0)/t - a0.
    """
    action_t_s = max(action_t_s, MIN_ACTION_TIME_S)
    speeds = plan[:, _FORWARD_SPEED].tolist()
    target, later = at(action_t_s, speeds), at(action_t_s + STOPPING_LOOKAHEAD_S, speeds)
    acceleration = 2.0 * (target - speeds[0]) / action_t_s - float(plan[0, _FORWARD_ACCELERATION])
    return acceleration, target < STOPPING_SPEED_MPS and later < STOPPING_SPEED_MPS


def curvature_from_plan(plan: NDArray[np.float32], v_ego_mps: float, action_t_s: float) -> float:
    """Return the curvature that reaches the planned heading at ``action_t_s``, in 1/m.

    The plan is (33, 15) float32. As for acceleration, the rate of change is constant:
    2*psi(t)/(v*t) - psi_rate(0)/v, with heading psi and speed v.
    """
    action_t_s = max(action_t_s, MIN_ACTION_TIME_S)
    speed = max(v_ego_mps, MIN_CURVATURE_SPEED_MPS)
    heading = at(action_t_s, plan[:, _YAW].tolist())
    return 2.0 * heading / (speed * action_t_s) - float(plan[0, _YAW_RATE]) / speed


def rule_in_force(
    rule: ActionRule, lat_smooth_s: float | None, long_smooth_s: float | None
) -> ActionRule:
    """Return an interface's rule with the time constants replaced that are not None."""
    return replace(
        rule,
        lat_smooth_s=rule.lat_smooth_s if lat_smooth_s is None else lat_smooth_s,
        long_smooth_s=rule.long_smooth_s if long_smooth_s is None else long_smooth_s,
    )


@dataclass(slots=True)
class ActionFilter:
    """Computes and smooths the command of each frame."""

    rule: ActionRule  # the interface's rule, with the configured time constants
    action: Action = Action()  # command of the previous frame

    def update(self, outputs: DrivingOutputs, v_ego_mps: float, times: ActionTimes) -> Action:
        """Return the command for one frame; the outputs must have the heads that the rule needs."""
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
        # The model outputs the lateral acceleration, v^2 times the curvature.
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
            # Stop if the car hardly moves and is not about to start.
            should_stop = (
                v_ego_mps < ACTION_STOP_SPEED_MPS and acceleration < ACTION_STOP_ACCELERATION_MPS2
            )
        elif self.rule.longitudinal == "action":
            should_stop = acceleration_from_plan(outputs.plan, action_t_s)[1]
        return acceleration, should_stop


# --- Confidence and the hard-braking warning --------------------------------------------------

HORIZONS: Final = len(DISENGAGE_HORIZONS_S)
# One new row per horizon step of 2 s, so the anti-diagonal holds predictions for one moment.
CONFIDENCE_PERIOD_FRAMES: Final = 2 * MODEL_RUN_HZ
# Upper limits of the score for each grade.
GREEN_BELOW: Final = 0.01165
YELLOW_BELOW: Final = 0.06157

# Hard braking is expected only if all recent frames exceed these probabilities, oldest frame first.
# They are rounded to float32, like the outputs.
HARD_BRAKE_5_THRESHOLDS: Final = np.array([0.05, 0.05, 0.15, 0.15, 0.15], np.float32).tolist()
HARD_BRAKE_3_THRESHOLDS: Final = np.array([0.7, 0.7], np.float32).tolist()

# Below this survival probability, a disengagement counts as certain.
MIN_SURVIVAL: Final = 1e-6


class Confidence(IntEnum):
    """Grade of confidence; values as in ``log.ModelDataV2.ConfidenceClass``."""

    RED = 0
    YELLOW = 1
    GREEN = 2


def independent_disengagements(meta: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the probability of a disengagement in each 2 s slice, given none before it, (5,).

    `meta` has float32 probabilities in one of ``META_LAYOUTS``. They are cumulative per cause:
    any(t) = 1 - product of (1 - cause(t)). The probability of a slice is (any(t) - any(t-1)) / (1 -
    any(t-1)). If a disengagement before the slice is certain, the quotient is undefined and the
    result is 1, so uncertainty never appears as confidence (see ADR 0021).
    """
    causes, layout = meta.astype(np.float64), META_LAYOUTS[meta.size]
    survival = (
        (1.0 - causes[layout.brake_disengage])
        * (1.0 - causes[layout.gas_disengage])
        * (1.0 - causes[layout.steer_override])
    )
    before = np.concatenate(([1.0], survival[:-1]))
    lost = before - survival
    certain = before < MIN_SURVIVAL
    return np.where(certain, 1.0, lost / np.where(certain, 1.0, before))


@dataclass(slots=True)
class ConfidenceFilter:
    """Grades the confidence: how unlikely recent predictions make a disengagement now.

    `history` is (5, 5) with one row of predictions per 2 s, newest last; columns are horizons.
    """

    history: NDArray[np.float64] = field(default_factory=lambda: np.zeros((HORIZONS, HORIZONS)))

    def update(self, meta: NDArray[np.float32], frame_id: int) -> Confidence:
        """Return the grade for the meta probabilities of a frame."""
        if frame_id % CONFIDENCE_PERIOD_FRAMES == 0:
            self.history[:-1] = self.history[1:]
            self.history[-1] = independent_disengagements(meta)
        # Row i was predicted (4 - i) slices ago, so its column (4 - i) is about the current slice.
        score = sum(float(self.history[row, -1 - row]) for row in range(HORIZONS)) / HORIZONS
        if score < GREEN_BELOW:
            return Confidence.GREEN
        return Confidence.YELLOW if score < YELLOW_BELOW else Confidence.RED


@dataclass(slots=True)
class HardBrakeFilter:
    """Detects a lasting prediction of hard braking within 2 s."""

    # Recent probabilities of braking harder than 5 m/s^2, newest last.
    braking_5: list[float] = field(default_factory=lambda: [0.0] * len(HARD_BRAKE_5_THRESHOLDS))
    # Recent probabilities of braking harder than 3 m/s^2, newest last.
    braking_3: list[float] = field(default_factory=lambda: [0.0] * len(HARD_BRAKE_3_THRESHOLDS))

    def update(self, meta: NDArray[np.float32]) -> bool:
        """Return whether to expect hard braking, given the meta probabilities of a frame."""
        layout = META_LAYOUTS[meta.size]
        self.braking_5 = [*self.braking_5[1:], float(meta[layout.hard_brake_5][0])]
        self.braking_3 = [*self.braking_3[1:], float(meta[layout.hard_brake_3][0])]
        return _all_above(self.braking_5, HARD_BRAKE_5_THRESHOLDS) and _all_above(
            self.braking_3, HARD_BRAKE_3_THRESHOLDS
        )


def _all_above(values: Sequence[float], thresholds: Sequence[float]) -> bool:
    return all(value > limit for value, limit in zip(values, thresholds, strict=True))


@dataclass(frozen=True, slots=True)
class FrameVerdict:
    """The daemon's own conclusions from the outputs of this and earlier frames."""

    action: Action
    confidence: Confidence
    hard_brake_predicted: bool
    lane_change_state: LaneChangeState
    lane_change_direction: LaneChangeDirection
