"""The rendered world: a road, a car that drives on it, a car ahead; all of it known exactly.

Coordinates of the world: a plane with x forward at the start of the drive and y to its right, so
that with z down heading, yaw rate and curvature are positive to the right. On the road: arc length
s along the middle lane's centre, lateral offset to the right of it. Everything is a function of a
seed; a longer drive of the same seed begins like a shorter one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tools.world.car import FAMILY_CAR
from tools.world.curves import (
    Floats,
    arctangent,
    ease,
    ease_slope,
    random_walk,
    sin_cos,
    through_knots,
)

# Three lanes of the usual width of a highway (3.6 m), lines between and beside them.
LANE_WIDTH_M = 3.6
LINE_OFFSETS_M = (-5.4, -1.8, 1.8, 5.4)
EDGE_OFFSETS_M = (-6.6, 6.6)

# The world is stepped at the rate of carState.
TICK_NS = 10_000_000
TICKS_PER_S = 100
# What is ahead of the last frame: the model plans 10 s.
LOOKAHEAD_S = 11.0
# The road is known on a grid of arc length, from a little behind the start to what can be seen.
GRID_M = 0.5
BEHIND_M = 10.0
SIGHT_M = 420.0

_CURVATURE_SPACING_M = 90.0
_MAX_CURVATURE_1PM = 2.4e-3
_SPEED_SPACING_S = 8.0
_SPEED_LIMITS_MPS = (14, 27)
_GAP_SPACING_S = 7.0
_GAP_LIMITS_M = (16, 56)
_WOBBLE_SPACING_M = 55.0
_WOBBLE_M = 0.14
# A lane change: the blinker, then the driver's hand on the wheel, then the change.
FIRST_LANE_CHANGE_S = 5.0
LANE_CHANGE_S = 5.0
BLINKER_LEAD_S = 1.5
NUDGE_S = (-0.4, 0.6)

LEFT, RIGHT = -1, 1


@dataclass(frozen=True, slots=True)
class Road:
    """The middle lane's centre on a grid of arc length.

    All of its arrays are (n,); `start_m` is the arc length of the first grid point.
    """

    start_m: float
    x_m: Floats
    y_m: Floats
    heading_rad: Floats
    curvature_1pm: Floats

    @property
    def s_m(self) -> Floats:
        """Arc lengths of the grid."""
        return self.start_m + GRID_M * np.arange(self.x_m.size, dtype=np.float64)


@dataclass(frozen=True, slots=True)
class LaneChange:
    """One change of lane: when it begins, and to which side."""

    start_s: float
    side: int


@dataclass(frozen=True, slots=True)
class Motion:
    """What drives the world, on ticks of 10 ms; a recording may supply it.

    Attributes:
        speed_mps: (n,) of the car.
        curvature_1pm: on the road's grid.
        gap_m: (n,) arc length from the camera to the rear of the car ahead.
        wobble_m: lateral offset on the road's grid, without lane changes.
    """

    speed_mps: Floats
    curvature_1pm: Floats
    gap_m: Floats
    lane_changes: tuple[LaneChange, ...]
    wobble_m: Floats


@dataclass(frozen=True, slots=True)
class CarState:
    """The car at one tick.

    Attributes:
        s_m: arc length of the road next to the camera, which is at `x_m` and `y_m` in the world.
        curvature_1pm: of the path of the car, positive to the right.
        offset_m: from the middle lane's centre to the right.
        lead_s_m: arc length of the rear of the car ahead.
        blinker: ``LEFT``, ``RIGHT`` or 0.
        nudge: the same for the driver's hand at the wheel.
    """

    s_m: float
    x_m: float
    y_m: float
    heading_rad: float
    speed_mps: float
    acceleration_mps2: float
    curvature_1pm: float
    offset_m: float
    lead_s_m: float
    lead_speed_mps: float
    blinker: int
    nudge: int

    @property
    def steering_angle_deg(self) -> float:
        """At the steering wheel, positive to the left as in ``carState``."""
        return FAMILY_CAR.steering_angle_deg(self.curvature_1pm)


def seeded_motion(seed: int, seconds: float) -> Motion:
    """Return the motion of a seed."""
    ticks = _tick_count(seconds)
    times = np.arange(ticks) / TICKS_PER_S
    speed_knots = random_walk(
        np.random.default_rng((seed, 1)),
        int(times[-1] / _SPEED_SPACING_S) + 3,
        4,
        _SPEED_LIMITS_MPS,
    )
    gap_knots = random_walk(
        np.random.default_rng((seed, 2)), int(times[-1] / _GAP_SPACING_S) + 3, 9, _GAP_LIMITS_M
    )
    speed = through_knots(speed_knots.astype(np.float64), _SPEED_SPACING_S, times)
    s = road_grid(float(np.cumsum(speed)[-1]) / TICKS_PER_S)
    bends = (
        np.random.default_rng((seed, 3))
        .integers(-20, 21, int(s[-1] / _CURVATURE_SPACING_M) + 3)
        .astype(np.float64)
    )
    # Squared, so that gentle bends are more frequent than tight ones.
    curvature_knots = bends * np.abs(bends) * (_MAX_CURVATURE_1PM / 400.0)
    wobbles = (
        np.random.default_rng((seed, 4))
        .integers(-100, 101, int(s[-1] / _WOBBLE_SPACING_M) + 3)
        .astype(np.float64)
    )
    return Motion(
        speed_mps=speed,
        curvature_1pm=through_knots(curvature_knots, _CURVATURE_SPACING_M, s + BEHIND_M),
        gap_m=through_knots(gap_knots.astype(np.float64), _GAP_SPACING_S, times),
        lane_changes=_seeded_lane_changes(seed, float(times[-1])),
        wobble_m=through_knots(wobbles * (_WOBBLE_M / 100.0), _WOBBLE_SPACING_M, s + BEHIND_M),
    )


def _tick_count(seconds: float) -> int:
    return round((seconds + LOOKAHEAD_S) * TICKS_PER_S) + 1


def road_grid(driven_m: float) -> Floats:
    """Return the arc lengths at which the road of a drive of this length is known."""
    return np.arange(-BEHIND_M, driven_m + SIGHT_M + 80.0, GRID_M)


def _seeded_lane_changes(seed: int, last_s: float) -> tuple[LaneChange, ...]:
    rng = np.random.default_rng((seed, 5))
    changes = []
    lane, start_s = 0, FIRST_LANE_CHANGE_S
    while start_s < last_s:
        side = (LEFT, RIGHT)[int(rng.integers(2))]
        if lane:
            side = -lane
        changes.append(LaneChange(start_s, side))
        lane += side
        start_s += float(rng.integers(15, 23))
    return tuple(changes)


class World:
    """Answers what is where at any tick."""

    def __init__(self, motion: Motion) -> None:
        self.road = build_road(motion.curvature_1pm)
        self._motion = motion
        s = self.road.s_m
        driven = np.concatenate([[0.0], np.cumsum(motion.speed_mps[:-1])]) / TICKS_PER_S
        offset, slope = motion.wobble_m.copy(), np.gradient(motion.wobble_m, GRID_M)
        for change in motion.lane_changes:
            # By distance: the car ahead has changed there before us.
            tick = min(round(change.start_s * TICKS_PER_S), driven.size - 1)
            length = LANE_CHANGE_S * motion.speed_mps[tick]
            t = (s - driven[tick]) / length
            offset += change.side * LANE_WIDTH_M * ease(t)
            slope += change.side * LANE_WIDTH_M / length * ease_slope(t)
        self._offset_m = offset
        sine, cosine = sin_cos(self.road.heading_rad)
        self._x_m = self.road.x_m - offset * sine
        self._y_m = self.road.y_m + offset * cosine
        along = 1.0 - self.road.curvature_1pm * offset
        self._heading_rad = self.road.heading_rad + arctangent(slope / along)
        steps = np.sqrt(np.diff(self._x_m) ** 2 + np.diff(self._y_m) ** 2)
        travelled = np.concatenate([[0.0], np.cumsum(steps)])
        travelled -= np.interp(0.0, s, travelled)
        self._curvature_1pm = np.gradient(self._heading_rad) / np.gradient(travelled)
        self._s_m = np.interp(driven, travelled, s)
        self._lead_s_m = self._s_m + motion.gap_m
        lead_driven = np.interp(self._lead_s_m, s, travelled)
        self._lead_speed_mps = np.gradient(lead_driven) * TICKS_PER_S
        self._acceleration_mps2 = np.gradient(motion.speed_mps) * TICKS_PER_S
        self._blinker, self._nudge = _driver_actions(motion.lane_changes, driven.size)

    @property
    def ticks(self) -> int:
        """How many ticks there are, those of the plan beyond the last frame included."""
        return self._s_m.size

    def state(self, tick: int) -> CarState:
        """Return the car at a tick."""
        s = float(self._s_m[tick])
        grid = (s - self.road.start_m) / GRID_M
        index = int(grid)
        part = grid - index

        def at(table: Floats) -> float:
            return float(table[index] + (table[index + 1] - table[index]) * part)

        return CarState(
            s_m=s,
            x_m=at(self._x_m),
            y_m=at(self._y_m),
            heading_rad=at(self._heading_rad),
            speed_mps=float(self._motion.speed_mps[tick]),
            acceleration_mps2=float(self._acceleration_mps2[tick]),
            curvature_1pm=at(self._curvature_1pm),
            offset_m=at(self._offset_m),
            lead_s_m=float(self._lead_s_m[tick]),
            lead_speed_mps=float(self._lead_speed_mps[tick]),
            blinker=int(self._blinker[tick]),
            nudge=int(self._nudge[tick]),
        )

    def track(self, first: int, last: int) -> tuple[Floats, Floats, Floats, Floats]:
        """Return x, y, heading and speed of the car at the ticks from first to before last."""
        grid = (self._s_m[first:last] - self.road.start_m) / GRID_M
        x, y, heading = (
            _between(table, grid) for table in (self._x_m, self._y_m, self._heading_rad)
        )
        return x, y, heading, self._motion.speed_mps[first:last]

    def offset_at(self, s_m: float) -> float:
        """Return where cars drive at an arc length: offset from the middle lane's centre."""
        return float(np.interp(s_m, self.road.s_m, self._offset_m))

    def road_points(self, s_m: Floats) -> tuple[Floats, Floats, Floats]:
        """Return x, y and heading of the middle lane's centre at arc lengths."""
        grid = (s_m - self.road.start_m) / GRID_M
        road = self.road
        return _between(road.x_m, grid), _between(road.y_m, grid), _between(road.heading_rad, grid)


