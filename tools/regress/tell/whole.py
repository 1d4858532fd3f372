"""Judges all drives together: metres over every frame, times and sizes of both programs, gates.

Gates whose names begin with ``all.`` refer to these metrics; all other gates are judged for each
drive.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from runtime.texts import count_text
from tools.behaviour.describe import SUMMARY_HEADER, number, summary_rows
from tools.behaviour.difference import (
    Row,
    Sides,
    figure_names,
    figures_of,
    largest_of,
    pooled,
    worst_of_pool,
)
from tools.behaviour.gates import Gates, GateVerdict, judge
from tools.lib.terminal import format_table
from tools.report.report_page import folded, table_part

ALL: Final = "all."
TITLE: Final = "Over all drives"
_COST_NAMES: Final = (
    "execution_median_ms",
    "execution_p99_ms",
    "execution_ratio",
    "artifact_bytes",
    "artifact_ratio",
)


class Costs(NamedTuple):
    """The costs of a program over all drives; NaN if unknown."""

    execution_ms: float = math.nan  # median time of the frames in which the model ran
    p99_ms: float = math.nan  # 99th percentile of these times
    artifact_bytes: float = math.nan  # size of the artifact file


def costs_of(execution_s: Sequence[Sequence[float]], artifact_bytes: float | None) -> Costs:
    """Return the costs of a program.

    `execution_s`: times of the frames of each drive; 0 if the model did not run. `artifact_bytes`:
    size of the file; None if unknown.
    """
    times = np.array([time for drive in execution_s for time in drive if time > 0.0], np.float64)
    size = math.nan if artifact_bytes is None else float(artifact_bytes)
    if not times.size:
        return Costs(artifact_bytes=size)
    return Costs(1e3 * float(np.median(times)), 1e3 * float(np.percentile(times, 99.0)), size)


@dataclass(frozen=True, slots=True)
class WholeVerdict:
    """The verdict on all drives together."""

    drives: tuple[str, ...] = ()  # names; `worst_of_pool` returns indices of this tuple
    rows: tuple[Row, ...] = ()  # one row per quantity
    # Costs of the reference and of the judged program.
    costs: tuple[Costs, Costs] = field(default_factory=lambda: (Costs(), Costs()))
    # New time divided by old, measured alternately; None: computed from the wall times in `costs`.
    time_ratio: float | None = None
    gates: tuple[GateVerdict, ...] = ()  # verdict on each gate over all drives

    @property
    def holds(self) -> bool:
        """Whether all gates hold."""
        return all(gate.holds for gate in self.gates)

    def to_json(self) -> dict[str, Any]:
        """Return the verdict as plain values."""
        quantities = []
        for row in self.rows:
            drive, frame = worst_of_pool(row)
            spread = {**asdict(row.spread), "frame": frame}
            worst = self.drives[drive] if drive >= 0 else None
            quantities.append({**asdict(row), "spread": spread, "worst_drive": worst})
        return {
            "drives": list(self.drives),
            "quantities": quantities,
            "costs": [one._asdict() for one in self.costs],
            "gates": [asdict(gate) for gate in self.gates],
            "gates_hold": self.holds,
        }

    def to_history(self) -> dict[str, float | None]:
        """Return the values to store in a history: the largest differences, and all costs."""
        return {**largest_of(self.rows), **_cost_figures(*self.costs, self.time_ratio)}

    def table(self, sides: tuple[str, str]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Return header and rows for the quantities that differ or whose truth is known.

        `sides`: names of both sides.
        """
        with_truth = any(row.right_error is not None for row in self.rows)
        header: tuple[str, ...] = (
            "quantity",
            "unit",
            "mean",
            "p99",
            "max",
            "bias",
            "worst in",
            "lost",
            "new",
        )
        if with_truth:
            header = (*header, *(f"error {side}" for side in sides))
        cells = []
        for row in self.rows:
            errors = (row.left_error, row.right_error)
            is_known = any(one is not None and one.expected for one in errors)
            if not (row.differs or is_known):
                continue
            drive, frame = worst_of_pool(row)
            sizes = (row.spread.mean, row.spread.p99, row.spread.max, row.bias)
            both = [
                f"{number(one.spread.mean)}, {number(one.spread.p99)}"
                if one and one.spread.frames
                else "-"
                for one in errors
            ]
            cells.append(
                (
                    row.quantity,
                    row.unit or "-",
                    *(number(size) for size in sizes),
                    f"{self.drives[drive]} {frame}" if row.spread.max > 0.0 else "-",
                    str(row.lost),
                    str(row.new),
                    *(both if with_truth else ()),
                )
            )
        return header, cells

    def cost_rows(self) -> list[tuple[str, str, str, str]]:
        """Return name, both values and change of each cost that is known for both sides."""
        names = ("execution, median ms", "execution, p99 ms", "artifact, bytes")
        rows = []
        for name, left, right in zip(names, *self.costs, strict=True):
            if math.isfinite(left) and math.isfinite(right):
                shown = [number_of(value) for value in (left, right)]
                change = f"{right / left - 1.0:+.1%}" if left > 0.0 else "-"
                rows.append((name, shown[0], shown[1], change))
        return rows

    def lines(self, sides: tuple[str, str]) -> list[str]:
        """Return the verdict as lines of text; empty without quantities and gates."""
        if not self.rows and not self.gates:
            return []
        header, rows = self.table(sides)
        found = [f"{TITLE.lower()}:"]
        found += [format_table(header, rows)] if rows else ["no quantity differs"]
        costs = self.cost_rows()
        found += [format_table(("cost", *sides, "change"), costs)] if costs else []
        found += [f"{gate_word(gate)}  {gate.text}" for gate in self.gates]
        return found


