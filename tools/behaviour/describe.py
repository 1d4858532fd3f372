"""Describes the effect of a change on the drive as text and HTML.

The functions format the rows and gates of `tools.behaviour.difference`. For reviewers there is a
summary of one sentence and a few rows, in which numbers have no exponents and short lengths are in
millimetres or centimetres. Tables of all quantities are text, or a section of a page.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from runtime.texts import count_text
from tools.behaviour.difference import BehaviourVerdict, Row, Spread, TrueError
from tools.behaviour.gates import GateVerdict
from tools.behaviour.quantities import QUANTITIES
from tools.lib.terminal import format_table
from tools.report.report_page import folded, table_part

TITLE: Final = "Effect on the drive"
# The quantity of the summary's sentence, and its time in words.
PATH: Final = "lateral_2s"
AFTER: Final = "after 2 s"


class Summed(NamedTuple):
    """A row of the summary: a label, and the quantities, of which the worst one is shown."""

    label: str
    quantities: tuple[str, ...]


SUMMARY: Final = (
    Summed("path, sideways, after 2 s", (PATH,)),
    Summed("path, sideways, after 4 s", ("lateral_4s",)),
    Summed("planned speed after 2 s", ("speed_2s",)),
    Summed("desired acceleration", ("acceleration",)),
    Summed("own lane lines, 30 m ahead", ("left_line_30m", "right_line_30m")),
    Summed("distance of the car ahead", ("lead_distance",)),
)
SUMMARY_HEADER: Final = ("difference", "at most", "in frame", "p99", "mean", "on one side only")
# Units of lengths: upper bound in metres, unit, number of units in a metre, decimals.
_LENGTHS: Final = ((0.01, "mm", 1000.0, 1), (1.0, "cm", 100.0, 1), (math.inf, "m", 1.0, 2))
_DECIMALS: Final = {"rad": 4, "m/s": 2, "m/s2": 2}
# Quantities that the sentence also names if they change by at least this value, which a passenger
# notices: name, label, value.
_NOTICED: Final = (
    ("speed_2s", "the planned speed", 0.5),
    ("acceleration", "the acceleration", 0.2),
)


def length_text(value_m: float, like_m: float | None = None) -> str:
    """Return a rounded length in mm, cm or m; "-" for NaN.

    `value_m` is the length in metres. `like_m` is the length that decides the unit, so that all
    cells of a row have the same one; by default it is `value_m`.
    """
    if not math.isfinite(value_m):
        return "-"
    size = abs(value_m if like_m is None else like_m)
    _, unit, factor, decimals = next(one for one in _LENGTHS if size < one[0])
    return f"{_fixed(value_m * factor, decimals)} {unit}"


def value_text(value: float, unit: str, like: float | None = None) -> str:
    """Return a value with its unit and without an exponent; "-" for NaN.

    Lengths are formatted by `length_text`, whose `like_m` is `like`. `unit` is "" for quantities
    without a unit.
    """
    if unit == "m":
        return length_text(value, like)
    if not math.isfinite(value):
        return "-"
    return f"{_fixed(value, _DECIMALS.get(unit, 3))} {unit}".strip().replace("m/s2", "m/s²")


def _fixed(value: float, decimals: int) -> str:
    """Return a number with fixed decimals; a value that rounds to 0 becomes, for example, <0.01."""
    least = 10.0**-decimals
    if 0.0 < abs(value) < 0.5 * least:
        return f"<{least:.{decimals}f}"
    return f"{value:z.{decimals}f}"


def path_sentence(rows: Iterable[Row]) -> str:
    """Return a sentence about the largest change of the path; "" if no row is about the path.

    `rows` can come from several drives.
    """
    every = list(rows)
    paths = [row for row in every if row.quantity == PATH]
    if not paths:
        return ""
    alone = sum(row.lost + row.new for row in paths)
    verb = "has" if alone == 1 else "have"
    one_sided = f" {count_text(alone, 'frame')} {verb} a path on one side only." if alone else ""
    compared = [row.spread for row in paths if row.spread.frames]
    if not compared:
        return f"No path could be compared.{one_sided}"
    worst = max(compared, key=lambda spread: spread.max)
    if worst.max > 0.0:
        moved = f"The path moves by at most {length_text(worst.max)} {AFTER}"
        return f"{moved} (frame {worst.frame}){_noticed(every)}.{one_sided}"
    return f"The path does not move{_next_worst(every)}.{one_sided}"


def _noticed(rows: Sequence[Row]) -> str:
    """Return a clause about other changes that a passenger notices; "" if there are none."""
    said = ""
    for quantity, label, least in _NOTICED:
        moved = [row for row in rows if row.quantity == quantity and row.spread.max >= least]
        if moved:
            row = max(moved, key=lambda one: one.spread.max)
            said += f", {label} by up to {value_text(row.spread.max, row.unit)}"
    return said


def _next_worst(rows: Sequence[Row]) -> str:
    """Return a clause about the first other quantity that changes; "" if none does."""
    for summed in SUMMARY:
        moved = [row for row in rows if row.quantity in summed.quantities and row.spread.max > 0.0]
        if moved:
            row = max(moved, key=lambda one: one.spread.max)
            return f"; {summed.label}: at most {value_text(row.spread.max, row.unit)}"
    return ", but other outputs differ" if any(row.differs for row in rows) else ""


def gates_sentence(gates: Sequence[GateVerdict]) -> str:
    """Return a sentence with the number of gates that hold, and the failed ones; "" without any."""
    if not gates:
        return ""
    # With several drives, each condition is named once, with the drive that fails it most.
    by_gate: dict[str, list[GateVerdict]] = {}
    for one in gates:
        by_gate.setdefault(one.gate, []).append(one)
    count = count_text(len(by_gate), "gate")
    missed = [
        failed for all_of in by_gate.values() if (failed := [x for x in all_of if not x.holds])
    ]
    if not missed:
        return f"{'The gate holds' if len(by_gate) == 1 else f'All {count} hold'}."
    which = "The gate" if len(by_gate) == 1 else f"{len(missed)} of {count}"
    return f"{which} failed: {'; '.join(map(_worst_text, missed))}."


def _worst_text(failed: Sequence[GateVerdict]) -> str:
    worst = max(failed, key=lambda one: abs(one.value) if one.value is not None else math.inf)
    return f"{worst.text} (worst of {len(failed)})" if len(failed) > 1 else worst.text


def summary_rows(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """Return the summary's cells under `SUMMARY_HEADER`; quantities without values are left out."""
    by_name = {row.quantity: row for row in rows}
    return [cells for summed in SUMMARY if (cells := _summary_cells(summed, by_name))]


