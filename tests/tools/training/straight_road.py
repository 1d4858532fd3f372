"""The target of a road that is straight and level, with one line or with a car in a lane."""

from __future__ import annotations

import numpy as np

from modeld.constants import LEAD_COUNT, LEAD_STEPS, LEAD_WIDTH, X_IDXS
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


def with_lead(ahead_m: float, aside_m: float, lead_mps: float = 10.0) -> Singles:
    """Return the same with the line to the left of the lane, too, and a car that leads.

    Args:
        ahead_m: of its rear from the camera.
        aside_m: positive to the right.
        lead_mps: its speed; one's own is 10.
    """
    places = places_in_target(VISION_TARGETS)
    target = straight()
    lines = target[0, places["lane_lines"]].reshape(4, X_IDXS.size, 2)
    lines[1, :, 0], lines[1, :, 1] = -LINE_M, HEIGHT_M
    leads = np.full((LEAD_COUNT, LEAD_STEPS, LEAD_WIDTH), np.nan)
    leads[0, 0] = (ahead_m, aside_m, lead_mps, 0.0)
    target[0, places["lead"]] = leads.reshape(-1)
    target[0, places["lead_prob"]] = (1.0, 0.0, 0.0)
    return target
