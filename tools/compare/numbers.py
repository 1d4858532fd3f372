"""Compares the numbers of one service: findings, statistics, and series for plots.

`Numbers` collects pairs of messages and compares them as arrays of `BLOCK` frames. Differences
beyond the tolerances are added to `Tallies`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tools.compare.fields import Fields, PairLayout
from tools.compare.findings import FieldSeries, FieldStatistics, Finding, Tallies, Tally
from tools.compare.running import BatchMeans, Series, Slope, Totals, is_shift

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

# Number of frames compared together: their arrays of about 1 MiB stay in the cache.
BLOCK = 64


@dataclass(slots=True)
class _Waiting:
    """Pairs of messages with one layout that are not yet compared."""

    frames: list[tuple[int, int]] = field(default_factory=list)  # (frame id, position)
    left: list[Floats] = field(default_factory=list)
    right: list[Floats] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Worst:
    """The largest difference of a field."""

    score: float  # difference / tolerance, or the difference if the tolerance is 0
    frame: int  # frame id or position
    place: str  # path with indices
    left: float
    right: float


@dataclass(frozen=True, slots=True)
class _Block:
    """The comparison of k frames with c numbers each; all arrays are (k, c)."""

    left: Floats  # left values
    right: Floats  # right values
    finite: Bools  # whether both values are finite
    difference: Floats  # right - left; 0 if not finite
    limit: Floats  # tolerance of each value
    differs: Bools  # whether the difference exceeds the tolerance
    odd: Bools  # whether a value is not finite and not equal to the other
    score: Floats  # |difference| / tolerance, or |difference| if the tolerance is 0


def _judged(left: Floats, right: Floats, layout: PairLayout, *, bit_exact: bool) -> _Block:
    """Compare values: they differ if |a - b| > max(absolute, relative * max(|a|, |b|))."""
    finite = np.isfinite(left) & np.isfinite(right)
    with np.errstate(invalid="ignore", over="ignore"):
        difference = np.where(finite, right - left, 0.0)
        size = np.where(finite, np.maximum(np.abs(left), np.abs(right)), 0.0)
    limit = np.maximum(layout.absolute, layout.relative * size)
    off = np.abs(difference)
    other_bits = left.view(np.int64) != right.view(np.int64)
    differs = finite & other_bits if bit_exact else off > limit
    odd = ~finite & ~(np.isnan(left) & np.isnan(right)) & (left != right)
    score = off / np.where(limit > 0.0, limit, 1.0)
    return _Block(left, right, finite, difference, limit, differs, odd, score)


class Numbers:
    """Compares the numbers of one service.

    `fields` has the row numbers and tolerances of its fields. Findings are added to `tallies`. With
    `bit_exact`, tolerances are ignored and every bit must be equal.
    """

    def __init__(self, fields: Fields, tallies: Tallies, *, bit_exact: bool) -> None:
        self._fields, self._tallies, self._bit_exact = fields, tallies, bit_exact
        self._waiting: dict[int, tuple[PairLayout, _Waiting]] = {}
        self._worst: dict[int, _Worst] = {}
        self._first: tuple[int, int] | None = None
        self._totals, self._slope = Totals(), Slope()
        # Means over frames of two quantities: difference, and difference / tolerance.
        self._batches, self._series = BatchMeans(2), Series()

    def add(self, layout: PairLayout, frame: tuple[int, int], left: Floats, right: Floats) -> None:
        """Add one pair of messages.

        Args:
            layout: the common layout of both messages.
            frame: frame id (or position), and position in the left log.
            left: (n,) numbers of the left message.
            right: (n,) numbers of the right message.
        """
        if not layout.places:
            return
        _, waiting = self._waiting.setdefault(id(layout), (layout, _Waiting()))
        waiting.frames.append(frame)
        waiting.left.append(left)
        waiting.right.append(right)
        if len(waiting.frames) >= BLOCK:
            self._compare(layout, waiting)

    def finish(self) -> None:
        """Compare the remaining pairs, and find shifts over all frames."""
        for layout, waiting in self._waiting.values():
            if waiting.frames:
                self._compare(layout, waiting)
        self._find_shifts()

    def _compare(self, layout: PairLayout, waiting: _Waiting) -> None:
        frames = list(waiting.frames)
        block = _judged(
            np.array(waiting.left)[:, layout.left],
            np.array(waiting.right)[:, layout.right],
            layout,
            bit_exact=self._bit_exact,
        )
        for rows in (waiting.frames, waiting.left, waiting.right):
            rows.clear()
        self._first = min(self._first or frames[0], *frames, key=lambda frame: frame[1])
        for statistics in (self._totals, self._slope, self._batches, self._series):
            statistics.grow(len(self._fields.rows))
        self._add_statistics(layout, block, frames)
        self._track_worst(layout, block, frames)
        if block.differs.any() or block.odd.any():
            self._find_differences(layout, block, frames)

    def _add_statistics(
        self, layout: PairLayout, block: _Block, frames: list[tuple[int, int]]
    ) -> None:
        def summed(values: NDArray[np.generic]) -> Floats:
            total: Floats = np.add.reduceat(values.astype(np.float64), layout.starts, axis=1)
            return total

        finite, difference = block.finite, block.difference
        same_bits = block.left.view(np.int64) == block.right.view(np.int64)
        shares = np.where(
            block.limit > 0.0, difference / np.where(block.limit > 0, block.limit, 1), 0
        )
        left = np.where(finite, block.left, 0.0)
        right = np.where(finite, block.right, 0.0)
        values, off = summed(finite), summed(difference)
        largest: Floats = np.maximum.reduceat(np.abs(difference), layout.starts, axis=1)
        sums = [values, summed(finite & ~same_bits), off, summed(difference**2), summed(left**2)]
        totals = np.stack([part.sum(axis=0) for part in sums], axis=1)
        self._totals.add(layout.rows, totals, largest.max(axis=0))
        count = np.maximum(values, 1.0)
        of_frame = np.stack([off / count, summed(shares) / count], axis=2)
        drawn = np.stack([summed(left) / count, summed(right) / count, largest], axis=2)
        drawn[values == 0] = np.nan
        for index, (frame, _) in enumerate(frames):
            there = values[index] > 0
            rows = layout.rows[there]
            self._batches.add(rows, of_frame[index, there])
            self._slope.add(rows, frame, of_frame[index, there, 0])
            self._series.add(layout.rows, frame, drawn[index])

    def _track_worst(
        self, layout: PairLayout, block: _Block, frames: list[tuple[int, int]]
    ) -> None:
        worst: Floats = np.maximum.reduceat(block.score, layout.starts, axis=1)
        for index, row in enumerate(layout.rows.tolist()):
            frame = int(worst[:, index].argmax())
            score = float(worst[frame, index])
            if row in self._worst and score <= self._worst[row].score:
                continue
            column = self._column(layout, index, block.score[frame])
            self._worst[row] = self._at(layout, block, frames, (frame, column))

    def _at(
        self,
        layout: PairLayout,
        block: _Block,
        frames: list[tuple[int, int]],
        cell: tuple[int, int],
    ) -> _Worst:
        return _Worst(
            float(block.score[cell]),
            frames[cell[0]][0],
            layout.places[cell[1]],
            float(block.left[cell]),
            float(block.right[cell]),
        )

    @staticmethod
    def _column(layout: PairLayout, index: int, values: NDArray[np.generic]) -> int:
        """Return the column with the largest value of the field at `index`."""
        starts = layout.starts
        stop = int(starts[index + 1]) if index + 1 < len(starts) else len(values)
        start = int(starts[index])
        return start + int(np.argmax(values[start:stop]))

    def _find_differences(
        self, layout: PairLayout, block: _Block, frames: list[tuple[int, int]]
    ) -> None:
        names = {row: name for name, row in self._fields.rows.items()}
        for kind, where in (("value", block.differs), ("nonfinite", block.odd)):
            by_field: Bools = np.logical_or.reduceat(where, layout.starts, axis=1)
            # The 1 ranks values that differ only in their bits above equal values.
            scores = np.where(where, 1.0 + block.score, 0.0)
            for index in np.flatnonzero(by_field.any(axis=0)).tolist():
                hits = np.flatnonzero(by_field[:, index])
                tops = np.maximum.reduceat(scores, layout.starts, axis=1)[:, index]
                frame = int(tops.argmax())
                cell = (frame, self._column(layout, index, scores[frame]))
                first = min((frames[hit] for hit in hits), key=lambda entry: entry[1])
                worst = self._at(layout, block, frames, cell)
                name = names[int(layout.rows[index])]
                self._tallies.add(self._tally(kind, name, worst, (hits.size, first[0], first[1])))

    def _tally(self, kind: str, name: str, worst: _Worst, counted: tuple[int, int, int]) -> Tally:
        is_value = kind == "value"
        off = abs(worst.right - worst.left) if is_value else math.nan
        size = max(abs(worst.left), abs(worst.right))
        frames, first_frame, first = counted
        finding = Finding(
            kind="value" if is_value else "nonfinite",
            service=self._fields.service,
            field=name,
            frames=frames,
            first_frame=first_frame,
            worst_frame=worst.frame,
            worst_place=worst.place,
            left=repr(worst.left),
            right=repr(worst.right),
            worst_absolute=off,
            worst_relative=off / size if size > 0 else off,
            limit=self._fields.tolerance(name).text,
        )
        return Tally(finding, worst.score if is_value else math.inf, first)

    def _find_shifts(self) -> None:
        """Find fields whose values are within their tolerance but shifted to one side."""
        mean, error, frames = self._batches.means()
        for name, row in self._fields.rows.items():
            if row >= len(frames) or self._tallies.has("value", name):
                continue
            if not is_shift(mean[row, 1], error[row, 1], frames[row]):
                continue
            assert self._first is not None  # there were frames
            tally = self._tally("value", name, self._worst[row], (int(frames[row]), *self._first))
            share, of = abs(mean[row, 1]), tally.finding.limit
            finding = Finding(
                **{
                    **{key: getattr(tally.finding, key) for key in Finding.__slots__},
                    "kind": "shift",
                    "limit": f"{of}; mean {mean[row, 0]:+.3g} is {share:.0%} of it",
                }
            )
            self._tallies.add(Tally(finding, float(share), tally.first))

    def statistics(self) -> list[FieldStatistics]:
        """Return the statistics of every field, after `finish`."""
        _, error, _ = self._batches.means()
        slopes, result = self._slope.slopes(), []
        for name, row in self._fields.rows.items():
            if row >= len(slopes):
                continue
            values, differing, total, squares, left_squares = self._totals.sums[row].tolist()
            count = max(values, 1.0)
            result.append(
                FieldStatistics(
                    service=self._fields.service,
                    field=name,
                    values=int(values),
                    differing=int(differing),
                    mean_difference=total / count,
                    standard_error=float(error[row, 0]),
                    rms_difference=math.sqrt(squares / count),
                    largest=float(self._totals.largest[row]),
                    drift_per_frame=float(slopes[row]),
                    left_rms=math.sqrt(left_squares / count),
                )
            )
        return result

    def series(self) -> list[FieldSeries]:
        """Return the values over the frames of each field that differs at all, after `finish`."""
        result = []
        for name, row in self._fields.rows.items():
            if row >= len(self._totals.largest) or not self._totals.sums[row, 1]:
                continue
            frames, columns = self._series.of(row)
            result.append(
                FieldSeries(self._fields.service, name, frames, *np.asarray(columns.T, order="C"))
            )
        return result
