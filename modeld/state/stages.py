"""Times of one frame by stage, counted into histograms that are allocated once."""

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Final

# In the order in which a frame goes through them; times between consecutive marks.
STAGES: Final = ("wait", "inputs", "model", "publish")
# Upper bounds, ms; the last bucket has no bound. Fine around the 50 ms that a frame has.
BOUNDS_MS: Final = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 20.0, 25.0, 30.0, 40.0,
                    50.0, 75.0, 100.0, 150.0, 250.0, 500.0, 1000.0)  # fmt: skip
NS_PER_MS: Final = 1_000_000


@dataclass(slots=True)
class Histogram:
    """Counts of durations since the start: one for each of `BOUNDS_MS`, and one beyond."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_MS) + 1))
    total_ns: int = 0

    def add(self, duration_ns: int) -> None:
        """Count one duration."""
        self.counts[bisect_left(BOUNDS_MS, duration_ns / NS_PER_MS)] += 1
        self.total_ns += duration_ns


@dataclass(slots=True)
class StageTimes:
    """A histogram for each of `STAGES`, filled by marks that a loop sets as it goes."""

    histograms: dict[str, Histogram] = field(
        default_factory=lambda: {stage: Histogram() for stage in STAGES}
    )
    _last_ns: int = 0

    def begin(self, now_ns: int) -> None:
        """Begin a frame."""
        self._last_ns = now_ns

    def mark(self, stage: str, now_ns: int) -> None:
        """End a stage, which began at the mark before."""
        self.histograms[stage].add(now_ns - self._last_ns)
        self._last_ns = now_ns
