"""Figures of the 2025 split model interface that more than one module needs.

Shapes here say what the *messages* carry; where each output lies in the raw vectors, and how wide
it is, comes from the artifact's metadata. Source: openpilot's published model interface, Aug 2025.
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
META_WIDTH: Final = 55

# Columns of one plan row: metres, m/s, m/s^2, rad, rad/s in the device frame (x forward, y right,
# z down) at the current time.
PLAN_POSITION: Final = slice(0, 3)
PLAN_VELOCITY: Final = slice(3, 6)
PLAN_ACCELERATION: Final = slice(6, 9)
PLAN_ORIENTATION: Final = slice(9, 12)
PLAN_ORIENTATION_RATE: Final = slice(12, 15)

# Columns of meta. Five horizons (2, 4 .. 10 s) interleave six disengagement causes from column 1;
# six horizons (0, 2 .. 10 s) interleave pedals and blinkers from column 31.
META_ENGAGED: Final = 0
META_GAS_DISENGAGE: Final = slice(1, 31, 6)
META_BRAKE_DISENGAGE: Final = slice(2, 31, 6)
META_STEER_OVERRIDE: Final = slice(3, 31, 6)
META_HARD_BRAKE_3: Final = slice(4, 31, 6)
META_HARD_BRAKE_4: Final = slice(5, 31, 6)
META_HARD_BRAKE_5: Final = slice(6, 31, 6)
META_GAS_PRESS: Final = slice(31, 55, 4)
META_BRAKE_PRESS: Final = slice(32, 55, 4)

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
