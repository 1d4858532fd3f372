"""Parts of the networks: convolutions, motion, lines, the car ahead; and weights of 8 bits.

`sweep` and `cells` define the positions at which these parts look.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from tools.simulator.training.networks import sweep
from tools.simulator.training.networks.architecture import (
    DISPLACEMENT_SCALE,
    LARGEST,
    LEAST_SCALE,
    READING_SCALE,
    VIEW_CHANNELS,
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

# Scores have a deviation of 1. A larger initial weight would start with a confident wrong choice.
_FIRST_TRUST = 0.6


class ConvNorm(nn.Module):
    """A convolution without bias, with padding of half the kernel, and batch normalisation."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 3, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
        self.norm = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, inputs, h, w) to (n, outputs, h / stride, w / stride)."""
        return self.norm(self.conv(x))


class Residual(nn.Module):
    """Two 3x3 convolutions with a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = ConvNorm(width, width)
        self.second = ConvNorm(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, width, h, w) to the same shape."""
        return torch.relu_(x + self.second(torch.relu_(self.first(x))))


class TwoLayers(nn.Module):
    """A hidden layer and an output layer with small initial weights."""

    def __init__(self, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.first = nn.Linear(inputs, hidden)
        self.last = nn.Linear(hidden, outputs)
        begin_small(self.last)

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, inputs) to (n, outputs)."""
        return self.last(torch.relu(self.first(x)))


