"""Curvature, acceleration and stopping, from the plan or from heads of their own."""

from dataclasses import dataclass
from math import exp
from typing import Any

import numpy as np

T = [10.0 * (i / 32) ** 2 for i in range(33)]
DT = 0.05


@dataclass(frozen=True, slots=True)
class Action:
    """1/m positive to the right, m/s^2, and whether to stand still."""

    curvature: float = 0.0
    acceleration: float = 0.0
    stop: bool = False


def smoothed(value: float, before: float, tau: float) -> float:
    """One step of a first-order filter; tau 0 is none."""
    if tau == 0:
        return value
    share = 1 - exp(-DT / tau)
    return share * value + (1 - share) * before


def curvature_from_plan(plan: Any, v_ego: float, when: float) -> float:
    """Twice the mean curvature to the yaw at `when`, less the curvature now."""
    speed = max(v_ego, 1.0)
    yaw = float(np.interp(when, T, plan[:, 11]))
    return float(2 * yaw / (speed * when) - plan[0, 14] / speed)


def acceleration_from_plan(plan: Any, when: float) -> tuple[float, bool]:
    """Acceleration at constant jerk that meets the speed at `when`; stop by two planned speeds."""
    speeds = plan[:, 3]
    target = float(np.interp(when, T, speeds))
    later = float(np.interp(when + 1.0, T, speeds))
    acceleration = 2 * (target - float(speeds[0])) / when - float(plan[0, 6])
    return acceleration, target < 0.05 and later < 0.05


def act(rule: Any, parsed: dict[str, Any], v_ego: float, times: Any, before: Action) -> Action:
    """The command of a frame.

    `rule`: lateral, longitudinal, lat_tau, long_tau, hold_below, stop of a revision. `times`:
    lateral and longitudinal, s.
    """
    plan = parsed["plan"]
    if rule.lateral == "plan":
        curvature = curvature_from_plan(plan, v_ego, times[0])
    elif rule.lateral == "action":
        curvature = float(parsed["action"][0]) / max(1.0, v_ego) ** 2
    else:
        curvature = float(parsed["desired_curvature"][0])
    if rule.hold_below and v_ego <= rule.hold_below:
        curvature = before.curvature
    else:
        curvature = smoothed(curvature, before.curvature, rule.lat_tau)
    if rule.longitudinal == "none":
        return Action(curvature)
    if rule.longitudinal == "action":
        acceleration, stop = float(parsed["action"][1]), False
    else:
        acceleration, stop = acceleration_from_plan(plan, times[1])
    if rule.stop == "speed":
        stop = v_ego < 0.3 and acceleration < 0.1
    return Action(curvature, smoothed(acceleration, before.acceleration, rule.long_tau), stop)
