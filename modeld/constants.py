"""Constants that all generations of driving models share and more than one module needs.

Shapes here are those in the *messages*; the place of each output in the raw vectors, and its width,
come from the artifact's interface. Source: openpilot's model interfaces, 2024-2026.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
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

# --- Columns of the head `meta`, whose width determines which of three layouts a model has ----
# Chances that the driver acts: five horizons (2, 4 .. 10 s) interleave disengagements by cause; the
# unused blinkers of six horizons (0, 2 .. 10 s) follow. Source: openpilot, 2024-26.

ENGAGED: Final = 0


@dataclass(frozen=True, slots=True)
class MetaLayout:
    """The columns of each kind of probability, one for each horizon.

    The driver takes over by gas, brake or steering; the car brakes harder than 3, 4 or 5 m/s^2; the
    driver presses a pedal, None if a model does not predict both pedals.
    """

    gas_disengage: slice
    brake_disengage: slice
    steer_override: slice
    hard_brake_3: slice
    hard_brake_4: slice
    hard_brake_5: slice
    gas_press: slice | None
    brake_press: slice | None


def _layout(
    stop: int, step: int, gas_press: slice | None = None, brake_press: slice | None = None
) -> MetaLayout:
    """Return a layout whose six kinds of disengagement lie at 1..6, then every `step` columns."""
    return MetaLayout(
        gas_disengage=slice(1, stop, step),
        brake_disengage=slice(2, stop, step),
        steer_override=slice(3, stop, step),
        hard_brake_3=slice(4, stop, step),
        hard_brake_4=slice(5, stop, step),
        hard_brake_5=slice(6, stop, step),
        gas_press=gas_press,
        brake_press=brake_press,
    )


META_LAYOUTS: Final[Mapping[int, MetaLayout]] = MappingProxyType(
    {
        # Until Tomb Raider, and again Notre Dame. Column 7 is the gas pedal, but without a brake
        # pedal neither was ever published.
        48: _layout(36, 7),
        53: _layout(41, 8, slice(7, 41, 8), slice(8, 41, 8)),
        # Pedals moved behind the causes, to six horizons with the blinkers.
        55: _layout(31, 6, slice(31, 55, 4), slice(32, 55, 4)),
    }
)
