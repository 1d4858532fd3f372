"""Translators of quantised numbers: conversions, and products of integers.

    q = saturate(round(x / scale) + zero_point)        x = (q - zero_point) * scale

Scales and zero points are one for all, one for each index of an axis, or one for each block of an
axis. Formulas: ONNX operator documentation.
"""

from __future__ import annotations

from dataclasses import dataclass

from onnx import TensorProto

from scheduler.errors import ModelError
from scheduler.ir import dtype as dt
from scheduler.onnx_import.context import NodeContext, Value, normal_axis
from scheduler.onnx_import.element_types import carried, graph_dtype
from scheduler.onnx_import.ops.casts import cast_to
from scheduler.onnx_import.ops.conv import conv_of
from scheduler.tensor.tensor import Tensor


@dataclass(frozen=True, slots=True)
class Scheme:
    """The meaning of quantised numbers.

    Attributes:
        scale: float32, broadcasts with the numbers.
        zero_point: int32 or float32, broadcasts as well; None for 0.
    """

    scale: Tensor
    zero_point: Tensor | None

    def quantize(self, x: Tensor, code: int) -> Tensor:
        """Return round(x / scale) + zero_point, limited to an ONNX integer type."""
        return limited(self.whole(x), code)

    def whole(self, x: Tensor) -> Tensor:
        """Return round(x / scale) + zero_point, not limited yet."""
        steps = (x / self.scale).round()
        return steps if self.zero_point is None else steps + self.zero_point.cast(steps.dtype)

    def dequantize(self, q: Tensor) -> Tensor:
        """Return (q - zero_point) * scale."""
        return self.centred(q).as_type(self.scale.dtype) * self.scale

    def centred(self, q: Tensor) -> Tensor:
        """Return q - zero_point, integers as int32."""
        wide = q if q.dtype.is_float else q.cast(dt.int32)
        return wide if self.zero_point is None else wide - self.zero_point.cast(wide.dtype)


def scheme_at(ctx: NodeContext, scale: int, zero_point: int) -> Scheme:
    """Return the scheme in two inputs, of which the zero point may be left out."""
    return Scheme(ctx.tensor(scale), ctx.tensor(zero_point) if ctx.has(zero_point) else None)


def real_product(left: Scheme, a: Tensor, right: Scheme, b: Tensor) -> Tensor:
    """Return the product of quantised matrices as float32, summed in integers."""
    total = left.centred(a).matmul(right.centred(b))
    return total.cast(dt.float32) * (left.scale * right.scale)


def limited(whole: Tensor, code: int) -> Tensor:
    """Return whole numbers (float) limited to the range of an ONNX integer type, as that type."""
    kind = carried(code)
    if kind is not None:
        return kind.saturated(whole)
    target = graph_dtype(code)
    return whole.clip(float(dt.min_value(target)), float(dt.max_value(target))).cast(target)


def quantize_linear(ctx: NodeContext) -> Value:
    """Translate QuantizeLinear: to the zero point's type, `output_dtype`, or uint8."""
    x = ctx.tensor(0)
    if not x.dtype.is_float:
        x = x.cast(dt.float32)
    code = ctx.integer("output_dtype", 0)
    code = ctx.element_type(2) if ctx.has(2) else code or TensorProto.UINT8
    scheme = _scheme(ctx, x.shape, 1, 2)
    kind = carried(code)
    if kind is not None and kind.format is not None:
        return cast_to(ctx, x / scheme.scale, code)
    return scheme.quantize(x, code)


def dequantize_linear(ctx: NodeContext) -> Value:
    """Translate DequantizeLinear: to the scale's type, or `output_dtype`."""
    q = ctx.tensor(0)
    values = _scheme(ctx, q.shape, 1, 2).dequantize(q)
    code = ctx.integer("output_dtype", 0) or ctx.element_type(1)
    return cast_to(ctx, values, code)


def dynamic_quantize_linear(ctx: NodeContext) -> list[Value]:
    """Translate DynamicQuantizeLinear: uint8, with a scale and a zero point from the data."""
    scheme, quantized = dynamically_quantized(ctx.tensor(0))
    assert scheme.zero_point is not None
    return [quantized, scheme.scale, scheme.zero_point.cast(dt.uint8)]


def dynamically_quantized(x: Tensor) -> tuple[Scheme, Tensor]:
    """Return one scheme of uint8 for all of x, see `dynamic_scheme`, and x quantised by it."""
    found = dynamic_scheme(x, tuple(range(x.ndim)))
    assert found.zero_point is not None
    scheme = Scheme(found.scale.reshape(()), found.zero_point.reshape(()))
    return scheme, scheme.quantize(x, TensorProto.UINT8)


def dynamic_scheme(x: Tensor, axes: tuple[int, ...]) -> Scheme:
    """Return the scheme of uint8 whose range is that of x and 0, for each index of other axes.

    What shares a scale are `axes`, which stay with size 1. The zero point is a whole float.
    """
    high = x.max(axes, keepdim=True).maximum(0.0)
    low = x.min(axes, keepdim=True).minimum(0.0)
    scale = (high - low) / 255.0
    # Of zeros only the scale would be 0, and whoever divides by it get NaN: onnxruntime's is 1.
    scale = scale.eq(0.0).where(1.0, scale)
    return Scheme(scale, ((0.0 - low) / scale).clip(0.0, 255.0).round())


