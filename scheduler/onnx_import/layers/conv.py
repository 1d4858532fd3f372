"""Translators of Conv, ConvTranspose, DeformConv and CausalConvWithState.

There can be any number of spatial axes. `read_window` turns the window attributes (pads, auto_pad,
strides, ...) of convolution and pooling into explicit widths.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scheduler.errors import ModelError
from scheduler.ir import dtype as dt
from scheduler.onnx_import.context import NodeContext, Value
from scheduler.onnx_import.layers.sampling import linear_taps, sampled
from scheduler.tensor.tensor import Tensor

Pairs = tuple[tuple[int, int], ...]


def conv(ctx: NodeContext) -> Tensor:
    """Translate Conv: x (N, C, spatial...), weight (M, C/group, kernel...), optional bias (M,)."""
    return conv_of(ctx, ctx.tensor(0), ctx.tensor(1), ctx.tensor(2) if ctx.has(2) else None)


def conv_of(ctx: NodeContext, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return the convolution of x, weight and bias with the attributes of a node."""
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

    Each output depends on its element and the k-1 before it. The second result is the new state.
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
    # Sizes of the result before padding is cut off.
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
        if total < 0:  # the target is larger: add zeros at the end
            pairs.append((0, total))
            continue
        # An odd element is cut off after (UPPER) or before (LOWER), as in ConvTranspose-11 and
        # later; ConvTranspose-1 swaps them.
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


def deform_conv(ctx: NodeContext) -> Value:
    """Translate DeformConv (opset 19 on), which reads between elements, at run-time offsets.

    The samples of all taps are stored as (N, C, taps, out...); a 1x1 convolution follows.
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
    """Return the positions of taps along axis i without offsets, (1, kernel..., out...)."""
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


# --- Windows of convolution and pooling, with explicit widths ---------------------------------


@dataclass(frozen=True, slots=True)
class Window:
    """Attributes of a windowed operator, one entry per spatial axis."""

    kernel: tuple[int, ...]  # elements of a window
    strides: tuple[int, ...]  # steps between windows
    dilations: tuple[int, ...]  # steps between the elements of a window
    pads: Pairs  # (before, after) widths of padding
    ceil_extra: tuple[int, ...]  # padding after, added by ceil_mode for a partial last window

    @property
    def padding(self) -> Pairs:
        """The (before, after) widths of padding, including those of ceil_mode."""
        return tuple((b, e + x) for (b, e), x in zip(self.pads, self.ceil_extra, strict=True))


def read_window(ctx: NodeContext, spatial: Sequence[int], kernel: Sequence[int]) -> Window:
    """Return the window of a node from strides, dilations, pads, auto_pad and ceil_mode.

    `spatial` are the sizes of the spatial axes, `kernel` those of the window.
    """
    rank = len(spatial)
    if len(kernel) != rank:
        raise ModelError(f"kernel_shape {list(kernel)} does not fit {rank} spatial axes")
    strides = per_axis(ctx, "strides", rank)
    dilations = per_axis(ctx, "dilations", rank)
    pads = _pads(ctx, spatial, kernel, strides, dilations)
    extra = []
    for i in range(rank):
        reach = dilations[i] * (kernel[i] - 1) + 1
        padded = spatial[i] + sum(pads[i])
        if padded < reach:
            raise ModelError(
                f"the kernel reaches over {reach} elements, but spatial axis {i} with its padding "
                f"has {padded}"
            )
        extra.append(
            _ceil_extra(padded, reach, strides[i], spatial[i] + pads[i][0])
            if ctx.integer("ceil_mode", 0)
            else 0
        )
    return Window(tuple(kernel), strides, dilations, pads, tuple(extra))


def per_axis(ctx: NodeContext, name: str, rank: int, default: int = 1) -> tuple[int, ...]:
    """Return a per-axis attribute, or `default` for every axis if it is missing."""
    values = ctx.ints_attribute(name)
    if values is None:
        return (default,) * rank
    if len(values) != rank or any(v < default for v in values):
        raise ModelError(f"{name} {values} does not fit {rank} spatial axes")
    return tuple(values)


def explicit_pads(ctx: NodeContext, rank: int) -> Pairs:
    """Return the `pads` attribute as (before, after) per axis, zeros if it is missing."""
    values = ctx.ints_attribute("pads") or [0] * (2 * rank)
    if len(values) != 2 * rank:
        raise ModelError(f"pads {values} does not fit {rank} spatial axes")
    return tuple(zip(values[:rank], values[rank:], strict=True))


def auto_pad(ctx: NodeContext) -> str:
    """Return the auto_pad attribute; raise ModelError if it is unknown."""
    mode: str = ctx.text("auto_pad", "NOTSET")
    if mode not in ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"):
        raise ModelError(
            f"auto_pad must be NOTSET, SAME_UPPER, SAME_LOWER or VALID, found {mode!r}"
        )
    return mode


def _pads(
    ctx: NodeContext,
    spatial: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> Pairs:
    mode = auto_pad(ctx)
    if mode == "NOTSET":
        return explicit_pads(ctx, len(spatial))
    if mode == "VALID":
        return ((0, 0),) * len(spatial)
    pairs = []
    for size, k, stride, dilation in zip(spatial, kernel, strides, dilations, strict=True):
        # SAME: one output per strided input. An odd element of padding is put after (UPPER) or
        # before (LOWER).
        count = -(-size // stride)
        total = max(0, (count - 1) * stride + dilation * (k - 1) + 1 - size)
        small, large = total // 2, total - total // 2
        pairs.append((small, large) if mode == "SAME_UPPER" else (large, small))
    return tuple(pairs)


def _ceil_extra(padded: int, reach: int, stride: int, data_end: int) -> int:
    """Return how far the last window of ceil_mode extends beyond the padded input.

    `padded` is the padded size, `reach` the extent of a window, and `data_end` the size with the
    padding before the data only.
    """
    count = -(-(padded - reach) // stride) + 1
    # A window that starts in the padding after the data is left out.
    if (count - 1) * stride >= data_end:
        count -= 1
    return max(0, (count - 1) * stride + reach - padded)
