"""The driving command read out of the plan: curvature, acceleration and whether to stop.

Formulas: openpilot, Aug 2025 (see ADR 0025 for the constants).
"""

import math
from dataclasses import dataclass
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
from modeld.inputs import ActionTimes

# Below this speed both points of the planned speed mean "stand still".
STOPPING_SPEED_MPS: Final = 0.05
# The second point is looked up this long after the action time.
STOPPING_LOOKAHEAD_S: Final = 1.0
# A curvature is a ratio to speed: near standstill the plan says nothing about it.
MIN_CURVATURE_SPEED_MPS: Final = 1.0
MIN_LATERAL_CONTROL_SPEED_MPS: Final = 0.3
# Stopping rule where the model names its own acceleration.
ACTION_STOP_SPEED_MPS: Final = 0.3
ACTION_STOP_ACCELERATION_MPS2: Final = 0.1

_FORWARD_SPEED: Final = PLAN_VELOCITY.start
_FORWARD_ACCELERATION: Final = PLAN_ACCELERATION.start
_YAW: Final = PLAN_ORIENTATION.start + 2
_YAW_RATE: Final = PLAN_ORIENTATION_RATE.start + 2


@dataclass(frozen=True, slots=True)
class Action:
    """A driving command.

    Attributes:
        curvature_1pm: Desired curvature, 1/m, positive to the right (device frame).
        acceleration_mps2: Desired acceleration.
        should_stop: Come to and stay at a standstill.
    """

    curvature_1pm: float = 0.0
    acceleration_mps2: float = 0.0
    should_stop: bool = False


def smooth(value: float, previous: float, tau_s: float, dt_s: float = DT_MODEL_S) -> float:
    """Return one step of a first-order low-pass filter; ``tau_s`` 0 passes the value through."""
    alpha = 1.0 - math.exp(-dt_s / tau_s) if tau_s > 0 else 1.0
    return alpha * value + (1.0 - alpha) * previous


def acceleration_from_plan(plan: NDArray[np.float32], action_t_s: float) -> tuple[float, bool]:
    """Return the constant-jerk acceleration that meets the planned speed at ``action_t_s``.

    With v(t) = v0 + a0*t + j*t^2/2 the acceleration reached at t is 2*(v(t) - v0)/t - a0.

    Args:
        plan: (33, 15) float32.
        action_t_s: Time after the frame, greater than 0.

    Returns:
        Acceleration in m/s^2, and whether the plan stands still from then on.
    """
    speeds = plan[:, _FORWARD_SPEED]
    target, later = np.interp((action_t_s, action_t_s + STOPPING_LOOKAHEAD_S), T_IDXS, speeds)
    acceleration = 2.0 * (target - speeds[0]) / action_t_s - plan[0, _FORWARD_ACCELERATION]
    should_stop = target < STOPPING_SPEED_MPS and later < STOPPING_SPEED_MPS
    return float(acceleration), bool(should_stop)


def curvature_from_plan(plan: NDArray[np.float32], v_ego_mps: float, action_t_s: float) -> float:
    """Return the curvature that meets the planned heading at ``action_t_s``, 1/m.

    The same constant-change rule as for acceleration: 2*psi(t)/(v*t) - psi_rate(0)/v.

    Args:
        plan: (33, 15) float32.
        v_ego_mps: Speed now.
        action_t_s: Time after the frame, greater than 0.
    """
    speed = max(v_ego_mps, MIN_CURVATURE_SPEED_MPS)
    heading = float(np.interp(action_t_s, T_IDXS, plan[:, _YAW]))
    return 2.0 * heading / (speed * action_t_s) - float(plan[0, _YAW_RATE]) / speed


@dataclass(slots=True)
class ActionFilter:
    """Derives the command of each frame and smooths it.

    Attributes:
        lat_smooth_s: Time constant for curvature.
        long_smooth_s: Time constant for acceleration.
        action: Command of the previous frame.
    """

    lat_smooth_s: float
    long_smooth_s: float
    action: Action = Action()

    def update(
        self,
        plan: NDArray[np.float32],
        model_action: NDArray[np.float32] | None,
        v_ego_mps: float,
        times: ActionTimes,
    ) -> Action:
        """Return the command for one frame.

        Args:
            plan: (33, 15) float32.
            model_action: (2,) lateral acceleration-like and acceleration where the model names
                its own action, else None.
            v_ego_mps: Speed now, not negative.
            times: When the command takes effect.
        """
        if model_action is None:
            acceleration, should_stop = acceleration_from_plan(plan, times.longitudinal_s)
            curvature = curvature_from_plan(plan, v_ego_mps, times.lateral_s)
        else:
            acceleration = float(model_action[1])
            curvature = float(model_action[0]) / max(v_ego_mps, MIN_CURVATURE_SPEED_MPS) ** 2
            should_stop = (
                v_ego_mps < ACTION_STOP_SPEED_MPS and acceleration < ACTION_STOP_ACCELERATION_MPS2
            )
        previous = self.action
        if v_ego_mps > MIN_LATERAL_CONTROL_SPEED_MPS:
            curvature = smooth(curvature, previous.curvature_1pm, self.lat_smooth_s)
        else:
            curvature = previous.curvature_1pm
        acceleration = smooth(acceleration, previous.acceleration_mps2, self.long_smooth_s)
        self.action = Action(curvature, acceleration, should_stop)
        return self.action
