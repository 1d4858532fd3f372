"""The two networks in torch: vision for two frames of each view, policy for five seconds.

    views -> `Vision` -> `hidden_state`, heads        features, desires -> `Policy` -> plan, desire

Both views share the convolutions, which detect markings, edges and motion anywhere in a picture.
A position-dependent layer then combines both. The policy starts as a copy of vision's plan head. It
learns to modify that plan by what only the past shows, such as a lane change in progress.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from modeld.constants import DESIRE_LENGTH
from tools.simulator.training.heads import (
    DESIRE_STATE,
    FOR_CURVES,
    HIDDEN_WIDTH,
    HISTORY_ROWS,
    PLAN,
    width_of,
)
from tools.simulator.training.networks import sweep
from tools.simulator.training.networks.architecture import (
    HEAD_GROUPS,
    LEAD_OUTPUTS,
    LEADS,
    MIDDLE,
    POLICY_SIZE,
    READING_SCALE,
    SPREAD,
    VIEW_CHANNELS,
    VIEW_SHAPE,
    VISION_SIZE,
    PolicySize,
    Step,
    VisionSize,
)
from tools.simulator.training.networks.cells import LEAD_READINGS, LINES, ROWS
from tools.simulator.training.networks.parts import (
    Cells,
    ConvNorm,
    Residual,
    Sweep,
    TwoLayers,
    begin_small,
)


class Seen(NamedTuple):
    """The output of a trunk: `hidden_state` (n, 512), and the outputs of its parts.

    Attributes:
        hidden: (n, 512).
        cells: (n, 2, 7, 16, 32) logits by view, by six lines and the car ahead, and by cell.
        displacements: (n, 32) logits of the road's displacement.
        lead: (n, 2, 2) readings by view, see `cells.lead_readings`.
        for_curves: (n, 2) output of `heads.FOR_CURVES`.
    """

    hidden: Tensor
    cells: Tensor
    displacements: Tensor
    lead: Tensor
    for_curves: Tensor


class Trunk(nn.Module):
    """The part of vision from both views to `hidden_state`."""

    def __init__(self, size: VisionSize = VISION_SIZE) -> None:
        super().__init__()
        widths = [VIEW_CHANNELS, *(step.channels for step in size.steps)]
        self.steps = nn.ModuleList(map(_step, widths, size.steps))
        self._cell_step = size.cells.step
        self.sweep = Sweep(size.sweep)
        channels = size.steps[self._cell_step].channels
        self.cells = Cells(size.cells, channels, widths[-1])
        self.joint = ConvNorm(2 * widths[-1], size.joint, 3, 2)
        self.neck = ConvNorm(size.joint, size.neck, 1)
        read = 2 * (2 * LINES * ROWS + 3 + channels + LEAD_READINGS)
        inputs = size.neck * 4 * 8 + read + sweep.BANDS * sweep.DISPLACEMENTS + 1
        self.curves = TwoLayers(inputs, size.curves, FOR_CURVES.width)
        self.places = nn.Linear(inputs + FOR_CURVES.size, HIDDEN_WIDTH)
        self.norm = nn.LayerNorm(HIDDEN_WIDTH)

    def forward(self, views: Tensor) -> Tensor:
        """Return `hidden_state`, (n, 512).

        `views` (n, 2, 12, 128, 256) are road and wide, with bytes scaled to about [-2, 2].
        """
        return self.see(views).hidden

    def see(self, views: Tensor) -> Seen:
        """Return all outputs for views, which are those of `forward`."""
        count = views.shape[0]
        displacement, displacements = self.sweep(views[:, 0])
        x = views.reshape(2 * count, *VIEW_SHAPE).contiguous(memory_format=torch.channels_last)
        cells = x
        for index, step in enumerate(self.steps):
            x = step(x)
            if isinstance(step, ConvNorm):
                x = torch.relu_(x)
            if index == self._cell_step:
                cells = x
        read, logits, lead = self.cells(cells, x)
        x = x.contiguous().reshape(count, -1, *x.shape[2:])
        x = torch.relu_(self.neck(torch.relu_(self.joint(x))))
        with torch.autocast("cpu", enabled=False):
            found = torch.cat([x.flatten(1).float(), read, displacement], 1)
            curves = self.curves(found)
            found = torch.cat([found, curves[:, : FOR_CURVES.size] * READING_SCALE], 1)
            return Seen(self.norm(self.places(found)), logits, displacements, lead, curves)


class PlanHead(nn.Module):
    """Layers from `hidden_state`, and optionally a term from the past, to the plan."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.first = nn.Linear(HIDDEN_WIDTH, hidden)
        self.second = nn.Linear(hidden, hidden)
        self.last = nn.Linear(hidden, PLAN.width)
        begin_small(self.last)

    def forward(self, feature: Tensor, past: Tensor | None = None) -> Tensor:
        """Return the plan's output (n, 990) in units of the scaling, from features (n, 512).

        `past` (n, hidden) is added to the second layer's output; None adds nothing.
        """
        x = self.second(torch.relu(self.first(feature)))
        return self.last(torch.relu(x if past is None else x + past))


