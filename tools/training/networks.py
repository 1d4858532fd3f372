"""The two networks in torch: vision sees two pairs of frames, policy looks back over five seconds.

Both views go through the same convolutions, which find markings, edges and motion wherever they
are; then a layer that knows places reads both. The policy bends the plan that vision's own head
gives: it begins as that head, and learns what only the past can tell, such as a lane change under
way.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from modeld.constants import DESIRE_LENGTH
from tools.training import sweep
from tools.training.architecture import (
    HEAD_GROUPS,
    MIDDLE,
    POLICY_SIZE,
    READING_SCALE,
    SPREAD,
    VIEW_CHANNELS,
    VIEW_SHAPE,
    VISION_SIZE,
    WAY_SCALE,
    CellsSize,
    PolicySize,
    Step,
    SweepSize,
    VisionSize,
)
from tools.training.cells import COLUMNS, LEAD_READINGS, LINES, ROWS, column_scale, row_scale
from tools.training.heads import DESIRE_STATE, HIDDEN_WIDTH, HISTORY_ROWS, PLAN, width_of

# Scores have a deviation of 1: with more, a choice between ways begins as a wrong one.
_FIRST_TRUST = 0.6


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


class Sweep(nn.Module):
    """How far the road has moved between the frames of the road view; `sweep` says how."""

    places: Tensor
    shares: Tensor
    ways: Tensor
    steps: Tensor

    def __init__(self, size: SweepSize) -> None:
        super().__init__()
        self.look = ConvNorm(VIEW_CHANNELS // 2, size.channels, size.kernel, sweep.STRIDE)
        self.more = nn.ModuleList(ConvNorm(size.channels, size.channels) for _ in range(size.more))
        self.trust = nn.Parameter(torch.full((sweep.BANDS,), _FIRST_TRUST))
        for name, table in (
            ("places", sweep.place_indices()),
            ("shares", sweep.place_weights()),
            ("ways", sweep.way_indices()),
            ("steps", np.arange(sweep.WAYS, dtype=np.float32)),
        ):
            self.register_buffer(name, torch.from_numpy(table), persistent=False)

    def forward(self, frames: Tensor) -> tuple[Tensor, Tensor]:
        """Return scores of all ways by band, with the way they say, and how likely each way is.

        Args:
            frames: (n, 12, 128, 256), older frame first.

        Returns:
            (n, 129) and logits, (n, 32).
        """
        single = frames.reshape(-1, VIEW_CHANNELS // 2, *VIEW_SHAPE[1:])
        single = single[:, :, sweep.FIRST_CHANNEL_ROW :]
        x = self.look(single.contiguous(memory_format=torch.channels_last))
        for layer in self.more:
            x = layer(torch.relu(x))
        with torch.autocast("cpu", enabled=False):
            seen = x.float().contiguous().flatten(2)
            above, below = (
                seen.index_select(2, at) * share
                for at, share in zip(self.places, self.shares, strict=True)
            )
            rows = (above + below).unflatten(2, (sweep.OLDER_ROWS, sweep.COLUMNS))
            rows = rows.transpose(1, 2).flatten(2)
            older, newer = rows[0::2], rows[1::2, : sweep.ROWS]
            products = torch.matmul(newer, older.transpose(1, 2)).flatten(1)
            scores = products[:, self.ways].reshape(
                -1, sweep.BANDS, sweep.ROWS // sweep.BANDS, sweep.WAYS
            )
            scores = functional.layer_norm(scores.sum(2), (sweep.WAYS,))
            logits = (scores * self.trust[:, None]).sum(1)
            way = (logits.softmax(-1) * self.steps).sum(-1, keepdim=True) * WAY_SCALE
            return torch.cat([scores.flatten(1), way], 1), logits


class Cells(nn.Module):
    """Where lines and the car ahead are among the cells of each view, and whether they are."""

    across: Tensor
    down: Tensor

    def __init__(self, size: CellsSize, inputs: int, around: int) -> None:
        super().__init__()
        self.around = nn.Conv2d(around, inputs, 1)
        # Views differ in what lies where.
        self.row = nn.Parameter(0.1 * torch.randn(2, inputs, ROWS, 1))
        self.column = nn.Parameter(0.1 * torch.randn(2, inputs, 1, COLUMNS))
        self.look = ConvNorm(inputs, size.channels)
        self.last = nn.Conv2d(size.channels, LINES + 1, 1)
        self.lead = TwoLayers(3 + inputs, size.lead, LEAD_READINGS)
        self.register_buffer("across", torch.from_numpy(column_scale()), persistent=False)
        self.register_buffer("down", torch.from_numpy(row_scale()), persistent=False)

    def forward(self, cells: Tensor, around: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return what is read, how likely each line and the car are in each cell, and the car.

        Args:
            cells: (2 n, channels, 16, 32), the views of a sample one after the other.
            around: (2 n, channels, 8, 16).

        Returns:
            (n, 2 * (192 + 3 + channels + 2)): of each view `read_lines`, `read_lead` and, scaled,
            what these say of the car; logits, (n, 2, 7, 16, 32), the car last; and what they say of
            the car, as `cells.lead_readings`, (n, 2, 2).
        """
        wider = functional.interpolate(self.around(around), scale_factor=2.0, mode="nearest")
        x = (cells + wider).reshape(-1, 2, *cells.shape[1:]) + self.row + self.column
        x = torch.relu(x.flatten(0, 1))
        logits = self.last(torch.relu(self.look(x))).float()
        with torch.autocast("cpu", enabled=False):
            lead = self.read_lead(logits[:, LINES], x.float())
            readings = self.lead(lead)
            scaled = readings * (lead[:, 2:3] * READING_SCALE)
            read = torch.cat([self.read_lines(logits[:, :LINES]), lead, scaled], 1)
        found = read.reshape(len(cells) // 2, -1)
        return found, logits.reshape(-1, 2, *logits.shape[1:]), readings.reshape(-1, 2, 2)

    def read_lines(self, logits: Tensor) -> Tensor:
        """Return of each line the column in each row, 0 where it is not, and whether it is there.

        Args:
            logits: (2 n, 6, 16, 32).

        Returns:
            (2 n, 192).
        """
        there = logits.amax(-1).sigmoid()
        column = (logits.softmax(-1) * self.across).sum(-1)
        return torch.cat([column * there, there], 1).flatten(1)

    def read_lead(self, logits: Tensor, cells: Tensor) -> Tensor:
        """Return where the car ahead is, whether it is, and what its cells look like.

        Args:
            logits: (2 n, 16, 32).
            cells: (2 n, channels, 16, 32).

        Returns:
            (2 n, 3 + channels): column, row, whether; all are 0 where there is none.
        """
        flat = logits.flatten(1)
        there = flat.amax(1, keepdim=True).sigmoid()
        share = flat.softmax(1)
        cell = share.reshape(logits.shape)
        column = (cell.sum(1) * self.across).sum(1, keepdim=True)
        row = (cell.sum(2) * self.down).sum(1, keepdim=True)
        looks = torch.matmul(cells.flatten(2), share[:, :, None])[:, :, 0]
        return torch.cat([column * there, row * there, there, looks * there], 1)


class Seen(NamedTuple):
    """What a trunk sees: `hidden_state` (n, 512), and what its parts said, as logits.

    Attributes:
        hidden: (n, 512).
        cells: (n, 2, 7, 16, 32) of each view, six lines and the car ahead, and cell.
        ways: (n, 32).
        lead: (n, 2, 2) of each view, as `cells.lead_readings`.
    """

    hidden: Tensor
    cells: Tensor
    ways: Tensor
    lead: Tensor


class Trunk(nn.Module):
    """What sees: both views to `hidden_state`."""

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
        inputs = size.neck * 4 * 8 + read + sweep.BANDS * sweep.WAYS + 1
        self.places = nn.Linear(inputs, HIDDEN_WIDTH)
        self.norm = nn.LayerNorm(HIDDEN_WIDTH)

    def forward(self, views: Tensor) -> Tensor:
        """Return `hidden_state`.

        Args:
            views: (n, 2, 12, 128, 256), road and wide, bytes brought to about [-2, 2].

        Returns:
            (n, 512).
        """
        return self.see(views).hidden

    def see(self, views: Tensor) -> Seen:
        """Return all that is seen.

        Args:
            views: as for `forward`.
        """
        count = views.shape[0]
        way, ways = self.sweep(views[:, 0])
        x = views.reshape(2 * count, *VIEW_SHAPE).contiguous(memory_format=torch.channels_last)
        cells = x
        for index, step in enumerate(self.steps):
            x = step(x)
            if isinstance(step, ConvNorm):
                x = torch.relu(x)
            if index == self._cell_step:
                cells = x
        read, logits, lead = self.cells(cells, x)
        x = x.contiguous().reshape(count, -1, *x.shape[2:])
        x = torch.relu(self.neck(torch.relu(self.joint(x))))
        with torch.autocast("cpu", enabled=False):
            found = torch.cat([x.flatten(1).float(), read, way], 1)
            return Seen(self.norm(self.places(found)), logits, ways, lead)


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

    def forward(self, views: Tensor) -> dict[str, Tensor]:
        """Return the output of each head by its name, `plan`, and what `Seen` has.

        Args:
            views: as `Trunk.forward`.
        """
        seen = self.trunk.see(views)
        found = {"hidden_state": seen.hidden, "cells": seen.cells, "ways": seen.ways}
        found["lead_readings"] = seen.lead
        # Heads are a small part of the work, and metres want more than eight bits.
        with torch.autocast("cpu", enabled=False):
            found["plan"] = self.plan(seen.hidden)
            for group, heads in HEAD_GROUPS.items():
                start, output = 0, self.heads[group](seen.hidden)
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