def matmul_integer(ctx: NodeContext) -> Value:
    """Translate MatMulInteger: (a - zero point) (b - zero point) as int32.

    The zero point of `a` may be one for each row, that of `b` one for each column.
    """
    a, b = ctx.tensor(0).cast(dt.int32), ctx.tensor(1).cast(dt.int32)
    if ctx.has(2):
        zero = ctx.tensor(2).cast(dt.int32)
        a = a - (zero.unsqueeze(-1) if zero.ndim else zero)
    if ctx.has(3):
        b = b - ctx.tensor(3).cast(dt.int32)
    return a.matmul(b)


def conv_integer(ctx: NodeContext) -> Value:
    """Translate ConvInteger: a convolution of (x - zero point) and (w - zero point) as int32."""
    x, weight = ctx.tensor(0).cast(dt.int32), ctx.tensor(1).cast(dt.int32)
    if ctx.has(2):
        x = x - ctx.tensor(2).cast(dt.int32).reshape(())
    if ctx.has(3):
        weight = weight - _along(ctx.tensor(3).cast(dt.int32), 0, weight.ndim)
    return conv_of(ctx, x, weight, None)


def qlinear_matmul(ctx: NodeContext) -> Value:
    """Translate QLinearMatMul: the product of quantised matrices, quantised again."""
    a, b = ctx.tensor(0), ctx.tensor(3)
    left = Scheme(_rows(ctx.tensor(1)), _rows(ctx.tensor(2)))
    right = Scheme(ctx.tensor(4), ctx.tensor(5))
    product = left.centred(a).matmul(right.centred(b)).cast(dt.float32)
    real = product * left.scale.cast(dt.float32) * right.scale.cast(dt.float32)
    out = Scheme(_rows(ctx.tensor(6)).cast(dt.float32), _rows(ctx.tensor(7)))
    return out.quantize(real, ctx.element_type(7))


def qlinear_conv(ctx: NodeContext) -> Tensor:
    """Translate QLinearConv: a convolution of quantised values, quantised again."""
    x, weight = ctx.tensor(0), ctx.tensor(3)
    scale = ctx.tensor(4)
    inputs = Scheme(ctx.tensor(1).reshape(()), ctx.tensor(2).reshape(()))
    weights = Scheme(scale, _along(ctx.tensor(5), 0, weight.ndim))
    bias = ctx.tensor(8) if ctx.has(8) else None
    total = conv_of(ctx, inputs.centred(x), weights.centred(weight), bias).cast(dt.float32)
    real = total * (_along(scale, 1, x.ndim) * inputs.scale)
    out = Scheme(ctx.tensor(6).reshape(()), ctx.tensor(7).reshape(()))
    return out.quantize(real, ctx.element_type(7))


def _scheme(ctx: NodeContext, shape: tuple[int, ...], scale_at: int, zero_at: int) -> Scheme:
    axis, block = ctx.integer("axis", 1), ctx.integer("block_size", 0)
    scale = _spread(ctx.tensor(scale_at), shape, axis, block)
    wide = scale if scale.dtype is dt.float64 else scale.cast(dt.float32)
    if not ctx.has(zero_at):
        return Scheme(wide, None)
    return Scheme(wide, _spread(ctx.tensor(zero_at), shape, axis, block))


def _spread(values: Tensor, shape: tuple[int, ...], axis: int, block: int) -> Tensor:
    """Return scales or zero points so that they broadcast with what they are for."""
    if values.size == 1:
        return values.reshape(())
    axis = normal_axis(axis, len(shape))
    if (values.ndim == 1 and len(shape) > 1) or values.shape == (shape[axis],):
        if values.shape[0] != shape[axis]:
            raise ModelError(f"{values.shape[0]} scales; axis {axis} of {shape} is {shape[axis]}")
        return _along(values, axis, len(shape))
    if not block:
        raise ModelError(f"scales of shape {values.shape} need block_size")
    repeated = values.unsqueeze(axis + 1).expand(
        (*values.shape[: axis + 1], block, *values.shape[axis + 1 :])
    )
    whole = repeated.reshape(
        (*values.shape[:axis], values.shape[axis] * block, *values.shape[axis + 1 :])
    )
    return whole[(*(slice(None),) * axis, slice(0, shape[axis]))]


def _along(values: Tensor, axis: int, ndim: int) -> Tensor:
    """Return values that belong to the indices of one axis; a single one belongs to all."""
    if values.size == 1:
        return values.reshape(())
    return values.reshape(tuple(-1 if i == axis else 1 for i in range(ndim)))


def _rows(values: Tensor) -> Tensor:
    """Return scales or zero points of rows as a column; a single one belongs to all."""
    if values.size == 1:
        return values.reshape(())
    return values.unsqueeze(-1) if values.ndim == 1 else values
