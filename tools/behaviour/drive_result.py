"""Reads and compares closed-loop results: the JSON objects that ``modeld drive --json`` prints.

Every number in a result is a metric. Its name is its path through objects and lists, joined by
dots: ``offset_p99_m``, ``scenarios.curve.collisions``. An object in a list is named by its
``scenario``, ``name`` or ``fault``, followed by its ``seed``, or else by its index. Flags count as
0 and 1; null means that there was nothing to measure. Texts and curves are not compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from html import escape
from pathlib import Path
from typing import Any, Final

from runtime.texts import count_text
from tools.behaviour.describe import gate_lines, number
from tools.behaviour.gates import Gates, GateVerdict, check_gate, judge
from tools.errors import CompareError
from tools.lib.given_data import GivenText
from tools.lib.terminal import format_table, printable
from tools.report.report_page import folded, table_part, title_of_two, whole_page

MAX_BYTES: Final = 16 << 20
MAX_FIGURES: Final = 20_000
_MAX_DEPTH: Final = 6
# Patterns of metrics that are not compared: durations, which differ in each run, and gates.
MEASURED: Final = (
    *("*wall_s", "*frames_per_s", "gates.*"),
    *("latency_ms_*", "slipped_ms", "late_share"),
)
ADVICE: Final = "give a closed-loop result as modeld drive --json prints it"
CHANGE: Final = "_change"
HEADER: Final = ("figure", "left", "right", "change")
# The metrics at the top of a page: name, label and unit.
TELLING: Final = (
    ("completed", "Drives completed", ""),
    ("departures", "Lane departures", ""),
    ("collisions", "Collisions", ""),
    ("offset_p99_m", "Offset from the lane centre, p99", " m"),
)


@dataclass(frozen=True, slots=True)
class ResultRow:
    """One metric in two results."""

    name: str  # dotted path in the file
    left: float  # value in the first result; NaN if it is missing or null
    right: float  # value in the second result; NaN if it is missing or null

    @property
    def change(self) -> float:
        """The difference right - left."""
        return self.right - self.left

    @property
    def differs(self) -> bool:
        """Whether the values differ; two NaN are equal."""
        neither = math.isnan(self.left) and math.isnan(self.right)
        return self.left != self.right and not neither


@dataclass(frozen=True, slots=True)
class ResultComparison:
    """The comparison of two closed-loop results."""

    left: str  # name of the first result
    right: str  # name of the second result
    rows: tuple[ResultRow, ...]  # one row for each metric of either result
    gates: tuple[GateVerdict, ...] = ()  # the verdict on each gate
    decide: bool = False  # True: only gates decide; False: any difference fails, too

    @property
    def differing(self) -> tuple[ResultRow, ...]:
        """The rows of metrics that differ."""
        return tuple(row for row in self.rows if row.differs)

    @property
    def passed(self) -> bool:
        """Whether all gates hold and, unless only gates decide, no metric differs."""
        return all(gate.holds for gate in self.gates) and (self.decide or not self.differing)

    @property
    def verdict(self) -> str:
        """One line with the result and the number of differences and gates."""
        count = f"{len(self.differing)} of {count_text(len(self.rows), 'figure')} differ"
        if self.gates:
            held = sum(gate.holds for gate in self.gates)
            count += f"; {held} of {count_text(len(self.gates), 'gate')} hold"
        return f"{'AGREE' if self.passed else 'DIFFER'}: {count}"

    def text(self) -> str:
        """Return the comparison as text."""
        lines = [self.verdict]
        if self.differing:
            lines += ["", format_table(HEADER, [_cells(row) for row in self.differing])]
        return "\n".join(lines + gate_lines(self.gates))

    def page(self) -> str:
        """Return the comparison as an HTML page."""
        title = title_of_two(self.left, self.right)
        gates = [("holds" if one.holds else "fails", one.gate, one.found) for one in self.gates]
        judged = table_part(("", "gate", "found"), gates)
        css = "good" if self.passed else "bad"
        lead = f'<p class="lead">{escape(self.lead)}</p><p class="{css}">{escape(self.verdict)}</p>'
        whole = [_cells(row) for row in self.differing if "." not in row.name]
        parts = [_cells(row) for row in self.differing if "." in row.name]
        same = [_cells(row) for row in self.rows if not row.differs]
        figures = [
            table_part(HEADER, whole) if whole else "",
            _folded(parts, "of single scenarios and drives"),
            _folded(same, "that are the same"),
        ]
        sections = [
            f"<header><h1>{escape(title)}</h1>{lead}</header>",
            f"<section><h2>Gates</h2>{judged}</section>" if gates else "",
            f"<section><h2>All drives</h2>{''.join(figures)}</section>",
        ]
        return whole_page(title, sections)

    @property
    def lead(self) -> str:
        """Sentences about changes of the most important metrics, those of `TELLING`."""
        rows = {row.name: row for row in self.rows}
        said = [
            f"{label}: {number(row.left)}{unit} before, {number(row.right)}{unit} now."
            for name, label, unit in TELLING
            if (row := rows.get(name)) is not None and row.differs
        ]
        return " ".join(said) or "Drives completed, departures, collisions and offset are the same."

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as plain data."""
        return {
            "left": self.left,
            "right": self.right,
            "passed": self.passed,
            "verdict": self.verdict,
            "figures": [{**asdict(row), "change": row.change} for row in self.rows],
            "gates": [asdict(gate) for gate in self.gates],
            "gates_decide": self.decide,
        }


