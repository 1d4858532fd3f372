"""Floating point, as the bounds of `judge` need it: units, grids, what is representable."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from scheduler.ir.dtype import DType
from scheduler.ir.ops import Op

Array = NDArray[Any]
INFINITE: Final = float("inf")
# By type: digits of the significand, and the error of one rounding relative to the result.
EXACT_GRID: Final = {
    "float16": (11, 2.0**-11),
    "float32": (24, 2.0**-24),
    "float64": (53, 2.0**-53),
}
# Halves are added up as floats, and the sum is rounded.
SUM_GRID: Final = {**EXACT_GRID, "float16": EXACT_GRID["float32"]}
# In units of the last place of float32: those of `prelude.BOUNDS`, and one more for
# the reference's own. float64 functions are the device's: OpenCL C 3.0, 7.4.
FUNCTION_ULPS: Final = {
    Op.SQRT: 1.0,
    Op.EXP: 4.0,
    Op.LOG: 4.0,
    Op.SIN: 5.0,
    Op.COS: 5.0,
    Op.TANH: 6.0,
    Op.ERF: 17.0,
    Op.GELU: 6.0,
    Op.POW: 17.0,
}


@dataclass(frozen=True)
class Known:
    """A value, and by how much each element of a right result may differ from it."""

    value: Array
    error: NDArray[np.float64]

    @property
    def undecided(self) -> float:
        """The share of the elements that nothing is known of."""
        return float(np.isinf(self.error).mean()) if self.error.size else 0.0


def wide(value: Array) -> Array:
    """Return numbers as float64."""
    return value.astype(np.float64)


def rounding(value: Array) -> Array:
    """Return half a unit of the last place of each float, of a denormal the smallest number."""
    unit = EXACT_GRID[value.dtype.name][1]
    least = float(np.finfo(value.dtype).smallest_subnormal)
    return np.where(np.isfinite(value), np.abs(wide(value)) * unit * 2 + least, 0.0)


def is_exact(dtype: DType, exact: Array, value: Array) -> Array:
    """Whether a float64 result is what the type holds; no claim for float64 beyond 2**53."""
    same = np.asarray(exact == wide(value))
    if dtype.name == "float64":  # float64 cannot tell what it rounded: whole numbers are known
        same = same & (np.abs(exact) < 2.0**52) & (np.rint(exact * 1024) == exact * 1024)
    return (
        same | (np.isnan(exact) & np.isnan(wide(value))) | (np.isinf(exact) & np.isinf(wide(value)))
    )


def on_one_grid(dtype: DType, terms: Array, total: Array, axes: tuple[int, ...]) -> Array:
    """Whether sums are exact in every order: few multiples of one power of two."""
    digits = SUM_GRID[dtype.name][0]
    fraction, exponent = np.frexp(wide(terms))
    scaled = np.where(np.isfinite(fraction), fraction * 2.0**digits, 0.0).astype(np.int64)
    zeros = np.where(scaled == 0, 0, np.log2(np.maximum(scaled & -scaled, 1)))
    lowest = np.where((scaled == 0) | ~np.isfinite(fraction), 2.0**20, exponent - digits + zeros)
    grid = lowest.min(axis=axes, keepdims=True, initial=2.0**20)
    finite = np.isfinite(wide(terms)).all(axis=axes, keepdims=True)
    small = np.log2(np.where(total == 0, 1.0, total)) - grid < digits
    return np.asarray(finite & ((total == 0) | small))


def clean(error: Array, value: Array) -> NDArray[np.float64]:
    """Return errors without NaN: what is not known to be bounded is unknown."""
    error = np.where(np.isnan(error), INFINITE, error)
    return np.broadcast_to(np.asarray(error, np.float64), value.shape).copy()
