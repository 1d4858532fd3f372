"""Pooling over windows and over whole images."""

from __future__ import annotations

import math

import numpy as np

from scheduler import dtype as dt
from scheduler.errors import ModelError
from scheduler.onnx_import.context import Array, NodeContext, Value
from scheduler.onnx_import.windows import Window, read_window
from scheduler.tensor import Tensor


def max_pool(ctx: NodeContext) -> Value:
    """Translate MaxPool.

    Raises:
        ModelError: the indices output is asked for.
    """
    if ctx.outputs > 1:
        raise ModelError("the Indices output is not supported; export without it")
    x = ctx.tensor(0)
    window = _window(ctx, x)
    padded = x.pad(((0, 0), (0, 0), *window.padding), dt.min_value(x.dtype))
    return _windows(padded, window).max(_kernel_axes(window))


def average_pool(ctx: NodeContext) -> Value:
    """Translate AveragePool: padding counts only with count_include_pad=1."""
    x = ctx.tensor(0)
    window = _window(ctx, x)
    padded = x.pad(((0, 0), (0, 0), *window.padding))
    total = _windows(padded, window).sum(_kernel_axes(window))
    counts = _counts(window, x.shape[2:], include_pad=bool(ctx.integer("count_include_pad", 0)))
    if counts.min() == counts.max() > 0:
        return total * (1.0 / float(counts.flat[0]))
    return total * Tensor.weight((1.0 / counts)[None, None].astype(x.dtype.np))


def global_average_pool(ctx: NodeContext) -> Value:
    """Translate GlobalAveragePool: the mean of all spatial axes, which stay with size 1."""
    x = ctx.tensor(0)
    return x.mean(tuple(range(2, x.ndim)), keepdim=True)


def global_max_pool(ctx: NodeContext) -> Value:
    """Translate GlobalMaxPool: the maximum of all spatial axes, which stay with size 1."""
    x = ctx.tensor(0)
    return x.max(tuple(range(2, x.ndim)), keepdim=True)


def _window(ctx: NodeContext, x: Tensor) -> Window:
    return read_window(ctx, x.shape[2:], ctx.ints_attribute("kernel_shape") or ())


def _windows(padded: Tensor, window: Window) -> Tensor:
    return padded.windows(window.kernel, window.strides, window.dilations)


def _kernel_axes(window: Window) -> tuple[int, ...]:
    rank = len(window.kernel)
    return tuple(range(2 + rank, 2 + 2 * rank))


def _counts(window: Window, spatial: tuple[int, ...], *, include_pad: bool) -> Array:
    """Return how many elements count in each window; ceil_mode's extra elements never do."""
    per_axis = []
    for i, size in enumerate(spatial):
        before, after = window.pads[i]
        marks = np.full(before + size + after, float(include_pad))
        marks[before : before + size] = 1.0
        marks = np.pad(marks, (0, window.ceil_extra[i]))
        reach = window.dilations[i] * (window.kernel[i] - 1) + 1
        starts = range(0, len(marks) - reach + 1, window.strides[i])
        per_axis.append([marks[s : s + reach : window.dilations[i]].sum() for s in starts])
    counts: Array = np.asarray(math.prod(np.ix_(*(np.array(c) for c in per_axis))))
    return counts
