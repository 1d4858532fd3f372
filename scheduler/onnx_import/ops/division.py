"""Translators of Div and Mod for every type. Formulas: ONNX operator documentation."""

from __future__ import annotations

from scheduler.errors import ModelError
from scheduler.ir import dtype as dt
from scheduler.onnx_import.context import NodeContext, Value
from scheduler.tensor.tensor import Tensor

# Per type: the integer of the same width, a mask that keeps the upper half of the fraction's bits,
# and 2 to the number of bits that a quotient may have so that its product with that half is exact.
_SPLIT = {dt.float32: (dt.int32, -(1 << 12), 2.0**12), dt.float64: (dt.int64, -(1 << 27), 2.0**26)}


def divide(ctx: NodeContext) -> Value:
    """Translate Div: integers are divided towards zero, as in C; by 0 as by 1."""
    a, b = ctx.tensor(0), ctx.tensor(1)
    return a / b if a.dtype.is_float else a.trunc_div(b)


def modulo(ctx: NodeContext) -> Value:
    """Translate Mod: sign of the divisor, or of the dividend with fmod=1.

    Remainders of floats are within a unit in the last place of the divisor as long as the quotient
    is below 2^24 (float64: 2^52); beyond that the last bits of the quotient are not known.
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
    """Return the remainder of |a| by |b| with the sign of a, or moved to the sign of b.

    The infinite divisor of a finite dividend leaves it as it is, or gives the infinity of the sign
    of b; an infinite dividend, a divisor of 0 and NaN give NaN.
    """
    rest, size = a.abs(), b.abs()
    steps = _SPLIT[a.dtype][2]
    rest = _less(rest, size * steps)
    rest = _less(rest, size)
    if truncated:
        return (a < 0).where(-rest, rest)
    rest = (rest.ne(0) & (a < 0).ne(b < 0)).where(size - rest, rest)
    return (b < 0).where(-rest, rest)


def _less(x: Tensor, size: Tensor) -> Tensor:
    """Return x - trunc(x / size) size for x >= 0 and small quotients, to the last place of size.

    The rounded quotient is right or one too large. Its product is taken in two parts: the one with
    the upper half of the divisor's bits is exact.
    """
    integer, mask, _ = _SPLIT[x.dtype]
    quotient = (x / size).trunc()
    high = (size.bitcast(integer) & mask).bitcast(x.dtype)
    rest = (x - quotient * high) - quotient * (size - high)
    rest = (rest < 0).where(rest + size, rest)
    return (x < size).where(x, rest)
