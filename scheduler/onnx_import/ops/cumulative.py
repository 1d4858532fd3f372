"""Translator of CumSum and CumProd, in blocks: by definition inside, the same again over blocks.

    n values  ->  blocks of 32: each element with those before it in its block
                  + all blocks before, the n/32 totals taken the same way

So n values cost some 32 n operations in a few kernels, however long the axis is, and rounding
errors grow with log n only. That suits devices with many weak cores; the others run along an axis
longer than two blocks in one kernel (`running`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from scheduler.errors import ModelError
from scheduler.onnx_import.context import NodeContext, Value, normal_axis
from scheduler.onnx_import.ops.running import Running, run_along
from scheduler.tensor.custom_kernel import alternatives
from scheduler.tensor.tensor import Tensor

# Up to LONG elements are one block.
_BLOCK, _LONG = 32, 64


class _Kind(NamedTuple):
    """A way to accumulate: over an axis, two partial results, and the neutral element."""

    over: Callable[[Tensor, int], Tensor]
    both: Callable[[Tensor, Tensor], Tensor]
    neutral: int


_SUM = _Kind(lambda x, axis: x.sum(axis), lambda a, b: a + b, 0)
_PRODUCT = _Kind(lambda x, axis: x.prod(axis), lambda a, b: a * b, 1)


def cumulative(ctx: NodeContext) -> Value:
    """Translate CumSum and CumProd."""
    x = ctx.tensor(0)
    given = ctx.ints(1, "axis")
    if len(given) != 1:
        raise ModelError(f"expected one axis, found {given}")
    axis = normal_axis(given[0], x.ndim)
    if not x.size:
        return x
    kind = _SUM if ctx.node.op_type == "CumSum" else _PRODUCT
    reverse, exclusive = (bool(ctx.integer(name, 0)) for name in ("reverse", "exclusive"))
    how = Running(kind is _PRODUCT, exclusive, reverse)
    blocks = _in_blocks(x, axis, kind, how)
    return blocks if x.shape[axis] <= _LONG else alternatives(run_along(x, axis, how), blocks)


def _in_blocks(x: Tensor, axis: int, kind: _Kind, how: Running) -> Tensor:
    """Return what has been accumulated at each element, as an ordinary graph."""
    rows = x.transpose(axis, -1) if axis != x.ndim - 1 else x
    rows = rows.flip(-1) if how.reverse else rows
    if how.exclusive:
        rows = _shifted(rows, kind)
    result = _accumulated(rows, kind)
    result = result.flip(-1) if how.reverse else result
    result = result.transpose(axis, -1) if axis != x.ndim - 1 else result
    return result.as_type(x.dtype)


def _shifted(x: Tensor, kind: _Kind) -> Tensor:
    """Return x one place further along the last axis, which keeps its length."""
    return x.pad([*[(0, 0)] * (x.ndim - 1), (1, -1)], kind.neutral)


def _accumulated(x: Tensor, kind: _Kind) -> Tensor:
    """Return each element with all those before it on the last axis."""
    n = x.shape[-1]
    if n <= _LONG:
        return _in_block(x, kind)
    count = -(-n // _BLOCK)
    full = x.pad([*[(0, 0)] * (x.ndim - 1), (0, count * _BLOCK - n)], kind.neutral)
    blocks = full.reshape((*x.shape[:-1], count, _BLOCK))
    before = _accumulated(_shifted(kind.over(blocks, -1), kind), kind)
    result = kind.both(_in_block(blocks, kind), before.unsqueeze(-1))
    return result.reshape(full.shape)[..., :n]


def _in_block(x: Tensor, kind: _Kind) -> Tensor:
    """Return the same by its definition, in n^2 operations: the sum of all x[j], j <= i.

    All lanes of a vector add the same x[j], or nothing. Windows over padded rows would need half of
    the operations, but one load for each of them.
    """
    ramp = Tensor.arange(x.shape[-1])
    before = ramp.unsqueeze(0) <= ramp.unsqueeze(1)
    return kind.over(before.where(x.unsqueeze(-2), kind.neutral), -1)
