"""Translator of DeformConv: a convolution that reads between elements, at run-time offsets."""

from __future__ import annotations

import math

from scheduler.errors import ModelError
from scheduler.ir import dtype as dt
from scheduler.onnx_import.context import NodeContext, Value
from scheduler.onnx_import.ops.sample import linear_taps, sampled
from scheduler.onnx_import.ops.windows import Window, read_window
from scheduler.tensor.tensor import Tensor


def deform_conv(ctx: NodeContext) -> Value:
    """Translate DeformConv (opset 19 on), any number of spatial axes.

    The samples of all taps are stored, (N, C, taps, out...); the rest is a 1x1 convolution.
    """
    x, weight, offset = ctx.tensor(0), ctx.tensor(1), ctx.tensor(2)
    groups, parts = ctx.integer("group", 1), ctx.integer("offset_group", 1)
    batch, channels = x.shape[:2]
    kernel = weight.shape[2:]
    taps, rank = math.prod(kernel), x.ndim - 2
    window = read_window(ctx, x.shape[2:], kernel)
    out = offset.shape[2:]
    fits = parts > 0 and channels % parts == 0 and len(out) == rank
    if not fits or offset.shape[:2] != (batch, parts * taps * rank) or out != _sizes(window, x):
        raise ModelError(
            f"offset {list(offset.shape)} does not fit an input {list(x.shape)}, a weight "
            f"{list(weight.shape)} and offset_group={parts}"
        )
    moved = offset.cast(dt.float32).reshape((batch * parts, *kernel, rank, *out))
    found = []
    for i, size in enumerate(x.shape[2:]):
        own = moved[(slice(None),) * (1 + rank) + (i,)]
        found.append(linear_taps(own + _regular(window, i, out), size))
    image = x.reshape((batch * parts, channels // parts, *x.shape[2:]))
    columns = sampled(image, found)  # (N*parts, C/parts, kernel..., out...)
    if ctx.has(4):
        mask = ctx.tensor(4).reshape((batch * parts, 1, *kernel, *out))
        columns = columns * mask
    columns = columns.reshape((batch, channels * taps, *out)).contiguous()
    flat = weight.reshape((weight.shape[0], weight.shape[1] * taps, *(1,) * rank))
    return columns.conv2d(flat, ctx.tensor(3) if ctx.has(3) else None, groups=groups)


def _regular(window: Window, i: int, out: tuple[int, ...]) -> Tensor:
    """Return where the taps of one axis are without offsets, for (1, kernel..., out...)."""
    rank = len(out)
    kernel_shape, out_shape = [1] * (1 + 2 * rank), [1] * (1 + 2 * rank)
    kernel_shape[1 + i], out_shape[1 + rank + i] = window.kernel[i], out[i]
    taps = Tensor.arange(window.kernel[i]) * window.dilations[i]
    steps = Tensor.arange(out[i]) * window.strides[i] - window.pads[i][0]
    return (taps.reshape(kernel_shape) + steps.reshape(out_shape)).cast(dt.float32)


def _sizes(window: Window, x: Tensor) -> tuple[int, ...]:
    """Return the output sizes of a convolution with this window."""
    return tuple(
        (n + sum(p) - d * (k - 1) - 1) // s + 1
        for n, p, d, k, s in zip(
            x.shape[2:], window.pads, window.dilations, window.kernel, window.strides, strict=True
        )
    )
