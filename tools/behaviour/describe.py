"""Describes the effect of a change on the drive: lines for people, a section of a page."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from runtime.quantities import count_text
from tools.behaviour.difference import BehaviourVerdict, Row, TrueError
from tools.behaviour.gates import GateVerdict
from tools.behaviour.headline import SUMMARY_HEADER, summary_rows
from tools.behaviour.quantities import QUANTITIES
from tools.lib.terminal import format_table
from tools.report.report_page import folded, table_part

TITLE = "What it does to the drive"


def behaviour_lines(verdict: BehaviourVerdict, sides: tuple[str, str]) -> list[str]:
    """Return the table of quantities that differ and the gates; none where there is nothing to say.

    `verdict`: what was found. `sides`: what both logs are called.
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
    """Return the same as HTML, without its title; "" where there is nothing to say.

    Gates and a few rows in lengths that people use come first; all quantities are folded.
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
    """Return the rows that say something: a difference, or how far both are from the truth."""
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
    """Return a figure with three digits and no exponent; "-" for none."""
    if not math.isfinite(value):
        return "-" if math.isnan(value) else f"{value}"
    if abs(value) >= 1000.0:
        return f"{value:.0f}"
    return np.format_float_positional(value, precision=3, unique=False, fractional=False, trim="-")


def _error(error: TrueError | None) -> str:
    if error is None or not error.spread.frames:
        return "-"
    return f"{number(error.spread.mean)}, {number(error.spread.p99)}"
