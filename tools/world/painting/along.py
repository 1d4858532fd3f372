"""Patterns along the road: grain of surfaces, and stretches where something is there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tools.world.curves import Floats, through_knots

# Grain has one value for each cell of arc length, and repeats.
_CELL_M = 0.3
_CELLS = 4096
# The same without a jump where it repeats: knots of so many cells, and their share.
_COARSE = ((1, 0.6), (4, 0.9), (16, 0.7), (128, 0.6))
_SHORTEST_M = 1e-6


class Grain:
    """Random values along the road, about -1..1, one row for each surface."""

    def __init__(self, rng: np.random.Generator, rows: int) -> None:
        at = np.arange(_CELLS, dtype=np.float64)
        values = np.zeros((rows, _CELLS))
        for row in range(rows):
            for cells, share in _COARSE:
                knots = rng.integers(-64, 65, _CELLS // cells) / 64.0
                knots = np.concatenate([knots, knots[:1]])
                values[row] += share * (
                    knots[:-1] if cells == 1 else through_knots(knots, cells, at)
                )
        sums = np.cumsum(values, axis=1)
        values -= sums[:, -1:] / _CELLS
        self._values = np.concatenate([values, values[:, :1]], axis=1).ravel()
        until = np.zeros((rows, _CELLS + 1))
        until[:, 1:] = np.cumsum(values, axis=1)
        self._until = until.ravel()

    def mean(self, rows: NDArray[np.int64], s_edges: Floats, length_m: Floats) -> Floats:
        """Return the mean of each stretch.

        `s_edges` (k, n + 1) are falling arc lengths between the stretches, `length_m` (k, n) is
        positive.
        """
        cells = s_edges * (1.0 / _CELL_M)
        cells -= np.floor(cells * (1.0 / _CELLS)) * _CELLS
        index = np.minimum(cells.astype(np.int64), _CELLS - 1)
        cells -= index
        index += rows[:, None] * (_CELLS + 1)
        cells *= self._values[index]
        cells += self._until[index]
        mean = cells[:, :-1] - cells[:, 1:]
        mean *= _CELL_M / length_m
        # Sums over the whole table are 0, so stretches may span its end.
        return np.clip(mean, -2.5, 2.5, out=mean)


class Stretches:
    """Where along the road something is there.

    Begins rise; each end lies before the next begin. The pattern of 0..`period_m` is repeated for
    ever; a period of 0 means once.
    """

    def __init__(
        self,
        begins: Sequence[float] | Floats,
        ends: Sequence[float] | Floats,
        period_m: float = 0.0,
    ) -> None:
        pairs = np.stack([np.asarray(begins, np.float64), np.asarray(ends, np.float64)], axis=1)
        lengths = np.cumsum(pairs[:, 1] - pairs[:, 0])
        until = np.stack([np.concatenate([[0.0], lengths[:-1]]), lengths], axis=1)
        self._s = pairs.ravel()
        self._until = until.ravel()
        self._period_m = period_m
        self._total_m = float(lengths[-1])

    def share(self, s_edges: Floats, length_m: Floats) -> Floats:
        """Return the share of each stretch between falling edges (n + 1,) that has it, (n,)."""
        if self._period_m:
            whole = np.floor(s_edges * (1.0 / self._period_m))
            until = np.interp(s_edges - whole * self._period_m, self._s, self._until)
            until += whole * self._total_m
        else:
            until = np.interp(s_edges, self._s, self._until)
        return np.asarray((until[:-1] - until[1:]) / length_m)


def random_stretches(
    rng: np.random.Generator, share: float, length_m: tuple[float, float], period_m: float = 1500.0
) -> Stretches:
    """Return stretches of random lengths that cover a share of the road, repeated.

    `share` is 0..1 of the road, `length_m` the shortest and the longest.
    """
    low, high = length_m
    free = 0.5 * (low + high) * (1.0 - share) / max(share, 1e-3)
    begins: list[float] = []
    ends: list[float] = []
    at = 2.0 * free * float(rng.random())
    while at < period_m - high or not begins:
        end = at + low + (high - low) * float(rng.random())
        begins.append(at)
        ends.append(end)
        at = end + 0.05 + 2.0 * free * float(rng.random())
    return Stretches(begins, ends, max(period_m, ends[-1]))


def lengths_of(s_edges: Floats) -> Floats:
    """Return the lengths between falling edges (..., n + 1), (..., n), all positive."""
    return np.maximum(s_edges[..., :-1] - s_edges[..., 1:], _SHORTEST_M)
