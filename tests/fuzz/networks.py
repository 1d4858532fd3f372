"""Random stacks of layers: convolutions, products, attention, norms, of any size.

Sizes leave remainders: reductions are hoisted, rows are staged in private
arrays, and lanes and blocks do not divide sizes.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from scheduler.ir import dtype as dt
from scheduler.tensor.tensor import Tensor
from tests.fuzz.draw import Draw
from tests.fuzz.values import array

Array = NDArray[Any]
Layer = Callable[[Tensor], Tensor]
# Without infinities: the kernels of `choices` and Winograd's may put them elsewhere, as numerics.md
# says.
PROFILES: Final = ("whole", "whole", "halves", "usual")
SIZES: Final = (1, 2, 3, 5, 7, 8, 12, 15, 16, 17, 24, 31, 32, 33, 40, 48, 64, 65)
MAX_ELEMENTS: Final = 20_000  # of one sequence


@dataclass
class Layers:
    """Layers that are drawn once, and applied to as many inputs as one likes.

    Attributes:
        shape: of an input, without the batch.
        layers: one after the other.
        inputs: what the layers read besides their input, by name.
        kind: type of all values.
    """

    draw: Draw
    profile: str
    kind: dt.DType = dt.float32
    shape: tuple[int, ...] = ()
    layers: list[Layer] = field(default_factory=list)
    inputs: dict[str, Array] = field(default_factory=dict)

    def __call__(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x

    def weight(self, *shape: int) -> Tensor:
        return Tensor.weight(self._array(shape))

    def leaf(self, *shape: int) -> Tensor:
        """Return an input, or sometimes a weight."""
        if self.draw.integer(0, 4) < 2:
            return self.weight(*shape)
        name = f"w{len(self.inputs)}"
        self.inputs[name] = self._array(shape)
        return self.input(name, shape)

    def input(self, name: str, shape: tuple[int, ...]) -> Tensor:
        return Tensor.input(name, shape, self.kind)

    def data(self, batch: int) -> Array:
        return self._array((batch, *self.shape))

    def _array(self, shape: tuple[int, ...]) -> Array:
        return array(self.draw, shape, self.kind, self.profile)


def layers(
    draw: Draw, profile: str, *, images: bool | None = None, kind: dt.DType = dt.float32
) -> Layers:
    """Return layers on images, on rows or on sequences of rows."""
    made = Layers(draw, profile, kind)
    if draw.flag() if images is None else images:
        made.shape = (draw.integer(1, 25), draw.integer(3, 14), draw.integer(3, 14))
        _images(made, draw.integer(1, 2))
    elif draw.flag():
        made.shape = (draw.integer(1, 33), draw.integer(1, 70))
        _rows(made, draw.integer(1, 3))
    else:
        made.shape = (draw.pick(SIZES), draw.pick(SIZES))
        _sequences(made, draw.integer(2, 6))
    return made


def stack(seed: int) -> tuple[dict[str, Tensor], dict[str, Array]]:
    """Return the outputs of a stack of layers on sequences, and values of its inputs."""
    draw = Draw(seed)
    made = Layers(draw, "halves", shape=(draw.pick(SIZES), draw.pick(SIZES)))
    _sequences(made, draw.integer(2, 6))
    data = made.data(draw.pick([1, 2, 4]))
    y = made(Tensor.input("x", data.shape))
    return {"y": y, "z": y.sum(-1)}, {"x": data, **made.inputs}


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
        m.layers.append(_convolution(weight, None, step, pad, groups))
        m.layers.append(_activation(draw))
        channels = outputs
        height, width = ((n + 2 * pad - size) // step + 1 for n in (height, width))
    if draw.integer(0, 2) == 0:
        m.layers.append(draw.pick([lambda x: x.max((2, 3)), lambda x: x.sum((2, 3))]))


def _convolution(weight: Tensor, bias: Tensor | None, step: int, pad: int, groups: int) -> Layer:
    return lambda x: x.conv2d(weight, bias, step, pad, groups=groups)


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
            m.layers += [_product(m.leaf(width, outputs), m.leaf(outputs)), _activation(draw)]
            width = outputs
        elif way == "softmax":
            m.layers.append(lambda x: x.softmax(-1))
        elif way == "norm":
            m.layers.append(lambda x: x.layernorm(-1, 0.5))
        elif way == "stream":
            m.layers.append(_stream(m.leaf(width)))
        else:
            m.layers.append(lambda x: x - x.mean(-1, keepdim=True))
    if np.prod(m.shape) > 3000:
        m.shape = (1, m.shape[-1])


def _product(weight: Tensor, bias: Tensor) -> Layer:
    return lambda x: x @ weight + bias


def _stream(other: Tensor) -> Layer:
    return lambda x: x * 2.0 + other


def _sequences(m: Layers, count: int) -> None:
    shape = m.shape
    for _ in range(count):
        layer = m.draw.pick(_SEQUENCE_LAYERS)(m, shape)
        m.layers.append(layer)
        shape = layer(m.input("shape", (1, *shape))).shape[1:]
        if np.prod(shape) > MAX_ELEMENTS:
            m.layers.append(lambda x: x[:, :20, :20])
            shape = (min(20, shape[0]), min(20, shape[1]))


def _right_product(m: Layers, shape: tuple[int, ...]) -> Layer:
    weight = m.leaf(shape[1], m.draw.pick(SIZES))
    return lambda x: (x @ weight) * 0.125


def _left_product(m: Layers, shape: tuple[int, ...]) -> Layer:
    weight = m.leaf(m.draw.pick(SIZES), shape[0])
    return lambda x: (weight @ x) * 0.125


def _attention(_: Layers, __: tuple[int, ...]) -> Layer:
    return lambda x: (x @ x.transpose(1, 2) * 0.125).softmax(-1) @ x


def _convolution_1d(m: Layers, shape: tuple[int, ...]) -> Layer:
    draw, channels = m.draw, shape[0]
    groups = draw.pick([1, channels])
    outputs = draw.pick([1, 2]) * channels if groups == channels else draw.pick(SIZES)
    weight = m.leaf(outputs, channels // groups, min(3, shape[1]))
    apply = _convolution(weight, m.leaf(outputs), draw.pick([1, 2]), draw.integer(0, 1), groups)
    return lambda x: apply(x) * 0.125


def _mask(m: Layers, shape: tuple[int, ...]) -> Layer:
    limit, other = m.leaf(*shape) * 4, m.draw.pick([0.0, -1.0])
    return lambda x: (x.sum(2, keepdim=True) > limit).where(x, other)


def _pad(m: Layers, _: tuple[int, ...]) -> Layer:
    pairs = ((0, 0), (m.draw.integer(0, 2), 1), (1, m.draw.integer(0, 3)))
    fill = m.draw.integer(0, 1)
    return lambda x: x.pad(pairs, fill)


def _gather(m: Layers, shape: tuple[int, ...]) -> Layer:
    size = shape[0]
    rows = [m.draw.integer(-size, size - 1) for _ in range(m.draw.pick(SIZES))]
    return lambda x: x.gather(Tensor.weight(np.array(rows)), 1)


def _computed_gather(m: Layers, shape: tuple[int, ...]) -> Layer:
    axis = m.draw.integer(1, 2)
    size, source = shape[axis - 1], m.leaf(m.draw.pick(SIZES), 3)
    index = (source.sum(1) * 8).round().cast(dt.int32).clip(-size, size - 1)
    return lambda x: x.gather(index, axis)


def _residual(m: Layers, shape: tuple[int, ...]) -> Layer:
    axis, weight = m.draw.integer(1, 2), m.leaf(shape[1])
    return lambda x: x + x.mean(axis, keepdim=True) * weight


def _cat(m: Layers, shape: tuple[int, ...]) -> Layer:
    axis, other = m.draw.integer(1, 2), m.leaf(*shape)
    return lambda x: Tensor.cat([x, other.broadcast_to(x.shape), x.flip(2)], axis)


def _window(m: Layers, shape: tuple[int, ...]) -> Layer:
    axis = m.draw.integer(1, 2)
    return lambda x: x.window(axis, min(3, shape[axis - 1]), 1).max(axis + 1)


def _norm(m: Layers, _: tuple[int, ...]) -> Layer:
    axes = m.draw.pick([(1,), (2,), (1, 2)])
    axis = m.draw.integer(1, 2)
    ways: list[Layer] = [lambda x: x.softmax(axis), lambda x: x.layernorm(axes, 0.1)]
    return m.draw.pick(ways)


def _shifted(m: Layers, _: tuple[int, ...]) -> Layer:
    axis = m.draw.integer(1, 2)
    ways: list[Layer] = [
        lambda x: x - x.max(axis, keepdim=True),
        lambda x: x / (x.abs().sum(-1, keepdim=True) + 1.0),
        lambda x: x.gelu(),
        lambda x: x.transpose(1, 2),
    ]
    return m.draw.pick(ways)


_SEQUENCE_LAYERS: Final[tuple[Callable[[Layers, tuple[int, ...]], Layer], ...]] = (
    *(_right_product, _left_product, _attention, _convolution_1d, _mask, _pad, _gather),
    *(_computed_gather, _residual, _cat, _window, _norm, _norm, _shifted, _shifted, _shifted),
)
