"""Translators of elementwise arithmetic, comparison, logic, bitwise operators and casts.

Formulas: ONNX operator documentation.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from scheduler.errors import ModelError
from scheduler.ir import dtype as dt
from scheduler.ir.ops import Op
from scheduler.onnx_import.context import NodeContext, Value
from scheduler.onnx_import.element_types import carried, graph_dtype, type_name
from scheduler.tensor.power import integer_power
from scheduler.tensor.tensor import Tensor

Translator = Callable[[NodeContext], Value]


def unary(function: Callable[[Tensor], Tensor]) -> Translator:
    """Return the translator of an operator that is one function of its only input."""
    return lambda ctx: function(ctx.tensor(0))


def binary(function: Callable[[Any, Any], Any]) -> Translator:
    """Return the translator of an operator that is one broadcasting Tensor operator."""

    def translate(ctx: NodeContext) -> Value:
        result: Tensor = function(ctx.tensor(0), ctx.tensor(1))
        return result

    return translate


def variadic(function: Callable[[Any, Any], Any]) -> Translator:
    """Return the translator of an operator that combines its inputs from left to right."""

    def translate(ctx: NodeContext) -> Value:
        result: Tensor = reduce(function, (ctx.tensor(i) for i in range(ctx.count)))
        return result

    return translate


def is_inf(ctx: NodeContext) -> Value:
    """Translate IsInf: both infinities, or only the one that the attributes select."""
    x = ctx.tensor(0)
    negative, positive = ctx.integer("detect_negative", 1), ctx.integer("detect_positive", 1)
    if negative and positive:
        return x.abs().eq(math.inf)
    if negative or positive:
        return x.eq(math.inf if positive else -math.inf)
    return Tensor(False).broadcast_to(x.shape)


def mean(ctx: NodeContext) -> Value:
    """Translate Mean: the average of all inputs."""
    total: Tensor = reduce(operator.add, (ctx.tensor(i) for i in range(ctx.count)))
    return total / ctx.count


def shrink(ctx: NodeContext) -> Value:
    """Translate Shrink: x - bias above lambd, x + bias below -lambd, 0 between.

    Integers stay integers if the bias is whole. Otherwise they are computed in float32 and rounded
    toward 0.
    """
    x = ctx.tensor(0)
    bias, limit = ctx.number("bias", 0.0), ctx.number("lambd", 0.5)
    whole = not x.dtype.is_float and bias == int(bias)
    moved: Any = int(bias) if whole else bias
    above = (x > limit).where((x - moved).cast(x.dtype), 0)
    return (x < -limit).where((x + moved).cast(x.dtype), above)


def where(ctx: NodeContext) -> Value:
    """Translate Where."""
    return ctx.tensor(0).where(ctx.tensor(1), ctx.tensor(2))


def clip(ctx: NodeContext) -> Value:
    """Translate Clip; the bounds are attributes before opset 11, and optional inputs later."""
    x = ctx.tensor(0)
    if ctx.opset < 11:
        bounds = (ctx.attribute("min"), ctx.attribute("max"))
        return x.clip(*bounds)
    # A bound is a scalar, but some exporters write it with shape (1,).
    low, high = (ctx.tensor(i).cast(x.dtype).reshape(()) if ctx.has(i) else None for i in (1, 2))
    return x.clip(low, high)


def identity(ctx: NodeContext) -> Value:
    """Translate Identity; a constant stays a constant."""
    return ctx.value(0)


def dropout(ctx: NodeContext) -> Value | list[Value]:
    """Translate Dropout for inference: the input, and a mask of ones."""
    if ctx.has(2) and bool(ctx.const(2, "training_mode")):
        ratio = float(ctx.const(1, "ratio")) if ctx.has(1) else 0.5
        if ratio:
            raise ModelError(
                f"training_mode=true with ratio {ratio:g} drops at random, which is not supported; "
                "export for inference"
            )
    x = ctx.value(0)
    if ctx.outputs < 2:
        return x
    # Before opset 10 the mask has the type of the data. Only one element is stored.
    mask = np.ones((), bool if ctx.opset >= 10 else ctx.tensor(0).dtype.np)
    return [x, np.broadcast_to(mask, x.shape)]


# --- Bitwise operators ------------------------------------------------------------------------


def bit_shift(ctx: NodeContext) -> Value:
    """Translate BitShift.

    A distance below 0, or not below the type's width, shifts all bits out. The result is -1 for a
    negative number shifted right, and 0 otherwise. Opset 28 defines this; earlier ones leave it
    open.
    """
    direction = ctx.text("direction", "")
    if direction not in ("LEFT", "RIGHT"):
        raise ModelError(f"direction must be LEFT or RIGHT, found {direction!r}")
    x, distance = ctx.tensor(0), ctx.tensor(1)
    if x.dtype is not distance.dtype or not x.dtype.is_int:
        raise ModelError(f"expected integers of one type, found {x.dtype} and {distance.dtype}")
    width = 8 * x.dtype.itemsize
    known = ctx.value(1)
    inside = not isinstance(known, Tensor) and bool(((known >= 0) & (known < width)).all())
    if direction == "RIGHT" and not x.dtype.is_unsigned:
        # A shift by width - 1 leaves only the sign.
        last = distance.operand(width - 1)
        return x >> (distance if inside else _outside(distance, width).where(last, distance))
    if inside:
        return x << distance if direction == "LEFT" else x >> distance
    out = _outside(distance, width)
    safe = out.where(0, distance)
    return out.where(0, x << safe if direction == "LEFT" else x >> safe)


def _outside(distance: Tensor, width: int) -> Tensor:
    above = distance >= width
    return above if distance.dtype.is_unsigned else above | (distance < 0)


def invert(x: Tensor) -> Tensor:
    """Return the complement of an integer's bits."""
    return x.unary(Op.NOT)


