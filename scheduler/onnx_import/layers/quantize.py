"""Translators of quantised numbers: conversions, and products of integers.

    q = saturate(round(x / scale) + zero_point)        x = (q - zero_point) * scale

Scales and zero points are one for all, for each index of an axis, or for each block of an axis.
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

# What no quantised number is of.
_NO_QUANTISED: Final = {
    *(TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE),
    *(TensorProto.INT32, TensorProto.INT64, TensorProto.UINT32, TensorProto.UINT64),
    TensorProto.BOOL,
}


@dataclass(frozen=True, slots=True)
class Scheme:
    """The meaning of quantised numbers."""

    scale: Tensor  # float32, broadcasts with the numbers
    zero_point: Tensor | None  # int32 or float32, broadcasts as well; None for 0

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


def scheme_at(
    ctx: NodeContext, scale: int, zero_point: int, of: int | None = None, *, divides: bool = False
) -> Scheme:
    """Return the scheme in the inputs `scale` and `zero_point`, which may be left out.

    `of` is the input whose type the zero point has (None: not compared). With `divides` numbers are
    divided by the scale, and the zero point has the type of the result. Raises ModelError if the
    scale is known and no number, or 0 where it divides, or if a type is another.
    """
    check_scale(ctx, scale, divides=divides)
    if divides and ctx.has(zero_point) and ctx.element_type(zero_point) in _NO_QUANTISED:
        found = type_name(ctx.element_type(zero_point))
        raise _wrong("zero point", zero_point, "integers of 16 bits or less", found)
    return Scheme(ctx.tensor(scale), zero_point_at(ctx, zero_point, of))


def zero_point_at(ctx: NodeContext, at: int, of: int | None) -> Tensor | None:
    """Return the zero point in an input, None if it is left out; for `of` see `scheme_at`."""
    if not ctx.has(at):
        return None
    if of is not None and ctx.element_type(at) != ctx.element_type(of):
        expected = f"{type_name(ctx.element_type(of))} as input {of} has"
        raise _wrong("zero point", at, expected, type_name(ctx.element_type(at)))
    return ctx.tensor(at)


def check_scale(ctx: NodeContext, at: int, *, divides: bool = False) -> None:
    """Check an input that is a scale, as `scheme_at` does; one of the run time may be any float."""
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
        f"{what} (input {at}): expected {expected}, found {found}; quantise the model again"
    )


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
    scheme = _scheme(ctx, x.shape, scheme_at(ctx, 1, 2, divides=True))
    kind = carried(code)
    if kind is not None and kind.format is not None:
        return cast_to(ctx, x / scheme.scale, code)
    return scheme.quantize(x, code)


def dequantize_linear(ctx: NodeContext) -> Value:
    """Translate DequantizeLinear: to the scale's type, or `output_dtype`."""
    q = ctx.tensor(0)
    values = _scheme(ctx, q.shape, scheme_at(ctx, 1, 2, of=0)).dequantize(q)
    code = ctx.integer("output_dtype", 0) or ctx.element_type(1)
    return values.as_half() if code == TensorProto.FLOAT16 else cast_to(ctx, values, code)


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

    `axes`, which stay with size 1, share a scale. The zero point is a whole float.
    """
    high = x.max(axes, keepdim=True).maximum(0.0)
    low = x.min(axes, keepdim=True).minimum(0.0)
    scale = (high - low) / 255.0
    # The scale of zeros alone would be 0, and a division by it NaN: onnxruntime's is 1.
    scale = scale.eq(0.0).where(1.0, scale)
    return Scheme(scale, ((0.0 - low) / scale).clip(0.0, 255.0).round())


def matmul_integer(ctx: NodeContext) -> Value:
    """Translate MatMulInteger: (a - zero point) (b - zero point) as int32.

    The zero point of `a` may be one for each row, that of `b` one for each column.
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
        weight = weight - _along(zero, 0, weight.ndim, weight.shape[0])
    return conv_of(ctx, x, weight, None)


