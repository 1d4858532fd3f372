"""How the networks are built, as data: what the networks in torch and the ONNX files share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from tools.training.heads import VISION_HEADS, Head

VIEW_CHANNELS = 12
VIEW_SHAPE = (VIEW_CHANNELS, 128, 256)
# Bytes to about [-2, 2].
MIDDLE, SPREAD = 127.5, 63.75
# torch's own, of both normalisations.
NORM_EPSILON = 1e-5


class Step(NamedTuple):
    """One step of the trunk.

    Attributes:
        kind: a 3x3 convolution, or two of them beside a shortcut.
        channels: of its output.
        stride: of the convolution; 1 for a shortcut.
    """

    kind: Literal["conv", "residual"]
    channels: int
    stride: int = 1


@dataclass(frozen=True, slots=True)
class MotionSize:
    """How motion between the two frames of a view is looked for.

    Both frames go through the same convolution to 32x64 cells; then each cell of the newer one is
    compared with those of the older one that it may have come from: above it, as what lies on the
    road moves down in the picture while the car drives towards it, and a cell to each side.

    Attributes:
        channels: that are compared.
        kernel: of the convolution.
        down: how many cells further up the older frame is looked at, at most.
        aside: how many cells further left and right, at most.
    """

    channels: int = 8
    kernel: int = 5
    down: int = 4
    aside: int = 1

    @property
    def shifts(self) -> tuple[tuple[int, int], ...]:
        """Where a cell may have come from: rows up, columns to the left."""
        sides = range(-self.aside, self.aside + 1)
        return tuple((up, left) for up in range(self.down + 1) for left in sides)


@dataclass(frozen=True, slots=True)
class VisionSize:
    """How large the vision network is.

    Attributes:
        steps: that each view goes through; they end at 8x16.
        motion: what is added to the convolution of step `motion_step`, at 16x32.
        motion_step: index.
        joint: channels of both views together at 4x8.
        neck: channels that the layer that knows places reads.
        lines: hidden units for lane lines and edges.
        others: hidden units of each other group of heads.
        plan: hidden units of the plan.
    """

    steps: tuple[Step, ...] = (
        Step("conv", 16, 2),
        Step("conv", 32, 2),
        Step("conv", 64, 2),
        Step("residual", 64),
        Step("conv", 96, 2),
        Step("residual", 96),
    )
    motion: MotionSize = MotionSize()
    motion_step: int = 2
    joint: int = 96
    neck: int = 40
    lines: int = 96
    others: int = 64
    plan: int = 160


@dataclass(frozen=True, slots=True)
class PolicySize:
    """How large the policy is.

    Attributes:
        row: values that are read of each row of the features.
        past: hidden units of the past.
        plan: hidden units of the plan, those of vision's head.
    """

    row: int = 32
    past: int = 128
    plan: int = 160


VISION_SIZE = VisionSize()
POLICY_SIZE = PolicySize()

_GROUPS = {
    "lines": ("lane_lines", "road_edges"),
    "leads": ("lead", "lead_prob"),
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
