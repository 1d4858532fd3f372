"""Converts a count to milliseconds on an Adreno 630, with the factor's uncertainty.

No device was at hand. Four times are published of comma.ai's own models on an Adreno 630; those
models are not, so each is set against a model of ours with the same interface and about the same
architecture. What remains unknown is part of the spread: size of the models, share of the host,
temperature. The interval is where a fifth one would lie in 9 of 10 cases, if the four were drawn
from all models (Student's t with 3 degrees of freedom, on logarithms).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Final

# Quantile 0.95 of Student's t with 3 degrees of freedom.
_T: Final = 2.353


@dataclass(frozen=True, slots=True)
class Anchor:
    """A published time, and the counts of our model that stands in for it.

    `analytic_ms` is the count of `tools.describe.compilation` in fp16; `slots_ms` is the floor of
    tinygrad's kernels, as it made the published ones, by the rules and the compiler of
    `tools.adreno`.
    """

    what: str
    ms: float
    analytic_ms: float
    slots_ms: float


# Counted on 2026-11-28: example models and a model of interface dmonitoring-2025, tinygrad 0.14.0
# with tinymesa 25.2.7.2. The first two times are limits that the fastest of 20 runs stays below,
# so too long; the last two have warp, host and other work of the device in them.
ANCHORS: Final = (
    Anchor("vision alone, limit of tinygrad's CI", 17.0, 2.93, 3.85),
    Anchor("policy alone, limit of tinygrad's CI", 3.2, 0.74, 1.19),
    Anchor("modelV2.modelExecutionTime, mean, Mesa's compiler", 24.8, 4.13, 5.04),
    Anchor("the same of driverStateV2", 14.7, 1.85, 3.03),
)


@dataclass(frozen=True, slots=True)
class Factor:
    """Time over count: the geometric mean of the anchors, and its interval."""

    low: float
    mean: float
    high: float

    def text(self, counted_ms: float) -> str:
        """Return the estimate for people: "about 12 ms (7.1 to 21)"."""
        low, middle, high = (_digits(factor * counted_ms) for factor in self.of_one)
        return f"about {middle} ms ({low} to {high})"

    def plain(self, counted_ms: float) -> dict[str, float]:
        """Return the estimate for machines."""
        low, middle, high = (round(factor * counted_ms, 3) for factor in self.of_one)
        return {"ms": middle, "low_ms": low, "high_ms": high}

    @property
    def of_one(self) -> tuple[float, float, float]:
        """The three factors, smallest first."""
        return self.low, self.mean, self.high


def factor_of(ratios: Sequence[float]) -> Factor:
    """Return the factor of published times over counts, from four ratios, one an anchor."""
    logarithms = [math.log(ratio) for ratio in ratios]
    middle = mean(logarithms)
    width = _T * stdev(logarithms) * math.sqrt(1 + 1 / len(logarithms))
    return Factor(math.exp(middle - width), math.exp(middle), math.exp(middle + width))


ANALYTIC: Final = factor_of([anchor.ms / anchor.analytic_ms for anchor in ANCHORS])
SLOTS: Final = factor_of([anchor.ms / anchor.slots_ms for anchor in ANCHORS])


def _digits(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"
