"""The appearance of the road and the things on it, in figures."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tools.world.curves import Floats

# Colours are (Y, U, V), BT.601 limited range.
SKY_TOP, SKY_LOW = (186, 146, 112), (206, 132, 124)
HAZE = 176
HILL = (118, 130, 122)
GRASS, ASPHALT = (100, 108, 122), (84, 128, 128)
WHITE, YELLOW = (212, 128, 128), (180, 72, 146)
POST, CAR, GLASS = (204, 128, 128), (60, 136, 114), (40, 132, 126)
LAMP, SHADOW, PLATE = (92, 100, 204), (38, 128, 128), (190, 118, 132)

LINE_WIDTH_M = 0.15
DASH_M, DASH_PERIOD_M = 3.0, 12.0
# Where tyres do not run, asphalt is darker with oil: half width and difference of luma.
OIL_HALF_M, OIL_LUMA = 0.45, -7
# Distance at which haze has taken half of the contrast.
HAZE_M = 260.0
POST_SPACING_M, POST_OFFSET_M, POSTS_AHEAD = 25.0, 7.7, 6

# Grain of the ground along the road: one value per cell; more of it mostly busies the encoder.
GRAIN_CELL_M = 0.6
GRAIN_CELLS = 4096
ASPHALT_GRAIN, GRASS_GRAIN = 3, 5


@dataclass(frozen=True, slots=True)
class Strip:
    """A band of the ground along the road.

    Attributes:
        left_m: offset of its left border from the middle lane's centre.
        right_m: of the right border.
        luma: what it adds to the luma below it.
        is_dashed: painted in dashes.
    """

    left_m: float
    right_m: float
    luma: int
    is_dashed: bool = False


@dataclass(frozen=True, slots=True)
class Box:
    """An upright rectangle seen from behind: left, right (m to the right), foot, top (m up)."""

    left_m: float
    right_m: float
    foot_m: float
    top_m: float
    colour: tuple[int, int, int]


def line_luma(index: int) -> int:
    """Return what a lane line adds to asphalt."""
    return (YELLOW if index == 0 else WHITE)[0] - ASPHALT[0]


POST_BOX = Box(-0.07, 0.07, 0.0, 1.05, POST)
# The rear of a passenger car, from back to front.
CAR_BOXES = (
    Box(-0.98, 0.98, -0.06, 0.14, SHADOW),
    Box(-0.91, 0.91, 0.26, 0.98, CAR),
    Box(-0.74, 0.74, 0.98, 1.46, CAR),
    Box(-0.64, 0.64, 1.02, 1.38, GLASS),
    Box(-0.89, -0.62, 0.70, 0.88, LAMP),
    Box(0.62, 0.89, 0.70, 0.88, LAMP),
    Box(-0.26, 0.26, 0.52, 0.64, PLATE),
    Box(-0.86, -0.62, 0.0, 0.28, SHADOW),
    Box(0.62, 0.86, 0.0, 0.28, SHADOW),
)


def visibility(distance_m: Floats | float) -> Floats:
    """Return the share of contrast that haze leaves at a distance."""
    ratio = np.asarray(distance_m, np.float64) / HAZE_M
    return np.asarray(1.0 / (1.0 + ratio * ratio))


def dashes_until(s_m: Floats) -> Floats:
    """Return how many metres of the road from 0 to s carry a dash."""
    whole = np.floor(s_m / DASH_PERIOD_M)
    rest = s_m - whole * DASH_PERIOD_M
    return np.asarray(whole * DASH_M + np.minimum(rest, DASH_M))
