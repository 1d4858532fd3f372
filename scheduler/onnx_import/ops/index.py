"""Translators of operators that read elements at indices, or return indices.

Indices known at import become constants, and an index out of range is an error. At run time such an
index reads the nearest element instead. NonZero and Unique need constant inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from scheduler.errors import ModelError
from scheduler.ir import dtype as dt
from scheduler.onnx_import.context import (
    Array,
    NodeContext,
    Value,
    as_tensor,
    normal_axes,
    normal_axis,
)
from scheduler.tensor.tensor import Tensor


def slice_(ctx: NodeContext) -> Value:
    """Translate Slice; the bounds are attributes before opset 10, and inputs later."""
    x = ctx.tensor(0)
    if ctx.opset < 10:
        starts, ends = ctx.ints_attribute("starts"), ctx.ints_attribute("ends")
        axes, steps = ctx.ints_attribute("axes"), None
    else:
        starts, ends = ctx.ints(1, "starts"), ctx.ints(2, "ends")
        axes = ctx.ints(3, "axes") if ctx.has(3) else None
        steps = ctx.ints(4, "steps") if ctx.has(4) else None
    if starts is None or ends is None:
        raise ModelError("starts and ends are required")
    axes = list(range(len(starts))) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise ModelError(
            f"starts {starts}, ends {ends}, axes {axes}, steps {steps} differ in length"
        )
    key: list[slice] = [slice(None)] * x.ndim
    for axis, start, end, step in zip(normal_axes(axes, x.ndim), starts, ends, steps, strict=True):
        key[axis] = _bounds(start, end, step, x.shape[axis])
    return x[tuple(key)]


def _bounds(start: int, end: int, step: int, size: int) -> slice:
    """Return ONNX slice bounds as a Python slice; ONNX clamps a start that is out of range."""
    if step == 0:
        raise ModelError("steps must not be 0")
    low, high = (0, size) if step > 0 else (-1, size - 1)
    first = min(max(start + size if start < 0 else start, 0), high)
    last = min(max(end + size if end < 0 else end, low), high)
    # For Python a stop of -1 is the last element; None includes element 0 when counting down.
    return slice(max(first, 0), None if last < 0 else last, step)


def argmax(ctx: NodeContext) -> Value:
    """Translate ArgMax and ArgMin: the int64 index of the first (or last) extreme along an axis.

    NaN is the extreme as in numpy, but equal to the infinity on the same side.
    """
    x = ctx.tensor(0)
    axis = normal_axis(ctx.integer("axis", 0), x.ndim)
    if x.shape[axis] == 0:
        raise ModelError(f"axis {axis} of {x.shape} is empty: there is no extreme")
    least = ctx.node.op_type == "ArgMin"
    last = bool(ctx.integer("select_last_index", 0))
    keepdim = bool(ctx.integer("keepdims", 1))
    if x.dtype.is_float:
        # Replace NaN, because a search for an element equal to the extreme would not find it.
        x = x.ne(x).where(x.operand(-np.inf if least else np.inf), x)
    x = x.flip(axis) if last else x
    found = x.argmin(axis, keepdim=keepdim) if least else x.argmax(axis, keepdim=keepdim)
    if last:
        found = x.shape[axis] - 1 - found
    return found.cast(dt.int64)


def nonzero(ctx: NodeContext) -> Value:
    """Translate NonZero of a constant input: int64 (axes, count)."""
    x = ctx.const(0, "input, whose values decide how many elements are found,")
    return np.array(np.nonzero(np.atleast_1d(x)), np.int64)


def unique(ctx: NodeContext) -> list[Value]:
    """Translate Unique of a constant input: values, first indices, inverse indices, counts."""
    x = ctx.const(0, "input, whose values decide how many elements are found,")
    axis = ctx.attribute("axis")
    if axis is not None:
        axis = normal_axis(int(axis), x.ndim)
    values, first, inverse, counts = np.unique(
        x, return_index=True, return_inverse=True, return_counts=True, axis=axis
    )
    inverse = inverse.reshape(-1)
    if not ctx.integer("sorted", 1):
        order = np.argsort(first)
        values = values.take(order, 0 if axis is None else axis)
        inverse = np.argsort(order)[inverse]
        first, counts = first[order], counts[order]
    return [values, *(part.astype(np.int64) for part in (first, inverse, counts))]


def gather(ctx: NodeContext) -> Value:
    """Translate Gather (numpy.take); constant indices that form a range become a slice."""
    x, index = ctx.tensor(0), ctx.value(1)
    axis = normal_axis(ctx.integer("axis", 0), x.ndim)
    if not isinstance(index, Tensor):
        return pick_rows(x, index, axis)
    shape = (*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])
    return x.gather(index, axis) if prod(shape) else Tensor.zeros(shape, dtype=x.dtype)


def gather_elements(ctx: NodeContext) -> Value:
    """Translate GatherElements: out[i, j] = x[index[i, j], j] for axis 0, and so on.

    Constant indices that depend on `axis` only are translated like Gather.
    """
    x, index = ctx.tensor(0), ctx.value(1)
    axis = normal_axis(ctx.integer("axis", 0), x.ndim)
    fits = len(index.shape) == x.ndim and all(
        n <= s for i, (n, s) in enumerate(zip(index.shape, x.shape, strict=True)) if i != axis
    )
    if not fits:
        raise ModelError(f"indices {tuple(index.shape)} do not fit data {x.shape} on axis {axis}")
    if not isinstance(index, Tensor) and index.size:
        line = index[tuple(slice(None) if i == axis else 0 for i in range(x.ndim))]
        shape = [-1 if i == axis else 1 for i in range(x.ndim)]
        if (index == line.reshape(shape)).all():
            bounds = [(0, s if i == axis else index.shape[i]) for i, s in enumerate(x.shape)]
            return pick_rows(x.shrink(bounds), line, axis)
    rows = rows_within(index, x.shape[axis])
    return pick_flat(x, element_positions(rows, axis, x.shape))


def gather_nd(ctx: NodeContext) -> Value:
    """Translate GatherND: each index tuple selects an element, or a slice, of its batch."""
    x, index = ctx.tensor(0), ctx.value(1)
    batch = ctx.integer("batch_dims", 0)
    shape = tuple(index.shape)
    depth = shape[-1]
    fits = 0 <= batch < min(x.ndim, len(shape)) and batch + depth <= x.ndim
    if not fits or shape[:batch] != x.shape[:batch]:
        raise ModelError(f"indices {shape} do not fit data {x.shape} with batch_dims {batch}")
    sizes, rest = x.shape[batch : batch + depth], x.shape[batch + depth :]
    if prod(shape[:-1]) * prod(rest) == 0:
        return Tensor.zeros((*shape[:-1], *rest), dtype=x.dtype)
    if batch == 0 and depth == 1 and isinstance(index, Tensor):
        return x.gather(index.reshape(shape[:-1]), 0)
    at = tuple_positions(index, sizes)
    first = np.arange(prod(shape[:batch]), dtype=np.int32).reshape(
        shape[:batch] + (1,) * (len(shape) - 1 - batch)
    )
    if batch:
        at = at + (as_tensor(first) if isinstance(at, Tensor) else first) * prod(sizes)
    table = x.reshape((prod(x.shape[: batch + depth]), *rest))
    return pick_rows(table, at, 0) if not isinstance(at, Tensor) else table.gather(at, 0)


def compress(ctx: NodeContext) -> Value:
    """Translate Compress: the indices of an axis, or elements, whose constant condition is true."""
    x = ctx.tensor(0)
    condition = ctx.const(1, "condition, whose values decide the shape of the result,")
    rows = np.flatnonzero(condition)
    axis = ctx.attribute("axis")
    if axis is None:
        return pick_rows(x.reshape((x.size,)), rows, 0)
    return pick_rows(x, rows, normal_axis(int(axis), x.ndim))


def reverse_sequence(ctx: NodeContext) -> Value:
    """Translate ReverseSequence: reverse the first sequence_lens[b] elements of the time axis."""
    x = ctx.tensor(0)
    batch = normal_axis(ctx.integer("batch_axis", 1), x.ndim)
    time = normal_axis(ctx.integer("time_axis", 0), x.ndim)
    lengths = ctx.tensor(1)
    if batch == time or lengths.shape != (x.shape[batch],):
        raise ModelError(
            f"sequence_lens {lengths.shape}, batch_axis {batch} and time_axis {time} do not fit "
            f"data {x.shape}"
        )
    if x.size == 0:
        return x
    size = x.shape[time]
    ends = lengths.clip(0, size).cast(dt.int32).reshape((-1, 1))
    steps = ramp(size, 1, 2)
    rows = (steps < ends).where(ends - 1 - steps, steps)
    return pick_in_batches(x, rows, batch, time)


# --- Positions of elements, for operators that read or write at indices -----------------------
# Positions of constant indices are computed here as arrays, so the graph has one gather with a
# constant index. Positions of run-time indices are computed in int32 by the graph. A row is an
# index along one axis.


def ramp(count: int, axis: int, ndim: int) -> Tensor:
    """Return 0 ... count - 1 (int32) along one of `ndim` axes; the others have size 1."""
    return Tensor.arange(count).reshape(tuple(count if i == axis else 1 for i in range(ndim)))


def rows_within(rows: Value, size: int) -> Value:
    """Return rows of an axis as int32; negative rows count from the end.

    A run-time row outside the axis becomes the nearest row inside. A constant one raises
    ModelError.
    """
    if not isinstance(rows, Tensor):
        if rows.size and (int(rows.min()) < -size or int(rows.max()) >= size):
            raise ModelError(f"an index is out of range for an axis of size {size}")
        wide = rows.astype(np.int64)
        return np.where(wide < 0, wide + size, wide).astype(np.int32)
    # Clip 8-byte indices before the cast to int32, because the cast would wrap.
    wide_rows = rows if rows.dtype.itemsize == 8 else rows.cast(dt.int32)
    if not wide_rows.dtype.is_unsigned:
        wide_rows = (wide_rows < 0).where(wide_rows + size, wide_rows)
    return wide_rows.clip(0, max(0, size - 1)).cast(dt.int32)


def strides_of(shape: Sequence[int]) -> list[int]:
    """Return the strides, in elements, of a row-major array."""
    return [prod(shape[i + 1 :]) for i in range(len(shape))]


def element_positions(rows: Value, axis: int, shape: Sequence[int]) -> Value:
    """Return flat positions in an array of `shape`, in the shape of `rows`.

    The position for index (i, j, ...) is that of element (i, j, ...) with its index on `axis`
    replaced by rows[i, j, ...] (int32, within bounds).
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
    """Return flat positions, int32 (...), of index tuples (..., k) in an array of k axes.

    `sizes` are the sizes of the k axes. A run-time tuple outside the array is moved inside. A
    constant one raises ModelError.
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
    """Return numpy.take(x, rows, axis) for constant rows; a range becomes a slice."""
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
    """Return the elements of x at flat positions, in the shape of the positions."""
    if prod(positions.shape) == 0:
        return Tensor.zeros(positions.shape, dtype=x.dtype)
    return x.reshape((x.size,)).gather(as_tensor(positions), 0)


def pick_in_batches(x: Tensor, rows: Tensor, batch: int, axis: int) -> Tensor:
    """Return x with other rows along `axis` for each index of the batch axis.

    `rows` is int32 (B, S), within bounds. The axis has size S in the result.
    """
    rest = [i for i in range(x.ndim) if i not in (batch, axis)]
    order = [batch, axis, *rest]
    moved = x.permute(order)
    count, size = moved.shape[:2]
    table = moved.reshape((count * size, *moved.shape[2:]))
    found = table.gather(rows + ramp(count, 0, 2) * size, 0)
    return found.permute([order.index(i) for i in range(x.ndim)])
