"""The architecture shared by networks in torch and ONNX files: sizes, head groups, rounding.

It is plain data without torch. Matrices can be stored as int8 with a scale for each output.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tools.simulator.training.heads import VISION_HEADS, Head, places_in_output

VIEW_CHANNELS = 12
VIEW_SHAPE = (VIEW_CHANNELS, 128, 256)
# Offset and scale that bring bytes to about [-2, 2].
MIDDLE, SPREAD = 127.5, 63.75
# Epsilon of both normalisations, torch's default.
NORM_EPSILON = 1e-5
# Scales of single inputs among a thousand others, large enough to have an effect: the road's
# displacement, to about 0..8, and readings of the car ahead and of curves, to about -12..12.
DISPLACEMENT_SCALE = 1.0 / 4.0
READING_SCALE = 4.0


class Step(NamedTuple):
    """One step of the trunk: a 3x3 convolution, or two with a shortcut (stride 1)."""

    kind: Literal["conv", "residual"]
    channels: int
    stride: int = 1


@dataclass(frozen=True, slots=True)
class SweepSize:
    """The size of the network part that measures the road's displacement (see `sweep`).

    Attributes:
        channels: number of compared channels, also of the convolutions before.
        kernel: size of the first convolution.
        more: number of 3x3 convolutions after it. For 300 unseen samples, after 200 steps of 32,
            the best displacement was within 2 of 32 steps of the true one for 51 % with none, 70 %
            with one and 84 % with two. Finer rows had no effect; 16 channels gave 87 %
            (2026-11-23).
    """

    channels: int = 8
    kernel: int = 5
    more: int = 2


@dataclass(frozen=True, slots=True)
class CellsSize:
    """The size of the part that locates lines and the car ahead in a grid of 16x32 cells.

    Attributes:
        step: step of the trunk whose output is used as cells; later steps provide their context.
        channels: number of channels of the convolution before the output.
        lead: number of hidden units from the features of the car ahead to its readings.
    """

    step: int = 3
    channels: int = 24
    lead: int = 32


@dataclass(frozen=True, slots=True)
class VisionSize:
    """The size of the vision network.

    `steps` reduce each view to 8x16. `joint` is the number of channels of both views together, at
    4x8, and `neck` the number that the position-dependent layer receives. `curves`, `lines`,
    `others` and `plan` are hidden units.
    """

    steps: tuple[Step, ...] = (
        Step("conv", 16, 2),
        Step("conv", 32, 2),
        Step("conv", 64, 2),
        Step("residual", 64),
        Step("conv", 96, 2),
        Step("residual", 96),
    )
    sweep: SweepSize = SweepSize()
    cells: CellsSize = CellsSize()
    joint: int = 96
    neck: int = 28
    curves: int = 16
    lines: int = 96
    others: int = 64
    plan: int = 160


@dataclass(frozen=True, slots=True)
class PolicySize:
    """The size of the policy.

    `row` values are learnt from each row of features; vision's lead head, with `lead` hidden
    units, adds values of the car ahead. `past` is the width of the layers that combine all rows.
    `plan` must equal the hidden units of vision's plan head.
    """

    row: int = 16
    lead: int = 64
    past: int = 128
    plan: int = 160


VISION_SIZE = VisionSize()
POLICY_SIZE = PolicySize()

LEADS = "leads"
_GROUPS = {
    "lines": ("lane_lines", "road_edges"),
    LEADS: ("lead", "lead_prob"),
    "scene": (
        "meta",
        "desire_pred",
        "pose",
        "wide_from_device_euler",
        "road_transform",
        "lane_lines_prob",
    ),
}
_HEADS = {head.name: head for head in VISION_HEADS}
# Heads that share hidden units; each head of VISION_HEADS is in one group.
HEAD_GROUPS: dict[str, tuple[Head, ...]] = {
    group: tuple(_HEADS[name] for name in names) for group, names in _GROUPS.items()
}
# Outputs of the lead group that the policy receives: present x and y of the car ahead, its speed
# and acceleration, and its probability.
LEAD_OUTPUTS = (0, 1, 2, 3, places_in_output(HEAD_GROUPS[LEADS])["lead_prob"].start)

# --- Weights of 8 bits: integers from -127 to 127, and a scale for each output -------------------
#
#     scale = largest |weight| of the output / 127        weight = number * scale
#
# The numbers are symmetric, so 0 is exact. Rounding a rounded weight again does not change it, even
# if an output was multiplied by a factor, which only changes its scale.

LARGEST = 127
# The scale of an output whose weights are all 0; any value would do.
LEAST_SCALE = 1e-12


def in_eight_bits(
    weight: NDArray[np.floating[Any]], outputs: int = 0
) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Return a finite weight as int8 numbers of the same shape, and their scales.

    Scales are (outputs,), along the axis `outputs`.
    """
    others = tuple(axis for axis in range(weight.ndim) if axis != outputs)
    largest = np.abs(weight).max(axis=others, keepdims=True).astype(np.float64)
    scale = np.maximum(largest / LARGEST, LEAST_SCALE).astype(np.float32)
    numbers = np.rint(weight / scale.astype(np.float64))
    # The scale was rounded to float32, so the largest number may be a little above 127.
    return np.clip(numbers, -LARGEST, LARGEST).astype(np.int8), scale.reshape(-1)
