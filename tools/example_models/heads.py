"""Plausible final layers for each head of each revision, whatever its width says of its form.

`road` has the heads of the split models of 2025; here are those that other revisions have beside
them, and the mixtures of hypotheses of older ones: `hypotheses` blocks of means, log standard
deviations and one logit for each selection.
"""

import numpy as np

from tools.example_models.interface import PLAN_COLUMNS, PLAN_STEPS
from tools.example_models.road import (
    CURVATURE_PER_M,
    HEADS,
    SPEED_MPS,
    Array,
    Head,
    lead,
    mdn,
    meta,
    plan,
    pose,
)

# Widths of mixtures -> hypotheses, selections.
MIXTURES = {("plan", 4955): (5, 1), ("lead", 102): (2, 3)}


def head(name: str, width: int) -> Head:
    """Return the bias (N,) and the modes (M, N) of a head of N = `width` values.

    Args:
        name: as in the output slices; heads that are not known are plain numbers about 0.
        width: of the head.
    """
    if (name, width) in MIXTURES:
        return _mixture(_single(name), *MIXTURES[name, width])
    if name == "meta":
        return meta(width)
    known = OTHERS.get(name) or HEADS.get(name)
    found = known() if known else (np.zeros(width), np.eye(width))
    if found[0].shape != (width,):
        raise ValueError(f"head {name!r}: expected {found[0].size} values, found {width}")
    return found


def desired_curvature() -> Head:
    """Return the curvature to drive in 1/m, and its log standard deviation: 2 values."""
    return mdn(np.zeros(1), np.full(1, -6.0), CURVATURE_PER_M * np.ones((1, 1)))


def planplus() -> Head:
    """Return what is added to the plan, (33, 15) means, and log standard deviations: 990 values."""
    bias, modes = plan()
    bias[: PLAN_STEPS * PLAN_COLUMNS] = 0.0
    return bias, 0.1 * modes


def action() -> Head:
    """Return lateral and longitudinal acceleration (m/s^2), then log standard deviations: 4."""
    lateral = CURVATURE_PER_M * SPEED_MPS**2
    return mdn(np.zeros(2), np.full(2, -2.0), np.diag([lateral, 0.25]))


OTHERS = {
    "sim_pose": pose,
    "desired_curvature": desired_curvature,
    "planplus": planplus,
    "action": action,
}


def _single(name: str) -> tuple[Array, Array, Array]:
    """Return means, log standard deviations and modes of the means of one hypothesis."""
    bias, modes = {"plan": plan, "lead": lead}[name]()
    half = bias.size // 2
    if name == "lead":
        half = half // 3  # a hypothesis is one lead; the selections say at what time
    middle = bias.size // 2
    return bias[:half], bias[middle : middle + half], modes[:, :half]


def _mixture(single: tuple[Array, Array, Array], hypotheses: int, selections: int) -> Head:
    """Return blocks that differ a little; each has modes of its own, and its logits do too."""
    mean, log_std, modes = single
    block = 2 * mean.size + selections
    bias = np.zeros((hypotheses, block))
    moved = np.zeros((hypotheses, len(modes) + selections, hypotheses, block))
    for i in range(hypotheses):
        bias[i, : mean.size] = mean * (1.0 - 0.02 * i)
        bias[i, mean.size : 2 * mean.size] = log_std
        bias[i, 2 * mean.size :] = -0.5 * i
        moved[i, : len(modes), i, : mean.size] = modes
        moved[i, len(modes) :, i, 2 * mean.size :] = np.eye(selections)
    return bias.reshape(-1), moved.reshape(-1, hypotheses * block)
