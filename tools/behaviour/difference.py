"""Compares two behaviours with each other and with the truth, and judges them by gates.

A behaviour is a model's quantities in each frame (`tools.behaviour.quantities`). `difference`
returns one `Row` for each quantity, with statistics over the frames that both sides share.
`judge_behaviour` adds the verdicts on gates. `pooled` compares several drives as one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tools.behaviour.gates import Gates, GateVerdict, judge
from tools.behaviour.quantities import QUANTITIES, Behaviour
from tools.behaviour.truth import Floats

STATISTICS = ("mean", "p99", "max")
# Prefix of metrics about the distance to the truth.
ERROR = "error."


@dataclass(frozen=True, slots=True)
class Spread:
    """Statistics of the magnitudes of differences; NaN if there are none."""

    frames: int  # number of frames with a value on both sides
    mean: float
    p99: float  # 99th percentile, linearly interpolated
    max: float
    frame: int  # id of the frame with the largest magnitude; -1 without any


@dataclass(frozen=True, slots=True)
class TrueError:
    """The distance of one log from the truth."""

    spread: Spread  # statistics of the errors
    expected: int  # number of frames in which the truth has a value
    missed: int  # number of those frames in which the log has no value


@dataclass(frozen=True, slots=True)
class Row:
    """The comparison of one quantity in two logs."""

    quantity: str
    unit: str
    spread: Spread  # statistics of right - left
    bias: float  # mean of right - left; NaN if no frame has both
    left: float  # value of the left log in the worst frame
    right: float  # value of the right log in the worst frame
    lost: int  # number of frames in which only the left log has a value
    new: int  # number of frames in which only the right log has a value
    left_error: TrueError | None = None  # distance of the left log; None without a truth
    right_error: TrueError | None = None  # distance of the right log; None without a truth

    @property
    def differs(self) -> bool:
        """Whether the quantity differs between the logs."""
        return bool(self.spread.max > 0.0 or self.lost or self.new)


def difference(
    left: Behaviour,
    right: Behaviour,
    truth: Behaviour | None = None,
    *,
    uncalibrated: bool = False,
) -> tuple[Row, ...]:
    """Compare two behaviours frame by frame; return a row for each quantity.

    The result is empty if the logs have no frame in common.

    Args:
        left: the reference.
        right: the other behaviour.
        truth: the behaviour of a perfect model, see `true_behaviour`.
        uncalibrated: whether to compare frames before the first valid one of the left log, too.
    """
    first = 0 if uncalibrated else _first_valid(left)
    ids, in_left, in_right = np.intersect1d(
        left.frame_ids[first:], right.frame_ids, return_indices=True
    )
    if not ids.size:
        return ()
    sides = left.values[first:][in_left], right.values[in_right]
    rows = list(_rows(ids, *sides))
    if truth is None:
        return tuple(rows)
    shared, here, there = np.intersect1d(ids, truth.frame_ids, return_indices=True)
    errors = [_errors(shared, side[here], truth.values[there]) for side in sides]
    return tuple(
        _with_errors(row, one, other) for row, one, other in zip(rows, *errors, strict=True)
    )


def _first_valid(behaviour: Behaviour) -> int:
    """Return the index of the first valid frame, or the number of frames if none is valid."""
    valid = np.flatnonzero(behaviour.valid)
    return int(valid[0]) if valid.size else behaviour.valid.size


def _rows(ids: NDArray[np.int64], left: Floats, right: Floats) -> Iterator[Row]:
    here, there = np.isfinite(left), np.isfinite(right)
    for column, quantity in enumerate(QUANTITIES):
        one, other = left[:, column], right[:, column]
        both = here[:, column] & there[:, column]
        apart = other[both] - one[both]
        worst = int(np.argmax(np.abs(apart))) if apart.size else -1
        yield Row(
            quantity.name,
            quantity.unit,
            _spread(ids[both], apart),
            float(apart.mean()) if apart.size else math.nan,
            float(one[both][worst]) if apart.size else math.nan,
            float(other[both][worst]) if apart.size else math.nan,
            int((here[:, column] & ~there[:, column]).sum()),
            int((there[:, column] & ~here[:, column]).sum()),
        )


def _spread(ids: NDArray[np.int64], apart: Floats) -> Spread:
    if not apart.size:
        return Spread(0, math.nan, math.nan, math.nan, -1)
    size = np.abs(apart)
    worst = int(np.argmax(size))
    return Spread(
        int(size.size),
        float(size.mean()),
        float(np.percentile(size, 99.0)),
        float(size[worst]),
        int(ids[worst]),
    )


def _errors(ids: NDArray[np.int64], found: Floats, true: Floats) -> list[TrueError | None]:
    errors: list[TrueError | None] = []
    for column, quantity in enumerate(QUANTITIES):
        if quantity.truth is None:
            errors.append(None)
            continue
        expected = np.isfinite(true[:, column])
        both = expected & np.isfinite(found[:, column])
        spread = _spread(ids[both], found[both, column] - true[both, column])
        errors.append(TrueError(spread, int(expected.sum()), int((expected & ~both).sum())))
    return errors


def _with_errors(row: Row, left: TrueError | None, right: TrueError | None) -> Row:
    return replace(row, left_error=left, right_error=right)


def figures_of(rows: Sequence[Row]) -> dict[str, float | None]:
    """Return the metrics for gates by name; the value is None if neither side has the quantity."""
    figures: dict[str, float | None] = {}
    suffixes = {quantity.name: quantity.suffix for quantity in QUANTITIES}
    for row in rows:
        name, unit = row.quantity, suffixes[row.quantity]
        nothing = not (row.spread.frames or row.lost or row.new)
        for statistic in STATISTICS:
            value = getattr(row.spread, statistic)
            figures[f"{name}_{statistic}{unit}"] = None if nothing else value
        figures[f"{name}_bias{unit}"] = None if nothing else row.bias
        figures[f"{name}_lost_frames"] = float(row.lost)
        figures[f"{name}_new_frames"] = float(row.new)
        if row.right_error is None:
            continue
        for statistic in STATISTICS:
            value = getattr(row.right_error.spread, statistic)
            is_judged = row.right_error.expected > 0
            figures[f"{ERROR}{name}_{statistic}{unit}"] = value if is_judged else None
        figures[f"{ERROR}{name}_missed_frames"] = float(row.right_error.missed)
    return figures


def largest_of(rows: Sequence[Row]) -> dict[str, float]:
    """Return the largest difference of each quantity by metric name, for a history of runs."""
    return {
        name: value
        for name, value in figures_of(rows).items()
        if value is not None and "_max" in name
    }


def figure_names() -> tuple[str, ...]:
    """Return all names of metrics that `figures_of` can return, including those with a truth."""
    names = []
    for quantity in QUANTITIES:
        name, unit = quantity.name, quantity.suffix
        names += [f"{name}_{statistic}{unit}" for statistic in (*STATISTICS, "bias")]
        names += [f"{name}_lost_frames", f"{name}_new_frames"]
        if quantity.truth is not None:
            names += [f"{ERROR}{name}_{statistic}{unit}" for statistic in STATISTICS]
            names.append(f"{ERROR}{name}_missed_frames")
    return tuple(names)


class Sides(NamedTuple):
    """The behaviours of both models in one drive."""

    left: Behaviour  # the reference
    right: Behaviour  # the other behaviour
    truth: Behaviour | None = None  # behaviour of a perfect model; None if it is unknown


# Frame ids are uint32. In a pool of drives, the id is drive number * _DRIVE + frame id.
_DRIVE: Final = 1 << 32


def pooled(drives: Sequence[Sides]) -> tuple[Row, ...]:
    """Compare several drives as one; return a row for each quantity.

    Every frame has the same weight. Frames before a drive's first valid one are left out.
    `worst_of_pool` returns the drive and the frame id of a row's worst frame.
    """
    if not drives:
        return ()
    true = [(number, one.truth) for number, one in enumerate(drives) if one.truth is not None]
    return difference(
        _joined([(number, _calibrated(one.left)) for number, one in enumerate(drives)]),
        _joined([(number, one.right) for number, one in enumerate(drives)]),
        _joined(true) if true else None,
        uncalibrated=True,
    )


def worst_of_pool(row: Row) -> tuple[int, int]:
    """Return the drive number and the frame id of a pooled row's worst frame; (-1, -1) if none."""
    return (-1, -1) if row.spread.frame < 0 else divmod(row.spread.frame, _DRIVE)


