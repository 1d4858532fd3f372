"""Running statistics of differences over frames, in bounded memory.

All arrays have one row for each field of a service. `grow` adds rows when new fields appear. In
shapes, f is the number of fields and n the number of frames.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]

# Number of batches of consecutive frames. Differences of consecutive frames are correlated, so the
# spread of single frames would understate the error of the mean; means of batches are taken as
# independent. When all batches are full, pairs of them are merged and the batch length doubles.
_BATCHES = 64
# Fewer frames do not allow an estimate of the spread.
MIN_SHIFT_FRAMES = 30
# A mean further from 0 than this many standard errors is not chance: with at least 30 batches of
# normally distributed differences, one in 10^8 fields exceeds it.
SHIFT_ERRORS = 8.0
# A shift must also exceed this share of the tolerance. Rounding to one side is far smaller.
SHIFT_SHARE = 0.2


class BatchMeans:
    """Means over frames with standard errors; `quantities` is the number of values per field."""

    def __init__(self, quantities: int) -> None:
        self._sums = np.zeros((0, _BATCHES, quantities))
        self._counts = np.zeros((0, _BATCHES))
        self._size = np.ones(0)

    def grow(self, fields: int) -> None:
        """Add rows up to this number of fields."""
        more = fields - len(self._size)
        if more > 0:
            self._sums = np.concatenate([self._sums, np.zeros((more, *self._sums.shape[1:]))])
            self._counts = np.concatenate([self._counts, np.zeros((more, _BATCHES))])
            self._size = np.concatenate([self._size, np.ones(more)])

    def add(self, rows: Indices, values: Floats) -> None:
        """Add one frame: the (f,) rows of its fields, and their (f, quantities) values."""
        total = self._counts[rows].sum(axis=1)
        full = rows[total >= self._size[rows] * _BATCHES]
        if full.size:
            self._join(full)
        batch = (total // self._size[rows]).astype(np.intp)
        if full.size:
            batch = (self._counts[rows].sum(axis=1) // self._size[rows]).astype(np.intp)
        self._sums[rows, batch] += values
        self._counts[rows, batch] += 1

    def _join(self, rows: Indices) -> None:
        for array in (self._sums, self._counts):
            half = array[rows, 0::2] + array[rows, 1::2]
            array[rows] = np.concatenate([half, np.zeros_like(half)], axis=1)
        self._size[rows] *= 2

    def means(self) -> tuple[Floats, Floats, Floats]:
        """Return the mean (f, quantities), its standard error (f, quantities) and frames (f,).

        The error is NaN for fields with fewer than two full batches.
        """
        frames = self._counts.sum(axis=1)
        mean = self._sums.sum(axis=1) / np.maximum(frames, 1)[:, None]
        full = self._counts >= self._size[:, None]
        batches = full.sum(axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            of_batch = self._sums / self._counts[:, :, None]
            of_batch = np.where(full[:, :, None], of_batch, 0.0)
            centre = of_batch.sum(axis=1) / batches[:, None]
            spread = np.where(full[:, :, None], of_batch - centre[:, None], 0.0)
            variance = (spread**2).sum(axis=1) / (batches - 1)[:, None]
            error = np.sqrt(variance / batches[:, None])
        return mean, np.where((batches >= 2)[:, None], error, np.nan), frames


class Slope:
    """Least-squares slopes of values over the frame number."""

    def __init__(self) -> None:
        self._origin: float | None = None
        # (f, 5): number of frames, sums of x, x^2, y and x*y.
        self._sums = np.zeros((0, 5))

    def grow(self, fields: int) -> None:
        """Add rows up to this number of fields."""
        more = fields - len(self._sums)
        if more > 0:
            self._sums = np.concatenate([self._sums, np.zeros((more, 5))])

    def add(self, rows: Indices, frame: int, values: Floats) -> None:
        """Add one frame: the (f,) rows of its fields, and their (f,) values."""
        if self._origin is None:
            # Counting from the first frame keeps the squares of large frame ids precise.
            self._origin = float(frame)
        x = frame - self._origin
        ones = np.ones_like(values)
        self._sums[rows] += np.stack([ones, x * ones, x * x * ones, values, x * values], axis=1)

    def slopes(self) -> Floats:
        """Return the (f,) change per frame; 0 for fields with fewer than two frames."""
        n, x, xx, y, xy = self._sums.T
        spread = n * xx - x * x
        return np.where(spread > 0, (n * xy - x * y) / np.where(spread > 0, spread, 1.0), 0.0)


class Totals:
    """Sums over all values of a field.

    The five columns are: number of values, number of differing values, sum of differences, sum of
    squared differences, and sum of squared left values.
    """

    def __init__(self) -> None:
        self._sums = np.zeros((0, 5))
        self._largest = np.zeros(0)

    def grow(self, fields: int) -> None:
        """Add rows up to this number of fields."""
        more = fields - len(self._largest)
        if more > 0:
            self._sums = np.concatenate([self._sums, np.zeros((more, 5))])
            self._largest = np.concatenate([self._largest, np.zeros(more)])

    def add(self, rows: Indices, sums: Floats, largest: Floats) -> None:
        """Add frames: the (f,) rows, their (f, 5) sums and their (f,) largest difference."""
        self._sums[rows] += sums
        self._largest[rows] = np.maximum(self._largest[rows], largest)

    @property
    def sums(self) -> Floats:
        """The (f, 5) sums."""
        return self._sums

    @property
    def largest(self) -> Floats:
        """The (f,) largest magnitude of a difference."""
        return self._largest


class Series:
    """The values of each field over the frames, for plots; thinned to fewer than 2 * `most` frames.

    The three columns are: mean of the left values, mean of the right values, largest difference.
    """

    def __init__(self, most: int = 2048) -> None:
        self._most = most
        self._frames: list[int] = []
        self._blocks: list[Floats] = []
        self._fields = 0
        self._stride = 1
        self._offered = 0

    def grow(self, fields: int) -> None:
        """Add rows up to this number of fields."""
        self._fields = max(self._fields, fields)

    def add(self, rows: Indices, frame: int, values: Floats) -> None:
        """Add one frame: the (f,) rows of its fields, and their (f, 3) columns."""
        full = np.full((self._fields, 3), np.nan)
        full[rows] = values
        if self._offered % self._stride:
            # Keep the largest difference of the omitted frame.
            last = self._blocks[-1]
            last[: len(last), 2] = np.fmax(last[:, 2], full[: len(last), 2])
        else:
            self._frames.append(frame)
            self._blocks.append(full)
        self._offered += 1
        if len(self._frames) >= 2 * self._most:
            self._thin()

    def _thin(self) -> None:
        for kept, gone in zip(self._blocks[0::2], self._blocks[1::2], strict=True):
            kept[:, 2] = np.fmax(kept[:, 2], gone[: len(kept), 2])
        self._blocks = self._blocks[0::2]
        self._frames = self._frames[0::2]
        self._stride *= 2

    def of(self, row: int) -> tuple[NDArray[np.int64], Floats]:
        """Return the (n,) frames of a field in ascending order, and its (n, 3) columns."""
        frames = np.array(self._frames, np.int64)
        columns = [block[row] if row < len(block) else np.full(3, np.nan) for block in self._blocks]
        order = np.argsort(frames, kind="stable")
        return frames[order], np.array(columns).reshape(-1, 3)[order]


def is_shift(mean: float, error: float, frames: float) -> bool:
    """Return whether differences within the tolerance are shifted to one side.

    Args:
        mean: mean over frames of difference / tolerance.
        error: standard error of the mean, from batches.
        frames: number of frames.
    """
    if frames < MIN_SHIFT_FRAMES or not np.isfinite(error):
        return False
    return abs(mean) > SHIFT_SHARE and abs(mean) > SHIFT_ERRORS * error
