"""Random networks in eight bits: layers between QuantizeLinear and DequantizeLinear, and on bytes.

    x -> Quantize, Dequantize -> Transpose ... -> Conv with a dequantised weight -> Quantize ...
    x -> Quantize -> QLinearConv -> Dequantize          x -> DynamicQuantize -> MatMulInteger ...

Scales are powers of two, of which all is exact and ties are many, or any; some so small that values
saturate. Bytes are of both types, with zero points at the ends of the type too.
"""

from collections.abc import Callable
from math import prod
from typing import Any, Final, NamedTuple

import numpy as np
import onnx
from onnx import TensorProto

from tests.fuzz.onnx_networks import STEPS, Array, Network, Shape
from tests.fuzz.onnx_nodes import BYTE, FLOAT, INT, SMALL

CHANNELS: Final = (1, 3, 4, 5, 8, 12)


class Quantised(NamedTuple):
    """A value in bytes: names of it, its scale and zero point; the scale, and its axis.

    A zero point of 0 may be left out, with the empty name.
    """

    bytes: str
    scale: str
    zero: str
    step: Array
    axis: dict[str, int]

    @property
    def named(self) -> tuple[str, str, str]:
        return self.bytes, self.scale, self.zero


class Bytes(Network):
    """A network of quantised layers, with what moves values between them."""

    most = 3000

    def grow(self) -> None:
        d = self._d
        self._exact = d.flag()
        self._shown: list[str] = []
        for i in range(d.integer(1, 2)):
            sides = d.spread(d.one(0, 1, 2, 2), 3, 9)
            drawn = d.array((d.integer(1, 2), d.one(*CHANNELS), *sides))
            self.feed(f"in{i}", np.round(drawn * 8) / FLOAT(8) if self._exact else drawn)
        while len(self.nodes) < 14:
            d.one(*_STEPS)(self)

    def proto(self) -> onnx.ModelProto:
        """Return the model; bytes are outputs as well."""
        made = [name for name, _ in self._values if name not in self.feeds]
        shown = {*made[-1:], *self._shown[-2:], *(n for n in made if self._d.flag(0.1))}
        return self.model({f"out{i}": name for i, name in enumerate(sorted(shown))})

    # numbers

    def step_of(self, size: float, count: int) -> Array:
        """Return scales of about a size: powers of two, or any."""
        spread = self._rng().uniform(0.5, 2.0, count) * size
        return (2.0 ** np.round(np.log2(spread)) if self._exact else spread).astype(FLOAT)

    def _rng(self) -> np.random.Generator:
        return np.random.default_rng(self._d.integer(0, 2**32 - 1))

    def numbers(self, shape: Shape, kind: Any) -> Array:
        """Return bytes, the ends of their type among them."""
        limits = np.iinfo(kind)
        drawn = self._d.ints(shape, limits.min, limits.max, kind)
        ends = self._rng().choice([limits.min, limits.max], shape)
        return np.where(self._rng().random(shape) < 0.1, ends, drawn).astype(kind)

    def zero_of(self, kind: Any, shape: Shape = ()) -> Array:
        """Return zero points: in the middle, at an end, or anywhere."""
        limits = np.iinfo(kind)
        middle = (limits.max + limits.min + 1) // 2
        usual = self._d.one(middle, middle, limits.min, limits.max, 0)
        return np.full(shape, usual, kind) if self._d.flag(0.7) else self.numbers(shape, kind)

    # values in bytes, and weights

    def quantised(self, name: str, shape: Shape, *, single: bool = False) -> Quantised:
        """Append QuantizeLinear: with one scale, or sometimes one for each index of an axis."""
        d, kind = self._d, self._d.one(BYTE, BYTE, SMALL)
        size = 2.0**-5 * d.one(0.25, 1.0, 1.0, 4.0)
        axis = None if single or not shape or d.flag(0.8) else d.axis(len(shape))
        q = self._scheme(size, 1 if axis is None else shape[axis], kind, axis)
        made = self.QuantizeLinear(name, q.scale, q.zero, **q.axis)
        self._shown.append(made)
        return q._replace(bytes=made)

    def _scheme(
        self, size: float, count: int, kind: Any, axis: int | None, *, symmetric: bool = False
    ) -> Quantised:
        step, zero = self.step_of(size, count), self.zero_of(kind, (count,))
        zero = np.zeros_like(zero) if symmetric else zero
        if axis is None:
            step, zero = step[0].reshape(()), zero[0].reshape(())
        is_named = zero.any() or kind is SMALL or self._d.flag()
        named = self.initializer(zero) if is_named else ""
        belongs = {} if axis is None else {"axis": axis}
        return Quantised("", self.initializer(step), named, step, belongs)

    def weight_of(self, shape: Shape, axis: int, terms: int, *, named: bool = False) -> Quantised:
        """Return known bytes with one scale, or one for each index of an axis.

        Mostly they are as quantisers make them, symmetric, with 127 as the largest of each scale:
        those are what becomes dot products of bytes.

        Args:
            shape: of the weight.
            axis: of its results; given from the end sometimes.
            terms: of a sum, so that sums are about as large as what they are of.
            named: a zero point is not left out.
        """
        d, usual = self._d, self._d.flag(0.7)
        kind = SMALL if usual else d.one(BYTE, SMALL)
        found = d.one(None, axis, axis - len(shape))
        size, count = 1 / (70 * terms**0.5), 1 if found is None else shape[axis]
        q = self._scheme(size, count, kind, found, symmetric=usual)
        numbers = self.numbers(shape, kind)
        if usual:
            numbers = np.maximum(numbers, -127)
            numbers[tuple(slice(None) if i == axis else 0 for i in range(len(shape)))] = 127
        zero = q.zero
        if named and not zero:
            zero = self.initializer(np.zeros(q.step.shape, kind))
        return q._replace(bytes=self.initializer(numbers), zero=zero)

    def dequantised(self, q: Quantised) -> str:
        return self.DequantizeLinear(*q.named, **q.axis)

    def real(self, name: str, shape: Shape) -> str:
        """Append QuantizeLinear and DequantizeLinear around a value; or take it as it is."""
        return name if self._d.flag(0.2) else self.dequantised(self.quantised(name, shape))

    def bias(self, count: int, step: Array) -> str:
        """Return a bias in floats, or in 32 bits with a scale like that of the products."""
        if self._d.flag():
            return self.drawn((count,))
        data = self.initializer(self._d.ints((count,), -500, 500, INT))
        scale = np.broadcast_to(step * FLOAT(2**-5), (count,)).astype(FLOAT)
        return self.DequantizeLinear(data, self.initializer(scale), axis=0)

    def done(self, name: str, shape: Shape) -> None:
        """Give a result to later nodes, mostly quantised again."""
        self.give(self.real(name, shape), shape)

    # layers in floats between conversions

    def geometry(self, shape: Shape) -> tuple[dict[str, Any], Shape, Shape]:
        """Return attributes of a convolution, the shape of its weight and of its result."""
        d, rank, channels = self._d, len(shape) - 2, shape[1]
        groups = d.one(1, 1, channels)
        kernel, strides, dilations = (d.spread(rank, 1, m) for m in (3, 2, 2))
        low = [
            max(0, (k - 1) * s + 1 - n)
            for k, s, n in zip(kernel, dilations, shape[2:], strict=True)
        ]
        pads = [d.integer(p, max(p, 2)) for p in low] + d.spread(rank, 0, 2)
        outputs = groups * d.integer(1, 2) if groups > 1 else d.one(*CHANNELS)
        sides = [
            (n + pads[i] + pads[rank + i] - (kernel[i] - 1) * dilations[i] - 1) // strides[i] + 1
            for i, n in enumerate(shape[2:])
        ]
        how = {"strides": strides, "dilations": dilations, "pads": pads, "group": groups}
        return how, (outputs, channels // groups, *kernel), (shape[0], outputs, *sides)

    def convolution(self) -> None:
        name, shape = self.value(3, 4)
        how, of_weight, result = self.geometry(shape)
        weight = self.weight_of(of_weight, 0, prod(of_weight[1:]))
        bias = [self.bias(of_weight[0], weight.step)] if self._d.flag() else []
        inputs = [self.real(name, shape), self.dequantised(weight), *bias]
        self.done(self.Conv(*inputs, **how), result)

    def matrix(self) -> None:
        name, shape = self.value(2)
        of_weight = (shape[-1], self._d.integer(1, 8))
        weight = self.dequantised(self.weight_of(of_weight, 1, shape[-1]))
        self.done(self.MatMul(self.real(name, shape), weight), (*shape[:-1], of_weight[1]))

    def gemm(self) -> None:
        name, shape = self.value(2, 2)
        turned, columns = self._d.flag(), self._d.integer(1, 8)
        of_weight = (columns, shape[1]) if turned else (shape[1], columns)
        weight = self.weight_of(of_weight, 0 if turned else 1, shape[1])
        bias = [self.bias(columns, weight.step)] if self._d.flag() else []
        inputs = [self.real(name, shape), self.dequantised(weight), *bias]
        how = {"transB": int(turned), "alpha": self._d.one(1.0, 0.5)}
        self.done(self.Gemm(*inputs, **how), (shape[0], columns))

    def attention(self) -> None:
        """Two values of the run time: rows with each other, as attention has them."""
        name, shape = self.value(2)
        order = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
        a, b = self.real(name, shape), self.real(name, shape)
        self.done(self.MatMul(a, self.Transpose(b, perm=order)), (*shape[:-1], shape[-2]))

    def together(self) -> None:
        name, shape = self.value()
        other = self.drawn(self._d.narrower(shape)) if self._d.flag() else name
        op = self._d.one("Add", "Add", "Mul", "Sub", "Max")
        second = self.real(other, ()) if other == name else other
        self.done(self.ops(op, 1, self.real(name, shape), second)[0], shape)

    def pool(self) -> None:
        name, shape = self.value(3, 4)
        size = self._d.spread(len(shape) - 2, 1, min(3, *shape[2:]))
        result = (*shape[:2], *(n - k + 1 for n, k in zip(shape[2:], size, strict=True)))
        how = self._d.one("MaxPool", "AveragePool", "bytes")
        if how == "bytes":
            q = self.quantised(name, shape, single=True)
            pooled = self.MaxPool(q.bytes, kernel_shape=size)
            self.give(self.DequantizeLinear(pooled, q.scale, q.zero), result)
        else:
            real = self.real(name, shape)
            self.done(self.ops(how, 1, real, kernel_shape=size)[0], result)

    # operators on bytes

    def result(self) -> list[str]:
        """Return scale and zero point of a result in bytes."""
        step = self.step_of(2.0**-5 * self._d.one(0.25, 1.0, 4.0), 1)[0]
        kind = self._d.one(BYTE, BYTE, SMALL)
        return [self.initializer(step), self.initializer(self.zero_of(kind))]

    def on_bytes(self, op: str, q: Quantised, weight: Quantised, *more: str, **how: Any) -> str:
        """Append QLinearConv or QLinearMatMul, and what dequantises its result."""
        zero = q.zero or self.initializer(np.zeros((), BYTE))
        out = self.result()
        made = self.ops(op, 1, q.bytes, q.scale, zero, *weight.named, *out, *more, **how)[0]
        self._shown.append(made)
        return self.DequantizeLinear(made, *out)

    def qlinear_conv(self) -> None:
        name, shape = self.value(3, 4)
        how, of_weight, result = self.geometry(shape)
        weight = self.weight_of(of_weight, 0, prod(of_weight[1:]), named=True)
        bias = [self.initializer(self._d.ints(of_weight[:1], -500, 500, INT))]
        q = self.quantised(name, shape, single=True)
        used = bias if self._d.flag() else []
        self.give(self.on_bytes("QLinearConv", q, weight, *used, **how), result)

    def qlinear_product(self) -> None:
        name, shape = self.value(2)
        of_weight = (shape[-1], self._d.integer(1, 8))
        weight = self.weight_of(of_weight, 1, shape[-1], named=True)
        q = self.quantised(name, shape, single=True)
        self.give(self.on_bytes("QLinearMatMul", q, weight), (*shape[:-1], of_weight[1]))

    def integers(self) -> None:
        """Append ConvInteger or MatMulInteger, and what scales their sums; maybe dynamic."""
        is_conv = self._d.flag()
        name, shape = self.value(3, 4) if is_conv else self.value(2)
        if self._d.flag():
            q, scale, zero = self.ops("DynamicQuantizeLinear", 3, name)
        else:
            q, scale, zero = self.quantised(name, shape, single=True).named
        if is_conv:
            how, of_weight, result = self.geometry(shape)
        else:
            how, of_weight = {}, (shape[-1], self._d.integer(1, 8))
            result = (*shape[:-1], of_weight[1])
        weight = self.weight_of(of_weight, 0 if is_conv else 1, 9)
        given = [q, weight.bytes, *([zero, weight.zero] if weight.zero else [zero])]
        total = self.ops("ConvInteger" if is_conv else "MatMulInteger", 1, *given, **how)[0]
        self._shown.append(total)
        around = (-1, *(1,) * (len(shape) - 2)) if is_conv and weight.step.ndim else (-1,)
        step = self.initializer(weight.step.reshape(around) if weight.step.ndim else weight.step)
        real = self.Mul(self.Cast(total, to=TensorProto.FLOAT), self.Mul(scale, step))
        self.done(real, result)


_LAYERS: tuple[Callable[[Bytes], None], ...] = (
    *(Bytes.convolution, Bytes.matrix, Bytes.qlinear_conv, Bytes.integers) * 2,
    *(Bytes.gemm, Bytes.attention, Bytes.together, Bytes.pool, Bytes.qlinear_product),
)
# What moves and combines values; neither loops nor decisions.
_MOVES = {Network.unary, Network.binary, Network.move, Network.join, Network.part, Network.pad}
_STEPS: Final[tuple[Callable[[Any], None], ...]] = (*_LAYERS, *(s for s in STEPS if s in _MOVES))
