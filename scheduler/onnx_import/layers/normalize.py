"""Translators of normalization layers and losses. Formulas: ONNX operator documentation.

Means and variances of fp16 inputs are always computed in float32, regardless of `stash_type`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from scheduler.errors import ModelError
from scheduler.ir import dtype as dt
from scheduler.onnx_import.context import NodeContext, Value, normal_axes, normal_axis
from scheduler.tensor.tensor import Tensor

# ONNX element type in `stash_type` -> type of the returned statistics.
_STASH_TYPES = {1: dt.float32, 10: dt.float16, 11: dt.float64}


def wide(x: Tensor) -> Tensor:
    """Return x in float32 or wider, because sums in fp16 are inaccurate."""
    return x.cast(dt.promote(x.dtype, dt.float32))


def batch_normalization(ctx: NodeContext) -> Sequence[Value]:
    """Translate BatchNormalization of x (N, C, ...) or (N,).

    With training_mode=1 (opset 14 on), x is normalized by its own mean and biased variance, and the
    running statistics, momentum * given + (1 - momentum) * own, are returned too. Training mode
    before opset 14 and statistics per position (spatial=0) are not supported.
    """
    training = bool(ctx.integer("training_mode", 0))
    # Before opset 14, more than one output means training mode.
    if not training and ctx.outputs > 1:
        raise ModelError(
            f"expected one output, found {ctx.outputs}: training mode is not supported before "
            "opset 14; export for inference"
        )
    if not ctx.integer("spatial", 1):
        raise ModelError("spatial=0 is not supported; export with opset 9 or newer")
    given = ctx.tensor(0)
    x = wide(given if given.ndim > 1 else given.unsqueeze(1))
    scale, bias, mean, variance = (ctx.tensor(i) for i in range(1, 5))
    epsilon = ctx.number("epsilon", 1e-5)
    if not training:
        statistics = (wide(mean), wide(variance))
        y = x.batchnorm(wide(scale), wide(bias), *statistics, epsilon)
        return [y.as_type(given.dtype).reshape(given.shape)]
    others = (0, *range(2, x.ndim))
    own_mean = x.mean(others)
    own_variance = x.var(others, correction=0)
    y = x.batchnorm(wide(scale), wide(bias), own_mean, own_variance, epsilon)
    keep = ctx.number("momentum", 0.9)
    running = [
        (wide(old) * keep + own * (1.0 - keep)).as_type(old.dtype)
        for old, own in ((mean, own_mean), (variance, own_variance))
    ]
    return [y.as_type(given.dtype).reshape(given.shape), *running][: max(1, ctx.outputs)]


def layer_normalization(ctx: NodeContext) -> Sequence[Value]:
    """Translate LayerNormalization over all axes from `axis`; also mean and 1/std if requested."""
    x = ctx.tensor(0)
    axes = _axes_from(ctx, x)
    bias = ctx.tensor(2) if ctx.has(2) else None
    results = layer_norm(x, axes, ctx.number("epsilon", 1e-5), ctx.tensor(1), bias)
    stash = stash_type(ctx)
    return [results[0], *(value.as_type(stash) for value in results[1:])][: max(1, ctx.outputs)]


def layer_norm(
    x: Tensor, axes: Sequence[int], epsilon: float, scale: Tensor, bias: Tensor | None = None
) -> list[Tensor]:
    """Return (x - mean)/sqrt(var + epsilon)*scale + bias in the type of x, mean, and 1/std.

    Mean and variance are over `axes`, which stay with size 1.
    """
    values = wide(x)
    mean = values.mean(axes, keepdim=True)
    centred = values - mean
    inverse = (centred.square().mean(axes, keepdim=True) + epsilon).rsqrt()
    y = centred * inverse * wide(scale)
    y = y if bias is None else y + wide(bias)
    return [_fits(y, x).as_type(x.dtype), mean, inverse]


def rms_normalization(ctx: NodeContext) -> Value:
    """Translate RMSNormalization: x/sqrt(mean(x^2) + epsilon)*scale over all axes from `axis`."""
    x = ctx.tensor(0)
    stash_type(ctx)
    return rms_norm(x, _axes_from(ctx, x), ctx.number("epsilon", 1e-5), ctx.tensor(1))[0]


def rms_norm(
    x: Tensor, axes: Sequence[int], epsilon: float, scale: Tensor, bias: Tensor | None = None
) -> list[Tensor]:
    """Return x/sqrt(mean(x^2) + epsilon)*scale + bias in the type of x, and 1/sqrt(...)."""
    values = wide(x)
    inverse = (values.square().mean(axes, keepdim=True) + epsilon).rsqrt()
    y = values * inverse * wide(scale)
    y = y if bias is None else y + wide(bias)
    return [_fits(y, x).as_type(x.dtype), inverse]


def group_normalization(ctx: NodeContext) -> Value:
    """Translate GroupNormalization of x (N, C, ...): each group of channels of each image.

    Scale and bias are per group in opset 18, and per channel from opset 21 on.
    """
    x = ctx.tensor(0)
    groups, channels = ctx.integer("num_groups", 0), x.shape[1]
    if groups < 1 or channels % groups:
        raise ModelError(f"num_groups={groups} must divide the {channels} channels")
    stash_type(ctx)
    per_group = channels // groups if ctx.opset >= 21 else 1
    grouped = x.reshape((x.shape[0], groups, channels // groups, math.prod(x.shape[2:])))
    shape = (1, groups, per_group, 1)
    scale, bias = (ctx.tensor(i) for i in (1, 2))
    if scale.size != groups * per_group or bias.size != groups * per_group:
        raise ModelError(
            f"expected scale and bias of {groups * per_group} elements in opset {ctx.opset}, "
            f"found shapes {list(scale.shape)} and {list(bias.shape)}"
        )
    epsilon = ctx.number("epsilon", 1e-5)
    y = layer_norm(grouped, (2, 3), epsilon, scale.reshape(shape), bias.reshape(shape))[0]
    return y.reshape(x.shape)


def instance_normalization(ctx: NodeContext) -> Value:
    """Translate InstanceNormalization: over the spatial axes of each channel of each image."""
    x = ctx.tensor(0)
    shape = (1, -1) + (1,) * (x.ndim - 2)
    scale, bias = (ctx.tensor(i).reshape(shape) for i in (1, 2))
    return layer_norm(x, tuple(range(2, x.ndim)), ctx.number("epsilon", 1e-5), scale, bias)[0]


def lp_normalization(ctx: NodeContext) -> Value:
    """Translate LpNormalization: x / |x|_p along one axis, or 0 if the norm is 0."""
    x = ctx.tensor(0)
    axis, power = normal_axis(ctx.integer("axis", -1), x.ndim), ctx.integer("p", 2)
    values = wide(x)
    if power == 1:
        norm = values.abs().sum(axis, keepdim=True)
    elif power == 2:
        norm = values.square().sum(axis, keepdim=True).sqrt()
    else:
        raise ModelError(f"p must be 1 or 2, found {power}")
    return (values / norm.eq(0.0).where(1.0, norm)).as_type(x.dtype)


def mean_variance_normalization(ctx: NodeContext) -> Value:
    """Translate MeanVarianceNormalization: (x - mean)/(std + 1e-9); axes 0, 2, 3 by default."""
    x = ctx.tensor(0)
    given = ctx.ints_attribute("axes")
    axes = normal_axes([0, 2, 3] if given is None else given, x.ndim)
    values = wide(x)
    centred = values - values.mean(axes, keepdim=True)
    deviation = centred.square().mean(axes, keepdim=True).sqrt()
    # MeanVarianceNormalization-13 adds 1e-9 to the deviation, not to the variance.
    return (centred / (deviation + 1e-9)).as_type(x.dtype)


def stash_type(ctx: NodeContext) -> dt.DType:
    """Return the type in attribute `stash_type`."""
    code = ctx.integer("stash_type", 1)
    if code not in _STASH_TYPES:
        raise ModelError(f"stash_type must be one of {sorted(_STASH_TYPES)}, found {code}")
    return _STASH_TYPES[code]


def _axes_from(ctx: NodeContext, x: Tensor) -> tuple[int, ...]:
    return tuple(range(normal_axis(ctx.integer("axis", -1), x.ndim), x.ndim))


def _fits(y: Tensor, x: Tensor) -> Tensor:
    """Return y; raise ModelError if broadcasting with scale or bias made it larger than x."""
    if y.shape != x.shape:
        raise ModelError(
            f"scale and bias must broadcast to the input's shape {list(x.shape)}, "
            f"but give {list(y.shape)}"
        )
    return y


# --- Classification losses --------------------------------------------------------------------


def negative_log_likelihood(ctx: NodeContext) -> Value:
    """Translate NegativeLogLikelihoodLoss of log-probabilities (N, C, d...)."""
    return _loss(ctx, ctx.tensor(0))


def softmax_cross_entropy(ctx: NodeContext) -> list[Value]:
    """Translate SoftmaxCrossEntropyLoss; the second output is the log-probabilities."""
    x = ctx.tensor(0)
    logarithms = x.log_softmax(1)
    results: list[Value] = [_loss(ctx, logarithms), logarithms]
    return results[: max(1, ctx.outputs)]


def _loss(ctx: NodeContext, scores: Tensor) -> Tensor:
    """Return the loss of log-probabilities `scores` and targets (N, d...), reduced as requested.

    A target outside the classes has a loss of 0. Its weight is 1, or 0 if there are class weights.
    """
    target = ctx.tensor(1)
    reduction = ctx.text("reduction", "mean")
    if reduction not in ("none", "sum", "mean"):
        raise ModelError(f"reduction must be none, sum or mean, found {reduction!r}")
    if scores.ndim < 2 or target.shape != (scores.shape[0], *scores.shape[2:]):
        raise ModelError(
            f"expected scores (N, C, d...) and targets (N, d...), found {scores.shape} and "
            f"{target.shape}"
        )
    classes = (1, scores.shape[1], *[1] * (scores.ndim - 2))
    chosen = Tensor.arange(scores.shape[1]).cast(target.dtype).reshape(classes)
    chosen = target.unsqueeze(1).eq(chosen)
    ignored = ctx.attribute("ignore_index")
    loss = -chosen.where(scores, 0.0).sum(1)
    weight = Tensor(1.0, scores.dtype)
    if ctx.has(2):
        weight = chosen.where(ctx.tensor(2).reshape(classes), 0.0).sum(1)
        loss = loss * weight
    if ignored is not None:
        left_out = target.eq(int(ignored))
        loss = left_out.where(0.0, loss)
        weight = left_out.where(0.0, weight)
    if reduction == "none":
        return loss
    total = loss.sum()
    if reduction == "sum":
        return total
    count = math.prod(target.shape)
    return total / weight.broadcast_to(target.shape).sum() if weight.ndim else total / float(count)
