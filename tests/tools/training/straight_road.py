"""The target of a road that is straight and level, with one line or with a car in a lane."""

import numpy as np

from modeld.constants import LEAD_COUNT, LEAD_STEPS, LEAD_WIDTH, X_IDXS
from tools.simulator.training.heads import VISION_TARGETS, Singles, places_in_target, size_of

LINE_M, HEIGHT_M = 1.8, 1.25
PLACES = places_in_target(VISION_TARGETS)


def singles(*values: float) -> Singles:
    return np.array(values, np.float32)


def straight(speed_mps: float = 10.0, height_m: float = HEIGHT_M) -> Singles:
    """Return a target, (1, size): the third line is `LINE_M` to the right, all others unknown."""
    target = np.full((1, size_of(VISION_TARGETS)), np.nan, np.float32)
    lines = np.full((4, X_IDXS.size, 2), np.nan)
    lines[2, :, 0], lines[2, :, 1] = LINE_M, height_m
    target[0, PLACES["lane_lines"]] = lines.reshape(-1)
    target[0, PLACES["pose"]] = (speed_mps, 0, 0, 0, 0, 0)
    target[0, PLACES["road_transform"]] = (0, 0, height_m, 0, 0, 0)
    return target


def with_lead(ahead_m: float, aside_m: float, lead_mps: float = 10.0) -> Singles:
    """Return the same with the lane's left line too, and a car whose rear is there.

    It is `aside_m` to the right; one's own speed is 10 m/s.
    """
    target = straight()
    lines = target[0, PLACES["lane_lines"]].reshape(4, X_IDXS.size, 2)
    lines[1, :, 0], lines[1, :, 1] = -LINE_M, HEIGHT_M
    leads = np.full((LEAD_COUNT, LEAD_STEPS, LEAD_WIDTH), np.nan)
    leads[0, 0] = (ahead_m, aside_m, lead_mps, 0.0)
    target[0, PLACES["lead"]] = leads.reshape(-1)
    target[0, PLACES["lead_prob"]] = (1.0, 0.0, 0.0)
    return target
