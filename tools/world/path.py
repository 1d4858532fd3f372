"""Where a driver goes: a lane's centre or a change between two, and the way back to it.

Lateral movement is a function of the distance driven, so a car that slows down or stands drives
the same path.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tools.world.curves import Floats, arctangent, ease, ease_bend, ease_slope
from tools.world.road import Road

# Grid of the distance driven on which the place along the road is integrated.
_CELLS = 120
# Steeper than this to the road, sine of the angle, a path is not planned.
_STEEPEST = 0.5


@dataclass(frozen=True, slots=True)
class Target:
    """The offset that a driver wants, along the road.

    Attributes:
        before_m: offset of the lane it comes from.
        after_m: offset of the lane it goes to; the same one if it stays.
        start_m: arc length at which it begins to change.
        length_m: how long the change is.
    """

    before_m: float
    after_m: float
    start_m: float = 0.0
    length_m: float = 1.0

    def at(self, s_m: Floats) -> tuple[Floats, Floats, Floats]:
        """Return offset, slope and second derivative along the road, each (n,)."""
        step = self.after_m - self.before_m
        if step == 0.0:
            none = np.zeros_like(s_m)
            return none + self.after_m, none, none
        t = (s_m - self.start_m) / self.length_m
        slope, bend = step / self.length_m, step / (self.length_m * self.length_m)
        return self.before_m + step * ease(t), slope * ease_slope(t), bend * ease_bend(t)


class Return(NamedTuple):
    """The way back to the target: a quintic over a length, zero with two derivatives at its end.

    Attributes:
        coefficients: of powers 0 to 5 of the distance as a share of the length, m.
        length_m: after which the car is where it wants to be.
    """

    coefficients: tuple[float, ...]
    length_m: float

    def at(self, distance_m: Floats) -> tuple[Floats, Floats, Floats]:
        """Return error, slope and second derivative along the path, each (n,)."""
        t = np.minimum(distance_m / self.length_m, 1.0)
        c0, c1, c2, c3, c4, c5 = self.coefficients
        error = c0 + t * (c1 + t * (c2 + t * (c3 + t * (c4 + t * c5))))
        slope = c1 + t * (2.0 * c2 + t * (3.0 * c3 + t * (4.0 * c4 + t * (5.0 * c5))))
        bend = 2.0 * c2 + t * (6.0 * c3 + t * (12.0 * c4 + t * (20.0 * c5)))
        return error, slope / self.length_m, bend / (self.length_m * self.length_m)


def return_from(error_m: float, slope: float, bend_1pm: float, length_m: float) -> Return:
    """Return the quintic from an error with its two derivatives to none.

    `slope` is the change of the error for each metre, `bend_1pm` the change of that.
    """
    e, s, b = error_m, slope * length_m, 0.5 * bend_1pm * length_m * length_m
    # The three conditions at the end, solved for the upper coefficients.
    cubic = -10.0 * e - 6.0 * s - 3.0 * b
    quartic = 15.0 * e + 8.0 * s + 3.0 * b
    quintic = -6.0 * e - 3.0 * s - b
    return Return((e, s, b, cubic, quartic, quintic), length_m)


class Path(NamedTuple):
    """Points of a path, each (n,).

    Attributes:
        s_m: arc length of the road beside each.
        offset_m: from the reference line.
        angle_rad: direction relative to the road's, positive to the right; `sine` and `cosine` of
            it.
        turn_1pm: change of that angle for each metre driven.
        progress: metres along the reference line for each metre driven.
    """

    s_m: Floats
    offset_m: Floats
    angle_rad: Floats
    sine: Floats
    cosine: Floats
    turn_1pm: Floats
    progress: Floats


def path_at(road: Road, start_m: float, way: Return, target: Target, distance_m: Floats) -> Path:
    """Return a path at distances driven.

    `distance_m` (n,) rises from 0; `start_m` is the arc length next to the car now.
    """
    reach = max(float(distance_m[-1]), 1e-3)
    grid = np.arange(_CELLS + 1, dtype=np.float64) * (reach / _CELLS)
    error, slope, _ = way.at(grid)
    s = start_m + grid
    progress = np.ones_like(grid)
    # Where the road bends depends on how far one gets on it: settled to millimetres in two rounds.
    for _ in range(2):
        turn = road.curvatures(s)
        offset, drift, _ = target.at(s)
        sine = _limited(slope + drift * progress)
        progress = np.sqrt(1.0 - sine * sine) / np.maximum(1.0 - turn * (offset + error), 0.2)
        steps = 0.5 * (progress[:-1] + progress[1:]) * (reach / _CELLS)
        s = start_m + np.concatenate([[0.0], np.cumsum(steps)])
    s, progress = np.interp(distance_m, grid, s), np.interp(distance_m, grid, progress)
    error, slope, bend = way.at(distance_m)
    offset, drift, change = target.at(s)
    sine = _limited(slope + drift * progress)
    cosine = np.sqrt(1.0 - sine * sine)
    # sin(angle) is the slope of the offset along the path.
    return Path(
        s_m=s,
        offset_m=offset + error,
        angle_rad=arctangent(sine / cosine),
        sine=sine,
        cosine=cosine,
        turn_1pm=(bend + change * progress * progress) / cosine,
        progress=progress,
    )


def _limited(slope: Floats) -> Floats:
    return np.minimum(np.maximum(slope, -_STEEPEST), _STEEPEST)