def _summary_cells(summed: Summed, by_name: Mapping[str, Row]) -> tuple[str, ...]:
    found = [by_name[name] for name in summed.quantities if name in by_name]
    found = [row for row in found if row.spread.frames or row.lost or row.new]
    if not found:
        return ()
    row = max(found, key=lambda one: -1.0 if math.isnan(one.spread.max) else one.spread.max)
    spread, alone = row.spread, sum(one.lost + one.new for one in found)
    numbers = [
        value_text(value, row.unit, spread.max) for value in (spread.max, spread.p99, spread.mean)
    ]
    frame = str(spread.frame) if spread.frame >= 0 and spread.max > 0.0 else "-"
    most, *others = numbers
    return (summed.label, most, frame, *others, str(alone) if alone else "-")


def worst_path(rows: Iterable[Row]) -> Spread | None:
    """Return the spread of the row in which the path moves most; None if no path was compared."""
    paths = [row.spread for row in rows if row.quantity == PATH and row.spread.frames]
    return max(paths, key=lambda spread: spread.max, default=None)


def worst_frame(rows: Iterable[Row]) -> int:
    """Return the id of the frame in which the path moves most; -1 if it does not move."""
    worst = worst_path(rows)
    return worst.frame if worst is not None and worst.max > 0.0 else -1


