"""Values that programs are given: what decides exactly, what hurts, what is usual."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from scheduler.ir.dtype import DType
from tests.fuzz.draw import Draw

Array = NDArray[Any]
# whole: small whole numbers; halves: k + 1/2 and eighths, so that rounding meets ties; extreme: the
# ends of the type, denormals, both zeros, infinities, NaN among usual ones; usual: normals.
FINITE: Final = ("whole", "halves", "halves", "usual")
PROFILES: Final = (*FINITE, "extreme")


def array(draw: Draw, shape: Sequence[int], kind: DType, profile: str) -> Array:
    rng = np.random.default_rng(draw.integer(0, 2**32 - 1))
    if kind.name == "bool":
        return np.asarray(rng.integers(0, 2, shape)).astype(bool)
    if kind.is_float:
        return _floats(rng, tuple(shape), kind, profile)
    limits = np.iinfo(kind.np)
    low, high = (0, 9) if kind.is_unsigned else (-9, 9)
    values = np.asarray(rng.integers(low, high + 1, shape)).astype(kind.np)
    if profile == "extreme":
        ends = [limits.min, limits.max, limits.max - 1, limits.min + 1, limits.max // 2 + 1, 0, 1]
        hurt = np.asarray(rng.choice(np.array(ends, kind.np), shape))
        return np.where(rng.random(shape) < 0.4, hurt, values)
    if profile == "usual":
        anything = rng.integers(limits.min, limits.max, shape, dtype=kind.np, endpoint=True)
        return np.asarray(np.where(rng.random(shape) < 0.3, anything, values))
    return values


def _floats(rng: np.random.Generator, shape: tuple[int, ...], kind: DType, profile: str) -> Array:
    if profile == "whole":
        return np.asarray(rng.integers(-8, 9, shape)).astype(kind.np)
    if profile == "halves":
        steps = rng.choice([2, 2, 8])
        return np.asarray(rng.integers(-8 * steps, 8 * steps + 1, shape) / steps).astype(kind.np)
    values = np.asarray(rng.standard_normal(shape) * rng.choice([0.1, 1, 3, 30])).astype(kind.np)
    if profile != "extreme":
        return values
    limits = np.finfo(kind.np)
    ends = [limits.max, -limits.max, limits.tiny, limits.smallest_subnormal, 0.0, -0.0, np.inf]
    ends += [-np.inf, np.nan, 1 + limits.eps, 0.5, -1.5, 2.5, 1 / limits.eps, -1.0, 41.0]
    if rng.random() < 0.5:  # without what swallows everything else
        ends = [e for e in ends if np.isfinite(e) and abs(float(e)) < 1e30]
    hurt = rng.choice(np.array(ends, kind.np), shape)
    return np.asarray(np.where(rng.random(shape) < 0.3, hurt, values))