def _between(table: Floats, grid: Floats) -> Floats:
    """Return values between the entries of a table; `grid` counts entries."""
    index = np.minimum(np.maximum(grid.astype(np.int64), 0), table.size - 2)
    first = table[index]
    return np.asarray(first + (table[index + 1] - first) * (grid - index))


def build_road(curvature_1pm: Floats) -> Road:
    """Integrate a curvature over the grid: the road starts at the origin, straight ahead."""
    middle = 0.5 * (curvature_1pm[:-1] + curvature_1pm[1:])
    heading = np.concatenate([[0.0], np.cumsum(middle * GRID_M)])
    # The direction half way between two grid points is that of their chord.
    sine, cosine = sin_cos(0.5 * (heading[:-1] + heading[1:]))
    x = np.concatenate([[0.0], np.cumsum(cosine * GRID_M)])
    y = np.concatenate([[0.0], np.cumsum(sine * GRID_M)])
    return Road(-BEHIND_M, x - BEHIND_M, y, heading, curvature_1pm)


def _driver_actions(
    changes: tuple[LaneChange, ...], ticks: int
) -> tuple[NDArray[np.int8], NDArray[np.int8]]:
    """Return the blinker and the hand at the wheel at each tick."""
    blinker = np.zeros(ticks, np.int8)
    nudge = np.zeros(ticks, np.int8)
    for change in changes:
        for target, first_s, last_s in (
            (blinker, -BLINKER_LEAD_S, LANE_CHANGE_S),
            (nudge, *NUDGE_S),
        ):
            first, last = (
                round((change.start_s + later_s) * TICKS_PER_S) for later_s in (first_s, last_s)
            )
            target[max(0, first) : max(0, last)] = change.side
    return blinker, nudge
