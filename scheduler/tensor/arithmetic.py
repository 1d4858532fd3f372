"""`TensorMath`: elementwise arithmetic, comparisons and reductions of tensors, named as in numpy.

Each method adds nodes to the graph of a lazy tensor; nothing is computed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from scheduler.errors import ModelError
from scheduler.ir import dtype as dt
from scheduler.ir.node import alu, make
from scheduler.ir.ops import Op
from scheduler.passes.splat import value_of
from scheduler.tensor.core import Scalar, axis_of, rounds_once
from scheduler.tensor.movement import Axis, TensorShape

T = TypeVar("T", bound="TensorMath")
Other = Any  # Tensor | Scalar | NDArray; spelled out in `operand`


class TensorMath(TensorShape):
    """Arithmetic on tensors; operands broadcast, and a Python scalar takes the tensor's type."""

    __slots__ = ()

    def broadcast_with(self, other: Self | Scalar | NDArray[Any]) -> tuple[Self, Self]:
        """Return both operands in their common shape and type, or raise ModelError."""
        a, b = self, self.operand(other)
        common = dt.promote(a.dtype, b.dtype)
        a, b = a.cast(common), b.cast(common)
        try:
            shape = tuple(np.broadcast_shapes(a.shape, b.shape))
        except ValueError as error:
            raise ModelError(f"shapes {a.shape} and {b.shape} do not broadcast") from error
        return a.broadcast_to(shape), b.broadcast_to(shape)

    def binary(self, op: Op, other: Other, *, reverse: bool = False) -> Self:
        """Return an elementwise binary operation; `reverse` swaps the operands."""
        a, b = self.broadcast_with(other)
        return self.of(alu(op, b.node, a.node) if reverse else alu(op, a.node, b.node))

    def __add__(self, other: Other) -> Self:
        return self.binary(Op.ADD, other)

    __radd__ = __add__

    def __mul__(self, other: Other) -> Self:
        return self.binary(Op.MUL, other)

    __rmul__ = __mul__

    def __sub__(self, other: Other) -> Self:
        return self.binary(Op.SUB, other)

    def __rsub__(self, other: Other) -> Self:
        return self.binary(Op.SUB, other, reverse=True)

    def __truediv__(self, other: Other) -> Self:
        return _as_float(self).binary(Op.DIV, _as_float(self.operand(other)))

    def __rtruediv__(self, other: Other) -> Self:
        return _as_float(self).binary(Op.DIV, _as_float(self.operand(other)), reverse=True)

    @rounds_once
    def __floordiv__(self, other: Other) -> Self:
        a, b = self.broadcast_with(other)
        if a.dtype.is_float:
            return a.binary(Op.DIV, b).floor()
        b = _divisor(b)
        quotient = a.binary(Op.IDIV, b)
        inexact = (quotient * b).ne(a)
        return inexact.binary(Op.AND, (a < 0).ne(b < 0)).where(quotient - 1, quotient)

    def __rfloordiv__(self, other: Other) -> Self:
        return self.operand(other) // self

    @rounds_once
    def __mod__(self, other: Other) -> Self:
        a, b = self.broadcast_with(other)
        b = b if b.dtype.is_float else _divisor(b)
        return a.binary(Op.SUB, (a // b) * b)

    def __rmod__(self, other: Other) -> Self:
        return self.operand(other) % self

    def trunc_div(self, other: Other) -> Self:
        """Return the integer quotient rounded toward 0, as in C."""
        return self.binary(Op.IDIV, other)

    def trunc_mod(self, other: Other) -> Self:
        """Return the integer remainder with the sign of the dividend, as in C."""
        return self.binary(Op.MOD, other)

    def __neg__(self) -> Self:
        return self.unary(Op.NEG)

    def neg(self) -> Self:
        """Return -x."""
        return -self

    def __eq__(self, other: object) -> Self:  # type: ignore[override]  # elementwise, as in numpy
        return self.binary(Op.EQ, other) if _is_operand(other) else NotImplemented

    def __ne__(self, other: object) -> Self:  # type: ignore[override]  # elementwise, as in numpy
        return self.binary(Op.NE, other) if _is_operand(other) else NotImplemented

    __hash__ = TensorShape.__hash__

    def __lt__(self, other: Other) -> Self:
        return self.binary(Op.LT, other)

    def __gt__(self, other: Other) -> Self:
        return self.binary(Op.LT, other, reverse=True)

    def __le__(self, other: Other) -> Self:
        return self.binary(Op.LT, other).binary(Op.OR, self.eq(other))

    def __ge__(self, other: Other) -> Self:
        return self.binary(Op.LT, other, reverse=True).binary(Op.OR, self.eq(other))

    def eq(self, other: Other) -> Self:
        """Return whether elements are equal."""
        return self.binary(Op.EQ, other)

    def ne(self, other: Other) -> Self:
        """Return whether elements differ."""
        return self.binary(Op.NE, other)

    def __and__(self, other: Other) -> Self:
        return self.binary(Op.AND, other)

    __rand__ = __and__

    def __or__(self, other: Other) -> Self:
        return self.binary(Op.OR, other)

    __ror__ = __or__

    def __xor__(self, other: Other) -> Self:
        return self.binary(Op.XOR, other)

    __rxor__ = __xor__

    def __invert__(self) -> Self:
        return self.unary(Op.NOT)

    def __lshift__(self, other: Other) -> Self:
        return self.binary(Op.SHL, other)

    def __rshift__(self, other: Other) -> Self:
        return self.binary(Op.SHR, other)

    def maximum(self, other: Other) -> Self:
        """Return the elementwise maximum."""
        return self.binary(Op.MAX, other)

    def minimum(self, other: Other) -> Self:
        """Return the elementwise minimum."""
        return self.binary(Op.MIN, other)

    def clip(self, low: Other = None, high: Other = None) -> Self:
        """Return values limited to [low, high]; None is no limit."""
        bounded = self if low is None else self.maximum(low)
        return bounded if high is None else bounded.minimum(high)

    def where(self, yes: Other, no: Other) -> Self:
        """Return `yes` where this bool is true, else `no`; all three broadcast."""
        if self.dtype is not dt.bool_:
            raise ModelError(f"where: the condition must be bool, found {self.dtype}")
        a = yes if isinstance(yes, TensorMath) else None
        b = no if isinstance(no, TensorMath) else None
        a = a if a is not None else (b.operand(yes) if b is not None else type(self)(yes))
        b = b if b is not None else a.operand(no)
        x, y = a.broadcast_with(b)
        try:
            shape = tuple(np.broadcast_shapes(self.shape, x.shape))
        except ValueError as error:
            raise ModelError(
                f"where: shapes {self.shape} and {x.shape} do not broadcast"
            ) from error
        parts = (self.broadcast_to(shape), x.broadcast_to(shape), y.broadcast_to(shape))
        return self.of(alu(Op.WHERE, *(p.node for p in parts)))

    def abs(self) -> Self:
        """Return the magnitude."""
        return self.unary(Op.ABS)

    def square(self) -> Self:
        """Return x*x."""
        return self * self

    def sign(self) -> Self:
        """Return -1, 0 or 1, or NaN for NaN."""
        if self.dtype.is_float:
            return (self > 0).where(1.0, (self < 0).where(-1.0, self))
        return (self > 0).cast(self.dtype) - (self < 0).cast(self.dtype)

    def sqrt(self) -> Self:
        """Return the square root."""
        return _as_float(self).unary(Op.SQRT)

    def reciprocal(self) -> Self:
        """Return 1/x."""
        return _as_float(self).unary(Op.RECIP)

    @rounds_once
    def rsqrt(self) -> Self:
        """Return 1/sqrt(x)."""
        return self.sqrt().reciprocal()

    def exp(self) -> Self:
        """Return e**x."""
        return _as_float(self).unary(Op.EXP)

    @rounds_once
    def exp2(self) -> Self:
        """Return 2**x."""
        return (_as_float(self) * math.log(2.0)).exp()

    def log(self) -> Self:
        """Return the natural logarithm."""
        return _as_float(self).unary(Op.LOG)

    @rounds_once
    def log2(self) -> Self:
        """Return the base-2 logarithm."""
        return self.log() * (1.0 / math.log(2.0))

    def sin(self) -> Self:
        """Return the sine of radians."""
        return _as_float(self).unary(Op.SIN)

    def cos(self) -> Self:
        """Return the cosine of radians."""
        return _as_float(self).unary(Op.COS)

    def tanh(self) -> Self:
        """Return the hyperbolic tangent."""
        return _as_float(self).unary(Op.TANH)

    def erf(self) -> Self:
        """Return the error function."""
        return _as_float(self).unary(Op.ERF)

    def floor(self) -> Self:
        """Return values rounded down."""
        return self.unary(Op.FLOOR) if self.dtype.is_float else self

    def ceil(self) -> Self:
        """Return values rounded up."""
        return self.unary(Op.CEIL) if self.dtype.is_float else self

    def round(self) -> Self:
        """Return values rounded to nearest, ties to even."""
        return self.unary(Op.ROUND) if self.dtype.is_float else self

    def trunc(self) -> Self:
        """Return values rounded toward 0."""
        return self.unary(Op.TRUNC) if self.dtype.is_float else self

    def logical_not(self) -> Self:
        """Return the logical negation; values of other types than bool are compared with 0."""
        return (self if self.dtype is dt.bool_ else self.ne(0)).unary(Op.NOT)

    def float(self) -> Self:
        """Return values as float32."""
        return self.cast(dt.float32)

    def half(self) -> Self:
        """Return values as float16."""
        return self.cast(dt.float16)

    def int(self) -> Self:
        """Return values as int32; floats are truncated."""
        return self.cast(dt.int32)

    def bool(self) -> Self:
        """Return whether each element differs from 0."""
        return self if self.dtype is dt.bool_ else self.ne(0)

    def _reduce(self, op: Op, axis: Axis, keepdim: Any) -> Self:
        axes = self.axes(axis)
        kept = self.of(make(Op.REDUCE, self.dtype, (self.node,), (op, axes))) if axes else self
        if keepdim:
            return kept
        return kept.reshape(tuple(s for i, s in enumerate(self.shape) if i not in axes))

    def sum(self, axis: Axis = None, keepdim: Any = False) -> Self:
        """Return the sum over axes; bool and narrow integers are summed as int32."""
        return _widened(self)._reduce(Op.ADD, axis, keepdim)

    def prod(self, axis: Axis = None, keepdim: Any = False) -> Self:
        """Return the product over axes; bool and narrow integers are multiplied as int32."""
        return _widened(self)._reduce(Op.MUL, axis, keepdim)

    def max(self, axis: Axis = None, keepdim: Any = False) -> Self:
        """Return the largest value over axes."""
        return self._reduce(Op.MAX, axis, keepdim)

    def min(self, axis: Axis = None, keepdim: Any = False) -> Self:
        """Return the smallest value over axes."""
        return self._reduce(Op.MIN, axis, keepdim)

    @rounds_once
    def mean(self, axis: Axis = None, keepdim: Any = False) -> Self:
        """Return the arithmetic mean over axes, in floating point."""
        count: int = math.prod(self.shape[a] for a in self.axes(axis))
        return _as_float(self).sum(axis, keepdim=keepdim) / max(1, count)

    @rounds_once
    def var(self, axis: Axis = None, keepdim: Any = False, *, correction: Any = 1) -> Self:
        """Return the variance over axes, dividing by count - correction."""
        count: int = math.prod(self.shape[a] for a in self.axes(axis))
        centred = self - self.mean(axis, keepdim=True)
        divisor: int = max(1, count - correction)
        return centred.square().sum(axis, keepdim=keepdim) / divisor

    @rounds_once
    def std(self, axis: Axis = None, keepdim: Any = False, *, correction: Any = 1) -> Self:
        """Return the standard deviation over axes."""
        return self.var(axis, keepdim=keepdim, correction=correction).sqrt()

    def argmax(self, axis: Any = None, keepdim: Any = False) -> Self:
        """Return the index (int32) of the first maximum; for several axes, the row-major index."""
        return self._first_extreme(Op.MAX, axis, keepdim)

    def argmin(self, axis: Any = None, keepdim: Any = False) -> Self:
        """Return the index (int32) of the first minimum; arguments as for `argmax`."""
        return self._first_extreme(Op.MIN, axis, keepdim)

    def _first_extreme(self, op: Op, axis: Any, keepdim: Any) -> Self:
        if axis is None or isinstance(axis, Sequence):
            axes = self.axes(axis)
            rest = [i for i in range(self.ndim) if i not in axes]
            last = self.permute((*rest, *axes)).flatten(len(rest))
            flat = last._first_extreme(op, -1, keepdim=False)
            kept = tuple(1 if i in axes else s for i, s in enumerate(self.shape))
            return flat.reshape(kept) if keepdim else flat
        axis = axis_of(axis, self.ndim)
        n = self.shape[axis]
        places = type(self).of(make(Op.IOTA, dt.int32, (), n))
        shape = tuple(n if i == axis else 1 for i in range(self.ndim))
        best = self.eq(self._reduce(op, axis, keepdim=True))
        # In a row with NaN no element can equal the maximum; the result is then the last index.
        return best.where(places.reshape(shape), n - 1).min(axis, keepdim=keepdim)


def _is_operand(value: object) -> bool:
    return isinstance(value, TensorMath | np.ndarray | np.generic | int | float | list | tuple)


def _divisor(x: T) -> T:
    """Return integer divisors with 0 replaced by 1; a known divisor other than 0 is unchanged."""
    return x.eq(0).where(1, x) if value_of(x.node) in (None, 0) else x


def _as_float(x: T) -> T:
    return x if x.dtype.is_float else x.cast(dt.float32)


def _widened(x: T) -> T:
    return x.cast(dt.int32) if not x.dtype.is_float and x.dtype.itemsize < 4 else x
