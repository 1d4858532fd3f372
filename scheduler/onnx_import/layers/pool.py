"""Translators of pooling over windows or whole images, LRN, MaxUnpool and Col2Im.

Sums of fp16 values are computed in float32, because the sum over an image can overflow fp16.
Definitions: ONNX operator documentation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product
from math import prod

import numpy as np

from scheduler.device.spec import DEFAULT
from scheduler.errors import ModelError
from scheduler.ir import dtype as dt
from scheduler.onnx_import.context import Array, NodeContext, Value
from scheduler.onnx_import.layers.conv import Window, explicit_pads, per_axis, read_window
from scheduler.onnx_import.layers.normalize import wide
from scheduler.onnx_import.layers.resize import read_along
from scheduler.tensor.tensor import Tensor

_INT32_END = 2**31  # limit of positions in an image, which are computed in int32
# Windows are reduced axis by axis if that reads fewer elements by at least this factor.
SEPARATE = 2

Reduce = Callable[[Tensor, tuple[int, ...]], Tensor]


def max_pool(ctx: NodeContext) -> Value | list[Value]:
    """Translate MaxPool; padding is never the maximum.

    The second output (int64) is the position of each maximum in the flattened input, in row-major
    order, or in column-major order with storage_order=1.
    """
    x = ctx.tensor(0)
    window = _window(ctx, x)
    padded = x.pad(((0, 0), (0, 0), *window.padding), dt.min_value(x.dtype))
    if ctx.outputs < 2:
        return _reduced(padded, window, lambda w, axes: w.max(axes))
    windows = _windows(padded, window)
    axes = _kernel_axes(window)
    largest = windows.max(axes, keepdim=True)
    at = _positions(x.shape[2:], window)
    # Positions in padding are larger than all others, so the minimum ignores them.
    found = windows.eq(largest).where(at, _INT32_END - 1).min(axes)
    columns = bool(ctx.integer("storage_order", 0))
    return [largest.squeeze(axes), _tensor_positions(found, x.shape, columns=columns)]


def _positions(spatial: tuple[int, ...], window: Window) -> Tensor:
    """Return the positions of windowed elements in the image, (1, 1, out..., kernel...)."""
    count = math.prod(spatial)
    if count >= _INT32_END - 1:
        raise ModelError(
            f"indices into {count} elements of an image; at most 2**31 - 2 are supported"
        )
    ramp = Tensor.arange(count).reshape((1, 1, *spatial))
    return _windows(ramp.pad(((0, 0), (0, 0), *window.padding), _INT32_END - 1), window)


def _tensor_positions(found: Tensor, shape: tuple[int, ...], *, columns: bool) -> Tensor:
    """Return positions in the tensor (int64, row- or column-major) for positions in each image."""
    spatial = shape[2:]
    if columns:
        total: Tensor | None = None
        rest, step = found, 1
        for axis, size in enumerate(spatial):
            inner = math.prod(spatial[axis + 1 :])
            row = rest.trunc_div(inner)
            rest = rest - row * inner
            total = row * step if total is None else total + row * step
            step *= size
        found = found if total is None else total
    images = math.prod(shape[:2])
    wide = found.cast(dt.int64)
    if images > 1:
        first = Tensor.arange(images).cast(dt.int64) * math.prod(spatial)
        wide = wide + first.reshape((*shape[:2], *(1,) * len(spatial)))
    return wide


def average_pool(ctx: NodeContext) -> Tensor:
    """Translate AveragePool; padding is part of the mean only with count_include_pad=1."""
    x = ctx.tensor(0)
    window = _window(ctx, x)
    padded = wide(x).pad(((0, 0), (0, 0), *window.padding))
    total = _reduced(padded, window, lambda w, axes: w.sum(axes))
    counts = _counts(window, x.shape[2:], include_pad=bool(ctx.integer("count_include_pad", 0)))
    # Axes with equal counts share a scalar divisor; each other axis has a vector, not an image.
    even = math.prod(float(c[0]) for c in counts if c.min() == c.max() > 0)
    total = total / even
    for i, count in enumerate(counts):
        if not count.min() == count.max() > 0:
            divisors = count.astype(total.dtype.np)
            total = total / Tensor.weight(divisors.reshape((-1, *(1,) * (len(counts) - 1 - i))))
    return total.as_type(x.dtype)


def lp_pool(ctx: NodeContext) -> Value:
    """Translate LpPool: the p-norm of each window; padding is zeros."""
    x = ctx.tensor(0)
    window = _window(ctx, x)
    padded = x.pad(((0, 0), (0, 0), *window.padding))
    return _norm(_windows(padded, window), ctx.integer("p", 2), _kernel_axes(window))


def global_average_pool(ctx: NodeContext) -> Value:
    """Translate GlobalAveragePool: the mean of all spatial axes, which stay with size 1."""
    x = ctx.tensor(0)
    return wide(x).mean(tuple(range(2, x.ndim)), keepdim=True).as_type(x.dtype)


def global_max_pool(ctx: NodeContext) -> Value:
    """Translate GlobalMaxPool: the maximum of all spatial axes, which stay with size 1."""
    x = ctx.tensor(0)
    return x.max(tuple(range(2, x.ndim)), keepdim=True)


def global_lp_pool(ctx: NodeContext) -> Value:
    """Translate GlobalLpPool: the p-norm of all spatial axes, which stay with size 1."""
    x = ctx.tensor(0)
    return _norm(x, ctx.integer("p", 2), tuple(range(2, x.ndim)), keepdim=True)


def _norm(x: Tensor, p: int, axes: tuple[int, ...], *, keepdim: bool = False) -> Tensor:
    """Return (sum |x|^p)^(1/p) over axes."""
    if p < 1:
        raise ModelError(f"p must be at least 1, found {p}")
    size = wide(x).abs()
    if p == 1:
        norm = size.sum(axes, keepdim=keepdim)
    elif p == 2:
        norm = size.square().sum(axes, keepdim=keepdim).sqrt()
    else:
        norm = (size**p).sum(axes, keepdim=keepdim) ** (1.0 / p)
    return norm.as_type(x.dtype)


def lrn(ctx: NodeContext) -> Value:
    """Translate LRN: x / (bias + alpha * m)^beta, m the mean square of `size` channels around."""
    x = ctx.tensor(0)
    size = ctx.integer("size", 0)
    if size < 1:
        raise ModelError(f"size must be at least 1, found {size}")
    before = (size - 1) // 2
    pairs = ((0, 0), (before, size - 1 - before), *((0, 0),) * (x.ndim - 2))
    squares = wide(x).square().pad(pairs).window(1, size).sum(2)
    scaled = squares * (ctx.number("alpha", 1e-4) / size) + ctx.number("bias", 1.0)
    return (x / scaled ** ctx.number("beta", 0.75)).as_type(x.dtype)


def _window(ctx: NodeContext, x: Tensor) -> Window:
    if x.ndim < 3:
        raise ModelError(f"expected (N, C, spatial...), found {list(x.shape)}")
    return read_window(ctx, x.shape[2:], ctx.ints_attribute("kernel_shape") or ())


def _windows(padded: Tensor, window: Window) -> Tensor:
    return padded.windows(window.kernel, window.strides, window.dilations)


def _reduced(padded: Tensor, window: Window, reduce: Reduce) -> Tensor:
    """Reduce windows, axis by axis if much cheaper: 5 x 5 then reads 10 elements, not 25."""
    x, own, visits = padded, prod(padded.shape[:2]), 0
    spatial = list(padded.shape[2:])
    for i, size in enumerate(window.kernel):
        reach = window.dilations[i] * (size - 1) + 1
        spatial[i] = (spatial[i] - reach) // window.strides[i] + 1
        visits += own * prod(spatial) * size
    at_once = own * prod(spatial) * prod(window.kernel)
    if at_once < SEPARATE * visits or at_once - visits < 2 * DEFAULT.costs.launch:
        return reduce(_windows(padded, window), _kernel_axes(window))
    for i, size in enumerate(window.kernel):
        if size > 1 or window.strides[i] > 1:
            x = x.contiguous() if i else x
            x = reduce(x.window(2 + i, size, window.strides[i], window.dilations[i]), (3 + i,))
    return x


def _kernel_axes(window: Window) -> tuple[int, ...]:
    rank = len(window.kernel)
    return tuple(range(2 + rank, 2 + 2 * rank))


def _counts(window: Window, spatial: tuple[int, ...], *, include_pad: bool) -> list[Array]:
    """Return the number of counted elements of each window, an array per axis.

    Padding added by ceil_mode is never counted; other padding is with `include_pad`.
    """
    per_axis = []
    for i, size in enumerate(spatial):
        before, after = window.pads[i]
        marks = np.full(before + size + after, float(include_pad))
        marks[before : before + size] = 1.0
        marks = np.pad(marks, (0, window.ceil_extra[i]))
        reach = window.dilations[i] * (window.kernel[i] - 1) + 1
        starts = range(0, len(marks) - reach + 1, window.strides[i])
        per_axis.append(
            np.array([marks[s : s + reach : window.dilations[i]].sum() for s in starts])
        )
    return per_axis


# --- MaxUnpool and Col2Im, which write values back into an image ------------------------------


def max_unpool(ctx: NodeContext) -> Value:
    """Translate MaxUnpool: each output is the value whose index points to it, or 0.

    Only the ceil(kernel/stride) windows per axis that cover an output are searched. Each index must
    therefore be inside its own window, as the indices from MaxPool with the same attributes are.
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
    return _padded_to_output_shape(ctx, result)


