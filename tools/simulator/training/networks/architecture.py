"""What the networks in torch and the ONNX files share: sizes, groups of heads, rounded weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tools.simulator.training.heads import VISION_HEADS, Head, places_in_output

VIEW_CHANNELS = 12
VIEW_SHAPE = (VIEW_CHANNELS, 128, 256)
# Bytes to about [-2, 2].
MIDDLE, SPREAD = 127.5, 63.75
# torch's own, of both normalisations.
NORM_EPSILON = 1e-5
# The way that the road has moved, in steps, to about 0..8, and the readings of the car ahead and of
# curves, to about -12..12: to be heard among a thousand others.
WAY_SCALE = 1.0 / 4.0
READING_SCALE = 4.0


class Step(NamedTuple):
    """One step of the trunk: a 3x3 convolution, or two of them next to a shortcut (stride 1)."""

    kind: Literal["conv", "residual"]
    channels: int
    stride: int = 1


@dataclass(frozen=True, slots=True)
class SweepSize:
    """How the frames of the road view are compared; where is in `sweep`.

    Attributes:
        channels: that are compared, and of each convolution before.
        kernel: of the first convolution.
        more: 3x3 convolutions after it. Of 300 unseen moments, after 200 steps of 32, the way with
            the highest score was within 2 of 32 steps of the true one for 51 % with none, 70 % with
            one and 84 % with two; finer rows changed nothing, 16 channels gave 87 % (2026-11-23).
    """

    channels: int = 8
    kernel: int = 5
    more: int = 2


@dataclass(frozen=True, slots=True)
class CellsSize:
    """How lines and the car ahead are read: where among 16x32 cells each is.

    Attributes:
        step: of the trunk that makes the cells; what comes after it says what is around them.
        channels: of the convolution that is read.
        lead: hidden units between what the cells of the car ahead look like and its readings.
    """

    step: int = 3
    channels: int = 24
    lead: int = 32


@dataclass(frozen=True, slots=True)
class VisionSize:
    """How large the vision network is.

    `steps` of each view end at 8x16. `joint` are channels of both views together at 4x8, `neck`
    those that the layer that knows places reads. `curves`, `lines`, `others` and `plan` are hidden
    units.
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
    """How large the policy is.

    `row` values are learnt from each row of the features, next to what vision's head, of `lead`
    hidden units, reports of the car ahead. `plan` has as many hidden units as vision's head.
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
# Heads that share hidden units; each of VISION_HEADS stands in one group.
HEAD_GROUPS: dict[str, tuple[Head, ...]] = {
    group: tuple(_HEADS[name] for name in names) for group, names in _GROUPS.items()
}
# Outputs of that group that the policy hears, too: where the car ahead is now, x and y, its speed
# and acceleration, and how likely it is there.
TOLD_OF_LEAD = (0, 1, 2, 3, places_in_output(HEAD_GROUPS[LEADS])["lead_prob"].start)

# --- Weights of 8 bits: whole numbers from -127 to 127, and a scale for each output -----------
#
#     scale = largest |weight| of the output / 127        weight = number * scale
#
# Numbers are symmetric, so that 0 is 0. What is rounded already stays as it is, also when an output
# is multiplied by something: its scale takes it.

LARGEST = 127
# The scale of an output whose weights are all 0; any would do.
LEAST_SCALE = 1e-12


def in_eight_bits(
    weight: NDArray[np.floating[Any]], outputs: int = 0
) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Return the numbers of a weight and their scales.

    Numbers have the shape of the weight, scales are (outputs,) along that axis. The weight is
    finite.
    """
    others = tuple(axis for axis in range(weight.ndim) if axis != outputs)
    largest = np.abs(weight).max(axis=others, keepdims=True).astype(np.float64)
    scale = np.maximum(largest / LARGEST, LEAST_SCALE).astype(np.float32)
    numbers = np.rint(weight / scale.astype(np.float64))
    # The scale was rounded to float32, so the largest number may be a little above 127.
    return np.clip(numbers, -LARGEST, LARGEST).astype(np.int8), scale.reshape(-1)