def _calibrated(behaviour: Behaviour) -> Behaviour:
    first = _first_valid(behaviour)
    return Behaviour(behaviour.frame_ids[first:], behaviour.valid[first:], behaviour.values[first:])


def _joined(parts: Sequence[tuple[int, Behaviour]]) -> Behaviour:
    return Behaviour(
        np.concatenate([part.frame_ids + number * _DRIVE for number, part in parts]),
        np.concatenate([part.valid for _, part in parts]),
        np.concatenate([part.values for _, part in parts]),
    )


# --- The verdict on behaviour: rows, gates, and the findings that gates override --------------

# Fields that describe the frame or the message. No precision and no target changes them, so gates
# never override their findings. Those that begin with a dot belong to the Event itself.
FRAME_FIELDS: Final = frozenset(
    {
        ".valid",
        "frameId",
        "frameIdExtra",
        "frameAge",
        "frameDropPerc",
        "timestampEof",
        "big",
    }
)
# Kinds of findings that gates override. Missing frames and numbers always fail.
NUMERIC_KINDS: Final = ("value", "shift")


@dataclass(frozen=True, slots=True)
class BehaviourVerdict:
    """The effect of a change on the drive."""

    rows: tuple[Row, ...] = ()  # one row per quantity; empty if nothing was compared
    gates: tuple[GateVerdict, ...] = ()  # the verdict on each gate
    decide: bool = False  # whether gates replace tolerances

    @property
    def holds(self) -> bool:
        """Whether all gates hold."""
        return all(gate.holds for gate in self.gates)

    @property
    def differing(self) -> tuple[Row, ...]:
        """The rows of quantities that differ."""
        return tuple(row for row in self.rows if row.differs)

    def overrides(self, kind: str, field: str) -> bool:
        """Return whether gates override a finding.

        `kind` is one of `tools.compare.findings.FindingKind`, `field` the path below the service.
        """
        return self.decide and kind in NUMERIC_KINDS and field not in FRAME_FIELDS

    def to_json(self) -> dict[str, Any]:
        """Return the verdict as plain data."""
        return {
            "quantities": [_row_json(row) for row in self.rows],
            "gates": [
                {
                    "gate": one.gate,
                    "name": one.name,
                    "value": one.value,
                    "holds": one.holds,
                    "note": one.note or None,
                }
                for one in self.gates
            ],
            "gates_decide": self.decide,
            "gates_hold": self.holds,
        }


def judge_behaviour(sides: Sides, gates: Gates, *, uncalibrated: bool = False) -> BehaviourVerdict:
    """Compare two behaviours and judge the difference by gates.

    With `uncalibrated`, frames before the first valid one are compared, too.
    """
    rows = difference(*sides, uncalibrated=uncalibrated)
    return BehaviourVerdict(rows, judge(figures_of(rows), gates.all), gates.decide)


_MEANINGS: Final = {quantity.name: quantity.meaning for quantity in QUANTITIES}


def _row_json(row: Row) -> dict[str, Any]:
    return {**asdict(row), "meaning": _MEANINGS[row.quantity]}
