"""The road of the simulated world: its reference line in space, sampled along the arc length.

The *reference line* is the middle of the carriageway of our direction. A place on the road is an
arc length s along it and a lateral offset d in the plane of the road, positive to the right.
World frame: x forward at the start of the road, y right, z down (m); headings and curvatures are
positive to the right. The *road frame* at a place points forward along the reference line, right
across the road, and down into it. With heading h, grade g (nose up) and bank b (right side down),
its axes are the columns of Rz(h) Ry(g) Rx(b).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from tools.simulator.world.curves import Floats, sin_cos, sine_cosine, through_knots

GRID_M = 0.5
# The road extends from a little behind the start to the limit of sight beyond its end.
BEHIND_M = 60.0
SIGHT_M = 420.0
# The road is straight from its beginning to this arc length.
_STRAIGHT_START_M = 20.0
# Maximum deviation from the initial heading; below a right angle, the road cannot cross itself.
_WIDEST_HEADING_RAD = 1.25
# Lateral acceleration at the speed limit in the sharpest curve, m/s^2: cars must slow down for it.
SHARPEST_LATERAL_MPS2 = 3.3
# Lateral jerk at the speed limit along a clothoid, m/s^3; it sets the rise of curvature.
_CLOTHOID_JERK_MPS3 = 1.1
_SHORTEST_CLOTHOID_M = 18.0
# Bank in the sharpest curve. Rural roads are built with up to 6 to 8 per cent.
_STEEPEST_BANK_RAD = 0.06
# Bank follows the mean curvature within this distance on both sides, so it starts smoothly.
_BANK_REACH_M = 16.0
# The steepest grade depends on the speed limit: 8 % at 14 m/s, 4 % at 36 m/s.
_GRADE_TIMES_SPEED_MPS = 1.3
_STEEPEST_GRADE_RAD = 0.08
# Seconds at the speed limit between two knots of the grade, long enough for gentle hills.
_GRADE_SPACING_S = 7.0
_NEWTON_STEPS = 24
_CLOSE_M = 1e-9


class RoadPoint(NamedTuple):
    """One place of the reference line: position (m), angles (rad), curvature (1/m)."""

    x_m: float
    y_m: float
    z_m: float
    heading_rad: float
    curvature_1pm: float
    grade_rad: float
    bank_rad: float


class RoadFrames(NamedTuple):
    """The road frame at many places of the reference line.

    Attributes:
        forward, down: (3, n) unit vectors along the line and into the road, in the world.
        heading_rad, curvature_1pm: (n,) heading and curvature of the reference line.
        roll_1pm, pitch_1pm, yaw_1pm: (n,) rotation of the frame about its axes, rad/m.
    """

    forward: Floats
    down: Floats
    heading_rad: Floats
    curvature_1pm: Floats
    roll_1pm: Floats
    pitch_1pm: Floats
    yaw_1pm: Floats


@dataclass(frozen=True, slots=True)
class Road:
    """The reference line on a grid of ``GRID_M``; all arrays are (n,) float64.

    Beyond both ends the road is straight.

    Attributes:
        start_m: arc length of the first grid point.
        x_m, y_m, z_m: position in the world; z points down.
        heading_rad: direction in the plane, positive to the right.
        curvature_1pm: change of heading per metre.
        grade_rad: grade, positive with the nose up.
        bank_rad: bank, positive with the right side down.
    """

    start_m: float
    x_m: Floats
    y_m: Floats
    z_m: Floats
    heading_rad: Floats
    curvature_1pm: Floats
    grade_rad: Floats
    bank_rad: Floats
    # Tables of the interpolated values. _surface (n, 6): position, right axis. _frames (n, 11):
    # forward and down axes, then the other fields of `RoadFrames`. _points (n, 7): `RoadPoint`.
    _surface: Floats = field(init=False, repr=False, compare=False)
    _frames: Floats = field(init=False, repr=False, compare=False)
    _points: Floats = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        (sh, sg, sb), (ch, cg, cb) = sin_cos(
            np.stack([self.heading_rad, self.grade_rad, self.bank_rad])
        )
        right = (ch * sg * sb - sh * cb, sh * sg * sb + ch * cb, cg * sb)
        down = (ch * sg * cb + sh * sb, sh * sg * cb - ch * sb, cg * cb)
        forward = (ch * cg, sh * cg, -sg)
        place = (self.x_m, self.y_m, self.z_m)
        grade_rate = np.gradient(self.grade_rad, GRID_M)
        turn = self.curvature_1pm
        rates = (
            np.gradient(self.bank_rad, GRID_M) - turn * sg,
            grade_rate * cb + turn * cg * sb,
            turn * cg * cb - grade_rate * sb,
        )
        line = (self.heading_rad, turn)
        put = object.__setattr__
        put(self, "_surface", np.stack([*place, *right], axis=1))
        put(self, "_frames", np.stack([*forward, *down, *line, *rates], axis=1))
        put(self, "_points", np.stack([*place, *line, self.grade_rad, self.bank_rad], axis=1))

    @property
    def s_m(self) -> Floats:
        """Arc lengths of the grid, (n,)."""
        return self.start_m + GRID_M * np.arange(self.x_m.size, dtype=np.float64)

    @property
    def end_m(self) -> float:
        """Arc length of the last grid point."""
        return self.start_m + GRID_M * (self.x_m.size - 1)

    def places(
        self, s_m: Floats | float, offset_m: Floats | float
    ) -> tuple[Floats, Floats, Floats]:
        """Return world x, y, z of points on the road's surface.

        Shapes broadcast: with (m, 1) offsets and (n,) arc lengths, the table is read only n times.
        """
        x, y, z, across_x, across_y, across_z = _between(self._surface, self._grid(s_m))
        return x + offset_m * across_x, y + offset_m * across_y, z + offset_m * across_z

    def at(self, s_m: float) -> RoadPoint:
        """Return one place of the reference line."""
        return RoadPoint(*self._row(self._points, s_m)[0])

    def frames(self, s_m: Floats) -> RoadFrames:
        """Return the road frame at arc lengths (n,)."""
        rows = _between(self._frames, self._grid(s_m))
        return RoadFrames(rows[:3], rows[3:6], *rows[6:])

    def curvatures(self, s_m: Floats) -> Floats:
        """Return the curvature of the reference line at arc lengths (n,)."""
        return np.asarray(_between(self.curvature_1pm[:, None], self._grid(s_m))[0])

    def locate(self, x_m: float, y_m: float, near_s_m: float) -> tuple[float, float]:
        """Return arc length and offset of a surface point, the inverse of `places`.

        The search starts at `near_s_m`, which must be within some tens of metres of the result.
        """
        s = near_s_m
        offset = 0.0
        for _ in range(_NEWTON_STEPS):
            (x, y, _, across_x, across_y, _), slope = self._row(self._surface, s)
            left_x, left_y = x_m - x - offset * across_x, y_m - y - offset * across_y
            # Displacement of the surface point per metre along the road; per metre across, it is
            # across_x/y.
            along_x, along_y = slope[0] + offset * slope[3], slope[1] + offset * slope[4]
            area = along_x * across_y - along_y * across_x
            # Beyond the centre of a bend the surface folds over, and points have no arc length.
            area = area if area > 0.05 else 0.05
            step = (left_x * across_y - left_y * across_x) / area
            s += min(max(step, -50.0), 50.0)
            offset += (along_x * left_y - along_y * left_x) / area
            if -_CLOSE_M < step < _CLOSE_M:
                break
        return s, offset

    def _grid(self, s_m: Floats | float) -> Floats:
        return np.asarray((s_m - self.start_m) / GRID_M)

    def _row(self, table: Floats, s_m: float) -> tuple[list[float], list[float]]:
        """Return the values of a table at an arc length, and their slopes per metre."""
        grid = (s_m - self.start_m) / GRID_M
        index = min(max(int(grid), 0), len(table) - 2)
        part = grid - index
        first, second = table[index : index + 2].tolist()
        values = [a + (b - a) * part for a, b in zip(first, second, strict=True)]
        return values, [(b - a) / GRID_M for a, b in zip(first, second, strict=True)]


def _between(table: Floats, grid: Floats) -> Floats:
    """Return a table (n, k) interpolated at fractional row numbers, (k, ...)."""
    index = np.minimum(np.maximum(grid.astype(np.int64), 0), len(table) - 2)
    part = (grid - index)[..., None]
    first = table.take(index, axis=0)
    second = table.take(index + 1, axis=0)
    second -= first
    second *= part
    second += first
    return second.T if second.ndim == 2 else np.moveaxis(second, -1, 0)


def integrated(
    curvature_1pm: Floats, grade_rad: Floats, bank_rad: Floats, start_m: float = -BEHIND_M
) -> Road:
    """Integrate curvature, grade and bank on the grid, (n,) each, to a road.

    The road passes through the origin at s = 0, heading along x.
    """
    middle = 0.5 * (curvature_1pm[:-1] + curvature_1pm[1:])
    heading = np.concatenate([[0.0], np.cumsum(middle * GRID_M)])
    # The chord between two grid points has the mean of their directions.
    sine, cosine = sin_cos(0.5 * (heading[:-1] + heading[1:]))
    climb, level = sin_cos(0.5 * (grade_rad[:-1] + grade_rad[1:]))
    steps = (cosine * level, sine * level, -climb)
    x, y, z = (np.concatenate([[0.0], np.cumsum(step * GRID_M)]) for step in steps)
    origin = round(-start_m / GRID_M)
    turn, back = sine_cosine(float(heading[origin])) if 0 <= origin < heading.size else (0.0, 1.0)
    origin = origin if 0 <= origin < heading.size else 0
    x, y, z, heading = x - x[origin], y - y[origin], z - z[origin], heading - heading[origin]
    x, y = x * back + y * turn, y * back - x * turn
    return Road(start_m, x, y, z, heading, curvature_1pm, grade_rad, bank_rad)


def straights_and_arcs(
    rng: np.random.Generator, length_m: float, speed_limit_mps: float = 25.0
) -> Road:
    """Return a random road of straights, clothoids and arcs, with hills and banked curves.

    The road extends ``SIGHT_M`` beyond `length_m`. Its sharpest curves need
    ``SHARPEST_LATERAL_MPS2`` at the speed limit. With the same generator state, a longer road
    begins with the shorter one, and later draws from `rng` do not depend on the length.
    """
    plan, hills, banks = rng.spawn(3)
    reach = round(_BANK_REACH_M / GRID_M)
    count = round((BEHIND_M + length_m + SIGHT_M) / GRID_M) + 1
    s = -BEHIND_M + GRID_M * np.arange(-reach, count + reach, dtype=np.float64)
    knots_s, knots_curvature = _bends(plan, float(s[-1]), speed_limit_mps)
    curvature = np.interp(s, knots_s, knots_curvature)
    sharpest = SHARPEST_LATERAL_MPS2 / (speed_limit_mps * speed_limit_mps)
    summed = np.concatenate([[0.0], np.cumsum(0.5 * (curvature[:-1] + curvature[1:]))])
    mean = (summed[2 * reach :] - summed[: -2 * reach]) / (2 * reach)
    steepest = _STEEPEST_BANK_RAD * banks.random()
    fall = 0.025 * (2.0 * banks.random() - 1.0)
    bank = mean * (steepest / sharpest) + fall
    inner = s[reach : s.size - reach]
    return integrated(
        curvature[reach : s.size - reach], _grades(hills, inner, speed_limit_mps), bank
    )


def _bends(
    rng: np.random.Generator, end_m: float, speed_mps: float
) -> tuple[list[float], list[float]]:
    """Return the knots of a piecewise linear curvature to beyond the end: arc lengths, values."""
    sharpest = SHARPEST_LATERAL_MPS2 / (speed_mps * speed_mps)
    places, values = [-BEHIND_M - 2.0 * _BANK_REACH_M, _STRAIGHT_START_M], [0.0, 0.0]
    heading, side = 0.0, 1.0
    while places[-1] < end_m:
        drawn = rng.random(6).tolist()
        # A third of the bends follow the previous one without a straight.
        straight = speed_mps * (0.5 + 7.0 * drawn[1] * drawn[1]) if drawn[0] > 0.33 else 0.0
        side = -side if drawn[2] < 0.65 else side
        # Gentle bends are more frequent than tight ones.
        curvature = sharpest * (0.04 + 0.96 * drawn[3] * drawn[3])
        lateral = curvature * speed_mps * speed_mps
        clothoid = max(speed_mps * lateral / _CLOTHOID_JERK_MPS3, _SHORTEST_CLOTHOID_M)
        arc = speed_mps * (0.3 + 5.0 * drawn[4])
        room = _WIDEST_HEADING_RAD - side * heading
        if room < 0.5 * _WIDEST_HEADING_RAD * (1.0 + drawn[5]):
            side, room = -side, _WIDEST_HEADING_RAD + side * heading
        # The two clothoids together turn as much as an arc of one clothoid's length.
        arc = min(arc, room / curvature - clothoid)
        if arc < 0.0:
            arc, curvature = 0.0, room / clothoid
        heading += side * curvature * (arc + clothoid)
        for length, value in (
            (straight, 0.0),
            (clothoid, side * curvature),
            (arc, side * curvature),
            (clothoid, 0.0),
        ):
            if length > 0.0:
                places.append(places[-1] + length)
                values.append(value)
    return places, values


def _grades(rng: np.random.Generator, s_m: Floats, speed_mps: float) -> Floats:
    """Return a random grade on a grid, interpolated smoothly between knots."""
    # A third of the roads are nearly flat.
    hilliness = max(1.5 * rng.random() - 0.4, 0.05)
    steepest = min(_GRADE_TIMES_SPEED_MPS / speed_mps, _STEEPEST_GRADE_RAD) * min(hilliness, 1.0)
    spacing = _GRADE_SPACING_S * speed_mps
    drawn = 2.0 * rng.random(int((s_m[-1] + BEHIND_M) / spacing) + 3) - 1.0
    return through_knots(drawn * np.abs(drawn) * steepest, spacing, s_m + BEHIND_M)
