"""Hand-written kernels for scattered writes at run-time indices, for CPUs with few cores.

    targets[batch, i, column]     the row of the data that update i writes in this column

The data is (batches, rows, columns, ...); `inner` is the number of its elements per column.

Each work-item owns a part of the columns of one batch, or of its rows if there is only one column.
It applies the updates to its part in order, so of several updates of one target the last wins, and
sums are added in the order of the updates.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scheduler.ir import dtype as dt
from scheduler.ir.ops import Op
from scheduler.onnx_import.ops.reduce import Monoid
from scheduler.tensor.custom_kernel import CustomKernel, custom_kernel
from scheduler.tensor.tensor import Tensor

# Number of parts in total, over all batches. Few CPUs of this kind have more cores.
_PARTS = 8

# The part of a work-item: rows [low, high) and columns [first, end) of a batch.
_OWN = """
const int item = get_global_id(0);
const long batch = item / {parts};
const int low = {split_rows} ? item % {parts} * {step} : 0;
const int high = {split_rows} ? min(low + {step}, {rows}) : {rows};
const int first = {split_rows} ? 0 : item % {parts} * {step};
const int end = {split_rows} ? {columns} : min(first + {step}, {columns});
const __global int* targets = in0 + batch * {count} * {columns};
"""
# Set the part to -1, then store the index of each update that writes to it.
_LAST = (
    _OWN
    + """
__global int* last = out0 + batch * {rows} * {columns};
for (int i = low; i < high; ++i)
  for (int c = first; c < end; ++c) last[(long)i * {columns} + c] = -1;
for (int i = 0; i < {count}; ++i)
  for (int c = first; c < end; ++c) {{
    const int target = targets[(long)i * {columns} + c];
    if (target >= low && target < high) last[(long)target * {columns} + c] = i;
  }}
"""
)
# Copy the data of the part, then combine each update that writes to it; x is the old value, y new.
_COMBINE = (
    _OWN
    + """
const __global {kind}* data = in1 + batch * {rows} * {columns} * {inner};
const __global {kind}* updates = in2 + batch * {count} * {columns} * {inner};
__global {kind}* result = out0 + batch * {rows} * {columns} * {inner};
for (int i = low; i < high; ++i)
  for (long j = (long)first * {inner}; j < (long)end * {inner}; ++j)
    result[(long)i * {columns} * {inner} + j] = data[(long)i * {columns} * {inner} + j];
for (int i = 0; i < {count}; ++i)
  for (int c = first; c < end; ++c) {{
    const int target = targets[(long)i * {columns} + c];
    if (target < low || target >= high) continue;
    const long to = ((long)target * {columns} + c) * {inner};
    const long from = ((long)i * {columns} + c) * {inner};
    for (int j = 0; j < {inner}; ++j) {{
      const {kind} x = result[to + j];
      const {kind} y = updates[from + j];
      result[to + j] = {value};
    }}
  }}
"""
)
_VALUES = {
    Op.ADD: "({word})x + ({word})y",
    Op.MUL: "({word})x * ({word})y",
    Op.MAX: "x > y || x != x ? x : y",
    Op.MIN: "x < y || x != x ? x : y",
}
_NUMPY: dict[Op, Any] = {
    Op.ADD: np.add,
    Op.MUL: np.multiply,
    Op.MAX: np.maximum,
    Op.MIN: np.minimum,
}


@dataclass(frozen=True, slots=True)
class _Last:
    """Reference implementation of `last_writers` in numpy."""

    rows: int

    def __call__(self, targets: NDArray[Any]) -> NDArray[Any]:
        batches, count, columns = targets.shape
        found = np.full((batches, self.rows, columns), -1, np.int32)
        place, written = _places(targets, self.rows)
        order = np.broadcast_to(np.arange(count, dtype=np.int32).reshape((-1, 1)), targets.shape)
        np.maximum.at(found, place, order[written])
        return found


@dataclass(frozen=True, slots=True)
class _Combine:
    """Reference implementation of `combined` in numpy."""

    op: Op

    def __call__(
        self, targets: NDArray[Any], data: NDArray[Any], updates: NDArray[Any]
    ) -> NDArray[Any]:
        found = data.copy()
        place, written = _places(targets, data.shape[1])
        _NUMPY[self.op].at(found, place, updates[written])
        return found


def _places(targets: NDArray[Any], rows: int) -> tuple[tuple[NDArray[Any], ...], NDArray[Any]]:
    """Return the (batch, row, column) indices of targets in range, and the mask of the targets."""
    written = (targets >= 0) & (targets < rows)
    batch, _, column = np.nonzero(written)
    return (batch, targets[written], column), written


def last_writers(targets: Tensor, rows: int) -> Tensor:
    """Return the number of the last update that writes each row, or -1 if none does.

    `targets` is int32 (batches, count, columns); targets outside the rows are ignored. The result
    is int32 (batches, rows, columns).
    """
    batches, _, columns = targets.shape
    parts, numbers = _parts(targets, rows, 1)
    kernel = CustomKernel(
        "last_writers",
        _LAST.format(**numbers),
        [((batches, rows, columns), dt.int32)],
        batches * parts,
        _Last(rows),
        targets.size,
    )
    return custom_kernel(kernel, targets)[0]


def combined(targets: Tensor, data: Tensor, updates: Tensor, how: Monoid) -> Tensor:
    """Return data (batches, rows, columns, ...) with the updates of each row combined into it.

    `targets` are as for `last_writers`. `updates` are (batches, count, columns, ...) in the type of
    data, which is not fp16.
    """
    inner = prod(data.shape[3:])
    parts, numbers = _parts(targets, data.shape[1], inner)
    value = _VALUES[how.op].format(word=data.dtype.arithmetic)
    kernel = CustomKernel(
        "combined",
        _COMBINE.format(**numbers, inner=inner, kind=data.dtype.cl, value=value),
        [(data.shape, data.dtype)],
        targets.shape[0] * parts,
        _Combine(how.op),
        updates.size,
    )
    return custom_kernel(kernel, targets, data, updates)[0]


def _parts(targets: Tensor, rows: int, inner: int) -> tuple[int, dict[str, int]]:
    """Return the number of parts per batch, and the numbers to insert into the kernel sources."""
    batches, count, columns = targets.shape
    split_rows = columns == 1
    most = min(rows, max(2, rows * inner // count)) if split_rows else columns
    parts = min(most, max(1, _PARTS // batches))
    step = -(-(rows if split_rows else columns) // parts)
    sizes = {"rows": rows, "count": count, "columns": columns}
    return parts, {"parts": parts, "step": step, "split_rows": int(split_rows), **sizes}
