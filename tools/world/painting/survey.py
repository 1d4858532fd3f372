"""Projects the road ahead: its borders, over hills, and the line in which the land ends."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tools.world.curves import Floats
from tools.world.road import Road
from tools.world.view import NEAREST_M, Sight

# Distances ahead at which borders are computed; between them they are straight in the picture.
_AHEAD_M: Floats = np.concatenate(
    [
        np.arange(0.4, 4.0, 0.4),
        np.arange(4.0, 16.0, 1.0),
        np.arange(16.0, 40.0, 2.0),
        np.arange(40.0, 80.0, 4.0),
        np.arange(80.0, 424.0, 8.0),
    ]
)
_NEARNESS_1PM: Floats = 1.0 / _AHEAD_M
# Where the road runs so far away to the side, it is out of sight: the cosine of 70 degrees.
_LEAST_ACROSS = 0.34
# The land goes along with the road for so far to both sides.
_LAND_M = 180.0
# The skyline is computed from this distance on, in so many columns.
_LAND_FROM = 21
_SKYLINE_COLUMNS = 49


class Survey(NamedTuple):
    """The road as it lies before the camera.

    Attributes:
        columns: (b, n) of borders, from far to near; the last border is the reference line.
        rows: (b, n) the same; never falling: what a crest hides has the crest's row.
        nearness_1pm: (n,) inverse of the arc length from the car.
        skyline: (width,) row in which the land ends.
    """

    columns: Floats
    rows: Floats
    nearness_1pm: Floats
    skyline: Floats

    def row_at(self, ahead_m: float) -> float:
        """Return the row above which the road is seen at a distance: its own, or a crest's."""
        return float(np.interp(1.0 / ahead_m, self.nearness_1pm, self.rows[-1]))


def survey(sight: Sight, road: Road, s_m: float, offset_m: Floats, up_m: Floats) -> Survey:
    """Project the road ahead of an arc length.

    Borders are (b,): lateral offsets and heights over the road.
    """
    s = s_m + _AHEAD_M
    count = max(int(np.searchsorted(s, road.end_m)), 2)
    x, y, z = road.places(s[:count], 0.0)
    x1, y1, z1 = road.places(s[:count], 1.0)
    centre = sight.reach(x, y, z)
    across = sight.turn(x1 - x, y1 - y, z1 - z)
    away = np.flatnonzero(across[0] < _LEAST_ACROSS)
    count = max(int(away[0]), 2) if away.size else count
    rise = (-sight.right[2], -sight.down[2], -sight.forward[2])
    # Height is measured along the world's vertical.
    offset, up = np.append(offset_m, 0.0)[:, None], np.append(up_m, 0.0)[:, None]
    right, down, forward = (
        one[:count] + offset * side[:count] + up * vertical
        for one, side, vertical in zip(centre, across, rise, strict=True)
    )
    lens = sight.lens
    scale = lens.focal_px / np.maximum(forward, NEAREST_M)
    rows = np.minimum.accumulate(lens.cy_px + scale * down, axis=1)
    columns = lens.cx_px + scale * right
    return Survey(
        np.asarray(columns[:, ::-1], order="C"),
        np.asarray(rows[:, ::-1], order="C"),
        _NEARNESS_1PM[:count][::-1].copy(),
        _skyline(sight, centre, sight.turn(x1 - x, y1 - y, 0.0)),
    )


def _skyline(
    sight: Sight,
    centre: tuple[Floats, Floats, Floats],
    level: tuple[Floats, Floats, Floats],
) -> Floats:
    """Return the row in which the land ends, in each column: the horizon, or hills before it.

    `level` is the direction across the reference line without bank: the land lies along it.
    """
    lens = sight.lens
    columns = np.linspace(0.0, lens.width - 1.0, _SKYLINE_COLUMNS)
    horizon = sight.horizon_rows(columns)
    aside = ((columns - lens.cx_px) / lens.focal_px)[:, None]
    right, down, forward = (part[_LAND_FROM:] for part in centre)
    right1, down1, forward1 = (part[_LAND_FROM:] for part in level)
    # The point of the line, in metres from the road, that lies in the column.
    slope = right1 - aside * forward1
    at = (aside * forward - right) / np.where(np.abs(slope) < 1e-3, 1e-3, slope)
    depth = forward + at * forward1
    is_land = (np.abs(at) < _LAND_M) & (depth > 1.0)
    rows = lens.cy_px + lens.focal_px * (down + at * down1) / np.maximum(depth, 1.0)
    land = np.where(is_land, rows, np.inf).min(axis=1, initial=np.inf)
    every = np.arange(lens.width, dtype=np.float64)
    return np.asarray(np.interp(every, columns, np.minimum(land, horizon)))
