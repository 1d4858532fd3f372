"""Translators of reductions over axes, and of CumSum and CumProd.

Formulas: ONNX operator documentation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from scheduler.errors import ModelError
from scheduler.ir import dtype as dt
from scheduler.ir.dtype import DType
from scheduler.ir.ops import Op, identity
from scheduler.onnx_import.context import NodeContext, Value, normal_axes, normal_axis
from scheduler.tensor.custom_kernel import CustomKernel, alternatives, custom_kernel
from scheduler.tensor.tensor import Tensor

Axes = tuple[int, ...]


class Reduction(Protocol):
    """A function that reduces a tensor over axes."""

    def __call__(self, x: Tensor, axes: Axes, /, *, keepdim: bool) -> Tensor:
        """Return x reduced over axes."""


def reduction(function: Reduction, axes_input_since: int = 18) -> Callable[[NodeContext], Value]:
    """Return the translator of a reduction; `axes` is an input since opset `axes_input_since`."""

    def translate(ctx: NodeContext) -> Value:
        x = ctx.tensor(0)
        given = ctx.ints_either("axes", 1, since=axes_input_since)
        if not given and ctx.integer("noop_with_empty_axes", 0):
            # No axes are reduced, but elementwise parts, such as x^2, still apply.
            return function(x.unsqueeze(-1), (x.ndim,), keepdim=False)
        axes = tuple(normal_axes(given, x.ndim)) if given else tuple(range(x.ndim))
        return function(x, axes, keepdim=bool(ctx.integer("keepdims", 1)))

    return translate


def total(x: Tensor, axes: Axes, *, keepdim: bool) -> Tensor:
    """Return the sum, in the input's type."""
    return x.sum(axes, keepdim=keepdim).as_type(x.dtype)


