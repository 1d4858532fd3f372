"""Quantised operators of com.microsoft: each is what it is between real numbers, rounded once.

Formulas: ONNX Runtime's documentation of its contributed operators.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from scheduler import dtype as dt
from scheduler.onnx_import.context import NodeContext, Value, normal_axis
from scheduler.onnx_import.ops.pool import average_pool
from scheduler.onnx_import.ops.quantize import Scheme
from scheduler.tensor import Tensor

Translator = Callable[[NodeContext], Value]


def qlinear_binary(function: Callable[[Tensor, Tensor], Tensor]) -> Translator:
    """Return the translator of (a, scale, zero, b, scale, zero, scale, zero) -> function(a, b)."""

    def translate(ctx: NodeContext) -> Value:
        a, b = _real(ctx, 0), _real(ctx, 3)
        return _stored(ctx, function(a, b), 6, ctx.tensor(0).dtype)

    return translate


def qlinear_unary(function: Callable[[Tensor], Tensor]) -> Translator:
    """Return the translator of (x, scale, zero, scale, zero) -> function(x)."""
    return lambda ctx: _stored(ctx, function(_real(ctx, 0)), 3, ctx.tensor(0).dtype)


def qlinear_concat(ctx: NodeContext) -> Value:
    """Translate QLinearConcat: scale, zero, then (x, scale, zero) of each part."""
    parts = [_real(ctx, i) for i in range(2, ctx.count, 3)]
    axis = normal_axis(ctx.integer("axis", 0), parts[0].ndim)
    return _stored(ctx, Tensor.cat(parts, axis=axis), 0, ctx.tensor(2).dtype)


def qlinear_leaky_relu(ctx: NodeContext) -> Value:
    """Translate QLinearLeakyRelu."""
    x, alpha = _real(ctx, 0), ctx.number("alpha", 0.01)
    return _stored(ctx, (x < 0).where(x * alpha, x), 3, ctx.tensor(0).dtype)


def qlinear_global_average_pool(ctx: NodeContext) -> Value:
    """Translate QLinearGlobalAveragePool: channels on axis 1, or last with channels_last=1."""
    x = _real(ctx, 0)
    first = 1 if ctx.integer("channels_last", 0) else 2
    axes = tuple(range(first, first + x.ndim - 2))
    return _stored(ctx, x.mean(axes, keepdim=True), 3, ctx.tensor(0).dtype)


def qlinear_average_pool(ctx: NodeContext) -> Value:
    """Translate QLinearAveragePool: channels on axis 1, or last with channels_last=1."""
    x = _real(ctx, 0)
    last = bool(ctx.integer("channels_last", 0))
    if last:
        x = x.permute((0, x.ndim - 1, *range(1, x.ndim - 1)))
    y = average_pool(replace(ctx, inputs=(x,)))
    assert isinstance(y, Tensor)
    if last:
        y = y.permute((0, *range(2, y.ndim), 1))
    return _stored(ctx, y, 3, ctx.tensor(0).dtype)


def _scheme(ctx: NodeContext, index: int) -> Scheme:
    """Return what the scale and the zero point at inputs `index` and `index` + 1 say."""
    zero = ctx.tensor(index + 1).reshape(()) if ctx.has(index + 1) else None
    return Scheme(ctx.tensor(index).reshape(()), zero)


def _real(ctx: NodeContext, index: int) -> Tensor:
    return _scheme(ctx, index + 1).dequantize(ctx.tensor(index))


def _stored(ctx: NodeContext, x: Tensor, index: int, target: dt.DType) -> Tensor:
    whole = _scheme(ctx, index).whole(x)
    return whole.clip(float(dt.min_value(target)), float(dt.max_value(target))).cast(target)
