"""Operators that pick elements: Slice and Gather with indices known here or at run time."""

from __future__ import annotations

import numpy as np

from scheduler import dtype as dt
from scheduler.errors import ModelError
from scheduler.onnx_import.context import NodeContext, Value, as_tensor, normal_axes, normal_axis
from scheduler.tensor import Tensor


def slice_(ctx: NodeContext) -> Value:
    """Translate Slice; bounds are attributes before opset 10, inputs from it on."""
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
    if step == 0:
        raise ModelError("steps must not be 0")
    # Python reads a stop of -1 as "the last element"; here, counting down, it means "through 0".
    if step < 0 and end < -size:
        return slice(start, None, step)
    return slice(start, end, step)


def gather(ctx: NodeContext) -> Value:
    """Translate Gather (numpy.take); a known index that is one element or a range is a slice."""
    x, index = ctx.tensor(0), ctx.value(1)
    axis = normal_axis(ctx.integer("axis", 0), x.ndim)
    if isinstance(index, Tensor):
        return x.gather(index, axis)
    size = x.shape[axis]
    if index.size and (index.min() < -size or index.max() >= size):
        raise ModelError(f"an index is out of range for axis {axis} of {x.shape}")
    whole = np.where(index < 0, index + size, index).astype(np.int32)
    lead = (slice(None),) * axis
    if whole.ndim == 0:
        return x[(*lead, int(whole))]
    if whole.ndim == 1 and whole.size and (np.diff(whole) == 1).all():
        return x[(*lead, slice(int(whole[0]), int(whole[-1]) + 1))]
    if whole.size == 0:
        return Tensor.zeros((*x.shape[:axis], *whole.shape, *x.shape[axis + 1 :]), dtype=x.dtype)
    if whole.size == 1:
        kept = x[(*lead, slice(int(whole.flat[0]), int(whole.flat[0]) + 1))]
        return kept.reshape((*x.shape[:axis], *whole.shape, *x.shape[axis + 1 :]))
    return x.gather(as_tensor(whole), axis)


def argmax(ctx: NodeContext) -> Value:
    """Translate ArgMax and ArgMin: int64 index of the first (or last) extreme along one axis."""
    x = ctx.tensor(0)
    axis = normal_axis(ctx.integer("axis", 0), x.ndim)
    last = bool(ctx.integer("select_last_index", 0))
    keepdim = bool(ctx.integer("keepdims", 1))
    x = x.flip(axis) if last else x
    found = (
        x.argmin(axis, keepdim=keepdim)
        if ctx.node.op_type == "ArgMin"
        else x.argmax(axis, keepdim=keepdim)
    )
    if last:
        found = x.shape[axis] - 1 - found
    return found.cast(dt.int64)
