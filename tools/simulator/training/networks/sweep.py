"""Places on a flat road at which the road view is compared to see how fast the road goes by.

    frames -> features -> seen from above -> newer rows . older rows, 0 to 7.75 m further -> scores

Seen from above, all of a flat road moves by the same way between two frames, whatever the speed is.
So the older frame is moved by each way that may be, and compared: where asphalt, dashes and cracks
agree, that is how far the car has driven. All of it is data; networks and ONNX files share it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tools.simulator.training.heads import ROW_S, Singles
from tools.simulator.world.view import MED_LENS

Indices = NDArray[np.int64]

# The height of a camera that ways are counted for, m; one of another height sees them scaled.
HEIGHT_M = 1.22
# Rows and columns of places on the road, m: from where the road view begins.
STEP_M = 0.25
COLUMNS = 17
_FIRST_M, _ASIDE_M = 5.5, 2.4
ROWS, BANDS, WAYS = 64, 4, 32
OLDER_ROWS = ROWS + WAYS - 1
# The convolution that is compared: of the channels' rows from here on, every second row and column.
FIRST_CHANNEL_ROW, STRIDE = 40, 2
_HIGH, _WIDE = (128 - FIRST_CHANNEL_ROW) // STRIDE, 256 // STRIDE
# A channel has every second pixel of the view.
_CELL_PX = 2 * STRIDE

_AHEAD_M = _FIRST_M + STEP_M * np.arange(OLDER_ROWS)


def place_indices() -> Indices:
    """Return two features for each place, above and below it, (2, 95 * 17).

    They are indices into (44, 128), rows and columns of features.
    """
    above = np.minimum(np.floor(_rows()), _HIGH - 2).astype(np.int64)
    column = np.clip(np.rint(_columns()), 0, _WIDE - 1).astype(np.int64)
    return np.stack([((above + k)[:, None] * _WIDE + column).ravel() for k in (0, 1)])


def place_weights() -> Singles:
    """Return what both features of each place count, (2, 95 * 17): 0 where the view ends before."""
    rows, columns = _rows(), _columns()
    seen = (columns >= 0.0) & (columns <= _WIDE - 1.0)
    below = rows - np.minimum(np.floor(rows), _HIGH - 2)
    weights = np.stack([(share[:, None] * seen).ravel() for share in (1.0 - below, below)])
    return weights.astype(np.float32)


def way_indices() -> Indices:
    """Return which products of rows make a score, (4 * 16 * 32,).

    They are indices into (64, 95), newer rows times older ones: of bands, their rows, and ways.
    """
    newer, way = np.arange(ROWS)[:, None], np.arange(WAYS)[None]
    return (newer * OLDER_ROWS + newer + way).ravel()


def way_of(speed_mps: Singles, height_m: Singles) -> Singles:
    """Return by how many steps the road moves between frames for a camera at `HEIGHT_M`, (n,)."""
    return speed_mps * (ROW_S / STEP_M) * (HEIGHT_M / height_m)


def _rows() -> NDArray[np.float64]:
    """Return the rows of features at which rows of places are, (95,)."""
    rows = MED_LENS.cy_px + MED_LENS.focal_px * HEIGHT_M / _AHEAD_M
    return np.clip((rows - 0.5) / _CELL_PX - FIRST_CHANNEL_ROW / STRIDE, 0.0, _HIGH - 1.0)


def _columns() -> NDArray[np.float64]:
    """Return the columns of features at which places are, (95, 17)."""
    aside = np.linspace(-_ASIDE_M, _ASIDE_M, COLUMNS)
    pixels = MED_LENS.cx_px + MED_LENS.focal_px * aside[None] / _AHEAD_M[:, None]
    return np.asarray((pixels - 0.5) / _CELL_PX)
