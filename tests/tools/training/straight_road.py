"""The target of a road that is straight and level, with one line."""

from __future__ import annotations

import numpy as np

from modeld.constants import X_IDXS
from tools.training.heads import VISION_TARGETS, Singles, places_in_target, size_of

LINE_M = 1.8
HEIGHT_M = 1.25


def singles(*values: float) -> Singles:
    """Return numbers as an array of float32."""
    return np.array(values, np.float32)


def straight(speed_mps: float = 10.0, height_m: float = HEIGHT_M) -> Singles:
    """Return a target, (1, size): the third line is `LINE_M` to the right, all others unknown."""
    places = places_in_target(VISION_TARGETS)
    target = np.full((1, size_of(VISION_TARGETS)), np.nan, np.float32)
    lines = np.full((4, X_IDXS.size, 2), np.nan)
    lines[2, :, 0], lines[2, :, 1] = LINE_M, height_m
    target[0, places["lane_lines"]] = lines.reshape(-1)
    target[0, places["pose"]] = (speed_mps, 0, 0, 0, 0, 0)
    target[0, places["road_transform"]] = (0, 0, height_m, 0, 0, 0)
    return target
