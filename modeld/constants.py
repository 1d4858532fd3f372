"""Figures that all generations of driving models share and more than one module needs.

Shapes here say what the *messages* carry; where each output lies in the raw vectors, and how wide
it is, comes from the artifact's interface. Source: openpilot's model interfaces, 2024-2026.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

MODEL_RUN_HZ: Final = 20
DT_MODEL_S: Final = 1.0 / MODEL_RUN_HZ

# Length of the desire vector; index 0 (none) never carries a pulse.
DESIRE_LENGTH: Final = 8
# Steps of desire_pred: one categorical distribution every 2 s.
DESIRE_PREDICTION_STEPS: Final = 4

IDX_COUNT: Final = 33
PLAN_WIDTH: Final = 15
LANE_LINE_COUNT: Final = 4
ROAD_EDGE_COUNT: Final = 2
LEAD_COUNT: Final = 3
LEAD_STEPS: Final = 6
LEAD_WIDTH: Final = 4
POSE_WIDTH: Final = 6
EULER_WIDTH: Final = 3

# Columns of one plan row: metres, m/s, m/s^2, rad, rad/s in the device frame (x forward, y right,
# z down) at the current time.
PLAN_POSITION: Final = slice(0, 3)
PLAN_VELOCITY: Final = slice(3, 6)
PLAN_ACCELERATION: Final = slice(6, 9)
PLAN_ORIENTATION: Final = slice(9, 12)
PLAN_ORIENTATION_RATE: Final = slice(12, 15)

DISENGAGE_HORIZONS_S: Final = (2.0, 4.0, 6.0, 8.0, 10.0)
LEAD_T_S: Final = (0.0, 2.0, 4.0, 6.0, 8.0, 10.0)
LEAD_PROB_T_S: Final = (0.0, 2.0, 4.0)


def _quadratic_grid(last: float) -> NDArray[np.float64]:
    """Return ``last * (i / 32)^2`` for i = 0..32, float64 (33,), read-only."""
    grid = last * (np.arange(IDX_COUNT, dtype=np.float64) / (IDX_COUNT - 1)) ** 2
    grid.flags.writeable = False
    return grid


# Times of the plan's rows in seconds, and distances of lane line points in metres: dense near zero.
T_IDXS: Final = _quadratic_grid(10.0)
X_IDXS: Final = _quadratic_grid(192.0)
