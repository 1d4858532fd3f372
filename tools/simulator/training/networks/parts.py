"""Parts of the networks: convolutions, what looks for motion, lines and the car ahead; rounding.

`sweep` and `cells` define the places; these parts learn to see there.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from tools.simulator.training.networks import sweep
from tools.simulator.training.networks.architecture import (
    LARGEST,
    LEAST_SCALE,
    READING_SCALE,
    VIEW_CHANNELS,
    WAY_SCALE,
    CellsSize,
    SweepSize,
)
from tools.simulator.training.networks.cells import (
    COLUMNS,
    LEAD_READINGS,
    LINES,
    ROWS,
    column_scale,
    row_scale,
)

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
    """Two 3x3 convolutions with a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = ConvNorm(width, width)
        self.second = ConvNorm(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(n, width, h, w) to the same shape."""
        return torch.relu_(x + self.second(torch.relu_(self.first(x))))


class TwoLayers(nn.Module):
    """A hidden layer and a last one, which begins small."""

    def __init__(self, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.first = nn.Linear(inputs, hidden)
        self.last = nn.Linear(hidden, outputs)
        begin_small(self.last)

    def forward(self, x: Tensor) -> Tensor:
        """(n, inputs) to (n, outputs)."""
        return self.last(torch.relu(self.first(x)))


class Sweep(nn.Module):
    """Measures how far the road has moved between frames of the road view, as `sweep` explains."""

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
        """Return what is found by band, (n, 129), and logits of all ways, (n, 32).

        `frames` are (n, 12, 128, 256), the older one first. The first result holds scores of all
        ways and the chosen way.
        """
        pair = frames[:, :, sweep.FIRST_CHANNEL_ROW :].unflatten(1, (2, VIEW_CHANNELS // 2))
        single = pair.permute(0, 1, 3, 4, 2).flatten(0, 1).permute(0, 3, 1, 2)
        # Eight channels fill no vector: normalised channels last they take ten times as long.
        x = self.look.norm(self.look.conv(single).contiguous())
        for layer in self.more:
            x = layer(torch.relu_(x))
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

        `cells` are (2 n, channels, 16, 32), the views of a sample one after the other, `around` (2
        n, channels, 8, 16).

        Returns:
            (n, 2 * (192 + 3 + channels + 2)): of each view `read_lines`, `read_lead` and, scaled,
                the readings of the car; logits, (n, 2, 7, 16, 32), the car last; and the readings,
                as `cells.lead_readings`, (n, 2, 2).
        """
        wider = functional.interpolate(self.around(around), scale_factor=2.0, mode="nearest")
        place = (self.row + self.column).to(cells.dtype)
        x = (cells + wider).reshape(-1, 2, *cells.shape[1:]) + place
        x = torch.relu_(x.flatten(0, 1))
        logits = self.last(torch.relu_(self.look(x))).float()
        with torch.autocast("cpu", enabled=False):
            lead = self.read_lead(logits[:, LINES], x.float())
            readings = self.lead(lead)
            scaled = readings * (lead[:, 2:3] * READING_SCALE)
            read = torch.cat([self.read_lines(logits[:, :LINES]), lead, scaled], 1)
        found = read.reshape(len(cells) // 2, -1)
        return (
            found,
            logits.reshape(-1, 2, *logits.shape[1:]),
            readings.reshape(-1, 2, LEAD_READINGS),
        )

    def read_lines(self, logits: Tensor) -> Tensor:
        """Return each line's column in each row, 0 without it, and whether it is there.

        From (2 n, 6, 16, 32) to (2 n, 192).
        """
        there = logits.amax(-1).sigmoid()
        column = (logits.softmax(-1) * self.across).sum(-1)
        return torch.cat([column * there, there], 1).flatten(1)

    def read_lead(self, logits: Tensor, cells: Tensor) -> Tensor:
        """Return where the car ahead is, whether it is, and what its cells look like.

        From (2 n, 16, 32) and (2 n, channels, 16, 32) to (2 n, 3 + channels): column, row, whether,
        then looks; all are 0 where there is none.
        """
        flat = logits.flatten(1)
        there = flat.amax(1, keepdim=True).sigmoid()
        share = flat.softmax(1)
        cell = share.reshape(logits.shape)
        column = (cell.sum(1) * self.across).sum(1, keepdim=True)
        row = (cell.sum(2) * self.down).sum(1, keepdim=True)
        looks = torch.matmul(cells.flatten(2), share[:, :, None])[:, :, 0]
        return torch.cat([column * there, row * there, there, looks * there], 1)


def begin_small(layer: nn.Linear) -> None:
    """Let a last layer begin near its bias, which is 0: the mean of all samples."""
    nn.init.normal_(layer.weight, std=0.01)
    nn.init.zeros_(layer.bias)


# --- Networks whose matrices are rounded to 8 bits each time they are used --------------------
#
# What is learnt are the weights before they are rounded; the gradient passes the rounding as if it
# were not there (Bengio and others, "Estimating or propagating gradients through stochastic
# neurons", 2013). Batch normalisation is folded first, so that what is rounded is what is exported.


@torch.no_grad()
def fold_norms(network: nn.Module) -> None:
    """Move the batch normalisations of a network into its convolutions, in place.

    It says what it said in evaluation, and keeps the names of its weights: the normalisations stay
    as a bias after a mean of 0 and a deviation of 1, which are no longer learnt.
    """
    for module in network.modules():
        if not isinstance(module, ConvNorm):
            continue
        norm = module.norm
        assert norm.running_mean is not None
        assert norm.running_var is not None
        factor = norm.weight.double() / (norm.running_var.double() + norm.eps).sqrt()
        weight = module.conv.weight
        weight.copy_(weight * factor[:, None, None, None])
        norm.bias.copy_(norm.bias - norm.running_mean * factor)
        norm.running_mean.zero_()
        norm.running_var.fill_(1.0 - norm.eps)
        norm.weight.fill_(1.0)
        norm.weight.requires_grad_(False)
    network.eval()


def scale_of(weight: Tensor) -> Tensor:
    """Return the scale of each output of a weight (outputs, ...), to be multiplied with it."""
    largest = weight.detach().abs().flatten(1).amax(1).reshape(-1, *[1] * (weight.ndim - 1))
    return (largest / LARGEST).clamp(min=LEAST_SCALE)


def rounded(weight: Tensor) -> Tensor:
    """Return a weight (outputs, ...) rounded as by `in_eight_bits`; gradients pass through."""
    fixed, scale = weight.detach(), scale_of(weight)
    value = (fixed / scale).round().clamp(-LARGEST, LARGEST) * scale
    return weight + (value - fixed)


def matrices_of(network: nn.Module) -> dict[str, nn.Parameter]:
    """Return what is rounded of a network by its names: biases and norms are left out."""
    return {
        f"{name}.weight": module.weight
        for name, module in network.named_modules()
        if isinstance(module, (nn.Conv2d, nn.Linear))
    }


def rounded_weights(network: nn.Module) -> dict[str, Tensor]:
    """Return the rounded matrices of a network by their names."""
    return {name: rounded(weight) for name, weight in matrices_of(network).items()}


def call_rounded(network: nn.Module, *inputs: Tensor) -> dict[str, Tensor]:
    """Return a network's outputs with its matrices rounded."""
    said: dict[str, Tensor] = functional_call(network, rounded_weights(network), inputs)
    return said


@torch.no_grad()
def round_weights(network: nn.Module) -> None:
    """Round the matrices of a network, in place."""
    network.load_state_dict({**network.state_dict(), **rounded_weights(network)})