def _covering(
    size: int, count: int, kernel: int, stride: int, before: int
) -> list[np.ndarray[tuple[int, ...], np.dtype[np.int32]]]:
    """Return ceil(kernel/stride) arrays; each has a window that can contain each output."""
    last = (np.arange(size) + before) // stride
    return [np.clip(last - i, 0, count - 1).astype(np.int32) for i in range(-(-kernel // stride))]


def _padded_to_output_shape(ctx: NodeContext, x: Tensor) -> Tensor:
    """Return x padded with zeros at the end of each axis to output_shape, if it is given."""
    if not ctx.has(2):
        return x
    wanted = ctx.ints(2, "output_shape")
    if len(wanted) != x.ndim or any(w < n for w, n in zip(wanted, x.shape, strict=True)):
        raise ModelError(f"output_shape {wanted} is smaller than {list(x.shape)}")
    return x.pad([(0, w - n) for w, n in zip(wanted, x.shape, strict=True)])


def col2im(ctx: NodeContext) -> Value:
    """Translate Col2Im: sum blocks (N, C * prod(block), windows) into images (N, C, image...)."""
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
        x = _summed_blocks(x, 2, 2 + rank - i, (image[i], strides[i], dilations[i], pads[i][0]))
    return x


def _summed_blocks(x: Tensor, tap: int, window: int, geometry: Sequence[int]) -> Tensor:
    """Return x with a block axis `tap` and a window axis summed to one axis of the image.

    `geometry` is (image size, stride, dilation, padding before). For one tap, at most one window
    covers an element of the image.
    """
    size, stride, dilation, before = geometry
    taps, count = x.shape[tap], x.shape[window]
    key: list[slice] = [slice(None)] * x.ndim
    result: Tensor | None = None
    for k in range(taps):
        # Element i of the image is tap k of window start / stride, if that is whole and exists.
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
