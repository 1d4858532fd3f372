"""Positions of lines and of the car ahead in the cells of the views, computed from targets.

Each view is divided into 16x32 cells of 16x16 pixels. The vision network locates a line by one cell
in each row, and the car ahead by one cell. These functions return the true positions for training.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from modeld.constants import LEAD_COUNT, LEAD_STEPS, LEAD_WIDTH, X_IDXS
from tools.simulator.training.heads import ROW_S, VISION_TARGETS, Singles, places_in_target
from tools.simulator.world.view import MED_LENS, WIDE_LENS, Lens

ROWS, COLUMNS = 16, 32
CELL_PX = 16
# Four lane lines and two road edges.
LINES = 6
# Distance and growth of the car ahead.
LEAD_READINGS = 2
# A reading is the scaled value that the network learns. The distance that gives a reading of 0, m;
# the growth over `ROW_S` that gives a reading of 1; the limit of growth readings.
_LEAD_M, _GROWTH, _MOST_GROWTHS = 20.0, 0.05, 3.0
# Distances along the road, m, from the nearest road in the wide view to where a lane is two cells
# wide.
_DISTANCES_M = 4.5 * 1.06 ** np.arange(52)
_MIDDLES = CELL_PX * (np.arange(ROWS) + 0.5)
_PLACES = places_in_target(VISION_TARGETS)
_LENSES = (MED_LENS, WIDE_LENS)


def column_scale() -> Singles:
    """Return the coordinate of each column, (32,), -8 to 8.

    The network averages it, weighted by each column's score, to locate a line. The range is larger
    than that of the thousand other features, to give positions more effect.
    """
    return (0.5 * (np.arange(COLUMNS) + 0.5 - 0.5 * COLUMNS)).astype(np.float32)


def line_columns(targets: Singles) -> Singles:
    """Return the columns where lines cross the centres of rows, in cells, (n, 2, 6, 16).

    The axes are sample, view, line and row. A column is NaN where a line is absent or outside the
    picture. `targets` (n, size) are in their own units.
    """
    lines = targets[:, _PLACES["lane_lines"]].reshape(-1, 4, 33, 2)
    edges = targets[:, _PLACES["road_edges"]].reshape(-1, 2, 33, 2)
    places = np.concatenate([lines, edges], axis=1).astype(np.float64)
    # Interpolate linearly between the model's distances; NaN if either end is NaN.
    after = np.clip(np.searchsorted(X_IDXS, _DISTANCES_M), 1, 32)
    share = (_DISTANCES_M - X_IDXS[after - 1]) / (X_IDXS[after] - X_IDXS[after - 1])
    at = places[:, :, after - 1] * (1.0 - share[:, None]) + places[:, :, after] * share[:, None]
    return np.stack([_crossings(at, lens) for lens in _LENSES], axis=1).astype(np.float32)


def row_scale() -> Singles:
    """Return the coordinate of each row, (16,), -4 to 4, to locate the car ahead."""
    return (0.5 * (np.arange(ROWS) + 0.5 - 0.5 * ROWS)).astype(np.float32)


def lead_places(targets: Singles) -> Singles:
    """Return where the rear of the car ahead touches the road, in cells, (n, 2, 2).

    The last axis is column and row in each view, from the top left. It is NaN without a car, or
    if the car is outside the picture. `targets` (n, size) are in their own units.
    """
    lead = targets[:, _PLACES["lead"]].reshape(-1, LEAD_COUNT, LEAD_STEPS, LEAD_WIDTH)[:, 0, 0]
    is_there = targets[:, _PLACES["lead_prob"]][:, 0] > 0.5
    lines = targets[:, _PLACES["lane_lines"]].reshape(-1, 4, 33, 2)
    found = np.full((len(targets), 2, 2), np.nan, np.float32)
    for index in np.flatnonzero(is_there):
        ahead, aside = float(lead[index, 0]), float(lead[index, 1])
        # Height of the road there: the mean of both lines of the own lane.
        below = [np.interp(ahead, X_IDXS, line[:, 1]) for line in lines[index, 1:3]]
        for view, lens in enumerate(_LENSES):
            scale = lens.focal_px / max(ahead, 1.0)
            column = (lens.cx_px + scale * aside) / CELL_PX
            row = (lens.cy_px + scale * float(np.mean(below))) / CELL_PX
            # The rear of a near car is below the picture, so it is placed in the lowest row.
            row = min(row, ROWS - 0.5)
            if 0.0 <= column < COLUMNS and row >= 0.0:
                found[index, view] = column, row
    return found


def lead_readings(targets: Singles) -> Singles:
    """Return the readings of the car ahead, (n, 2); NaN without a car.

    They are the logarithm of its distance in units of 20 m, and its growth in the picture
    over `ROW_S`, in units of 5 %. `targets` (n, size) are in their own units.
    """
    lead = targets[:, _PLACES["lead"]].reshape(-1, LEAD_COUNT, LEAD_STEPS, LEAD_WIDTH)[:, 0, 0]
    is_there = targets[:, _PLACES["lead_prob"]][:, 0] > 0.5
    ahead = np.where(is_there, np.maximum(lead[:, 0], 1.0), np.nan)
    nearer = (targets[:, _PLACES["pose"]][:, 0] - lead[:, 2]) * ROW_S
    growths = np.clip(nearer / ahead / _GROWTH, -_MOST_GROWTHS, _MOST_GROWTHS)
    return np.stack([np.log(ahead / _LEAD_M), growths], axis=1).astype(np.float32)


def _crossings(at: NDArray[np.float64], lens: Lens) -> NDArray[np.float64]:
    """Return where lines (n, 6, distances, 2) cross the rows of a view, (n, 6, 16)."""
    scale = lens.focal_px / _DISTANCES_M
    columns = (lens.cx_px + scale * at[..., 0]) / CELL_PX
    rows = lens.cy_px + scale * at[..., 1]
    # A point that is hidden behind a crest gets the row of the crest.
    rows = np.minimum.accumulate(np.where(np.isfinite(rows), rows, np.inf), axis=-1)
    found = np.full((*at.shape[:2], ROWS), np.nan)
    for index in np.ndindex(at.shape[:2]):
        known = np.isfinite(columns[index])
        if known.sum() > 1:
            row, column = rows[index][known][::-1], columns[index][known][::-1]
            found[index] = np.interp(_MIDDLES, row, column, np.nan, np.nan)
    return np.where((found >= 0.0) & (found < COLUMNS), found, np.nan)
