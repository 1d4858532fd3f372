"""Translators of MaxUnpool and Col2Im, which put values back. Source: ONNX documentation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

import numpy as np

from scheduler.errors import ModelError
from scheduler.ir import dtype as dt
from scheduler.onnx_import.context import NodeContext, Value
from scheduler.onnx_import.ops.interpolate import read_along
from scheduler.onnx_import.ops.windows import explicit_pads, per_axis
from scheduler.tensor.tensor import Tensor


def max_unpool(ctx: NodeContext) -> Value:
    """Translate MaxUnpool: an output takes the value whose index names it, else it is zero.

    Only the windows that cover an output are looked at, ceil(kernel/stride) per axis. So an index
    must lie in the window it was found in, as those of MaxPool with the same attributes do.
    """
    x, index = ctx.tensor(0), ctx.tensor(1)
    kernel = ctx.ints_attribute("kernel_shape") or []
    rank = x.ndim - 2
    if len(kernel) != rank or index.shape != x.shape:
        raise ModelError(
            f"expected a kernel of {rank} axes and indices {list(x.shape)}, found {kernel} and "
            f"{list(index.shape)}"
        )
    strides, pads = per_axis(ctx, "strides", rank), explicit_pads(ctx, rank)
    spatial = [
        (n - 1) * s - sum(p) + k
        for n, s, p, k in zip(x.shape[2:], strides, pads, kernel, strict=True)
    ]
    shape = (*x.shape[:2], *spatial)
    covering = [
        _covering(n, x.shape[2 + i], kernel[i], strides[i], pads[i][0])
        for i, n in enumerate(spatial)
    ]
    if math.prod(shape) >= 2**31:
        raise ModelError(f"indices into {list(shape)}; expected fewer than 2**31 elements")
    place = Tensor.arange(math.prod(shape)).reshape(shape)
    result: Tensor | None = None
    for chosen in product(*covering):
        value, at = x, index.cast(dt.int32)
        for i, windows in enumerate(chosen):
            value, at = (read_along(v, 2 + i, windows) for v in (value, at))
        result = at.eq(place).where(value, 0 if result is None else result)
    assert result is not None
    return _grown(ctx, result)


def _covering(
    size: int, count: int, kernel: int, stride: int, before: int
) -> list[np.ndarray[tuple[int, ...], np.dtype[np.int32]]]:
    """Return, for each output of an axis, the windows that may hold it: one array per choice."""
    last = (np.arange(size) + before) // stride
    return [np.clip(last - i, 0, count - 1).astype(np.int32) for i in range(-(-kernel // stride))]


def _grown(ctx: NodeContext, x: Tensor) -> Tensor:
    """Add zeros at the end of each axis up to output_shape."""
    if not ctx.has(2):
        return x
    wanted = ctx.ints(2, "output_shape")
    if len(wanted) != x.ndim or any(w < n for w, n in zip(wanted, x.shape, strict=True)):
        raise ModelError(f"output_shape {wanted} is smaller than {list(x.shape)}")
    return x.pad([(0, w - n) for w, n in zip(wanted, x.shape, strict=True)])


def col2im(ctx: NodeContext) -> Value:
    """Translate Col2Im: (N, C * prod(block), windows) summed to (N, C, image...)."""
    x = ctx.tensor(0)
    image, block = ctx.ints(1, "image_shape"), ctx.ints(2, "block_shape")
    rank = len(image)
    strides, dilations = per_axis(ctx, "strides", rank), per_axis(ctx, "dilations", rank)
    pads = explicit_pads(ctx, rank)
    if len(block) != rank or x.ndim != 3 or x.shape[1] % math.prod(block):
        raise ModelError(f"{list(x.shape)} does not fit blocks {block} of an image {image}")
    counts = [
        (n + sum(p) - d * (k - 1) - 1) // s + 1
        for n, p, d, k, s in zip(image, pads, dilations, block, strides, strict=True)
    ]
    if min(counts) < 1 or math.prod(counts) != x.shape[2]:
        raise ModelError(f"expected {counts} windows, found {x.shape[2]}")
    x = x.reshape((x.shape[0], x.shape[1] // math.prod(block), *block, *counts))
    for i in range(rank):
        x = _overlapped(x, 2, 2 + rank - i, (image[i], strides[i], dilations[i], pads[i][0]))
    return x


def _overlapped(x: Tensor, tap: int, window: int, geometry: Sequence[int]) -> Tensor:
    """Sum one axis of blocks and its axis of windows to an axis of the image, which comes last.

    Each position of the image meets every tap at most once: at a known window, if at all.
    """
    size, stride, dilation, before = geometry
    taps, count = x.shape[tap], x.shape[window]
    key: list[slice] = [slice(None)] * x.ndim
    result: Tensor | None = None
    for k in range(taps):
        start = np.arange(size) + before - k * dilation
        at = start // stride
        met = (start % stride == 0) & (at >= 0) & (at < count)
        if not met.any():
            continue
        key[tap] = slice(k, k + 1)
        part = x[tuple(key)].squeeze(tap)
        order = [i for i in range(part.ndim) if i != window - 1]
        part = part.permute((*order, window - 1))
        read = read_along(part, part.ndim - 1, np.clip(at, 0, count - 1))
        term = read if met.all() else Tensor.weight(met).where(read, 0)
        result = term if result is None else result + term
    if result is not None:
        return result
    rest = [n for i, n in enumerate(x.shape) if i not in (tap, window)]
    return Tensor.zeros((*rest, size), dtype=x.dtype)
