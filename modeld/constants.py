"""Constants shared by all generations of driving models and used by more than one module.

Shapes are those of the *messages*. The offset and width of each output in a model's raw vectors are
given by its interface, the description of the model in its artifact (the compiled file). Source:
openpilot's model interfaces, 2024-2026.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

MODEL_RUN_HZ: Final = 20
DT_MODEL_S: Final = 1.0 / MODEL_RUN_HZ

# Length of the desire vector. A desire is a request to the model, such as a lane change left; index
# 0 (none) is never set.
DESIRE_LENGTH: Final = 8
# Steps of the output desire_pred: one categorical distribution every 2 s.
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


# Times of the plan's rows in seconds, and distances of lane line points in metres. Both are dense
# near zero.
T_IDXS: Final = _quadratic_grid(10.0)
X_IDXS: Final = _quadratic_grid(192.0)

# --- Columns of the head `meta`; its width determines which of three layouts a model has ------
# The head predicts probabilities of driver actions. Disengagements by cause are interleaved for
# five horizons (2, 4 .. 10 s). Blinkers for six horizons (0, 2 .. 10 s) follow; they are unused.
# Source: openpilot, 2024-26.

ENGAGED: Final = 0


@dataclass(frozen=True, slots=True)
class MetaLayout:
    """The columns of each kind of probability, one column per horizon."""

    gas_disengage: slice  # the driver takes over with the gas pedal
    brake_disengage: slice  # ... with the brake pedal
    steer_override: slice  # ... by steering
    hard_brake_3: slice  # the car brakes harder than 3 m/s^2
    hard_brake_4: slice  # ... 4 m/s^2
    hard_brake_5: slice  # ... 5 m/s^2
    gas_press: slice | None  # the driver presses the pedal; None if not both are predicted
    brake_press: slice | None


def _layout(
    stop: int, step: int, gas_press: slice | None = None, brake_press: slice | None = None
) -> MetaLayout:
    """Return a layout whose six disengagement kinds start at columns 1..6.

    They repeat every `step` columns up to `stop`.
    """
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
        # Models up to Tomb Raider, and Notre Dame. Column 7 is the gas pedal. There is no brake
        # pedal, so neither pedal is published.
        48: _layout(36, 7),
        53: _layout(41, 8, slice(7, 41, 8), slice(8, 41, 8)),
        # The pedals follow the causes, at six horizons, interleaved with the blinkers.
        55: _layout(31, 6, slice(31, 55, 4), slice(32, 55, 4)),
    }
)