class Sweep(nn.Module):
    """Measures the road's displacement between two frames of the road view (see `sweep`)."""

    places: Tensor
    shares: Tensor
    displacements: Tensor
    steps: Tensor

    def __init__(self, size: SweepSize) -> None:
        super().__init__()
        self.look = ConvNorm(VIEW_CHANNELS // 2, size.channels, size.kernel, sweep.STRIDE)
        self.more = nn.ModuleList(ConvNorm(size.channels, size.channels) for _ in range(size.more))
        self.trust = nn.Parameter(torch.full((sweep.BANDS,), _FIRST_TRUST))
        for name, table in (
            ("places", sweep.place_indices()),
            ("shares", sweep.place_weights()),
            ("displacements", sweep.displacement_indices()),
            ("steps", np.arange(sweep.DISPLACEMENTS, dtype=np.float32)),
        ):
            self.register_buffer(name, torch.from_numpy(table), persistent=False)

    def forward(self, frames: Tensor) -> tuple[Tensor, Tensor]:
        """Return scores and displacement, (n, 129), and logits of all displacements, (n, 32).

        `frames` are (n, 12, 128, 256), the older one first. The first result contains the scores of
        all displacements by band, and the expected displacement.
        """
        pair = frames[:, :, sweep.FIRST_CHANNEL_ROW :].unflatten(1, (2, VIEW_CHANNELS // 2))
        single = pair.permute(0, 1, 3, 4, 2).flatten(0, 1).permute(0, 3, 1, 2)
        # Eight channels do not fill a vector: normalising them channels-last takes ten times as
        # long.
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
            scores = products[:, self.displacements].reshape(
                -1, sweep.BANDS, sweep.ROWS // sweep.BANDS, sweep.DISPLACEMENTS
            )
            scores = functional.layer_norm(scores.sum(2), (sweep.DISPLACEMENTS,))
            logits = (scores * self.trust[:, None]).sum(1)
            displacement = (logits.softmax(-1) * self.steps).sum(
                -1, keepdim=True
            ) * DISPLACEMENT_SCALE
            return torch.cat([scores.flatten(1), displacement], 1), logits


class Cells(nn.Module):
    """Locates lines and the car ahead among the cells of each view, and detects their presence."""

    across: Tensor
    down: Tensor

    def __init__(self, size: CellsSize, inputs: int, around: int) -> None:
        super().__init__()
        self.around = nn.Conv2d(around, inputs, 1)
        # Learnt for each view, because the views differ in the positions of things.
        self.row = nn.Parameter(0.1 * torch.randn(2, inputs, ROWS, 1))
        self.column = nn.Parameter(0.1 * torch.randn(2, inputs, 1, COLUMNS))
        self.look = ConvNorm(inputs, size.channels)
        self.last = nn.Conv2d(size.channels, LINES + 1, 1)
        self.lead = TwoLayers(3 + inputs, size.lead, LEAD_READINGS)
        self.register_buffer("across", torch.from_numpy(column_scale()), persistent=False)
        self.register_buffer("down", torch.from_numpy(row_scale()), persistent=False)

    def forward(self, cells: Tensor, around: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return features, logits of lines and car in each cell, and readings of the car.

        `cells` (2 n, channels, 16, 32) contain the views of a sample one after the other; `around`
        (2 n, channels, 8, 16) is their context.

        Returns:
            Features (n, 2 * (192 + 3 + channels + 2)): of each view, the results of `read_lines`
                and `read_lead`, and the scaled readings. Logits (n, 2, 7, 16, 32), the car last.
                Readings (n, 2, 2) as in `cells.lead_readings`.
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
        """Return each line's column in each row, 0 if absent, and its presence.

        From (2 n, 6, 16, 32) to (2 n, 192).
        """
        there = logits.amax(-1).sigmoid()
        column = (logits.softmax(-1) * self.across).sum(-1)
        return torch.cat([column * there, there], 1).flatten(1)

    def read_lead(self, logits: Tensor, cells: Tensor) -> Tensor:
        """Return position, presence and features of the car ahead.

        From (2 n, 16, 32) and (2 n, channels, 16, 32) to (2 n, 3 + channels): column, row,
        presence, features. All are multiplied by the presence.
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
    """Initialise an output layer near zero, the mean of all samples."""
    nn.init.normal_(layer.weight, std=0.01)
    nn.init.zeros_(layer.bias)


# --- Networks whose matrices are rounded to 8 bits at each use -----------------------------------
#
# The unrounded weights are learnt; the gradient passes through the rounding unchanged (Bengio and
# others, "Estimating or propagating gradients through stochastic neurons", 2013). Batch
# normalisation is folded first, so that the exported weights are the ones that are rounded.


@torch.no_grad()
def fold_norms(network: nn.Module) -> None:
    """Move the batch normalisations of a network into its convolutions, in place.

    Outputs in evaluation mode and the names of weights do not change: the normalisations remain
    as a bias, with a fixed mean of 0 and a fixed deviation of 1.
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
    """Return the scale of each output of a weight (outputs, ...), in a shape that broadcasts."""
    largest = weight.detach().abs().flatten(1).amax(1).reshape(-1, *[1] * (weight.ndim - 1))
    return (largest / LARGEST).clamp(min=LEAST_SCALE)


def rounded(weight: Tensor) -> Tensor:
    """Return a weight (outputs, ...) rounded as in `in_eight_bits`; gradients pass through."""
    fixed, scale = weight.detach(), scale_of(weight)
    value = (fixed / scale).round().clamp(-LARGEST, LARGEST) * scale
    return weight + (value - fixed)


def matrices_of(network: nn.Module) -> dict[str, nn.Parameter]:
    """Return the weights that are rounded, by name; biases and norms are not."""
    return {
        f"{name}.weight": module.weight
        for name, module in network.named_modules()
        if isinstance(module, (nn.Conv2d, nn.Linear))
    }


def rounded_weights(network: nn.Module) -> dict[str, Tensor]:
    """Return the rounded matrices of a network by name."""
    return {name: rounded(weight) for name, weight in matrices_of(network).items()}


def call_rounded(network: nn.Module, *inputs: Tensor) -> dict[str, Tensor]:
    """Return a network's outputs with rounded matrices."""
    outputs: dict[str, Tensor] = functional_call(network, rounded_weights(network), inputs)
    return outputs


@torch.no_grad()
def round_weights(network: nn.Module) -> None:
    """Round the matrices of a network, in place."""
    network.load_state_dict({**network.state_dict(), **rounded_weights(network)})