def _folded(rows: list[tuple[str, ...]], which: str) -> str:
    if not rows:
        return ""
    return folded(f"{count_text(len(rows), 'figure')} {which}", table_part(HEADER, rows))


def _cells(row: ResultRow) -> tuple[str, ...]:
    sign = "+" if row.change > 0 else ""
    return (printable(row.name), number(row.left), number(row.right), sign + number(row.change))


def compare_results(
    left: Path, right: Path, gates: Gates, ignore: Sequence[str] = ()
) -> ResultComparison:
    """Compare two closed-loop results.

    Args:
        left: file of the reference.
        right: file of the other result.
        gates: conditions on the metrics of `right`, or with the suffix ``_change`` on right - left.
        ignore: patterns of metrics to leave out.

    Raises:
        CompareError: a file is not a closed-loop result.
        UsageError: a gate names a metric that neither result has.
    """
    sides = [chosen_figures(read_result(path), ignore) for path in (left, right)]
    rows = tuple(
        ResultRow(name, sides[0].get(name, math.nan), sides[1].get(name, math.nan))
        for name in {**sides[0], **sides[1]}
    )
    figures: dict[str, float | None] = {}
    for row in rows:
        nothing = math.isnan(row.left) and math.isnan(row.right)
        figures[row.name] = None if nothing else row.right
        figures[f"{row.name}{CHANGE}"] = None if nothing else row.change
    for gate in gates.all:
        check_gate(gate, tuple(figures), "--gate")
    verdicts = judge(figures, gates.all)
    return ResultComparison(str(left), str(right), rows, verdicts, gates.decide)


def chosen_figures(figures: Mapping[str, float], ignore: Sequence[str] = ()) -> dict[str, float]:
    """Return the metrics that match neither `MEASURED` nor a pattern to ignore."""
    patterns = [*MEASURED, *ignore, *(f"*.{pattern}" for pattern in ignore)]
    return {
        name: value
        for name, value in figures.items()
        if not any(fnmatchcase(name, pattern) for pattern in patterns)
    }


def read_result(path: Path) -> dict[str, float]:
    """Return the numbers of a closed-loop result by name, in the file's order.

    Raises:
        CompareError: the file cannot be read, is not a JSON object, or has no number.
    """
    content = GivenText(path, CompareError, MAX_BYTES, advice=ADVICE).json()
    if not isinstance(content, dict):
        raise _not_a_result(path, f"a JSON {type(content).__name__}")
    figures: dict[str, float] = {}
    for name, value in numbers_of(content):
        if len(figures) == MAX_FIGURES:
            raise _not_a_result(path, f"more than {MAX_FIGURES} numbers")
        figures[name] = value
    if not figures:
        raise _not_a_result(path, "no number in it")
    return figures


def numbers_of(content: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the name and value of each number in a result; null becomes NaN."""
    return _numbers(content, "", 0)


def _numbers(value: Any, name: str, depth: int) -> Iterator[tuple[str, float]]:
    """Yield the numbers below a value; numbers directly in lists are curves and left out."""
    if value is None:
        yield name, math.nan
    elif isinstance(value, int | float):
        # A JSON integer can exceed the range of floats.
        yield name, float(value) if abs(value) < 1e300 else math.inf
    elif depth < _MAX_DEPTH and isinstance(value, dict):
        for key, item in value.items():
            yield from _numbers(item, f"{name}.{key}" if name else str(key), depth + 1)
    elif depth < _MAX_DEPTH and isinstance(value, list):
        called: set[str] = set()
        for index, item in enumerate(value):
            if isinstance(item, dict):
                own = _name_of(item, index)
                own = f"{own}#{index}" if own in called else own
                called.add(own)
                yield from _numbers(item, f"{name}.{own}", depth + 1)


def _name_of(item: Mapping[str, Any], index: int) -> str:
    own = item.get("scenario", item.get("name", item.get("fault")))
    if not isinstance(own, str):
        return str(index)
    return f"{own}-{item['seed']}" if isinstance(item.get("seed"), int) else own


def _not_a_result(path: Path, found: str) -> CompareError:
    return CompareError(
        f"{path}: expected a closed-loop result as modeld drive --json prints it, found {found}"
    )
