"""Translator of Pow for every combination of base and exponent types."""

from __future__ import annotations

import math

import numpy as np

from scheduler.ir import dtype as dt
from scheduler.onnx_import.context import NodeContext, Value
from scheduler.tensor.power import integer_power
from scheduler.tensor.tensor import Tensor

# What is so little below an integer is one: the root of a square number stays whole.
_ROUNDED = 1.0 + 2.0**-21
# Beyond, only the parity of an exponent matters, and that every float so large is even.
_LARGEST = 2.0**30


def power(ctx: NodeContext) -> Value:
    """Translate Pow.

    Integers are raised to whole exponents exactly, modulo 2 to their width; a negative exponent
    gives the reciprocal, rounded towards zero. To other exponents they are raised as float32, and
    rounded towards zero. Halves are raised as float32, and a float with an exponent of a wider type
    in that type.
    """
    base, exponent = ctx.tensor(0), ctx.value(1)
    shape = np.broadcast_shapes(base.shape, exponent.shape)
    number = None if isinstance(exponent, Tensor) else _single(exponent)
    raise_to = _raised if base.dtype.is_float else _integer_raised
    return raise_to(base, ctx.tensor(1), number).broadcast_to(shape)


def _single(exponent: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> float | None:
    """Return the value of an exponent of one element that is finite and exact as a float."""
    value = float(exponent.reshape(())) if exponent.size == 1 else math.inf
    return value if abs(value) <= _LARGEST else None


def _raised(base: Tensor, exponent: Tensor, number: float | None) -> Tensor:
    """Return a power of floats; a known exponent lets squares and roots be what they are."""
    wide = dt.promote(base.dtype, dt.float32)
    if number is not None:
        return (base.cast(wide) ** number).as_type(base.dtype)
    if exponent.dtype.is_float:
        wide = dt.promote(wide, exponent.dtype)
    return (base.cast(wide) ** exponent.cast(wide)).as_type(base.dtype)


def _integer_raised(base: Tensor, exponent: Tensor, number: float | None) -> Tensor:
    if number is not None and number == int(number):
        # The IR's reciprocal is that of floats, so a negative exponent goes the general way.
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
