"""Math functions with bit-identical results on all processors of one architecture.

numpy's sine and cosine use different instructions on different processors and can differ in the
last bit, which would show in a picture or a log. These functions only add and multiply.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# pi / 2 in two parts (Cody and Waite): the first has 33 bits, so small multiples of it are exact.
_HALF_PI_HIGH = 1.5707963267341256
_HALF_PI_LOW = 6.077100506506192e-11
_TWO_OVER_PI = 0.6366197723675814
# Taylor coefficients (-1)^k / (2k + 1)! and (-1)^k / (2k)!, highest first: below 1e-17 at pi / 4.
_SINE = (
    -1.0 / 1307674368000.0,
    1.0 / 6227020800.0,
    -1.0 / 39916800.0,
    1.0 / 362880.0,
    -1.0 / 5040.0,
    1.0 / 120.0,
    -1.0 / 6.0,
    1.0,
)
_COSINE = (
    1.0 / 20922789888000.0,
    -1.0 / 87178291200.0,
    1.0 / 479001600.0,
    -1.0 / 3628800.0,
    1.0 / 40320.0,
    -1.0 / 720.0,
    1.0 / 24.0,
    -0.5,
    1.0,
)
# Taylor coefficients of atan, (-1)^k / (2k + 1), highest first; below 1e-13 at ATAN_LIMIT.
_ARCTANGENT = tuple((-1.0) ** k / (2 * k + 1) for k in range(10, -1, -1))
ATAN_LIMIT = 0.25


def _polynomial(coefficients: tuple[float, ...], x: Floats) -> Floats:
    result = np.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        result *= x
        result += coefficient
    return result


def sin_cos(angle_rad: Floats | float) -> tuple[Floats, Floats]:
    """Return sine and cosine of angles up to some thousand radians, to about 1e-15."""
    angle = np.asarray(angle_rad, np.float64)
    quadrant = np.rint(angle * _TWO_OVER_PI)
    rest = (angle - quadrant * _HALF_PI_HIGH) - quadrant * _HALF_PI_LOW
    square = rest * rest
    sine = rest * _polynomial(_SINE, square)
    cosine = _polynomial(_COSINE, square)
    turn = quadrant.astype(np.int64) & 3
    is_swapped = (turn & 1).astype(np.bool_)
    first = np.where(is_swapped, cosine, sine)
    second = np.where(is_swapped, sine, cosine)
    first = np.where(turn >= 2, -first, first)
    second = np.where((turn == 1) | (turn == 2), -second, second)
    return first, second


def sine_cosine(angle_rad: float) -> tuple[float, float]:
    """Return the results of `sin_cos` for one angle, bit by bit, in a tenth of the time."""
    quadrant = round(angle_rad * _TWO_OVER_PI)
    rest = (angle_rad - quadrant * _HALF_PI_HIGH) - quadrant * _HALF_PI_LOW
    square = rest * rest
    sine, cosine = _SINE[0], _COSINE[0]
    for coefficient in _SINE[1:]:
        sine = sine * square + coefficient
    for coefficient in _COSINE[1:]:
        cosine = cosine * square + coefficient
    sine *= rest
    turn = quadrant & 3
    if turn & 1:
        sine, cosine = cosine, sine
    return -sine if turn >= 2 else sine, -cosine if turn in {1, 2} else cosine


def arctangent(slope: Floats) -> Floats:
    """Return the angles (rad) of slopes, which must not exceed ``ATAN_LIMIT``."""
    return np.asarray(slope * _polynomial(_ARCTANGENT, slope * slope))


def arctangent_of(slope: float) -> float:
    """Return the result of `arctangent` for one slope."""
    square = slope * slope
    result = _ARCTANGENT[0]
    for coefficient in _ARCTANGENT[1:]:
        result = result * square + coefficient
    return slope * result


def ease(t: Floats) -> Floats:
    """Return the quintic step from 0 to 1 over t in 0..1; its ends have zero slope and bend."""
    t = np.minimum(np.maximum(t, 0.0), 1.0)
    return np.asarray(t * t * t * (t * (t * 6.0 - 15.0) + 10.0))


def ease_slope(t: Floats) -> Floats:
    """Return the derivative of `ease`; 0 outside 0..1."""
    t = np.minimum(np.maximum(t, 0.0), 1.0)
    rest = t * (1.0 - t)
    return np.asarray(30.0 * rest * rest)


def ease_bend(t: Floats) -> Floats:
    """Return the second derivative of `ease`; 0 outside 0..1."""
    t = np.minimum(np.maximum(t, 0.0), 1.0)
    return np.asarray(60.0 * (t * (1.0 - t)) * (1.0 - 2.0 * t))


def through_knots(knots: Floats, spacing: float, positions: Floats) -> Floats:
    """Return a curve with two continuous derivatives through equally spaced knots.

    `knots` (k,) are the values at positions 0, spacing, 2 spacing, ...; outside, the curve keeps
    its end values.
    """
    at = np.minimum(np.maximum(positions / spacing, 0.0), knots.size - 1.0)
    index = np.minimum(at.astype(np.int64), knots.size - 2)
    first = knots[index]
    return np.asarray(first + (knots[index + 1] - first) * ease(at - index))


def random_walk(
    rng: np.random.Generator, count: int, step: int, limits: tuple[int, int]
) -> NDArray[np.int64]:
    """Return a random walk of integers, reflected at its limits.

    It starts halfway between the limits; `step` is the largest change between two values. With
    the same generator state, a longer walk begins with the values of a shorter one.
    """
    low, high = limits
    value = (low + high) // 2
    values = []
    for change in rng.integers(-step, step + 1, count).tolist():
        moved = value + change
        moved = moved if low <= moved <= high else value - change
        value = min(max(moved, low), high)
        values.append(value)
    return np.array(values, np.int64)
