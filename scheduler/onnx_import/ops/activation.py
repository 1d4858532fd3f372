"""Translators of activations with parameters. Formulas, defaults: ONNX operator documentation."""

from __future__ import annotations

import math
from collections.abc import Callable

from scheduler.errors import ModelError
from scheduler.onnx_import.context import NodeContext, Value, normal_axis
from scheduler.onnx_import.ops.trigonometry import log1p_unit
from scheduler.tensor.tensor import Tensor


def softplus(x: Tensor) -> Tensor:
    """Return log(1 + exp(x)); exp never overflows, and what is far below 0 keeps its digits."""
    return x.maximum(0) + log1p_unit((-x.abs()).exp())


def softsign(x: Tensor) -> Tensor:
    """Return x / (1 + |x|)."""
    return x / (x.abs() + 1.0)


def mish(x: Tensor) -> Tensor:
    """Return x tanh(softplus(x))."""
    return x * softplus(x).tanh()


def hard_swish(x: Tensor) -> Tensor:
    """Return x clip(x/6 + 1/2, 0, 1)."""
    return x * (x * (1.0 / 6.0) + 0.5).clip(0.0, 1.0)


def hard_sigmoid(ctx: NodeContext) -> Value:
    """Translate HardSigmoid: clip(alpha x + beta, 0, 1)."""
    alpha, beta = ctx.number("alpha", 0.2), ctx.number("beta", 0.5)
    return (ctx.tensor(0) * alpha + beta).clip(0.0, 1.0)


def leaky_relu(ctx: NodeContext) -> Value:
    """Translate LeakyRelu: alpha x below 0."""
    x = ctx.tensor(0)
    return (x < 0).where(x * ctx.number("alpha", 0.01), x)


def prelu(ctx: NodeContext) -> Value:
    """Translate PRelu: slope x below 0; the slope broadcasts to x only.

    A slope (C,) that does not broadcast, as old exporters write it, goes with the channels, axis 1.
    """
    x, slope = ctx.tensor(0), ctx.tensor(1)
    if x.ndim > 2 and slope.ndim == 1 and slope.shape[0] not in (1, x.shape[-1]):
        slope = slope.reshape((-1, *[1] * (x.ndim - 2)))
    return (x < 0).where(x * slope.broadcast_to(x.shape), x)


def elu(ctx: NodeContext) -> Value:
    """Translate Elu: alpha (exp(x) - 1) below 0."""
    return ctx.tensor(0).elu(ctx.number("alpha", 1.0))


def selu(ctx: NodeContext) -> Value:
    """Translate Selu: gamma Elu(x); the defaults are the documented ones."""
    alpha = ctx.number("alpha", 1.67326319217681884765625)
    gamma = ctx.number("gamma", 1.05070102214813232421875)
    return ctx.tensor(0).elu(alpha) * gamma


def celu(ctx: NodeContext) -> Value:
    """Translate Celu: max(0, x) + min(0, alpha (exp(x/alpha) - 1))."""
    x, alpha = ctx.tensor(0), ctx.number("alpha", 1.0)
    return x.maximum(0) + ((x.minimum(0) / alpha).exp() - 1.0) * alpha


def gelu(ctx: NodeContext) -> Value:
    """Translate Gelu (opset 20): exact by default, or the tanh formula."""
    kind = ctx.text("approximate", "none")
    if kind not in ("none", "tanh"):
        raise ModelError(f"approximate must be none or tanh, found {kind!r}")
    return ctx.tensor(0).gelu(kind)


def softmax(ctx: NodeContext) -> Value:
    """Translate Softmax and LogSoftmax."""
    function = Tensor.log_softmax if ctx.node.op_type == "LogSoftmax" else Tensor.softmax
    return along_axis(ctx, function)


def along_axis(ctx: NodeContext, function: Callable[[Tensor, int], Tensor]) -> Tensor:
    """Return function(x, axis), with the meaning that the node's opset gives `axis`.

    Before opset 13 all axes from `axis` on count as one (default 1); from it on, `axis` is the only
    one (default -1).
    """
    x = ctx.tensor(0)
    if ctx.opset >= 13:
        return function(x, normal_axis(ctx.integer("axis", -1), x.ndim))
    return from_axis_on(x, ctx.integer("axis", 1), function)


def from_axis_on(x: Tensor, axis: int, function: Callable[[Tensor, int], Tensor]) -> Tensor:
    """Return function(matrix, 1) of x as a matrix, whose rows are all axes from `axis` on."""
    axis = x.ndim if axis == x.ndim else normal_axis(axis, x.ndim)
    flat = x.reshape((math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))
    return function(flat, 1).reshape(x.shape)