# --- All quantities, and the gates ------------------------------------------------------------


def behaviour_lines(verdict: BehaviourVerdict, sides: tuple[str, str]) -> list[str]:
    """Return the table of quantities that differ and the gates as lines, or [].

    `sides` are the names of both logs.
    """
    lines: list[str] = []
    rows = _shown(verdict)
    if rows:
        lines += [f"{TITLE.lower()}:", _text_table(rows, sides)]
        rest = len(verdict.rows) - len(rows)
        if rest:
            lines.append(f"... and {rest} more that do not differ")
    return lines + gate_lines(verdict.gates)


def gate_lines(gates: Sequence[GateVerdict]) -> list[str]:
    """Return a line for each gate."""
    return [f"{'holds' if gate.holds else 'FAILS'}  {gate.text}" for gate in gates]


def behaviour_part(verdict: BehaviourVerdict, sides: tuple[str, str]) -> str:
    """Return gates, summary and all quantities (folded) as HTML without a title, or "".

    `sides` are the names of both logs.
    """
    rows, parts = _shown(verdict), []
    if verdict.gates:
        judged = [
            ("holds" if gate.holds else "fails", gate.gate, gate.found) for gate in verdict.gates
        ]
        parts.append(table_part(("", "gate", "found"), judged))
    summary = summary_rows(rows)
    if summary:
        parts.append(table_part(SUMMARY_HEADER, summary))
    if rows:
        meanings = {quantity.name: quantity.meaning for quantity in QUANTITIES}
        with_truth = _has_truth(rows)
        header = (*_header(sides, with_truth), "meaning")
        cells = [(*_cells(row, with_truth), meanings[row.quantity]) for row in rows]
        note = (
            "<p>Mean, 99th percentile and maximum are of the magnitude of the difference, bias is "
            "its mean; to the right is positive. Errors are mean and 99th percentile of the "
            "distance to the truth.</p>"
        )
        title = f"All {count_text(len(rows), 'quantity', 'quantities')}"
        parts.append(folded(title, table_part(header, cells) + note))
    return "".join(parts)


def _shown(verdict: BehaviourVerdict) -> list[Row]:
    """Return the rows with a difference or with a distance to the truth."""
    return [
        row
        for row in verdict.rows
        if row.differs or (row.right_error is not None and row.right_error.expected)
    ]


def _text_table(rows: list[Row], sides: tuple[str, str]) -> str:
    with_truth = _has_truth(rows)
    return format_table(_header(sides, with_truth), [_cells(row, with_truth) for row in rows])


def _header(sides: tuple[str, str], with_truth: bool) -> tuple[str, ...]:
    left, right = sides
    header = ("quantity", "unit", "mean", "p99", "max", "bias", "frame", left, right, "lost", "new")
    return (*header, f"error {left}", f"error {right}") if with_truth else header


def _has_truth(rows: list[Row]) -> bool:
    return any(row.right_error is not None for row in rows)


def _cells(row: Row, with_truth: bool) -> tuple[str, ...]:
    spread = row.spread
    numbers = [number(value) for value in (spread.mean, spread.p99, spread.max)]
    errors = (_error(row.left_error), _error(row.right_error)) if with_truth else ()
    return (
        row.quantity,
        row.unit or "-",
        *numbers,
        number(row.bias),
        str(spread.frame) if spread.frame >= 0 else "-",
        number(row.left),
        number(row.right),
        str(row.lost),
        str(row.new),
        *errors,
    )


def number(value: float) -> str:
    """Return a number with three significant digits and no exponent; "-" for NaN."""
    if not math.isfinite(value):
        return "-" if math.isnan(value) else f"{value}"
    if abs(value) >= 1000.0:
        return f"{value:.0f}"
    return np.format_float_positional(value, precision=3, unique=False, fractional=False, trim="-")


def _error(error: TrueError | None) -> str:
    if error is None or not error.spread.frames:
        return "-"
    return f"{number(error.spread.mean)}, {number(error.spread.p99)}"
