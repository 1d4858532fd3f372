"""Convolution and its transpose, any number of spatial axes."""

from __future__ import annotations

from scheduler.errors import ModelError
from scheduler.onnx_import.context import NodeContext, Value
from scheduler.onnx_import.windows import Pairs, auto_pad, explicit_pads, per_axis, read_window


def conv(ctx: NodeContext) -> Value:
    """Translate Conv: (N, C, spatial...), weight (M, C/group, kernel...), optional bias (M,)."""
    x, weight = ctx.tensor(0), ctx.tensor(1)
    groups = _groups(ctx, x.shape[1], weight.shape[0])
    window = read_window(ctx, x.shape[2:], _kernel(ctx, weight.shape))
    return x.conv2d(
        weight,
        ctx.tensor(2) if ctx.has(2) else None,
        stride=window.strides,
        padding=window.pads,
        dilation=window.dilations,
        groups=groups,
    )


def conv_transpose(ctx: NodeContext) -> Value:
    """Translate ConvTranspose: weight (C, M/group, kernel...), optional bias (M,)."""
    x, weight = ctx.tensor(0), ctx.tensor(1)
    groups = _groups(ctx, x.shape[1], weight.shape[0])
    kernel = _kernel(ctx, weight.shape)
    rank = len(kernel)
    strides, dilations = per_axis(ctx, "strides", rank), per_axis(ctx, "dilations", rank)
    output_padding = per_axis(ctx, "output_padding", rank, default=0)
    # Size of the result without any padding; what is asked for below that is cut off.
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
