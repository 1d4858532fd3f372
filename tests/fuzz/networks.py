"""Random layers: convolutions, products, rows, windows, of sizes that blocks do not divide."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from scheduler.ir import dtype as dt
from scheduler.tensor.tensor import Tensor
from tests.fuzz.values import array
from tests.scheduler.strategies import Draw

Array = NDArray[Any]
Layer = Callable[[Tensor], Tensor]
# Without infinities: the kernels of `choices` and Winograd's may put them elsewhere, as numerics.md
# says.
PROFILES: Final = ("whole", "whole", "halves", "usual")


@dataclass
class Layers:
    """Layers that are drawn once, and applied to as many inputs as one likes.

    Attributes:
        shape: of an input, without the batch.
        layers: one after the other.
    """

    draw: Draw
    profile: str
    shape: tuple[int, ...] = ()
    layers: list[Layer] = field(default_factory=list)

    def __call__(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x

    def weight(self, *shape: int) -> Tensor:
        """Return a weight."""
        return Tensor.weight(array(self.draw, shape, dt.float32, self.profile))

    def data(self, batch: int) -> Array:
        """Return values of an input."""
        return array(self.draw, (batch, *self.shape), dt.float32, self.profile)


def layers(draw: Draw, profile: str, *, images: bool | None = None) -> Layers:
    """Return one to three layers on images or on rows."""
    made = Layers(draw, profile)
    image = draw.flag() if images is None else images
    if image:
        made.shape = (draw.integer(1, 25), draw.integer(3, 14), draw.integer(3, 14))
        _images(made, draw.integer(1, 2))
    else:
        made.shape = (draw.integer(1, 33), draw.integer(1, 70))
        _rows(made, draw.integer(1, 3))
    return made


def _images(m: Layers, count: int) -> None:
    draw, (channels, height, width) = m.draw, m.shape
    # A convolution of what is computed, and something behind it: what Winograd's kernel takes.
    m.layers.append(lambda x: x + 1.0)
    for _ in range(count):
        size = draw.pick([k for k in (1, 2, 3, 3, 3) if k <= min(height, width) + 1])
        pad = draw.integer(0 if size <= min(height, width) else 1, 1)
        step = draw.pick([1, 1, 2])
        depthwise = draw.integer(0, 3) == 0
        groups = channels if depthwise else 1
        outputs = channels if depthwise else draw.pick([draw.integer(1, 40), 16, 32, 48])
        weight = m.weight(outputs, channels // groups, size, size)
        m.layers.append(_convolution(weight, step, pad, groups))
        m.layers.append(_activation(draw))
        channels = outputs
        height, width = ((n + 2 * pad - size) // step + 1 for n in (height, width))
    if draw.integer(0, 2) == 0:
        m.layers.append(draw.pick([lambda x: x.max((2, 3)), lambda x: x.sum((2, 3))]))


def _convolution(weight: Tensor, step: int, pad: int, groups: int) -> Layer:
    return lambda x: x.conv2d(weight, None, step, pad, groups=groups)


def _activation(draw: Draw) -> Layer:
    ways: list[Layer] = [
        lambda x: x.relu(),
        lambda x: x + 0.5,
        lambda x: x * 2.0,
        lambda x: x.clip(-6, 6),
    ]
    return draw.pick(ways)


def _rows(m: Layers, count: int) -> None:
    draw, width = m.draw, m.shape[-1]
    for _ in range(count):
        way = draw.pick(["product", "product", "product", "softmax", "norm", "stream", "mean"])
        if way == "product":
            outputs = draw.integer(1, 90)
            m.layers += [_product(m.weight(width, outputs), m.weight(outputs)), _activation(draw)]
            width = outputs
        elif way == "softmax":
            m.layers.append(lambda x: x.softmax(-1))
        elif way == "norm":
            m.layers.append(lambda x: x.layernorm(-1, 0.5))
        elif way == "stream":
            m.layers.append(_stream(m.weight(width)))
        else:
            m.layers.append(lambda x: x - x.mean(-1, keepdim=True))
    if np.prod(m.shape) > 3000:
        m.shape = (1, m.shape[-1])


def _product(weight: Tensor, bias: Tensor) -> Layer:
    return lambda x: x @ weight + bias


def _stream(other: Tensor) -> Layer:
    return lambda x: x * 2.0 + other
