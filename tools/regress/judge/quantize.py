"""Numbers as whole steps of their tolerance: small, and the same on every machine.

What a reference keeps of a value is its place on a scale whose steps are a share of what the
comparison allows there: ``max(absolute, relative * |value|)``. Near zero steps are equal, further
out they grow with the value. There the scale is the bit pattern of an IEEE double, cut off: for
positive doubles the pattern, read as an integer, rises with the value, piecewise linear between
powers of two (IEEE 754-2019, 3.4). No logarithm is computed, so no library or processor changes a
step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

# Steps in what is allowed: a value moves by at most half of one when it is rounded, and both sides
# of a comparison are rounded alike. One step has to stay within what counts as a systematic shift
# (`compare.running.SHIFT_SHARE`), since rounding can move a constant by one. 8 steps instead make a
# reference a tenth larger.
STEPS_OF_TOLERANCE: Final = 5
_MANTISSA_BITS: Final = 52
# Where no absolute difference is allowed: below this a value counts as its distance to zero.
_SMALLEST: Final = 2.0**-40
# Whole numbers of steps beyond this are kept as they are: a double has no more digits.
_MOST_STEPS: Final = 2**52

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Scale:
    """How one field is rounded.

    Attributes:
        absolute: difference that is allowed at zero; both 0: values are kept bit by bit.
        relative: what is allowed more, per unit of magnitude.
    """

    absolute: float
    relative: float

    def __post_init__(self) -> None:
        for value in (self.absolute, self.relative):
            if not 0.0 <= value < math.inf:
                raise ValueError(f"scale: expected tolerances of at least 0, found {self}")

    def steps(self, values: Floats) -> tuple[Integers, NDArray[np.bool_]]:
        """Return the number of steps from zero to each value, and which values have none.

        Args:
            values: float64 of any shape.

        Returns:
            int64 of the same shape, and True where a value is not finite or out of the scale; the
            number there is 0.
        """
        values = np.asarray(values, np.float64)
        if not self.absolute and not self.relative:
            return values.view(np.int64).copy(), np.zeros(values.shape, np.bool_)
        beyond = ~np.isfinite(values)
        finite = np.where(beyond, 0.0, values)
        if not self.relative:
            beyond |= np.abs(finite) > _MOST_STEPS * self._even_step
            counts = np.rint(np.where(beyond, 0.0, finite) / self._even_step)
            return counts.astype(np.int64), beyond
        shift, origin, step = self._layout
        sizes = np.abs(finite)
        # Rounded up, the largest would have no number.
        beyond |= sizes > np.finfo(np.float64).max / 2
        sizes = np.where(beyond, 0.0, sizes)
        near = np.rint(np.minimum(sizes, self._turn) / step).astype(np.int64)
        far = (sizes.view(np.int64) + (1 << (shift - 1))) >> shift
        counts = np.where(sizes < self._turn, near, far - origin)
        return np.where(finite < 0, -counts, counts), beyond

    def values(self, steps: Integers) -> Floats:
        """Return the values at so many steps from zero; the inverse of `steps`, up to rounding.

        Args:
            steps: int64 of any shape.

        Returns:
            float64 of the same shape; NaN for numbers of steps that `steps` never returns.
        """
        if not self.absolute and not self.relative:
            return np.asarray(steps, np.int64).view(np.float64).copy()
        if not self.relative:
            return steps.astype(np.float64) * self._even_step
        shift, origin, step = self._layout
        largest = (int(np.float64(np.finfo(np.float64).max).view(np.int64)) >> shift) - origin
        counts = np.abs(steps)
        # Only a damaged file has more steps than doubles, or -2^63 of them.
        outside = (counts > largest) | (counts < 0)
        near = counts < round(self._turn / step)
        far = (np.where(outside | near, 1, counts + origin) << shift).view(np.float64)
        sizes = np.where(near, counts * step, far)
        return np.where(outside, np.nan, np.where(steps < 0, -sizes, sizes))

    @property
    def _even_step(self) -> float:
        """A power of two, so that multiples of it are exact."""
        return 2.0 ** math.floor(math.log2(self.absolute / STEPS_OF_TOLERANCE))

    @property
    def _turn(self) -> float:
        """A power of two: below it steps are equal."""
        return 2.0 ** math.floor(math.log2(max(self.absolute / self.relative, _SMALLEST)))

    @property
    def _layout(self) -> tuple[int, int, float]:
        """Bits that are cut off a double, what a cut pattern is ahead by, the step near zero."""
        kept = math.ceil(math.log2(STEPS_OF_TOLERANCE / self.relative))
        kept = min(max(kept, 1), _MANTISSA_BITS - 1)
        shift = _MANTISSA_BITS - kept
        # Both parts of the scale have the same number at the turn.
        origin = (int(np.float64(self._turn).view(np.int64)) >> shift) - (1 << kept)
        return shift, origin, self._turn / (1 << kept)
