"""Translators of Slice, ArgMax, ArgMin, NonZero and Unique; the last two need known values.

NonZero and Unique are computed here, on values known while importing: no shape depends on data.
"""

from __future__ import annotations

import numpy as np

from scheduler.errors import ModelError
from scheduler.ir import dtype as dt
from scheduler.onnx_import.context import NodeContext, Value, normal_axes, normal_axis


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
    """Return bounds as Python means them; ONNX clamps a start beyond either end into the axis."""
    if step == 0:
        raise ModelError("steps must not be 0")
    low, high = (0, size) if step > 0 else (-1, size - 1)
    first = min(max(start + size if start < 0 else start, 0), high)
    last = min(max(end + size if end < 0 else end, low), high)
    # Python reads a stop of -1 as "the last element"; counting down, none means "through 0".
    return slice(max(first, 0), None if last < 0 else last, step)


def argmax(ctx: NodeContext) -> Value:
    """Translate ArgMax and ArgMin: int64 index of the first (or last) extreme along one axis.

    A NaN counts as the extreme, as in numpy; an infinity on its side is equal to it.
    """
    x = ctx.tensor(0)
    axis = normal_axis(ctx.integer("axis", 0), x.ndim)
    if x.shape[axis] == 0:
        raise ModelError(f"axis {axis} of {x.shape} is empty: there is no extreme")
    least = ctx.node.op_type == "ArgMin"
    last = bool(ctx.integer("select_last_index", 0))
    keepdim = bool(ctx.integer("keepdims", 1))
    if x.dtype.is_float:
        # Else no element equals the extreme, or none that the device finds.
        x = x.ne(x).where(x.operand(-np.inf if least else np.inf), x)
    x = x.flip(axis) if last else x
    found = x.argmin(axis, keepdim=keepdim) if least else x.argmax(axis, keepdim=keepdim)
    if last:
        found = x.shape[axis] - 1 - found
    return found.cast(dt.int64)


def nonzero(ctx: NodeContext) -> Value:
    """Translate NonZero of known values: int64 (axes, count)."""
    x = ctx.const(0, "input, whose values decide how many elements are found,")
    return np.array(np.nonzero(np.atleast_1d(x)), np.int64)


def unique(ctx: NodeContext) -> list[Value]:
    """Translate Unique of known values: values, first places, inverse, counts."""
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
