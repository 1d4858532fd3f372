"""Arithmetic on positions of elements, shared by the indexing operators.

Known rows, and all that is computed from them here, are arrays: the graph then holds one gather
with a constant index. Run-time rows are int32 arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from scheduler.errors import ModelError
from scheduler.ir import dtype as dt
from scheduler.onnx_import.context import Array, Value, as_tensor
from scheduler.tensor.tensor import Tensor


def ramp(count: int, axis: int, ndim: int) -> Tensor:
    """Return 0 ... count - 1 (int32) along one of `ndim` axes; the others have size 1."""
    return Tensor.arange(count).reshape(tuple(count if i == axis else 1 for i in range(ndim)))


def rows_within(rows: Value, size: int) -> Value:
    """Return rows of an axis (any integers) as int32, negative ones counted from the end.

    At run time a row outside the axis becomes the nearest one inside it; a known one is refused.
    """
    if not isinstance(rows, Tensor):
        if rows.size and (int(rows.min()) < -size or int(rows.max()) >= size):
            raise ModelError(f"an index is out of range for an axis of size {size}")
        wide = rows.astype(np.int64)
        return np.where(wide < 0, wide + size, wide).astype(np.int32)
    # Bounds are taken in 8 bytes where the indices have them: a cast would wrap.
    wide_rows = rows if rows.dtype.itemsize == 8 else rows.cast(dt.int32)
    if not wide_rows.dtype.is_unsigned:
        wide_rows = (wide_rows < 0).where(wide_rows + size, wide_rows)
    return wide_rows.clip(0, max(0, size - 1)).cast(dt.int32)


def strides_of(shape: Sequence[int]) -> list[int]:
    """Return the distance of neighbours along each axis of a row-major array."""
    return [prod(shape[i + 1 :]) for i in range(len(shape))]


def element_positions(rows: Value, axis: int, shape: Sequence[int]) -> Value:
    """Return where elements lie in a flattened array of a shape, one row of `axis` given for each.

    `rows` (int32, within bounds) has as many axes; each other axis has its own index.
    """
    steps = strides_of(shape)
    others = [i for i in range(len(shape)) if i != axis]
    if isinstance(rows, Tensor):
        found = rows * steps[axis]
        for i in others:
            found = found + ramp(rows.shape[i], i, rows.ndim) * steps[i]
        return found
    grid = np.indices(rows.shape, sparse=True)
    total = rows.astype(np.int64) * steps[axis]
    return np.asarray(total + sum(grid[i] * steps[i] for i in others)).astype(np.int32)


def tuple_positions(indices: Value, sizes: Sequence[int]) -> Value:
    """Return the positions (int32, (...)) that index tuples (..., k) name in an array of k axes.

    At run time a tuple outside the array is moved inside; a known one is refused.
    """
    if isinstance(indices, Tensor):
        total = Tensor.zeros(indices.shape[:-1], dtype=dt.int32)
        for i, (size, step) in enumerate(zip(sizes, strides_of(sizes), strict=True)):
            part = as_tensor(rows_within(indices[..., i], size)) * step
            total = part if i == 0 else total + part
        return total
    known = np.zeros(indices.shape[:-1], np.int64)
    for i, (size, step) in enumerate(zip(sizes, strides_of(sizes), strict=True)):
        known += np.asarray(rows_within(indices[..., i], size)).astype(np.int64) * step
    return known.astype(np.int32)


def pick_rows(x: Tensor, rows: Array, axis: int) -> Tensor:
    """Return numpy.take(x, rows, axis) for known rows within bounds; a range is a slice."""
    whole = np.asarray(rows_within(rows, x.shape[axis]))
    lead = (slice(None),) * axis
    shape = (*x.shape[:axis], *whole.shape, *x.shape[axis + 1 :])
    if prod(shape) == 0:
        return Tensor.zeros(shape, dtype=x.dtype)
    flat = whole.reshape(-1)
    if (np.diff(flat) == 1).all():
        return x[(*lead, slice(int(flat[0]), int(flat[-1]) + 1))].reshape(shape)
    return x.gather(as_tensor(whole), axis)


def pick_flat(x: Tensor, positions: Value) -> Tensor:
    """Return elements of a flattened tensor, in the shape of the positions."""
    if prod(positions.shape) == 0:
        return Tensor.zeros(positions.shape, dtype=x.dtype)
    return x.reshape((x.size,)).gather(as_tensor(positions), 0)


def pick_in_batches(x: Tensor, rows: Tensor, batch: int, axis: int) -> Tensor:
    """Return elements along an axis, with rows of their own for each index of a batch axis.

    `rows` is int32 (B, S), within bounds: the axis has S of them in the result.
    """
    rest = [i for i in range(x.ndim) if i not in (batch, axis)]
    order = [batch, axis, *rest]
    moved = x.permute(order)
    count, size = moved.shape[:2]
    table = moved.reshape((count * size, *moved.shape[2:]))
    found = table.gather(rows + ramp(count, 0, 2) * size, 0)
    return found.permute([order.index(i) for i in range(x.ndim)])
