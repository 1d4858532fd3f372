"""Translators of quantization, dequantization, and products of quantized numbers.

    q = saturate(round(x / scale) + zero_point)        x = (q - zero_point) * scale

There is one scale and zero point for the whole tensor, for each index of an axis, or for each block
of an axis.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from onnx import TensorProto

from scheduler.errors import ModelError
from scheduler.ir import dtype as dt
from scheduler.onnx_import.context import NodeContext, Value, normal_axis
from scheduler.onnx_import.element_types import carried, graph_dtype, type_name
from scheduler.onnx_import.layers.conv import conv_of
from scheduler.onnx_import.ops.elementwise import cast_to
from scheduler.tensor.tensor import Tensor

# ONNX element types that quantized numbers cannot have.
_NOT_QUANTIZED: Final = {
    *(TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE),
    *(TensorProto.INT32, TensorProto.INT64, TensorProto.UINT32, TensorProto.UINT64),
    TensorProto.BOOL,
}


@dataclass(frozen=True, slots=True)
class Scheme:
    """The scale and zero point of quantized numbers."""

    scale: Tensor  # float, broadcasts with the numbers
    zero_point: Tensor | None  # broadcasts with the numbers; None for 0

    def quantize(self, x: Tensor, code: int) -> Tensor:
        """Return round(x / scale) + zero_point, saturated to the ONNX integer type `code`."""
        return limited(self.whole(x), code)

    def whole(self, x: Tensor) -> Tensor:
        """Return round(x / scale) + zero_point as floats, without saturation."""
        steps = (x / self.scale).round()
        return steps if self.zero_point is None else steps + self.zero_point.cast(steps.dtype)

    def dequantize(self, q: Tensor) -> Tensor:
        """Return (q - zero_point) * scale."""
        return self.centred(q).as_type(self.scale.dtype) * self.scale

    def centred(self, q: Tensor) -> Tensor:
        """Return q - zero_point, with integers converted to int32."""
        wide = q if q.dtype.is_float else q.cast(dt.int32)
        return wide if self.zero_point is None else wide - self.zero_point.cast(wide.dtype)


def scheme_at(
    ctx: NodeContext, scale: int, zero_point: int, of: int | None = None, *, divides: bool = False
) -> Scheme:
    """Return the scheme in two inputs of a node.

    Args:
        ctx: the node.
        scale: index of the scale's input.
        zero_point: index of the zero point's input, which can be left out.
        of: index of an input whose type the zero point must have; None for no check.
        divides: whether numbers are quantized by the scheme. Then a constant scale must not be 0,
            and the zero point must have a type of quantized numbers.

    Raises:
        ModelError: a type is wrong, or a constant scale is not finite or 0.
    """
    check_scale(ctx, scale, divides=divides)
    if divides and ctx.has(zero_point) and ctx.element_type(zero_point) in _NOT_QUANTIZED:
        found = type_name(ctx.element_type(zero_point))
        raise _wrong("zero point", zero_point, "integers of 16 bits or less", found)
    return Scheme(ctx.tensor(scale), zero_point_at(ctx, zero_point, of))


def zero_point_at(ctx: NodeContext, at: int, of: int | None) -> Tensor | None:
    """Return the zero point in input `at`, None if it is left out; for `of` see `scheme_at`."""
    if not ctx.has(at):
        return None
    if of is not None and ctx.element_type(at) != ctx.element_type(of):
        expected = f"{type_name(ctx.element_type(of))} as input {of} has"
        raise _wrong("zero point", at, expected, type_name(ctx.element_type(at)))
    return ctx.tensor(at)


def check_scale(ctx: NodeContext, at: int, *, divides: bool = False) -> None:
    """Raise ModelError if input `at` is not a valid scale; run-time values are not checked."""
    scale = ctx.value(at)
    if not ctx.tensor(at).dtype.is_float:
        raise _wrong("scale", at, "floats", type_name(ctx.element_type(at)))
    if not isinstance(scale, Tensor):
        bad = ~np.isfinite(scale) | (divides & (scale == 0))
        if bad.any():
            expected = "finite numbers other than 0" if divides else "finite numbers"
            raise _wrong("scale", at, expected, f"{scale[bad][0]:g}")


def _wrong(what: str, at: int, expected: str, found: str) -> ModelError:
    return ModelError(
        f"{what} (input {at}): expected {expected}, found {found}; quantize the model again"
    )


def real_product(left: Scheme, a: Tensor, right: Scheme, b: Tensor) -> Tensor:
    """Return the real-valued product of quantized matrices as float32; it is summed in int32."""
    total = left.centred(a).matmul(right.centred(b))
    return total.cast(dt.float32) * (left.scale * right.scale)


def limited(whole: Tensor, code: int) -> Tensor:
    """Return whole numbers (floats) saturated to the ONNX integer type `code`."""
    kind = carried(code)
    if kind is not None:
        return kind.saturated(whole)
    target = graph_dtype(code)
    return whole.clip(float(dt.min_value(target)), float(dt.max_value(target))).cast(target)


def quantize_linear(ctx: NodeContext) -> Value:
    """Translate QuantizeLinear to the zero point's type, or else `output_dtype`, or else uint8."""
    x = ctx.tensor(0)
    if not x.dtype.is_float:
        x = x.cast(dt.float32)
    code = ctx.integer("output_dtype", 0)
    code = ctx.element_type(2) if ctx.has(2) else code or TensorProto.UINT8
    scheme = _scheme(ctx, x.shape, scheme_at(ctx, 1, 2, divides=True))
    kind = carried(code)
    if kind is not None and kind.format is not None:
        return cast_to(ctx, x / scheme.scale, code)
    return scheme.quantize(x, code)


