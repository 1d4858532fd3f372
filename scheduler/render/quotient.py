"""Replaces divisions by a constant that are then rounded to integers by cheaper multiplications.

    round(x / c)    ->    round(fused(x, high, x * low))        high + low = 1 / c, and low >= 0

A vector division takes as long as ten multiplications. Before its rounding, the fused sum has a
relative error below 2^-45. It therefore rounds to the IEEE 754 quotient unless the exact quotient
is that close to the middle between two floats. Few dividends of a divisor have such a quotient, and
`reciprocal` checks all of them. Quotients below 2^-100 can be off, but round to 0. Because low is
not negative, infinities stay infinite.

Write divisor and dividend as 24-bit integers C and X. The middles are then M * 2^-24 (if X >= C) or
M * 2^-25, with odd M of 25 bits. The close ones have |X * 2^24 - M * C| <= 16 (likewise for 2^25).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from fractions import Fraction
from functools import lru_cache

from scheduler.ir import dtype as dt
from scheduler.ir.node import Node
from scheduler.ir.ops import Op

DIGITS = 24  # significant bits of a float32
NEAR = 16  # the bound 16 of the module docstring
# Range of divisors whose reciprocal, in both parts, is far from denormal.
LEAST, MOST = 2.0**-90, 2.0**60


def rounded_quotients(nodes: Collection[Node]) -> dict[Node, tuple[float, float]]:
    """Return the quotients in a body that are only rounded, each with both parts of 1 / c."""
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
    """Return 1 / c as two float32, or None if a quotient by c could be rounded incorrectly."""
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
    # For one divisor in fifteen the nearest low part fails, but usually one of its neighbors works.
    for low in (best, best + unit(best), best - unit(best)):
        if all(nearest(x * high + nearest(x * low)) == nearest(x * exact) for x in near):
            return float(high), float(low)
    return None


def unit(value: Fraction) -> Fraction:
    """Return the distance from a positive number to the next one with the same precision."""
    exponent = value.numerator.bit_length() - value.denominator.bit_length()
    if Fraction(2) ** exponent > value:
        exponent -= 1
    return Fraction(2) ** (exponent - DIGITS + 1)


def nearest(value: Fraction) -> Fraction:
    """Return the nearest number with 24 bits, ties to even, with unlimited exponent."""
    step = unit(value)
    return round(value / step) * step


def _near_middles(divisor: float) -> Iterator[Fraction]:
    """Yield dividends, up to powers of two, with quotients close to the middle of two floats."""
    least = 1 << DIGITS
    whole = int(Fraction(divisor) / unit(Fraction(divisor)))
    twos = (whole & -whole).bit_length() - 1
    for shift in (DIGITS, DIGITS + 1):
        period = 1 << (shift - twos)
        inverse = pow(whole >> twos, -1, period)
        for rest in range(-NEAR, NEAR + 1):
            if rest == 0 or rest % (1 << twos):
                continue
            # All 25-bit M with M * whole = -rest modulo 2^shift.
            first = least + (-(rest >> twos) * inverse - least) % period
            for middle in range(first, 2 * least, period):
                dividend = (middle * whole + rest) >> shift
                if least // 2 <= dividend < least:
                    yield Fraction(dividend)
