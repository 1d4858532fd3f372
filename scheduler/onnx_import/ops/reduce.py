"""Translators of reductions over axes. Formulas: ONNX operator documentation."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from scheduler.errors import ModelError
from scheduler.ir import dtype as dt
from scheduler.ir.dtype import DType
from scheduler.ir.ops import Op, identity
from scheduler.onnx_import.context import NodeContext, Value, normal_axes
from scheduler.tensor.tensor import Tensor

Axes = tuple[int, ...]


class Reduction(Protocol):
    """A reduction of a tensor over axes."""

    def __call__(self, x: Tensor, axes: Axes, /, *, keepdim: bool) -> Tensor:
        """Return x reduced over axes."""


def reduction(function: Reduction, axes_input_since: int = 18) -> Callable[[NodeContext], Value]:
    """Return the translator of a reduction; `axes` became an input in the opset given."""

    def translate(ctx: NodeContext) -> Value:
        x = ctx.tensor(0)
        given = ctx.ints_either("axes", 1, since=axes_input_since)
        if not given and ctx.integer("noop_with_empty_axes", 0):
            # Nothing is reduced, but what is done to single elements still is.
            return function(x.unsqueeze(-1), (x.ndim,), keepdim=False)
        axes = tuple(normal_axes(given, x.ndim)) if given else tuple(range(x.ndim))
        return function(x, axes, keepdim=bool(ctx.integer("keepdims", 1)))

    return translate


def total(x: Tensor, axes: Axes, *, keepdim: bool) -> Tensor:
    """Return the sum, in the input's type."""
    return x.sum(axes, keepdim=keepdim).as_type(x.dtype)


def mean(x: Tensor, axes: Axes, *, keepdim: bool) -> Tensor:
    """Return the mean; the mean of nothing is NaN, or 0.

    Integers are divided towards zero; the sum of those of 32 bits or less does not wrap around.
    """
    count = math.prod(x.shape[a] for a in axes)
    if not x.dtype.is_float:
        most = count * (1 << 8 * x.dtype.itemsize)
        wide = x.cast(dt.int64) if x.dtype.itemsize < 8 and most > 1 << 31 else x
        return wide.sum(axes, keepdim=keepdim).trunc_div(count).as_type(x.dtype)
    if not count:
        return x.sum(axes, keepdim=keepdim) + math.nan
    return x.mean(axes, keepdim=keepdim)


def product(x: Tensor, axes: Axes, *, keepdim: bool) -> Tensor:
    """Return the product."""
    return x.prod(axes, keepdim=keepdim).as_type(x.dtype)


def l1(x: Tensor, axes: Axes, *, keepdim: bool) -> Tensor:
    """Return sum |x|."""
    return total(x.abs(), axes, keepdim=keepdim)


def l2(x: Tensor, axes: Axes, *, keepdim: bool) -> Tensor:
    """Return sqrt(sum x^2)."""
    return x.square().sum(axes, keepdim=keepdim).sqrt().as_type(x.dtype)


def sum_square(x: Tensor, axes: Axes, *, keepdim: bool) -> Tensor:
    """Return sum x^2."""
    return total(x.square(), axes, keepdim=keepdim)


def log_sum(x: Tensor, axes: Axes, *, keepdim: bool) -> Tensor:
    """Return log(sum x)."""
    return x.sum(axes, keepdim=keepdim).log().as_type(x.dtype)


def log_sum_exp(x: Tensor, axes: Axes, *, keepdim: bool) -> Tensor:
    """Return log(sum exp(x)), shifted by a finite maximum so that exp never overflows."""
    wide = x if x.dtype.is_float else x.float()
    peak = wide.max(axes, keepdim=True)
    peak = (peak.abs() < math.inf).where(peak, 0.0)
    shifted = (wide - peak).exp().sum(axes, keepdim=True).log() + peak
    return (shifted if keepdim else shifted.squeeze(axes)).as_type(x.dtype)


# --- The reductions of scatter operators, for updates of one element: add, mul, max, min ------


@dataclass(frozen=True, slots=True)
class ScatterReduction:
    """A commutative reduction of updates into data."""

    op: Op

    def neutral(self, dtype: DType) -> float | int:
        """Return the value that changes nothing."""
        return identity(self.op, dtype)

    def over(self, x: Tensor, axis: int) -> Tensor:
        """Reduce an axis; the type stays."""
        total = {Op.ADD: x.sum, Op.MUL: x.prod, Op.MAX: x.max, Op.MIN: x.min}[self.op](axis)
        return total.as_type(x.dtype)

    def join(self, x: Tensor, y: Tensor) -> Tensor:
        """Combine two tensors of one shape."""
        return x.binary(self.op, y)


_BY_NAME = {"add": Op.ADD, "mul": Op.MUL, "max": Op.MAX, "min": Op.MIN}


def reduction_named(name: str) -> ScatterReduction | None:
    """Return the reduction of an attribute's value, None for "none"."""
    if name != "none" and name not in _BY_NAME:
        raise ModelError(f"reduction must be none, add, mul, max or min, found {name!r}")
    return None if name == "none" else ScatterReduction(_BY_NAME[name])