def dequantize_linear(ctx: NodeContext) -> Value:
    """Translate DequantizeLinear to `output_dtype`, or else the scale's type."""
    q = ctx.tensor(0)
    values = _scheme(ctx, q.shape, scheme_at(ctx, 1, 2, of=0)).dequantize(q)
    code = ctx.integer("output_dtype", 0) or ctx.element_type(1)
    return values.as_half() if code == TensorProto.FLOAT16 else cast_to(ctx, values, code)


def dynamic_quantize_linear(ctx: NodeContext) -> list[Value]:
    """Translate DynamicQuantizeLinear to uint8; scale and zero point are computed from the data."""
    scheme, quantized = dynamically_quantized(ctx.tensor(0))
    assert scheme.zero_point is not None
    return [quantized, scheme.scale, scheme.zero_point.cast(dt.uint8)]


def dynamically_quantized(x: Tensor) -> tuple[Scheme, Tensor]:
    """Return a uint8 scheme for all of x (see `dynamic_scheme`), and x quantized with it."""
    found = dynamic_scheme(x, tuple(range(x.ndim)))
    assert found.zero_point is not None
    scheme = Scheme(found.scale.reshape(()), found.zero_point.reshape(()))
    return scheme, scheme.quantize(x, TensorProto.UINT8)


def dynamic_scheme(x: Tensor, axes: tuple[int, ...]) -> Scheme:
    """Return uint8 schemes whose range contains 0 and the values of x.

    All elements along `axes`, which stay with size 1, share a scheme. The zero point is a whole
    number stored as a float.
    """
    high = x.max(axes, keepdim=True).maximum(0.0)
    low = x.min(axes, keepdim=True).minimum(0.0)
    scale = (high - low) / 255.0
    # If all values are 0, use a scale of 1 as onnxruntime does, because 0 would give NaN.
    scale = scale.eq(0.0).where(1.0, scale)
    return Scheme(scale, ((0.0 - low) / scale).clip(0.0, 255.0).round())


def matmul_integer(ctx: NodeContext) -> Value:
    """Translate MatMulInteger: (a - zero point) (b - zero point) as int32.

    a can have a zero point per row, and b a zero point per column.
    """
    a, b = ctx.tensor(0).cast(dt.int32), ctx.tensor(1).cast(dt.int32)
    rows, columns = (zero_point_at(ctx, i + 2, of=i) for i in range(2))
    if rows is not None:
        a = a - (rows.unsqueeze(-1) if rows.ndim else rows).cast(dt.int32)
    if columns is not None:
        b = b - columns.cast(dt.int32)
    return a.matmul(b)


def conv_integer(ctx: NodeContext) -> Value:
    """Translate ConvInteger: a convolution of (x - zero point) and (w - zero point) as int32."""
    x, weight = ctx.tensor(0).cast(dt.int32), ctx.tensor(1).cast(dt.int32)
    of_x, of_weight = (zero_point_at(ctx, i + 2, of=i) for i in range(2))
    if of_x is not None:
        x = x - of_x.cast(dt.int32).reshape(())
    if of_weight is not None:
        zero = of_weight.cast(dt.int32)
        weight = weight - _on_axis(zero, 0, weight.ndim, weight.shape[0])
    return conv_of(ctx, x, weight, None)