def number_of(value: float) -> str:
    """Return a cost as text: whole numbers from 1000 on, else three digits; "-" for NaN."""
    return f"{value:,.0f}" if value >= 1000.0 else number(value)


def judge_whole(
    drives: Mapping[str, Sides],
    costs: tuple[Costs, Costs],
    gates: Gates,
    time_ratio: float | None = None,
) -> WholeVerdict:
    """Judge all drives together.

    `drives`: drive name -> behaviour of both sides. `costs`: costs of both sides. `gates`: all
    gates of the user; those that start with `ALL` are judged here. `time_ratio`: see
    `WholeVerdict`.
    """
    rows = pooled([*drives.values()])
    figures = {**figures_of(rows), **_cost_figures(*costs, time_ratio)}
    chosen = [gate for gate in gates.all if gate.name.startswith(ALL)]
    named = {f"{ALL}{name}": value for name, value in figures.items()}
    return WholeVerdict(tuple(drives), rows, costs, time_ratio, judge(named, chosen))


def per_drive_gates(gates: Gates) -> Gates:
    """Return the gates that are judged for each drive."""
    return Gates(tuple(one for one in gates.all if not one.name.startswith(ALL)), gates.decide)


def all_figure_names() -> tuple[str, ...]:
    """Return all names that gates on a set of drives can have."""
    of_one = figure_names()
    return (*of_one, *(f"{ALL}{name}" for name in (*of_one, *_COST_NAMES)))


def _cost_figures(left: Costs, right: Costs, time_ratio: float | None) -> dict[str, float | None]:
    values = (
        right.execution_ms,
        right.p99_ms,
        right.execution_ms / left.execution_ms if time_ratio is None else time_ratio,
        right.artifact_bytes,
        right.artifact_bytes / left.artifact_bytes,
    )
    return {
        name: value if math.isfinite(value) else None
        for name, value in zip(_COST_NAMES, values, strict=True)
    }


def gate_word(gate: GateVerdict) -> str:
    """Return the state of a gate; a gate without a value is not judged."""
    if not gate.holds:
        return "FAILS"
    return "not judged" if gate.value is None else "holds"


def whole_section(whole: WholeVerdict, sides: tuple[str, str]) -> str:
    """Return the section of a page about all drives together; "" without quantities and gates.

    Gates, a short table in everyday lengths, and costs come first; the table of all quantities is
    collapsed.

    `sides`: names of both sides.
    """
    if not whole.rows and not whole.gates:
        return ""
    header, rows = whole.table(sides)
    gates = [(gate_word(gate), gate.gate, gate.found) for gate in whole.gates]
    # Omit the worst frame, which would need the drive's name, too; the collapsed table has both.
    summary = [(*cells[:2], *cells[3:]) for cells in summary_rows([*whole.rows])]
    short = (*SUMMARY_HEADER[:2], *SUMMARY_HEADER[3:])
    costs = whole.cost_rows()
    parts = [
        table_part(("", "gate", "found"), gates) if gates else "",
        table_part(short, summary) if summary else "",
        table_part(("cost", *sides, "change"), costs) if costs else "",
        folded(f"All {count_text(len(rows), 'quantity', 'quantities')}", table_part(header, rows))
        if rows
        else "",
    ]
    return f"<section><h2>{TITLE}</h2>{''.join(parts)}</section>"