class Vision(nn.Module):
    """The trunk, its heads, and the plan head that is trained with it."""

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

    def forward(self, views: Tensor) -> dict[str, Tensor]:
        """Return the output of each head by name, the plan, and the parts of `Seen`.

        `views` are those of `Trunk.forward`.
        """
        seen = self.trunk.see(views)
        found = {
            "hidden_state": seen.hidden,
            "cells": seen.cells,
            "displacements": seen.displacements,
        }
        found["lead_readings"], found[FOR_CURVES.name] = seen.lead, seen.for_curves
        # Heads are cheap, and metres need more than the eight bits of bfloat16.
        with torch.autocast("cpu", enabled=False):
            found["plan"] = self.plan(seen.hidden)
            for group, heads in HEAD_GROUPS.items():
                start, output = 0, self.heads[group](seen.hidden)
                for head in heads:
                    found[head.name] = output[:, start : start + head.width]
                    start += head.width
        return found


class Policy(nn.Module):
    """The network from five seconds of features and desires to plan and desire state.

    The layers for the car ahead are copied from vision's head and not trained. Vision learns a
    car's approach from many cars, but the drives contain only some hundred cars, too few to learn
    it from 512 values per row (ADR 0098).
    """

    def __init__(self, size: PolicySize = POLICY_SIZE) -> None:
        super().__init__()
        self.row = nn.Linear(HIDDEN_WIDTH, size.row)
        self.lead = TwoLayers(HIDDEN_WIDTH, size.lead, len(LEAD_OUTPUTS)).requires_grad_(False)
        inputs = HISTORY_ROWS * (size.row + len(LEAD_OUTPUTS) + DESIRE_LENGTH) + 2
        self.past = nn.Linear(inputs, size.past)
        self.mix = nn.Linear(size.past, size.past)
        self.bend = nn.Linear(size.past, size.plan)
        self.desire = nn.Linear(size.past, DESIRE_STATE.width)
        self.plan = PlanHead(size.plan)
        # Initially the past has no effect, so the plan equals that of vision's head.
        nn.init.zeros_(self.bend.weight)
        nn.init.zeros_(self.bend.bias)

    def begin_as(self, vision: Vision) -> None:
        """Copy the plan head and the lead head of a vision network."""
        self.plan.load_state_dict(vision.plan.state_dict())
        state = vision.heads[LEADS].state_dict()
        for name in ("last.weight", "last.bias"):
            state[name] = state[name][list(LEAD_OUTPUTS)]
        self.lead.load_state_dict(state)

    def forward(self, desires: Tensor, convention: Tensor, features: Tensor) -> dict[str, Tensor]:
        """Return the output of each head by name.

        Args:
            desires: (n, 25, 8) pulses, oldest first.
            convention: (n, 2) side of the road: right, left.
            features: (n, 25, 512) `hidden_state`, oldest first; the last row is the present.
        """
        rows = (torch.relu(self.row(features)), self.lead(features), desires)
        seen = torch.cat([*(part.flatten(1) for part in rows), convention], 1)
        past = torch.relu(self.mix(torch.relu(self.past(seen))))
        return {
            "plan": self.plan(features[:, -1], self.bend(past)),
            "desire_state": self.desire(past),
        }


def _step(inputs: int, step: Step) -> nn.Module:
    if step.kind == "conv":
        return ConvNorm(inputs, step.channels, 3, step.stride)
    return Residual(step.channels)


def as_input(images: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return images as input of the networks, about [-2, 2], in channels-last memory order.

    From (n, 2, 12, 128, 256) uint8 to `dtype`, of the same shape.
    """
    count, views, channels, high, wide = images.shape
    found = torch.empty((count, views, high, wide, channels), dtype=dtype)
    # One image at a time stays in a core's cache.
    for one, image in zip(found, images, strict=True):
        last = image.permute(0, 2, 3, 1).contiguous().to(dtype)
        one.copy_(last.sub_(MIDDLE).mul_(1.0 / SPREAD))
    return found.permute(0, 1, 4, 2, 3)


def folded(vision: Vision) -> Vision:
    """Return a copy for inference, with norms folded into the convolutions."""
    found = copy.deepcopy(vision).eval().to(memory_format=torch.channels_last)
    for part in found.modules():
        if isinstance(part, ConvNorm):
            part.conv = fuse_conv_bn_eval(part.conv, part.norm)
            part.norm = nn.Identity()
    return found


def fast_dtype() -> torch.dtype:
    """Return bfloat16 if this processor multiplies it natively, else float32."""
    is_half = torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return torch.bfloat16 if is_half else torch.float32


def arrays_of(network: nn.Module) -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:
    """Return the weights of a network by name."""
    return {name: np.asarray(value.numpy()) for name, value in network.state_dict().items()}