# --- Cast, CastLike and BitCast, also to carried types (see `element_types`) ------------------


def cast(ctx: NodeContext) -> Value:
    """Translate Cast and CastLike.

    Floats become integers by truncation, and bool by comparison with 0. Carried floats round to
    nearest, with `saturate` and `round_mode` as in ONNX's Cast.
    """
    like = ctx.node.op_type == "CastLike"
    return cast_to(ctx, ctx.tensor(0), ctx.element_type(1) if like else ctx.integer("to", 0))


def cast_to(ctx: NodeContext, x: Tensor, target: int) -> Tensor:
    """Return x cast to ONNX element type `target`, with the node's saturate and round_mode."""
    kind = carried(target)
    if kind is not None:
        saturate = bool(ctx.integer("saturate", 1))
        return kind.round(x, saturate=saturate, mode=ctx.text("round_mode", "up"))
    try:
        dtype = graph_dtype(target)
    except ModelError as error:
        raise ModelError(f"cannot cast to element type {type_name(target)}") from error
    return x.bool() if dtype is dt.bool_ else x.cast(dtype)


def bit_cast(ctx: NodeContext) -> Value:
    """Translate BitCast: the same bits read as another type of the same size."""
    target = ctx.integer("to", 0)
    source = carried(ctx.element_type(0))
    x = ctx.tensor(0)
    stored = x if source is None else source.encode(x)
    kind = carried(target)
    wanted = graph_dtype(target) if kind is None else kind.storage
    if wanted.itemsize != stored.dtype.itemsize:
        raise ModelError(f"{stored.dtype} and {type_name(target)} differ in size")
    if dt.bool_ in (wanted, stored.dtype):
        # A bool is stored as 0 or 1, and any byte except 0 is read as true.
        bits = stored.bool() if wanted is dt.bool_ else stored.cast(wanted)
    else:
        bits = stored.bitcast(wanted)
    return bits if kind is None else kind.decode(bits)


# --- Div and Mod for every type ---------------------------------------------------------------

# Float type -> (integer type of the same width, mask for the upper half of the mantissa bits, limit
# of a quotient whose product with that upper half is exact).
_SPLIT = {dt.float32: (dt.int32, -(1 << 12), 2.0**12), dt.float64: (dt.int64, -(1 << 27), 2.0**26)}


def divide(ctx: NodeContext) -> Value:
    """Translate Div; integers round toward 0 as in C, and divide by 1 if the divisor is 0."""
    a, b = ctx.tensor(0), ctx.tensor(1)
    return a / b if a.dtype.is_float else a.trunc_div(b)


def modulo(ctx: NodeContext) -> Value:
    """Translate Mod; the result has the sign of the divisor, or of the dividend with fmod=1.

    Float remainders are accurate to a unit in the last place of the divisor if the quotient is
    below 2^24 (float64: 2^52).
    """
    a, b = ctx.tensor(0), ctx.tensor(1)
    if a.dtype is not b.dtype:
        raise ModelError(f"expected operands of one type, found {a.dtype} and {b.dtype}")
    truncated = bool(ctx.integer("fmod", 0))
    if a.dtype.is_float:
        return _float_remainder(a, b, truncated=truncated)
    remainder = a.trunc_mod(b)
    if truncated or a.dtype.is_unsigned:
        return remainder
    wrong = remainder.ne(0) & (remainder < 0).ne(b < 0)
    return wrong.where(remainder + b, remainder)


