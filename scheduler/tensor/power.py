"""`TensorPower`: powers of tensors.

Constant exponents of -0.5, 0.5 and whole ones from -2 to 8 become products, roots or reciprocals.
Other powers of integers are computed by repeated squaring, those of floats by the POW operation.
"""

from __future__ import annotations

import math
from typing import Any, Self, TypeVar

from scheduler.ir.build import half_power
from scheduler.ir.ops import Op
from scheduler.passes.splat import value_of
from scheduler.tensor.arithmetic import Other, TensorMath
from scheduler.tensor.core import TensorCore, rounds_once

T = TypeVar("T", bound=TensorMath)


class TensorPower(TensorMath):
    """Powers of tensors."""

    __slots__ = ()

    def __pow__(self, exponent: Other) -> Self:
        return power(self, exponent)

    def __rpow__(self, base: Other) -> Self:
        return self.operand(base) ** self


@rounds_once
def power(x: T, exponent: Any) -> T:
    """Return x**exponent; for integers it is an integer, unless a constant exponent is negative."""
    known = _known_number(exponent)
    special = None if known is None else _constant_power(x, known)
    if special is not None:
        return special
    a, b = x.broadcast_with(exponent)
    return a.binary(Op.POW, b) if a.dtype.is_float else integer_power(a, b)


def _known_number(exponent: Any) -> int | float | None:
    """Return the value of a finite constant exponent (number or tensor), or None."""
    if isinstance(exponent, TensorCore):
        exponent = value_of(exponent.node)
    plain = isinstance(exponent, int | float) and not isinstance(exponent, bool)
    return exponent if plain and math.isfinite(exponent) else None


def integer_power(base: T, exponent: T) -> T:
    """Return base**exponent of integers by repeated squaring, modulo 2 to the width of the type.

    Base and exponent have the same type and shape. A negative exponent gives 0, except for bases
    1 and -1, which give 1 or -1. For exponents from 64 on, even bases give 0, and the result of
    odd bases other than 1 and -1 is unspecified.
    """
    whole = exponent
    result = base.operand(1).broadcast_to(base.shape)
    square = base
    for bit in range(6):  # exponents below 64
        taken = (whole >> bit) & 1
        result = taken.ne(0).where(result * square, result)
        square = square * square
    result = (whole > 63).binary(Op.AND, (base & 1).eq(0)).where(0, result)
    odd = (whole & 1).ne(0)
    unit = base.eq(1).binary(Op.OR, base.eq(-1)) if not base.dtype.is_unsigned else base.eq(1)
    below = unit.where(odd.where(base, 1), 0)
    return (whole < 0).where(below, result)


def _constant_power(x: T, exponent: Any) -> T | None:
    """Return x**exponent without POW for special constant exponents, else None."""
    if abs(exponent) == 0.5:
        floats = x if x.dtype.is_float else x.float()
        root = floats.of(half_power(floats.node))
        return root if exponent > 0 else root.reciprocal()
    if exponent in (-1, -2):
        return (x if exponent == -1 else x * x).reciprocal()
    if not 0 <= exponent <= 8 or exponent != int(exponent):
        return None
    if exponent == 0:
        return x.operand(1).broadcast_to(x.shape)
    result: T | None = None
    base, n = x, int(exponent)
    while n:
        if n & 1:
            result = base if result is None else result * base
        n >>= 1
        base = base * base if n else base
    return result
