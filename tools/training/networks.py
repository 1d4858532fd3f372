"""The two networks in torch: vision sees two pairs of frames, policy looks back over five seconds.

Both views go through the same convolutions, which find markings, edges and motion wherever they
are; then a layer that knows places reads both. The policy bends the plan that vision's own head
gives: it begins as that head, and learns what only the past can tell, such as a lane change under
way.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from modeld.constants import DESIRE_LENGTH
from tools.training.architecture import (
    HEAD_GROUPS,
    MIDDLE,
    POLICY_SIZE,
    SPREAD,
    VIEW_CHANNELS,
    VIEW_SHAPE,
    VISION_SIZE,
    MotionSize,
    PolicySize,
    Step,
    VisionSize,
)
from tools.training.heads import DESIRE_STATE, HIDDEN_WIDTH, HISTORY_ROWS, PLAN, width_of

# Six lines, and flow to the right and down.
CELL_VALUES = 8


class ConvNorm(nn.Module):
    """A convolution without bias, "same"-like padding, and batch normalisation."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 3, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
        self.norm = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        """(n, inputs, h, w) to (n, outputs, h / stride, w / stride)."""
        return self.norm(self.conv(x))


class Residual(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = ConvNorm(width, width)
        self.second = ConvNorm(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(n, width, h, w) to the same shape."""
        return torch.relu(x + self.second(torch.relu(self.first(x))))


class Motion(nn.Module):
    """What has moved between the frames of a view, and how far."""

    def __init__(self, size: MotionSize, outputs: int) -> None:
        super().__init__()
        self._size = size
        self.look = ConvNorm(VIEW_CHANNELS // 2, size.channels, size.kernel, 4)
        self.read = ConvNorm(len(size.shifts), outputs, 3, 2)

    def forward(self, frames: Tensor) -> Tensor:
        """(n, 12, 128, 256), older frame first, to (n, outputs, 16, 32)."""
        single = frames.reshape(-1, VIEW_CHANNELS // 2, *VIEW_SHAPE[1:])
        seen = self.look(single.contiguous(memory_format=torch.channels_last))
        older, newer = seen[0::2], seen[1::2]
        _, _, high, wide = newer.shape
        down, aside = self._size.down, self._size.aside
        padded = functional.pad(older, (aside, aside, down, 0))
        alike = []
        for up, left in self._size.shifts:
            top, start = down - up, aside - left
            there = padded[:, :, top : top + high, start : start + wide]
            alike.append((newer * there).sum(1, keepdim=True))
        return self.read(torch.cat(alike, 1))


class Trunk(nn.Module):
    """What sees: both views to `hidden_state`."""

    def __init__(self, size: VisionSize = VISION_SIZE) -> None:
        super().__init__()
        widths = [VIEW_CHANNELS, *(step.channels for step in size.steps)]
        self.steps = nn.ModuleList(map(_step, widths, size.steps))
        self._motion_step = size.motion_step
        self.motion = Motion(size.motion, size.steps[size.motion_step].channels)
        self.joint = ConvNorm(2 * widths[-1], size.joint, 3, 2)
        self.neck = ConvNorm(size.joint, size.neck, 1)
        self.places = nn.Linear(size.neck * 4 * 8, HIDDEN_WIDTH)
        self.norm = nn.LayerNorm(HIDDEN_WIDTH)

    def forward(self, views: Tensor) -> Tensor:
        """Return `hidden_state`.

        Args:
            views: (n, 2, 12, 128, 256), road and wide, bytes brought to about [-2, 2].

        Returns:
            (n, 512).
        """
        return self.see(views)[0]

    def see(self, views: Tensor) -> tuple[Tensor, Tensor]:
        """Return `hidden_state` and the features of the cells, (2 n, channels, 16, 32).

        Args:
            views: as for `forward`.
        """
        count = views.shape[0]
        x = views.reshape(2 * count, *VIEW_SHAPE)
        motion = self.motion(x)
        x = x.contiguous(memory_format=torch.channels_last)
        cells = motion
        for index, step in enumerate(self.steps):
            x = step(x)
            if index == self._motion_step:
                x = x + motion
            if isinstance(step, ConvNorm):
                x = torch.relu(x)
            if index == self._motion_step + 1:
                cells = x
        x = x.contiguous().reshape(count, -1, *x.shape[2:])
        x = torch.relu(self.neck(torch.relu(self.joint(x))))
        return self.norm(self.places(x.flatten(1)).float()), cells


class TwoLayers(nn.Module):
    """A hidden layer and a last one, which begins small."""

    def __init__(self, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.first = nn.Linear(inputs, hidden)
        self.last = nn.Linear(hidden, outputs)
        _begin_small(self.last)

    def forward(self, x: Tensor) -> Tensor:
        """(n, inputs) to (n, outputs)."""
        return self.last(torch.relu(self.first(x)))


class PlanHead(nn.Module):
    """`hidden_state`, and what the past adds, to the plan.

    Args:
        hidden: units of both hidden layers.
    """

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.first = nn.Linear(HIDDEN_WIDTH, hidden)
        self.second = nn.Linear(hidden, hidden)
        self.last = nn.Linear(hidden, PLAN.width)
        _begin_small(self.last)

    def forward(self, feature: Tensor, past: Tensor | None = None) -> Tensor:
        """Return the plan's output.

        Args:
            feature: (n, 512).
            past: (n, hidden), added before the second layer's bend; None for nothing.

        Returns:
            (n, 990) in units of the scaling.
        """
        x = self.second(torch.relu(self.first(feature)))
        return self.last(torch.relu(x if past is None else x + past))


class Vision(nn.Module):
    """The trunk, its heads, and the plan's head that it is trained with."""

    def __init__(self, size: VisionSize = VISION_SIZE) -> None:
        super().__init__()
        self.trunk = Trunk(size)
        self.heads = nn.ModuleDict(
            {
                group: TwoLayers(
                    HIDDEN_WIDTH, size.lines if group == "lines" else size.others, width_of(heads)
                )
                for group, heads in HEAD_GROUPS.items()
            }
        )
        self.plan = PlanHead(size.plan)
        # What each cell says while the network learns; see `hints`.
        self.cells = nn.Conv2d(size.steps[size.motion_step].channels, CELL_VALUES, 1)

    def forward(self, views: Tensor) -> dict[str, Tensor]:
        """Return the output of each head by its name, `plan`, `hidden_state` and `cells` too.

        Args:
            views: as `Trunk.forward`.
        """
        hidden, cells = self.trunk.see(views)
        cells = self.cells(cells)
        found = {"cells": cells.reshape(len(views), 2, *cells.shape[1:])}
        found |= {"hidden_state": hidden, "plan": self.plan(hidden)}
        for group, heads in HEAD_GROUPS.items():
            start, output = 0, self.heads[group](hidden)
            for head in heads:
                found[head.name] = output[:, start : start + head.width]
                start += head.width
        return found


class Policy(nn.Module):
    """Five seconds of features and desires to plan and desire."""

    def __init__(self, size: PolicySize = POLICY_SIZE) -> None:
        super().__init__()
        self.row = nn.Linear(HIDDEN_WIDTH, size.row)
        inputs = HISTORY_ROWS * (size.row + DESIRE_LENGTH) + 2
        self.past = nn.Linear(inputs, size.past)
        self.mix = nn.Linear(size.past, size.past)
        self.bend = nn.Linear(size.past, size.plan)
        self.desire = nn.Linear(size.past, DESIRE_STATE.width)
        self.plan = PlanHead(size.plan)
        # At first the past says nothing, and the plan is that of vision's head.
        nn.init.zeros_(self.bend.weight)
        nn.init.zeros_(self.bend.bias)

    def forward(self, desires: Tensor, convention: Tensor, features: Tensor) -> dict[str, Tensor]:
        """Return the output of each head by its name.

        Args:
            desires: (n, 25, 8) pulses, oldest first.
            convention: (n, 2) side of the road: right, left.
            features: (n, 25, 512) `hidden_state`, oldest first; the last row is the present.
        """
        rows = torch.relu(self.row(features))
        seen = torch.cat([rows.flatten(1), desires.flatten(1), convention], 1)
        past = torch.relu(self.mix(torch.relu(self.past(seen))))
        return {
            "plan": self.plan(features[:, -1], self.bend(past)),
            "desire_state": self.desire(past),
        }


def _begin_small(layer: nn.Linear) -> None:
    """Let a last layer begin near its bias, which is 0: the mean of all samples."""
    nn.init.normal_(layer.weight, std=0.01)
    nn.init.zeros_(layer.bias)


def _step(inputs: int, step: Step) -> nn.Module:
    if step.kind == "conv":
        return ConvNorm(inputs, step.channels, 3, step.stride)
    return Residual(step.channels)


def as_input(images: Tensor) -> Tensor:
    """Return bytes as what the networks take: float32, about [-2, 2]."""
    return (images.float() - MIDDLE) * (1.0 / SPREAD)


def arrays_of(network: nn.Module) -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:
    """Return the weights of a network by their names."""
    return {name: np.asarray(value.numpy()) for name, value in network.state_dict().items()}
