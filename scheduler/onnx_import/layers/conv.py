"""Translators of convolution and its transpose, with any number of spatial axes."""

from __future__ import annotations

import math

from scheduler.errors import ModelError
from scheduler.ir import dtype as dt
from scheduler.onnx_import.context import NodeContext, Value
from scheduler.onnx_import.layers.sample import linear_taps, sampled
from scheduler.onnx_import.layers.windows import (
    Pairs,
    Window,
    auto_pad,
    explicit_pads,
    per_axis,
    read_window,
)
from scheduler.tensor.tensor import Tensor


def conv(ctx: NodeContext) -> Tensor:
    """Translate Conv: (N, C, spatial...), weight (M, C/group, kernel...), optional bias (M,)."""
    return conv_of(ctx, ctx.tensor(0), ctx.tensor(1), ctx.tensor(2) if ctx.has(2) else None)


def conv_of(ctx: NodeContext, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return the convolution of given values with the attributes of a node."""
    groups = _groups(ctx, x.shape[1], weight.shape[0])
    window = read_window(ctx, x.shape[2:], _kernel(ctx, weight.shape))
    return x.conv2d(
        weight,
        bias,
        stride=window.strides,
        padding=window.pads,
        dilation=window.dilations,
        groups=groups,
    )


def causal_conv(ctx: NodeContext) -> list[Value]:
    """Translate CausalConvWithState: x (N, C, n), weight (C, 1, k), state (N, C, k-1).

    Each output sees itself and the k-1 elements before it; the second result is the new state.
    """
    x, weight = ctx.tensor(0), ctx.tensor(1)
    if x.ndim != 3 or weight.ndim != 3 or weight.shape[:2] != (x.shape[1], 1):
        raise ModelError(
            f"expected (N, C, n) and (C, 1, k), found {list(x.shape)} and {list(weight.shape)}"
        )
    before = weight.shape[2] - 1
    if ctx.has(3):
        state = ctx.tensor(3)
        if state.shape != (*x.shape[:2], before):
            raise ModelError(f"past_state {list(state.shape)} does not hold {before} elements")
        joined = Tensor.cat([state, x], axis=2)
    else:
        joined = x.pad(((0, 0), (0, 0), (before, 0)))
    bias = ctx.tensor(2) if ctx.has(2) else None
    y = joined.conv2d(weight, bias, groups=x.shape[1])
    activation = ctx.text("activation", "none")
    if activation not in ("none", "silu", "swish"):
        raise ModelError(f"activation must be none, silu or swish, found {activation!r}")
    return [y if activation == "none" else y.silu(), joined[:, :, x.shape[2] :]]


def conv_transpose(ctx: NodeContext) -> Value:
    """Translate ConvTranspose: weight (C, M/group, kernel...), optional bias (M,)."""
    x, weight = ctx.tensor(0), ctx.tensor(1)
    groups = _groups(ctx, x.shape[1], weight.shape[0])
    kernel = _kernel(ctx, weight.shape)
    rank = len(kernel)
    strides, dilations = per_axis(ctx, "strides", rank), per_axis(ctx, "dilations", rank)
    output_padding = per_axis(ctx, "output_padding", rank, default=0)
    # Padding below that is cut off.
    full = tuple(
        (size - 1) * s + d * (k - 1) + 1 + o
        for size, s, d, k, o in zip(
            x.shape[2:], strides, dilations, kernel, output_padding, strict=True
        )
    )
    return x.conv_transpose2d(
        weight,
        ctx.tensor(2) if ctx.has(2) else None,
        stride=strides,
        padding=_transpose_pads(ctx, full, x.shape[2:], strides),
        output_padding=output_padding,
        dilation=dilations,
        groups=groups,
    )


def _transpose_pads(
    ctx: NodeContext, full: tuple[int, ...], spatial: tuple[int, ...], strides: tuple[int, ...]
) -> Pairs:
    rank = len(full)
    mode = auto_pad(ctx)
    wanted = ctx.ints_attribute("output_shape")
    if wanted is None:
        if mode == "VALID":
            return ((0, 0),) * rank
        if mode == "NOTSET":
            return explicit_pads(ctx, rank)
        wanted = [size * stride for size, stride in zip(spatial, strides, strict=True)]
    wanted = wanted[-rank:]  # some exporters write batch and channels too
    if len(wanted) != rank:
        raise ModelError(f"output_shape {wanted} does not fit {rank} spatial axes")
    pairs = []
    for size, target in zip(full, wanted, strict=True):
        total = size - target
        if total < 0:  # more than there is: the rest is empty, at the end
            pairs.append((0, total))
            continue
        # The odd element after (UPPER) or before (LOWER), as since ConvTranspose-11; -1 swaps them.
        small, large = total // 2, total - total // 2
        pairs.append((small, large) if mode == "SAME_UPPER" else (large, small))
    return tuple(pairs)


def _kernel(ctx: NodeContext, weight_shape: tuple[int, ...]) -> tuple[int, ...]:
    kernel = weight_shape[2:]
    declared = ctx.ints_attribute("kernel_shape")
    if declared is not None and tuple(declared) != kernel:
        raise ModelError(
            f"kernel_shape {declared} does not match the weight's {list(weight_shape)}"
        )
    return kernel


def _groups(ctx: NodeContext, channels: int, weight_channels: int) -> int:
    groups: int = ctx.integer("group", 1)
    if groups < 1 or channels % groups or weight_channels % groups:
        raise ModelError(
            f"group={groups} must divide the {channels} input channels and the "
            f"{weight_channels} of the weight's first axis"
        )
    return groups


# --- Translator of DeformConv: a convolution that reads between elements, at run-time offsets -


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
