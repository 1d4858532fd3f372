"""Translators of quantized com.microsoft operators.

Most of them dequantize their inputs, compute with real numbers, and quantize the result, so it is
rounded once. Each scale is followed by its zero point. Formulas: ONNX Runtime's documentation of
its contributed operators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from onnx import TensorProto

from scheduler.errors import ModelError
from scheduler.ir import dtype as dt
from scheduler.onnx_import.context import NodeContext, Value, normal_axis
from scheduler.onnx_import.layers.pool import average_pool, max_pool
from scheduler.onnx_import.layers.quantize import Scheme, dynamic_scheme, qlinear_conv, scheme_at
from scheduler.onnx_import.layers.recurrent import (
    LSTM_ACTIVATIONS,
    Weights,
    directions,
    lstm_of,
    read_layer,
)
from scheduler.onnx_import.ops.activation import from_axis_on
from scheduler.tensor.tensor import Tensor

Translator = Callable[[NodeContext], Value]


def qlinear_binary(function: Callable[[Tensor, Tensor], Tensor]) -> Translator:
    """Return the translator of y = function(a, b); inputs: a, b (with scales), scale of y."""

    def translate(ctx: NodeContext) -> Value:
        a, b = _real(ctx, 0), _real(ctx, 3)
        return _stored(ctx, function(a, b), 6, ctx.tensor(0).dtype)

    return translate


def qlinear_unary(function: Callable[[Tensor], Tensor]) -> Translator:
    """Return the translator of y = function(x); inputs: x (with its scale), scale of y."""
    return lambda ctx: _stored(ctx, function(_real(ctx, 0)), 3, ctx.tensor(0).dtype)


def qlinear_concat(ctx: NodeContext) -> Value:
    """Translate QLinearConcat; inputs: scale of the result, then each part with its scale."""
    parts = [_real(ctx, i) for i in range(2, ctx.count, 3)]
    axis = normal_axis(ctx.integer("axis", 0), parts[0].ndim)
    return _stored(ctx, Tensor.cat(parts, axis=axis), 0, ctx.tensor(2).dtype)


def qlinear_leaky_relu(ctx: NodeContext) -> Value:
    """Translate QLinearLeakyRelu: alpha x below 0."""
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
    y = average_pool(replace(ctx, inputs=(_channels_second(x) if last else x,)))
    return _stored(ctx, _channels_last(y) if last else y, 3, ctx.tensor(0).dtype)


def qlinear_conv_any_layout(ctx: NodeContext) -> Value:
    """Translate QLinearConv as in ONNX; with channels_last=1 the channels of x and y are last."""
    if not ctx.integer("channels_last", 0):
        return qlinear_conv(ctx)
    y = qlinear_conv(replace(ctx, inputs=(_channels_second(ctx.tensor(0)), *ctx.inputs[1:])))
    return _channels_last(y)


def nhwc_max_pool(ctx: NodeContext) -> Value:
    """Translate NhwcMaxPool: MaxPool of integers with the channels last."""
    if ctx.outputs > 1:
        raise ModelError(f"it has one output, found {ctx.outputs}")
    y = max_pool(replace(ctx, inputs=(_channels_second(ctx.tensor(0)),)))
    assert isinstance(y, Tensor)
    return _channels_last(y)


def qlinear_where(ctx: NodeContext) -> Value:
    """Translate QLinearWhere; inputs: condition, x, y (with scales), scale of the result."""
    chosen = ctx.tensor(0).bool().where(_real(ctx, 1), _real(ctx, 4))
    return _stored(ctx, chosen, 7, ctx.tensor(1).dtype)


def qlinear_softmax(ctx: NodeContext) -> Value:
    """Translate QLinearSoftmax: along `axis`, or over all axes from `axis` before `opset` 13."""
    x, axis = _real(ctx, 0), ctx.integer("axis", -1)
    if ctx.integer("opset", 13) >= 13:
        y = x.softmax(normal_axis(axis, x.ndim))
    else:
        y = from_axis_on(x, axis, Tensor.softmax)
    return _stored(ctx, y, 3, ctx.tensor(0).dtype)


def qgemm(ctx: NodeContext) -> Value:
    """Translate QGemm: alpha A' B' + C of quantized matrices.

    C is int32 and has the scale of the product. B can have a scale per column. Without an output
    scale the result is float32.
    """
    a, b = ctx.tensor(0), ctx.tensor(3)
    a = a.transpose() if ctx.integer("transA", 0) else a
    b = b.transpose() if ctx.integer("transB", 0) else b
    left, right = _scheme(ctx, 1), scheme_at(ctx, 4, 5)
    total = left.centred(a).matmul(right.centred(b))
    if ctx.has(6):
        total = total + ctx.tensor(6)
    real = total.cast(dt.float32) * (left.scale * right.scale * ctx.number("alpha", 1.0))
    return _stored(ctx, real, 7, ctx.tensor(0).dtype) if ctx.has(7) else real


def _scheme(ctx: NodeContext, index: int) -> Scheme:
    """Return the scheme with the scale at input `index` and the zero point after it."""
    zero = ctx.tensor(index + 1).reshape(()) if ctx.has(index + 1) else None
    return Scheme(ctx.tensor(index).reshape(()), zero)


def _channels_second(x: Tensor) -> Tensor:
    return x.permute((0, x.ndim - 1, *range(1, x.ndim - 1)))


def _channels_last(x: Tensor) -> Tensor:
    return x.permute((0, *range(2, x.ndim), 1))


def _real(ctx: NodeContext, index: int) -> Tensor:
    return _scheme(ctx, index + 1).dequantize(ctx.tensor(index))


def _stored(ctx: NodeContext, x: Tensor, index: int, target: dt.DType) -> Tensor:
    whole = _scheme(ctx, index).whole(x)
    return whole.clip(float(dt.min_value(target)), float(dt.max_value(target))).cast(target)


# --- DynamicQuantizeLSTM of com.microsoft: an LSTM with integer products ----------------------
# Inputs and hidden state are quantized to uint8 by their own range. All steps of the inputs share
# one scale; the hidden state has a new scale per step and direction. The whole batch shares a
# scale, while ONNX Runtime splits large batches among its threads.


@dataclass(frozen=True, slots=True)
class _Matrices:
    """Quantized matrices (D, K, M) with scales and zero points per direction or per column."""

    values: Tensor
    scheme: Scheme

    def columns(self, start: int, count: int) -> _Matrices:
        """Return `count` columns from `start` on."""
        part = slice(start, start + count)
        scale, zero = self.scheme.scale, self.scheme.zero_point
        if scale.shape[2] > 1:
            scale = scale[:, :, part]
        if zero is not None and zero.shape[2] > 1:
            zero = zero[:, :, part]
        return _Matrices(self.values[:, :, part], Scheme(scale, zero))

    def times(self, x: Tensor) -> Tensor:
        """Return x (D or 1, N, K), quantized with a scale per index of axis 0, times this."""
        scheme = dynamic_scheme(x, (1, 2))
        whole = scheme.centred(scheme.quantize(x, TensorProto.UINT8))
        total = whole.matmul(self.scheme.centred(self.values))
        return total.cast(dt.float32) * (scheme.scale * self.scheme.scale)


def dynamic_quantize_lstm(ctx: NodeContext) -> Sequence[Value]:
    """Translate DynamicQuantizeLSTM: W (D, I, 4H) and R (D, H, 4H) with scales and zero points."""
    size, hidden = ctx.tensor(0).shape[2], ctx.tensor(2).shape[1]
    w, r = _matrices(ctx, 1, (size, 4 * hidden)), _matrices(ctx, 2, (hidden, 4 * hidden))
    gates: list[Callable[[Tensor], Tensor]] = [
        r.columns(i * hidden, hidden).times for i in range(4)
    ]
    return lstm_of(read_layer(ctx, 4, LSTM_ACTIVATIONS, Weights(hidden, w.times, gates)))


def _matrices(ctx: NodeContext, index: int, shape: tuple[int, int]) -> _Matrices:
    """Return W (index 1) or R (index 2) with its scale and zero point, inputs 8 to 11."""
    values, count = ctx.tensor(index), len(directions(ctx))
    name = "_WR"[index]
    if values.shape != (count, *shape):
        raise ModelError(f"expected {name} of shape {(count, *shape)}, found {values.shape}")
    parts = []
    for at, what in ((6 + 2 * index, "scale"), (7 + 2 * index, "zero point")):
        given = ctx.tensor(at)
        if given.shape not in ((count,), (count, shape[1])):
            raise ModelError(
                f"expected {name}'s {what} of shape {(count,)} or {(count, shape[1])}, "
                f"found {given.shape}"
            )
        parts.append(given.reshape((count, 1, -1)))
    return _Matrices(values, Scheme(parts[0], parts[1]))
