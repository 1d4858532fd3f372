"""Sample points on a flat road, used to estimate the car's speed from two frames.

    frames -> features -> bird's-eye view -> newer rows . older rows, 0 to 7.75 m further -> scores

In a bird's-eye view, all points of a flat road move by the same distance between two frames. So the
older frame is compared at each possible displacement. The displacement at which asphalt, dashes and
cracks agree is the distance driven. Networks and ONNX files share these tables.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tools.simulator.training.heads import ROW_S, Singles
from tools.simulator.world.view import MED_LENS

Indices = NDArray[np.int64]

# Camera height to which displacements refer, m; other heights scale them.
HEIGHT_M = 1.22
# Spacing of the rows, and number of columns, of the sample points on the road.
STEP_M = 0.25
COLUMNS = 17
_FIRST_M, _ASIDE_M = 5.5, 2.4
ROWS, BANDS, DISPLACEMENTS = 64, 4, 32
OLDER_ROWS = ROWS + DISPLACEMENTS - 1
# First used row of the channels, and stride of the first convolution.
FIRST_CHANNEL_ROW, STRIDE = 40, 2
_HIGH, _WIDE = (128 - FIRST_CHANNEL_ROW) // STRIDE, 256 // STRIDE
# Size of a feature in pixels of the view; a channel contains every second pixel.
_CELL_PX = 2 * STRIDE

_AHEAD_M = _FIRST_M + STEP_M * np.arange(OLDER_ROWS)


def place_indices() -> Indices:
    """Return two features for each sample point, above and below it, (2, 95 * 17).

    They are indices into the (44, 128) rows and columns of features.
    """
    above = np.minimum(np.floor(_rows()), _HIGH - 2).astype(np.int64)
    column = np.clip(np.rint(_columns()), 0, _WIDE - 1).astype(np.int64)
    return np.stack([((above + k)[:, None] * _WIDE + column).ravel() for k in (0, 1)])


def place_weights() -> Singles:
    """Return the weights of both features of each point, (2, 95 * 17); 0 outside the view."""
    rows, columns = _rows(), _columns()
    seen = (columns >= 0.0) & (columns <= _WIDE - 1.0)
    below = rows - np.minimum(np.floor(rows), _HIGH - 2)
    weights = np.stack([(share[:, None] * seen).ravel() for share in (1.0 - below, below)])
    return weights.astype(np.float32)


def displacement_indices() -> Indices:
    """Return the row products that form each score, (4 * 16 * 32,): by band, row, displacement.

    They are indices into (64, 95), the products of newer and older rows.
    """
    newer, displacement = np.arange(ROWS)[:, None], np.arange(DISPLACEMENTS)[None]
    return (newer * OLDER_ROWS + newer + displacement).ravel()


def displacement_of(speed_mps: Singles, height_m: Singles) -> Singles:
    """Return the road's displacement between frames in steps, for a camera at `HEIGHT_M`, (n,)."""
    return speed_mps * (ROW_S / STEP_M) * (HEIGHT_M / height_m)


def _rows() -> NDArray[np.float64]:
    """Return the feature rows of the sample points, (95,)."""
    rows = MED_LENS.cy_px + MED_LENS.focal_px * HEIGHT_M / _AHEAD_M
    return np.clip((rows - 0.5) / _CELL_PX - FIRST_CHANNEL_ROW / STRIDE, 0.0, _HIGH - 1.0)


def _columns() -> NDArray[np.float64]:
    """Return the feature columns of the sample points, (95, 17)."""
    aside = np.linspace(-_ASIDE_M, _ASIDE_M, COLUMNS)
    pixels = MED_LENS.cx_px + MED_LENS.focal_px * aside[None] / _AHEAD_M[:, None]
    return np.asarray((pixels - 0.5) / _CELL_PX)
