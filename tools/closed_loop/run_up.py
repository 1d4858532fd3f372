"""The run-up: before the hand-over the car is led along a path, so that a model has seen a drive.

The path lies on the lane's centre; where a trial hands the car over beside it, it leaves the centre
in the last metres and arrives with the trial's offset and heading.
"""

from __future__ import annotations

import math

import numpy as np

from tools.closed_loop.trial import RUN_UP_S, Trial
from tools.world.car import TICK_S, Car
from tools.world.curves import arctangent, sin_cos

# Of leaving the centre; at most half of the run-up.
SWERVE_M = 40.0


class RunUp:
    """Leads the car to the hand-over.

    Args:
        trial: which place and which speed.
    """

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self._centre_m = trial.world.lanes.centre_m(trial.lane)
        self._swerve_m = min(SWERVE_M, 0.5 * RUN_UP_S * trial.speed_mps)
        bend = trial.world.road.at(trial.hand_over_m).curvature_1pm
        sine, cosine = sin_cos(trial.off_rad)
        along = 1.0 - bend * (self._centre_m + trial.off_m)
        # The quintic from 0 to off_m with the slope of the heading at its end, bent nowhere there.
        end, rise = trial.off_m, float(sine) / float(cosine) * along * self._swerve_m
        self._parts = (10.0 * end - 4.0 * rise, -15.0 * end + 7.0 * rise, 6.0 * end - 3.0 * rise)

    def car(self, time_s: float) -> Car:
        """Return the car at a time that counts to the hand-over at 0."""
        trial = self._trial
        s = trial.hand_over_m + trial.speed_mps * time_s
        x, y, heading = self._pose(s)
        before_x, before_y, before = self._pose(s - trial.speed_mps * TICK_S)
        way = math.sqrt((x - before_x) ** 2 + (y - before_y) ** 2)
        # Speed and curvature are those of the last tick, as the car's sensors measure them.
        return Car(
            x_m=x,
            y_m=y,
            heading_rad=heading,
            speed_mps=way / TICK_S,
            s_m=s,
            curvature_1pm=(heading - before) / way,
        )

    def _pose(self, s_m: float) -> tuple[float, float, float]:
        """Return x, y and heading on the path."""
        road = self._trial.world.road
        t = max(0.0, 1.0 + (s_m - self._trial.hand_over_m) / self._swerve_m)
        third, fourth, fifth = self._parts
        offset = self._centre_m + t * t * t * (third + t * (fourth + t * fifth))
        slope = t * t * (3.0 * third + t * (4.0 * fourth + t * 5.0 * fifth)) / self._swerve_m
        point = road.at(s_m)
        x, y, _ = road.places(np.array(s_m), np.array(offset))
        along = 1.0 - point.curvature_1pm * offset
        return float(x), float(y), point.heading_rad + float(arctangent(np.array(slope / along)))
