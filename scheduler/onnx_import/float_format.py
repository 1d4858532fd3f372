"""Floats of few bits, as arithmetic on float32: rounding to one, and its bits.

A format has sign, exponent and mantissa bits in this order. All its values are float32 values.
Rounding is to nearest, halves to even, as ONNX's Cast asks for.
"""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.ir import dtype as dt
from scheduler.tensor.tensor import Tensor

_MANTISSA = 23  # of float32
_BIAS = 127  # of its exponent


@dataclass(frozen=True, slots=True)
class FloatFormat:
    """A floating-point format of at most 16 bits.

    Attributes:
        exponent: bits of it.
        mantissa: bits of it; with none, values are powers of two.
        bias: of the exponent.
        nan_code: bits of NaN without its sign where it is one code; None if there is no NaN. With
            infinities, NaN is a largest exponent with any mantissa.
        has_infinity: the largest exponent is for infinities and NaN, as in IEEE 754.
        has_negative_zero: else its code is NaN's.
        has_sign: else there are no negative values.
    """

    exponent: int
    mantissa: int
    bias: int
    nan_code: int | None = None
    has_infinity: bool = False
    has_negative_zero: bool = True
    has_sign: bool = True

    @property
    def width(self) -> int:
        """Bits of a value without its sign."""
        return self.exponent + self.mantissa

    @property
    def largest(self) -> float:
        """The largest finite value."""
        top = (1 << self.width) - 1
        if self.has_infinity:
            top = ((1 << self.exponent) - 1 << self.mantissa) - 1
        elif self.nan_code is not None and self.nan_code == top:
            top -= 1
        mantissa = (top & ((1 << self.mantissa) - 1)) / (1 << self.mantissa)
        return float((1.0 + mantissa) * 2.0 ** ((top >> self.mantissa) - self.bias))

    @property
    def smallest_normal(self) -> float:
        """The smallest value with a full mantissa."""
        return float(2.0 ** (1 - self.bias))

    def round(self, x: Tensor, *, saturate: bool, mode: str) -> Tensor:
        """Return x (float32) rounded to the format, as float32.

        Args:
            x: any float32 values.
            saturate: values beyond the largest become it; else infinity, or NaN without infinities.
            mode: where there is no mantissa: "up", "down" or "nearest" (halves up).
        """
        if not self.has_sign:
            return self._power_of_two(x, saturate=saturate, mode=mode)
        dropped = _MANTISSA - self.mantissa
        bits = x.bitcast(dt.uint32)
        even = (bits >> dropped) & 1
        whole = ((bits + ((1 << dropped - 1) - 1) + even) >> dropped) << dropped
        near = whole.bitcast(dt.float32)
        if self.exponent < 8:
            step = self.smallest_normal / (1 << self.mantissa)
            small = (x * (1.0 / step)).round() * step
            near = (x.abs() < self.smallest_normal).where(small, near)
        return self._limited(x, near, saturate=saturate)

    def _limited(self, x: Tensor, near: Tensor, *, saturate: bool) -> Tensor:
        """Return rounded values with what is beyond the largest one, and NaN, put right."""
        top = self.largest
        if self.nan_code is None and not self.has_infinity:
            return x.ne(x).where(0.0, near.clip(-top, top))  # there is no NaN to give
        if saturate and self.exponent < 8:
            limited = near.clip(-top, top)
        elif self.has_infinity:
            limited = (near.abs() > top).where((x < 0).where(-float("inf"), float("inf")), near)
        else:
            limited = (near.abs() > top).where(float("nan"), near)
        if not self.has_negative_zero:
            limited = limited + 0.0
        return x.ne(x).where(x, limited)

    def _power_of_two(self, x: Tensor, *, saturate: bool, mode: str) -> Tensor:
        bits = x.bitcast(dt.uint32)
        exponent, rest = (bits >> _MANTISSA) & 0xFF, bits & ((1 << _MANTISSA) - 1)
        half = 1 << _MANTISSA - 1
        more = {"up": rest.ne(0), "nearest": rest >= half}.get(mode)
        if more is not None:
            exponent = exponent + more.cast(dt.uint32)
        limit = 2 * self.bias
        over = exponent > limit
        # The smallest value, 2^-127, is a denormal float32: half a unit of the first exponent.
        power = exponent.eq(0).where(
            Tensor(1 << _MANTISSA - 1, dt.uint32), exponent.clip(0, limit) << _MANTISSA
        )
        value = power.bitcast(dt.float32)
        beyond = Tensor(self.largest if saturate else float("nan"), dt.float32)
        return (x.ne(x) | (x < 0)).where(float("nan"), over.where(beyond, value))

    def bits(self, x: Tensor) -> Tensor:
        """Return the bits (uint32) of values that the format can hold."""
        raw = x.bitcast(dt.uint32)
        magnitude = raw & 0x7FFFFFFF
        if not self.has_sign:
            return x.ne(x).where(Tensor(self.nan_code or 0, dt.uint32), magnitude >> _MANTISSA)
        code = (magnitude >> (_MANTISSA - self.mantissa)) - (
            (_BIAS - self.bias) << self.mantissa & 0xFFFFFFFF
        )
        if self.exponent < 8:
            step = self.smallest_normal / (1 << self.mantissa)
            tiny = (x.abs() * (1.0 / step)).cast(dt.uint32)
            code = (x.abs() < self.smallest_normal).where(tiny, code)
        sign = (raw >> 31) << self.width
        if not self.has_negative_zero:
            sign = x.eq(0).where(Tensor(0, dt.uint32), sign)
        if self.has_infinity:
            top = ((1 << self.exponent) - 1) << self.mantissa
            infinite = magnitude.eq(0x7F800000)
            code = infinite.where(Tensor(top, dt.uint32), code)
            nan = Tensor(top | (1 << max(self.mantissa - 1, 0)), dt.uint32)
            return x.ne(x).where(nan | sign, code | sign)
        if self.nan_code is None:
            return code | sign
        # Where NaN is the code of -0 it has no sign.
        nan = Tensor(self.nan_code, dt.uint32)
        return x.ne(x).where(nan | sign if self.has_negative_zero else nan, code | sign)