def qlinear_matmul(ctx: NodeContext) -> Value:
    """Translate QLinearMatMul: the product of quantised matrices, quantised again."""
    a, b = ctx.tensor(0), ctx.tensor(3)
    left, right = _by_rows(scheme_at(ctx, 1, 2, of=0)), scheme_at(ctx, 4, 5, of=3)
    product = left.centred(a).matmul(right.centred(b)).cast(dt.float32)
    real = product * left.scale.cast(dt.float32) * right.scale.cast(dt.float32)
    out = _by_rows(scheme_at(ctx, 6, 7, divides=True))
    out = Scheme(out.scale.cast(dt.float32), out.zero_point)
    return out.quantize(real, ctx.element_type(7))


def qlinear_conv(ctx: NodeContext) -> Tensor:
    """Translate QLinearConv: a convolution of quantised values, quantised again."""
    x, weight = ctx.tensor(0), ctx.tensor(3)
    inputs, weights = _one(scheme_at(ctx, 1, 2, of=0)), scheme_at(ctx, 4, 5, of=3)
    scale, count = weights.scale, weight.shape[0]
    weights = Scheme(scale, _along(ctx.tensor(5), 0, weight.ndim, count))
    bias = ctx.tensor(8) if ctx.has(8) else None
    total = conv_of(ctx, inputs.centred(x), weights.centred(weight), bias).cast(dt.float32)
    real = total * (_along(scale, 1, x.ndim, count) * inputs.scale)
    out = _one(scheme_at(ctx, 6, 7, divides=True))
    return out.quantize(real, ctx.element_type(7))


def _scheme(ctx: NodeContext, shape: tuple[int, ...], given: Scheme) -> Scheme:
    """Return a scheme whose parts broadcast with a shape, by the attributes of a node."""
    axis, block = ctx.integer("axis", 1), ctx.integer("block_size", 0)
    scale = _spread(given.scale, shape, axis, block)
    wide = scale if scale.dtype is dt.float64 else scale.cast(dt.float32)
    zero = given.zero_point
    return Scheme(wide, None if zero is None else _spread(zero, shape, axis, block))


def _spread(values: Tensor, shape: tuple[int, ...], axis: int, block: int) -> Tensor:
    """Return scales or zero points so that they broadcast with what they are for."""
    if values.size == 1:
        return values.reshape(())
    axis = normal_axis(axis, len(shape))
    if values.ndim == 1 and (len(shape) > 1 or not block or values.size == shape[axis]):
        return _along(values, axis, len(shape), shape[axis])
    if not block:
        raise ModelError(f"scales of shape {values.shape} need block_size")
    repeated = values.unsqueeze(axis + 1).expand(
        (*values.shape[: axis + 1], block, *values.shape[axis + 1 :])
    )
    whole = repeated.reshape(
        (*values.shape[:axis], values.shape[axis] * block, *values.shape[axis + 1 :])
    )
    return whole[(*(slice(None),) * axis, slice(0, shape[axis]))]


def _along(values: Tensor, axis: int, ndim: int, count: int) -> Tensor:
    """Return values that belong to the indices of one axis; a single one belongs to all."""
    if values.size == 1:
        return values.reshape(())
    if values.size != count:
        raise ModelError(
            f"expected a scale and zero point for all or for each of {count} along axis {axis},"
            f" found {values.size}"
        )
    return values.reshape(tuple(-1 if i == axis else 1 for i in range(ndim)))


def _one(scheme: Scheme) -> Scheme:
    """Return a scheme of one scale without axes."""
    zero = scheme.zero_point
    return Scheme(scheme.scale.reshape(()), None if zero is None else zero.reshape(()))


def _by_rows(scheme: Scheme) -> Scheme:
    zero = scheme.zero_point
    return Scheme(_rows(scheme.scale), None if zero is None else _rows(zero))


def _rows(values: Tensor) -> Tensor:
    """Return scales or zero points of rows as a column; a single one belongs to all."""
    if values.size == 1:
        return values.reshape(())
    return values.unsqueeze(-1) if values.ndim == 1 else values
