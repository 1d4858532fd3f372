"""Take turns with variants of kernels, however they run: check their results, and time them.

    a round:  a, b, c      the next one:  c, b, a      ...   ->   minimum and median of each

Each turn runs a variant so often that it takes as long as a clock can measure well.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from scheduler.device.choice import Choice
from scheduler.ir import dtype as dt
from scheduler.ir.dtype import DType
from scheduler.tuning.jobs import Job

Array = NDArray[Any]
# Runs of a variant in one turn at most, and what a turn should take: many times what its start
# costs.
RECORDS: Final = 48
LAUNCH_MS: Final = 1.5
# Weights of one variant, all copies: more than the caches of a core hold.
COLD_BYTES: Final = 6 << 20
# Of all variants of a program.
MAX_DATA_BYTES: Final = 1 << 30
# Results may differ by this much of the largest: sums are added in another order.
TOLERANCE: Final = {2: 2e-2, 4: 1e-4, 8: 1e-9}
_SEED: Final = 1  # any; the same data for all variants
# What results are before a variant writes them.
UNWRITTEN: Final = np.full(1, 0xA5, np.uint8)


@dataclass(frozen=True, slots=True)
class Variant:
    """One job with one choice."""

    job: Job
    choice: Choice


@dataclass(frozen=True, slots=True)
class Timing:
    """Milliseconds of one launch of a kernel, over several rounds."""

    minimum: float
    median: float


class Turns(ABC):
    """Variants that are ready to run; a subclass runs them."""

    def __init__(self, variants: Sequence[Variant]) -> None:
        self.variants = list(variants)
        self.correct: list[bool] = []  # whether each gives what the first one of its job gives
        self._expected: dict[Job, list[Array]] = {}
        self._ms: dict[int, float] = {}

    def run(self, which: Sequence[int], rounds: int) -> list[Timing]:
        """Return the times of the variants with these numbers, which take `rounds` turns each."""
        counts = [self._count(i) for i in which]
        times: list[list[float]] = [[] for _ in which]
        for turn in range(rounds):
            order = list(enumerate(zip(which, counts, strict=True)))
            # A drift of the clock speed then favours no variant.
            for place, (i, count) in order if turn % 2 == 0 else reversed(order):
                times[place].append(self._spent(i, count) / count)
        for i, spent_ms in zip(which, times, strict=True):
            self._ms[i] = min(spent_ms)
        return [Timing(min(t), float(np.median(t))) for t in times]

    def _count(self, number: int) -> int:
        """Return how many runs of a variant are one turn."""
        spent = self._ms.get(number, 0.0)
        if not spent:
            spent = self._spent(number, 2) / 2
        return max(1, min(RECORDS, round(LAUNCH_MS / max(spent, 1e-6))))

    def check(self, number: int) -> bool:
        """Run a variant once; return whether it gives what the first one of its job gave."""
        found = self._results(number)
        known = self._expected.setdefault(self.variants[number].job, found)
        return all(map(same_results, found, known))

    @abstractmethod
    def _spent(self, number: int, count: int) -> float:
        """Run a variant so many times; return the milliseconds of all of them."""

    @abstractmethod
    def _results(self, number: int) -> list[Array]:
        """Run a variant once; return what it writes."""


def values_of(dtype: DType, count: int) -> Array:
    """Return values that a network may meet; integers may be indices, so they are small."""
    rng = np.random.default_rng(_SEED)
    if dtype.is_float:
        return rng.standard_normal(count).astype(dtype.np)
    most = 2 if dtype is dt.bool_ else 4
    return rng.integers(0, most, count).astype(dtype.np)


def same_results(found: Array, expected: Array) -> bool:
    """Whether two results agree: integers exactly, floats to TOLERANCE of the largest."""
    # Integers have no rounding, whatever the order of sums.
    if found.dtype.kind != "f":
        return bool(np.array_equal(found, expected))
    a, b = found.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(b)
    # Differences of infinities and NaN say nothing.
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return False
    largest = float(np.abs(b[finite]).max(initial=1e-30))
    error = float(np.abs(a[finite] - b[finite]).max(initial=0.0))
    return error <= TOLERANCE[found.itemsize] * largest