def _float_remainder(a: Tensor, b: Tensor, *, truncated: bool) -> Tensor:
    """Return the remainder of a by b, with the sign of a if `truncated`, else with the sign of b.

    It subtracts multiples of 2^12 b (float64: 2^26 b) first, then of b, so quotients are small.
    A finite a divided by infinity remains a, or becomes the infinity b if the sign must change. An
    infinite a, b = 0 and NaN give NaN.
    """
    rest, size = a.abs(), b.abs()
    steps = _SPLIT[a.dtype][2]
    rest = _subtract_multiple(rest, size * steps)
    rest = _subtract_multiple(rest, size)
    if truncated:
        return (a < 0).where(-rest, rest)
    rest = (rest.ne(0) & (a < 0).ne(b < 0)).where(size - rest, rest)
    return (b < 0).where(-rest, rest)


def _subtract_multiple(x: Tensor, size: Tensor) -> Tensor:
    """Return x - trunc(x / size) size for x >= 0 and a small quotient.

    The result is accurate to the last place of size. The rounded quotient is correct or one too
    large, and its product with the upper half of the mantissa of size is exact.
    """
    integer, mask, _ = _SPLIT[x.dtype]
    quotient = (x / size).trunc()
    high = (size.bitcast(integer) & mask).bitcast(x.dtype)
    rest = (x - quotient * high) - quotient * (size - high)
    rest = (rest < 0).where(rest + size, rest)
    return (x < size).where(x, rest)


# --- Pow for every combination of base and exponent types -------------------------------------

# Factor applied before truncation, so that the root of a square number is exact.
_ROUNDED = 1.0 + 2.0**-21
# Limit of exponents. Beyond it only the parity matters, and larger float exponents are even.
_LARGEST = 2.0**30


def power(ctx: NodeContext) -> Value:
    """Translate Pow.

    An integer base with a whole exponent is exact, modulo 2 to the width. A negative exponent gives
    the reciprocal, rounded toward 0. With other exponents an integer base is computed in float32
    and rounded toward 0. A float base is computed in the wider of both types, at least float32.
    """
    base, exponent = ctx.tensor(0), ctx.value(1)
    shape = np.broadcast_shapes(base.shape, exponent.shape)
    number = None if isinstance(exponent, Tensor) else _single(exponent)
    raise_to = _raised if base.dtype.is_float else _integer_raised
    return raise_to(base, ctx.tensor(1), number).broadcast_to(shape)


def _single(exponent: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> float | None:
    """Return a constant exponent's only value, or None if it has several or is beyond _LARGEST."""
    value = float(exponent.reshape(())) if exponent.size == 1 else math.inf
    return value if abs(value) <= _LARGEST else None


def _raised(base: Tensor, exponent: Tensor, number: float | None) -> Tensor:
    """Return a power of floats; a constant exponent `number` becomes squares or roots."""
    wide = dt.promote(base.dtype, dt.float32)
    if number is not None:
        return (base.cast(wide) ** number).as_type(base.dtype)
    if exponent.dtype.is_float:
        wide = dt.promote(wide, exponent.dtype)
    return (base.cast(wide) ** exponent.cast(wide)).as_type(base.dtype)


def _integer_raised(base: Tensor, exponent: Tensor, number: float | None) -> Tensor:
    if number is not None and number == int(number):
        # The IR has no integer reciprocal, so a negative exponent uses the general method.
        whole = base.operand(int(number))
        return base ** int(number) if number >= 0 else integer_power(*base.broadcast_with(whole))
    if not exponent.dtype.is_float:
        return integer_power(*base.broadcast_with(exponent)).cast(base.dtype)
    powers = exponent.cast(dt.float32)
    fraction = (_raised(base.float(), powers, number) * _ROUNDED).as_type(base.dtype)
    if number is not None:
        return fraction
    whole = powers.clip(-_LARGEST, _LARGEST).cast(dt.int32)
    exact = integer_power(*base.broadcast_with(whole)).cast(base.dtype)
    return powers.trunc().eq(powers).where(exact, fraction)
