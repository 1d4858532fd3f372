"""Normalisation layers."""

from __future__ import annotations

from scheduler.errors import ModelError
from scheduler.onnx_import.context import NodeContext, Value, normal_axis


def batch_normalization(ctx: NodeContext) -> Value:
    """Translate BatchNormalization at inference: the given statistics, channels on axis 1.

    Raises:
        ModelError: the node asks for training mode or for statistics per position.
    """
    # Before opset 14 training mode was told by asking for the other outputs.
    if ctx.integer("training_mode", 0) or ctx.outputs > 1:
        raise ModelError("training mode is not supported; export for inference")
    if not ctx.integer("spatial", 1):
        raise ModelError("spatial=0 is not supported; export with opset 9 or newer")
    scale, bias, mean, variance = (ctx.tensor(i) for i in range(1, 5))
    return ctx.tensor(0).batchnorm(scale, bias, mean, variance, ctx.number("epsilon", 1e-5))


def layer_normalization(ctx: NodeContext) -> list[Value]:
    """Translate LayerNormalization: all axes from `axis` on; also mean and 1/std if asked for."""
    x = ctx.tensor(0)
    first = normal_axis(ctx.integer("axis", -1), x.ndim)
    axes = tuple(range(first, x.ndim))
    epsilon = ctx.number("epsilon", 1e-5)
    y = x.layernorm(axes, epsilon) * ctx.tensor(1)
    results: list[Value] = [y + ctx.tensor(2) if ctx.has(2) else y]
    if ctx.outputs > 1:
        mean = x.mean(axes, keepdim=True)
        variance = (x - mean).square().mean(axes, keepdim=True)
        results += [mean, (variance + epsilon).rsqrt()]
    return results[: ctx.outputs]


def instance_normalization(ctx: NodeContext) -> Value:
    """Translate InstanceNormalization: each channel of each image over its spatial axes."""
    x = ctx.tensor(0)
    shape = (1, -1) + (1,) * (x.ndim - 2)
    y = x.layernorm(tuple(range(2, x.ndim)), ctx.number("epsilon", 1e-5))
    return y * ctx.tensor(1).reshape(shape) + ctx.tensor(2).reshape(shape)