def qlinear_matmul(ctx: NodeContext) -> Value:
    """Translate QLinearMatMul: the quantized product of quantized matrices."""
    a, b = ctx.tensor(0), ctx.tensor(3)
    left, right = _by_rows(scheme_at(ctx, 1, 2, of=0)), scheme_at(ctx, 4, 5, of=3)
    product = left.centred(a).matmul(right.centred(b)).cast(dt.float32)
    real = product * left.scale.cast(dt.float32) * right.scale.cast(dt.float32)
    out = _by_rows(scheme_at(ctx, 6, 7, divides=True))
    out = Scheme(out.scale.cast(dt.float32), out.zero_point)
    return out.quantize(real, ctx.element_type(7))


def qlinear_conv(ctx: NodeContext) -> Tensor:
    """Translate QLinearConv: the quantized convolution of quantized values."""
    x, weight = ctx.tensor(0), ctx.tensor(3)
    inputs, weights = _as_scalar(scheme_at(ctx, 1, 2, of=0)), scheme_at(ctx, 4, 5, of=3)
    scale, count = weights.scale, weight.shape[0]
    weights = Scheme(scale, _on_axis(ctx.tensor(5), 0, weight.ndim, count))
    bias = ctx.tensor(8) if ctx.has(8) else None
    total = conv_of(ctx, inputs.centred(x), weights.centred(weight), bias).cast(dt.float32)
    real = total * (_on_axis(scale, 1, x.ndim, count) * inputs.scale)
    out = _as_scalar(scheme_at(ctx, 6, 7, divides=True))
    return out.quantize(real, ctx.element_type(7))


def _scheme(ctx: NodeContext, shape: tuple[int, ...], given: Scheme) -> Scheme:
    """Return a scheme that broadcasts with `shape`, following attributes axis and block_size."""
    axis, block = ctx.integer("axis", 1), ctx.integer("block_size", 0)
    scale = _to_shape(given.scale, shape, axis, block)
    wide = scale if scale.dtype is dt.float64 else scale.cast(dt.float32)
    zero = given.zero_point
    return Scheme(wide, None if zero is None else _to_shape(zero, shape, axis, block))


def _to_shape(values: Tensor, shape: tuple[int, ...], axis: int, block: int) -> Tensor:
    """Return scales or zero points reshaped, and repeated by block, to broadcast with `shape`."""
    if values.size == 1:
        return values.reshape(())
    axis = normal_axis(axis, len(shape))
    if values.ndim == 1 and (len(shape) > 1 or not block or values.size == shape[axis]):
        return _on_axis(values, axis, len(shape), shape[axis])
    if not block:
        raise ModelError(f"scales of shape {values.shape} need block_size")
    repeated = values.unsqueeze(axis + 1).expand(
        (*values.shape[: axis + 1], block, *values.shape[axis + 1 :])
    )
    whole = repeated.reshape(
        (*values.shape[:axis], values.shape[axis] * block, *values.shape[axis + 1 :])
    )
    return whole[(*(slice(None),) * axis, slice(0, shape[axis]))]


def _on_axis(values: Tensor, axis: int, ndim: int, count: int) -> Tensor:
    """Return values, one per index of an axis, reshaped to broadcast; a single one has no axes."""
    if values.size == 1:
        return values.reshape(())
    if values.size != count:
        raise ModelError(
            f"expected one scale and zero point, or one for each of {count} along axis {axis},"
            f" found {values.size}"
        )
    return values.reshape(tuple(-1 if i == axis else 1 for i in range(ndim)))


def _as_scalar(scheme: Scheme) -> Scheme:
    """Return a scheme with one scale and zero point, reshaped to scalars."""
    zero = scheme.zero_point
    return Scheme(scheme.scale.reshape(()), None if zero is None else zero.reshape(()))


def _by_rows(scheme: Scheme) -> Scheme:
    zero = scheme.zero_point
    return Scheme(_rows(scheme.scale), None if zero is None else _rows(zero))


def _rows(values: Tensor) -> Tensor:
    """Return scales or zero points, one per row, as a column; a single one has no axes."""
    if values.size == 1:
        return values.reshape(())
    return values.unsqueeze(-1) if values.ndim == 1 else values
