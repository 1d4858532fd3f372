"""Quotients by a known number, in front of a rounding to whole numbers, without a division.

    round(x / c)    ->    round(fused(x, high, x * low))        high + low = 1 / c, and low >= 0

A division of a vector takes as long as ten products. The sum is off by less than 2^-45 of itself
before its rounding, so the quotient is IEEE 754's unless it is that near to the middle between two
floats. Few dividends of a divisor are, and all of them are tried here. Quotients below 2^-100 may
be off, but round to 0. As low is not negative, infinities stay.

With divisor and dividend as whole numbers C and X of 24 bits, middles are M * 2^-24 (X >= C) or M *
2^-25, with M odd and of 25 bits; near ones have |X * 2^24 - M * C| <= 16 (2^25 alike).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from fractions import Fraction
from functools import lru_cache

from scheduler.ir import dtype as dt
from scheduler.ir.node import Node
from scheduler.ir.ops import Op

DIGITS = 24  # of a float32
NEAR = 16
# Divisors whose reciprocal, and what is left of it, are far from denormal numbers.
LEAST, MOST = 2.0**-90, 2.0**60


def rounded_quotients(nodes: Collection[Node]) -> dict[Node, tuple[float, float]]:
    """Return the quotients of a body that are only rounded, with both parts of 1 / c."""
    found = {}
    for node in nodes:
        if node.op is Op.ROUND and node.dtype is dt.float32 and node.src[0].op is Op.DIV:
            divisor = node.src[0].src[1]
            parts = reciprocal(divisor.arg) if divisor.op is Op.CONST else None
            if parts is not None:
                found[node.src[0]] = parts
    for node in nodes:
        if node.op is not Op.ROUND:
            for source in node.src:
                found.pop(source, None)
    return found


@lru_cache(maxsize=1 << 12)
def reciprocal(divisor: float) -> tuple[float, float] | None:
    """Return 1 / c as two float32, None where a quotient by c would be rounded wrongly."""
    if not LEAST <= divisor <= MOST:
        return None
    exact = 1 / Fraction(divisor)
    high = nearest(exact)
    if high > exact:
        high -= unit(high)
    if high == exact:
        return None
    best = nearest(exact - high)
    near = list(_near_middles(divisor))
    # Of fifteen divisors one has no such part nearest to the rest, but mostly has one beside it.
    for low in (best, best + unit(best), best - unit(best)):
        if all(nearest(x * high + nearest(x * low)) == nearest(x * exact) for x in near):
            return float(high), float(low)
    return None


def unit(value: Fraction) -> Fraction:
    """Return the distance from a positive number to the next one of as many digits."""
    exponent = value.numerator.bit_length() - value.denominator.bit_length()
    if Fraction(2) ** exponent > value:
        exponent -= 1
    return Fraction(2) ** (exponent - DIGITS + 1)


def nearest(value: Fraction) -> Fraction:
    """Return the nearest number of 24 digits, ties to even; of any exponent."""
    step = unit(value)
    return round(value / step) * step


def _near_middles(divisor: float) -> Iterator[Fraction]:
    """Yield dividends, up to powers of two, whose quotients are near the middle of two floats."""
    least = 1 << DIGITS
    whole = int(Fraction(divisor) / unit(Fraction(divisor)))
    twos = (whole & -whole).bit_length() - 1
    for shift in (DIGITS, DIGITS + 1):
        period = 1 << (shift - twos)
        inverse = pow(whole >> twos, -1, period)
        for rest in range(-NEAR, NEAR + 1):
            if rest == 0 or rest % (1 << twos):
                continue
            # All M with M * whole = -rest modulo 2^shift, of 25 bits.
            first = least + (-(rest >> twos) * inverse - least) % period
            for middle in range(first, 2 * least, period):
                dividend = (middle * whole + rest) >> shift
                if least // 2 <= dividend < least:
                    yield Fraction(dividend)
