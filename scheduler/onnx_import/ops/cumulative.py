"""Translator of CumSum and CumProd, in blocks: by definition inside, the same again over blocks.

    n values  ->  blocks of 32: each element with those before it in its block
                  + all blocks before, the n/32 totals taken the same way

This costs some 32 n operations, and rounding errors grow with log n only. It suits devices with
many weak cores; others run along an axis longer than two blocks in one kernel (`running`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scheduler.errors import ModelError
from scheduler.onnx_import.context import NodeContext, Value, normal_axis
from scheduler.tensor.custom_kernel import CustomKernel, alternatives, custom_kernel
from scheduler.tensor.tensor import Tensor

# --- A hand-written kernel for running sums and products along an axis ------------------------
#
#     (outer, n, inner)    one work-item for each `outer` and up to 16 neighbours of `inner`
#
# Every element is read and written once. Blocks of 32 are accumulated on their own, against
# rounding errors, and to have several blocks under way.

_RUNNING_BLOCK, _COLUMNS = 32, 16

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
class Running:
    """The kind of a running result."""

    product: bool  # products instead of sums
    exclusive: bool  # of what comes before an element only
    reverse: bool  # from the end on

    def __call__(self, x: NDArray[Any]) -> NDArray[Any]:
        """Return the same in numpy, along axis 1 of three."""
        x = x[:, ::-1] if self.reverse else x
        if self.exclusive:
            first = np.full_like(x[:, :1], int(self.product))
            x = np.concatenate([first, x[:, :-1]], 1)
        found = (np.cumprod if self.product else np.cumsum)(x, 1, dtype=x.dtype)
        return np.asarray(found[:, ::-1] if self.reverse else found, order="C")


def run_along(x: Tensor, axis: int, how: Running) -> Tensor:
    """Return what has been accumulated at each element of x: no halves, and not empty."""
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
    """Return the sums of x[j], j <= i, by definition: n^2 operations, but few loads."""
    ramp = Tensor.arange(x.shape[-1])
    before = ramp.unsqueeze(0) <= ramp.unsqueeze(1)
    return kind.over(before.where(x.unsqueeze(-2), kind.neutral), -1)
