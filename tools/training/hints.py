"""What each cell of the convolutions should see, as a help while they learn: lines, and motion.

A plan is a few numbers for a whole picture, from which convolutions learn slowly what to look for.
So while training, each of 16x32 cells of both views also says which lines pass through it, and how
far the road in it has moved since the older frame. Both follow from the targets: lines projected,
and the plane of the road moved by speed and yaw. Nothing of it is in the exported model.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from modeld.constants import X_IDXS
from tools.training.heads import ROW_S, VISION_TARGETS, Singles, places_in_target
from tools.world.view import MED_LENS, WIDE_LENS

ROWS, COLUMNS = 16, 32
CELL_PX = 16
# Four lane lines, two edges.
LINES = 6
# Along the road: from what the wide view shows to where a lane is two cells wide.
_DISTANCES_M = 4.5 * 1.06 ** np.arange(52)
# Flow is told where it is some pixels and the road is seen, in cells.
_NEAR_M, _FAR_M = 5.0, 60.0
_MOST_CELLS = 6.0
_LINES_WEIGHT, _FLOW_WEIGHT = 1.0, 1.0
# Few cells have a line: without it nowhere would be a good answer.
_LINE_EMPHASIS = 4.0

_PLACES = places_in_target(VISION_TARGETS)
_LENSES = (MED_LENS, WIDE_LENS)


def line_hints(targets: Singles) -> Singles:
    """Return which lines pass through each cell, (n, 2, 6, 16, 32): 1 where one does, else 0.

    Args:
        targets: (n, size) in their own units.
    """
    lines = targets[:, _PLACES["lane_lines"]].reshape(-1, 4, 33, 2)
    edges = targets[:, _PLACES["road_edges"]].reshape(-1, 2, 33, 2)
    places = np.concatenate([lines, edges], axis=1).astype(np.float64)
    # Linear between the model's distances, NaN where either end is.
    after = np.clip(np.searchsorted(X_IDXS, _DISTANCES_M), 1, 32)
    share = (_DISTANCES_M - X_IDXS[after - 1]) / (X_IDXS[after] - X_IDXS[after - 1])
    at = places[:, :, after - 1] * (1.0 - share[:, None]) + places[:, :, after] * share[:, None]
    found = np.zeros((len(targets), 2, LINES, ROWS, COLUMNS), np.float32)
    sample, line = np.meshgrid(np.arange(len(targets)), np.arange(LINES), indexing="ij")
    for view, lens in enumerate(_LENSES):
        scale = lens.focal_px / _DISTANCES_M
        column = (lens.cx_px + scale * at[..., 0]) / CELL_PX
        row = (lens.cy_px + scale * at[..., 1]) / CELL_PX
        seen = (column >= 0) & (column < COLUMNS) & (row >= 0) & (row < ROWS)
        which = [np.broadcast_to(index[..., None], seen.shape)[seen] for index in (sample, line)]
        found[which[0], view, which[1], row[seen].astype(int), column[seen].astype(int)] = 1.0
    return found


def flow_hints(targets: Singles) -> Singles:
    """Return how far the road has moved in each cell, (n, 2, 2, 16, 32): right and down, in cells.

    NaN above the horizon, far away, and where it moves further than can be compared.

    Args:
        targets: (n, size) in their own units.
    """
    speed, yaw_rate = (targets[:, _PLACES["pose"]][:, index, None, None] for index in (0, 5))
    height = targets[:, _PLACES["road_transform"]][:, 2, None, None]
    views = [
        _flow(lens.focal_px, lens.cx_px, lens.cy_px, speed, yaw_rate, height) for lens in _LENSES
    ]
    return np.stack(views, axis=1).astype(np.float32)


def _flow(
    focal_px: float, cx_px: float, cy_px: float, speed: Singles, yaw_rate: Singles, height: Singles
) -> NDArray[np.float64]:
    """Return the flow of one view, (n, 2, 16, 32)."""
    across = CELL_PX * (np.arange(COLUMNS) + 0.5)[None, None, :]
    below = CELL_PX * (np.arange(ROWS) + 0.5)[None, :, None] - cy_px
    ahead = focal_px * height / np.maximum(below, 1.0)
    aside = ahead * (across - cx_px) / focal_px
    turn = yaw_rate * ROW_S
    # The same place of the road as the car saw it one row of the histories before.
    older_ahead = ahead + speed * ROW_S - 0.5 * turn * aside
    older_aside = aside + turn * (ahead + 0.5 * speed * ROW_S)
    right = (across - cx_px - focal_px * older_aside / older_ahead) / CELL_PX
    down = (below - focal_px * height / older_ahead) / CELL_PX
    flow = np.stack(np.broadcast_arrays(right, down), axis=1)
    told = (
        (below > 1.0) & (ahead > _NEAR_M) & (ahead < _FAR_M) & (np.abs(flow).max(1) < _MOST_CELLS)
    )
    return np.where(told[:, None], flow, np.nan)


def hint_loss(said: Tensor, targets: Singles) -> Tensor:
    """Return the loss of what the cells say, a scalar.

    Args:
        said: (n, 2, 8, 16, 32): logits of six lines, then flow to the right and down, in cells.
        targets: (n, size) in their own units.
    """
    lines, flow = torch.from_numpy(line_hints(targets)), torch.from_numpy(flow_hints(targets))
    emphasis = torch.tensor(_LINE_EMPHASIS)
    loss = functional.binary_cross_entropy_with_logits(
        said[:, :, :LINES].float(), lines, pos_weight=emphasis
    )
    known = torch.isfinite(flow)
    errors = (said[:, :, LINES:].float() - torch.nan_to_num(flow)).abs()
    moved = torch.where(known, errors, torch.zeros_like(errors)).sum() / known.sum().clamp(min=1)
    return _LINES_WEIGHT * 10.0 * loss + _FLOW_WEIGHT * moved