def mean(x: Tensor, axes: Axes, *, keepdim: bool) -> Tensor:
    """Return the mean. Without elements it is NaN, or 0 for integers.

    Integer division rounds toward 0. Integers of 32 bits or less are summed without overflow.
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
    """Return log(sum exp(x)); subtracting the finite maximum avoids overflow."""
    wide = x if x.dtype.is_float else x.float()
    peak = wide.max(axes, keepdim=True)
    peak = (peak.abs() < math.inf).where(peak, 0.0)
    shifted = (wide - peak).exp().sum(axes, keepdim=True).log() + peak
    return (shifted if keepdim else shifted.squeeze(axes)).as_type(x.dtype)


@dataclass(frozen=True, slots=True)
class Monoid:
    """A commutative operation with a neutral element, such as addition."""

    op: Op

    def neutral(self, dtype: DType) -> float | int:
        """Return the neutral element."""
        return identity(self.op, dtype)

    def over(self, x: Tensor, axis: int) -> Tensor:
        """Return x reduced along an axis, in the type of x."""
        total = {Op.ADD: x.sum, Op.MUL: x.prod, Op.MAX: x.max, Op.MIN: x.min}[self.op](axis)
        return total.as_type(x.dtype)

    def join(self, x: Tensor, y: Tensor) -> Tensor:
        """Return two tensors of the same shape combined by element."""
        return x.binary(self.op, y)


_BY_NAME = {"add": Op.ADD, "mul": Op.MUL, "max": Op.MAX, "min": Op.MIN}


def reduction_named(name: str) -> Monoid | None:
    """Return the operation for a value of attribute `reduction`, None for "none"."""
    if name != "none" and name not in _BY_NAME:
        raise ModelError(f"reduction must be none, add, mul, max or min, found {name!r}")
    return None if name == "none" else Monoid(_BY_NAME[name])


# --- CumSum and CumProd as a graph, in blocks -------------------------------------------------
#
#     n values  ->  running result within each block of 32
#                   + running result of the n/32 block totals, computed recursively
#
# This takes about 32 n operations, and rounding errors grow only with log n. It suits devices with
# many weak cores. Other devices use one hand-written kernel for axes longer than two blocks
# (`_run_along`).

# An axis of at most _LONG elements is one block.
_BLOCK, _LONG = 32, 64


def cumulative(ctx: NodeContext) -> Value:
    """Translate CumSum and CumProd."""
    x = ctx.tensor(0)
    given = ctx.ints(1, "axis")
    if len(given) != 1:
        raise ModelError(f"expected one axis, found {given}")
    axis = normal_axis(given[0], x.ndim)
    if not x.size:
        return x
    kind = Monoid(Op.ADD if ctx.node.op_type == "CumSum" else Op.MUL)
    reverse, exclusive = (bool(ctx.integer(name, 0)) for name in ("reverse", "exclusive"))
    how = _Running(kind.op is Op.MUL, exclusive, reverse)
    blocks = _in_blocks(x, axis, kind, how)
    return blocks if x.shape[axis] <= _LONG else alternatives(_run_along(x, axis, how), blocks)


def _in_blocks(x: Tensor, axis: int, kind: Monoid, how: _Running) -> Tensor:
    """Return the running result along an axis as a graph without custom kernels."""
    rows = x.transpose(axis, -1) if axis != x.ndim - 1 else x
    rows = rows.flip(-1) if how.reverse else rows
    if how.exclusive:
        rows = _shifted(rows, kind)
    result = _accumulated(rows, kind)
    result = result.flip(-1) if how.reverse else result
    result = result.transpose(axis, -1) if axis != x.ndim - 1 else result
    return result.as_type(x.dtype)


def _shifted(x: Tensor, kind: Monoid) -> Tensor:
    """Return x shifted by one place along the last axis, which keeps its length."""
    return x.pad([*[(0, 0)] * (x.ndim - 1), (1, -1)], kind.neutral(x.dtype))


def _accumulated(x: Tensor, kind: Monoid) -> Tensor:
    """Return the running result along the last axis."""
    n = x.shape[-1]
    if n <= _LONG:
        return _in_block(x, kind)
    count = -(-n // _BLOCK)
    full = x.pad([*[(0, 0)] * (x.ndim - 1), (0, count * _BLOCK - n)], kind.neutral(x.dtype))
    blocks = full.reshape((*x.shape[:-1], count, _BLOCK))
    before = _accumulated(_shifted(kind.over(blocks, -1), kind), kind)
    result = kind.join(_in_block(blocks, kind), before.unsqueeze(-1))
    return result.reshape(full.shape)[..., :n]


def _in_block(x: Tensor, kind: Monoid) -> Tensor:
    """Return the running result of one block: all x[j] with j <= i, in n^2 operations."""
    ramp = Tensor.arange(x.shape[-1])
    before = ramp.unsqueeze(0) <= ramp.unsqueeze(1)
    return kind.over(before.where(x.unsqueeze(-2), kind.neutral(x.dtype)), -1)


# --- A hand-written kernel for running sums and products along an axis ------------------------
#
#     (outer, n, inner)    one work-item per `outer` and up to 16 neighbors of `inner`
#
# Every element is read and written once. Each block of 32 is accumulated separately. This reduces
# rounding errors and lets the processor overlap blocks.

_RUNNING_BLOCK, _COLUMNS = 32, 16

# `before` is the result of all earlier blocks, `own` that of the current block, by column. {store}
# combines both into the output, before or after it adds the element x to `own`.
_SOURCE = """
const int item = get_global_id(0);
const int first = item % {groups} * {columns};
const int width = {width};
const long start = (long)(item / {groups}) * {size} * {inner} + first;
{kind} before[{columns}];
for (int c = 0; c < {columns}; ++c) before[c] = {neutral};
for (int begin = 0; begin < {size}; begin += {block}) {{
  const int end = min(begin + {block}, {size});
  {kind} own[{columns}];
  for (int c = 0; c < {columns}; ++c) own[c] = {neutral};
  for (int i = begin; i < end; ++i) {{
    const long at = start + (long)({step}) * {inner};
    for (int c = 0; c < width; ++c) {{
      const {kind} x = in0[at + c];
      {store}
    }}
  }}
  for (int c = 0; c < {columns}; ++c) before[c] = ({word})before[c] {op} ({word})own[c];
}}
"""
_OWN = "own[c] = ({word})own[c] {op} ({word})x;"
_OUT = "out0[at + c] = ({word})before[c] {op} ({word})own[c];"


@dataclass(frozen=True, slots=True)
class _Running:
    """The variant of CumSum or CumProd, and its reference implementation."""

    product: bool  # whether it is CumProd
    exclusive: bool  # whether the result leaves out the element itself
    reverse: bool  # whether it starts at the end

    def __call__(self, x: NDArray[Any]) -> NDArray[Any]:
        """Return the running result of x (outer, n, inner) along axis 1, computed by numpy."""
        x = x[:, ::-1] if self.reverse else x
        if self.exclusive:
            first = np.full_like(x[:, :1], int(self.product))
            x = np.concatenate([first, x[:, :-1]], 1)
        found = (np.cumprod if self.product else np.cumsum)(x, 1, dtype=x.dtype)
        return np.asarray(found[:, ::-1] if self.reverse else found, order="C")


def _run_along(x: Tensor, axis: int, how: _Running) -> Tensor:
    """Return the running result along an axis of x, which is not fp16 and not empty."""
    outer, size, inner = prod(x.shape[:axis]), x.shape[axis], prod(x.shape[axis + 1 :])
    columns = min(_COLUMNS, inner)
    groups = -(-inner // columns)
    op = "*" if how.product else "+"
    source = _SOURCE.format(
        kind=x.dtype.cl,
        groups=groups,
        columns=columns,
        width=columns if inner % columns == 0 else f"min({columns}, {inner} - first)",
        inner=inner,
        size=size,
        block=_RUNNING_BLOCK,
        neutral=int(how.product),
        step=f"{size - 1} - i" if how.reverse else "i",
        store="\n      ".join([_OUT, _OWN] if how.exclusive else [_OWN, _OUT]).format(
            op=op, word=x.dtype.arithmetic
        ),
        word=x.dtype.arithmetic,
        op=op,
    )
    shape = (outer, size, inner)
    kernel = CustomKernel("running", source, [(shape, x.dtype)], outer * groups, how, x.size)
    return custom_kernel(kernel, x.reshape(shape))[0].reshape(x.shape)
