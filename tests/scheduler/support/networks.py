"""Random stacks of network layers over odd sizes: what the small random graphs do not reach.

Products, attention, convolutions, norms and gathers follow each other, so that reductions are
hoisted, rows are staged in private arrays, and lanes leave remainders. Values start as multiples
of 1/8.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np

from scheduler.ir import dtype as dt
from scheduler.tensor.tensor import Tensor
from tests.scheduler.support.programs import Array

SIZES = (1, 2, 3, 5, 7, 8, 12, 15, 16, 17, 24, 31, 32, 33, 40, 48, 64, 65)
MAX_ELEMENTS = 20_000


class Stack:
    """A random network over (batch, rows, columns); `inputs` are the values of its inputs."""

    def __init__(self, seed: int) -> None:
        self.choice = random.Random(seed)  # noqa: S311  # a test program, not a secret
        self.values = np.random.default_rng(seed)
        self.inputs: dict[str, Array] = {}

    def leaf(self, *shape: int) -> Tensor:
        """Return an input, or sometimes a weight."""
        data = (self.values.integers(-8, 9, shape) / 8).astype(np.float32)
        if self.choice.random() < 0.4:
            return Tensor.weight(data)
        name = f"x{len(self.inputs)}"
        self.inputs[name] = data
        return Tensor.input(name, shape)

    def size(self) -> int:
        """Return a size, odd ones as likely as even ones."""
        return self.choice.choice(SIZES)

    def axis(self) -> int:
        """Return the axis of rows or of columns."""
        return self.choice.choice((1, 2))

    def build(self) -> dict[str, Tensor]:
        """Return the outputs: the last layer, and its sum over columns."""
        x = self.leaf(self.choice.choice((1, 2, 4)), self.size(), self.size())
        for _ in range(self.choice.randint(2, 6)):
            x = self.choice.choice(LAYERS)(self, x)
            if x.size > MAX_ELEMENTS:
                x = x[:, :20, :20]
        return {"y": x, "z": x.sum(-1)}


def _product(s: Stack, x: Tensor) -> Tensor:
    return (x @ s.leaf(x.shape[2], s.size())) * 0.125


def _left_product(s: Stack, x: Tensor) -> Tensor:
    return (s.leaf(s.size(), x.shape[1]) @ x) * 0.125


def _attention(_: Stack, x: Tensor) -> Tensor:
    return (x @ x.transpose(1, 2) * 0.125).softmax(-1) @ x


def _convolution(s: Stack, x: Tensor) -> Tensor:
    channels = x.shape[1]
    groups = s.choice.choice((1, channels))
    out = s.choice.choice((1, 2)) * channels if groups == channels else s.size()
    weight = s.leaf(out, channels // groups, min(3, x.shape[2]))
    y = x.conv2d(
        weight,
        s.leaf(out),
        padding=s.choice.choice((0, 1)),
        stride=s.choice.choice((1, 2)),
        groups=groups,
    )
    return y * 0.125


def _mask(s: Stack, x: Tensor) -> Tensor:
    return (x.sum(2, keepdim=True) > s.leaf(*x.shape) * 4).where(x, s.choice.choice((0.0, -1.0)))


def _pad(s: Stack, x: Tensor) -> Tensor:
    rows, columns = (s.choice.randint(0, 2), 1), (1, s.choice.randint(0, 3))
    return x.pad(((0, 0), rows, columns), s.choice.choice((0, 1)))


def _gather(s: Stack, x: Tensor) -> Tensor:
    return x.gather(Tensor.weight(s.values.integers(-x.shape[1], x.shape[1], s.size())), 1)


def _computed_gather(s: Stack, x: Tensor) -> Tensor:
    axis = s.axis()
    index = (x[:, :, 0].sum(0) * 8).round().cast(dt.int32)
    return x.gather(index.clip(-x.shape[axis], x.shape[axis] - 1), axis)


def _residual(s: Stack, x: Tensor) -> Tensor:
    return x + x.mean(s.axis(), keepdim=True) * s.leaf(x.shape[2])


def _cat(s: Stack, x: Tensor) -> Tensor:
    return Tensor.cat([x, s.leaf(*x.shape), x.flip(2)], s.axis())


def _window(s: Stack, x: Tensor) -> Tensor:
    axis = s.axis()
    return x.window(axis, min(3, x.shape[axis]), 1).max(axis + 1)


LAYERS: tuple[Callable[[Stack, Tensor], Tensor], ...] = (
    _product,
    _left_product,
    _attention,
    _convolution,
    _mask,
    _pad,
    _gather,
    _computed_gather,
    _residual,
    _cat,
    _window,
    lambda s, x: x.softmax(s.axis()),
    lambda s, x: x.layernorm(s.choice.choice((1, 2, (1, 2))), 0.1),
    lambda _, x: x.gelu(),
    lambda s, x: x - x.max(s.axis(), keepdim=True),
    lambda _, x: x / (x.abs().sum(-1, keepdim=True) + 1.0),
    lambda _, x: x.transpose(1, 2),
)
