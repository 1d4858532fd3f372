"""Compares several models or closed-loop results in one table, to choose among trainings.

All are compared with the first. If the ground truth of the drives is known, each model's distance
to the truth is shown instead.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from html import escape
from pathlib import Path
from typing import Any

from runtime.texts import count_text
from tools.behaviour.describe import AFTER, PATH, SUMMARY, length_text, number, value_text
from tools.behaviour.difference import Row, Sides, Spread
from tools.behaviour.drive_result import TELLING, chosen_figures, read_result
from tools.behaviour.gates import Gates
from tools.behaviour.quantities import true_behaviour
from tools.errors import CompareError
from tools.lib.terminal import format_table, printable
from tools.regress.tell.sets import behaviour_of_log, read_replayed, truth_of_drive
from tools.regress.tell.whole import ALL, WholeVerdict, gate_word, judge_whole, number_of
from tools.report.report_page import folded, table_part, whole_page

# One row of the table: name, unit (if any), and a cell for each candidate.
Line = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Candidates:
    """Several models, compared over the same drives."""

    names: tuple[str, ...]  # the models
    drives: tuple[str, ...]  # drives that all models have; the metrics are about these
    notes: tuple[str, ...]  # omitted drives, with the reason
    verdicts: tuple[WholeVerdict, ...]  # each model against the first

    @property
    def has_truth(self) -> bool:
        """Whether the metrics are distances to the truth."""
        return any(row.right_error is not None for row in self.verdicts[0].rows)

    @property
    def title(self) -> str:
        """A description of the metrics."""
        what = "distance to the truth" if self.has_truth else f"difference from {self.names[0]}"
        return f"{what}, mean and 99th percentile, over {count_text(len(self.drives), 'drive')}"

    def lines(self) -> list[Line]:
        """Return the rows of the table."""
        found: list[Line] = []
        for rows in zip(*(one.rows for one in self.verdicts), strict=True):
            cells = [self._cell(row) for row in rows]
            if any(cell not in ("-", "0, 0") for cell in cells):
                found.append((rows[0].quantity, rows[0].unit or "-", *cells))
        costs = [one.costs[1] for one in self.verdicts]
        names = (("execution, median", "ms"), ("execution, p99", "ms"), ("artifact", "bytes"))
        for (name, unit), values in zip(names, zip(*costs, strict=True), strict=True):
            if any(math.isfinite(value) for value in values):
                found.append((name, unit, *(number_of(value) for value in values)))
        for gates in zip(*(one.gates for one in self.verdicts), strict=True):
            words = [gate_word(gate) for gate in gates]
            found.append((f"gate {gates[0].gate}", "-", *words))
        return found

    def _cell(self, row: Row) -> str:
        error = row.right_error
        spread = error.spread if error is not None else row.spread
        if self.has_truth and error is None:
            return "-"
        missed = f", {error.missed} missed" if error is not None and error.missed else ""
        if not spread.frames:
            return missed.lstrip(", ") or "-"
        return f"{number(spread.mean)}, {number(spread.p99)}{missed}"

    def text(self) -> str:
        """Return the table as text."""
        header = ("", "unit", *map(printable, self.names))
        return "\n".join([*self.notes, self.title, format_table(header, self.lines())])

    def page(self) -> str:
        """Return the table as an HTML page."""
        notes = "".join(f"<p>{escape(note)}</p>" for note in self.notes)
        title = self.title[0].upper() + self.title[1:]
        lines = self.lines()
        parts = [
            f'<p class="lead">{escape(self.lead())}</p>{notes}',
            f"<p>{escape(title)}. The best of a row is bold.</p>",
            self._summary_part(),
            folded(
                f"All {count_text(len(lines), 'row')}",
                table_part(("", "unit", *self.names), lines),
            ),
        ]
        return _page("".join(parts), self.names)

    def lead(self) -> str:
        """Return a sentence with each path's distance from the truth, or from the first one's."""
        found = [self._spread(one, (PATH,)) for one in self.verdicts]
        what = "the truth" if self.has_truth else f"that of {self.names[0]}"
        pairs = [
            f"{name} {length_text(spread[0].mean)}"
            for name, spread in zip(self.names, found, strict=True)
            if spread is not None and (self.has_truth or name != self.names[0])
        ]
        return (
            f"Mean distance of the path from {what} {AFTER}: {', '.join(pairs)}." if pairs else ""
        )

    def _summary_part(self) -> str:
        """Return a short table in everyday lengths, with the best of each row marked."""
        rows = []
        for summed in SUMMARY:
            found = [self._spread(one, summed.quantities) for one in self.verdicts]
            cells = [
                (math.nan, "-") if one is None else (one[0].mean, " / ".join(_spread_cells(*one)))
                for one in found
            ]
            if any(text != "-" for _, text in cells):
                rows.append((f"{summed.label}, mean / p99", cells, self.has_truth))
        costs = [one.costs[1] for one in self.verdicts]
        names = (("execution, median", "ms"), ("execution, p99", "ms"), ("artifact", "bytes"))
        for (name, unit), values in zip(names, zip(*costs, strict=True), strict=True):
            if any(math.isfinite(value) for value in values):
                rows.append((name, [(one, f"{number_of(one)} {unit}") for one in values], True))
        rows += [
            (gates[0].gate, [(math.nan, gate_word(gate)) for gate in gates], False)
            for gates in zip(*(one.gates for one in self.verdicts), strict=True)
        ]
        body = "".join(
            f"<tr><td>{escape(label)}</td>{_cells_of(cells, is_judged=is_judged)}</tr>"
            for label, cells, is_judged in rows
        )
        head = "".join(f'<th class="number">{escape(name)}</th>' for name in self.names)
        table = f"<table><thead><tr><th></th>{head}</tr></thead><tbody>{body}</tbody></table>"
        return f'<div class="wide">{table}</div>'

    def _spread(
        self, verdict: WholeVerdict, quantities: Sequence[str]
    ) -> tuple[Spread, str] | None:
        """Return spread and unit of the worst of some quantities; None if unknown."""
        found = []
        for row in verdict.rows:
            error = row.right_error
            spread = error.spread if error is not None else row.spread
            is_known = error is not None or not self.has_truth
            if row.quantity in quantities and is_known and spread.frames:
                found.append((spread, row.unit))
        return max(found, key=lambda one: one[0].mean, default=None)

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as plain values."""
        return {
            "drives": list(self.drives),
            "notes": list(self.notes),
            "has_truth": self.has_truth,
            "candidates": [
                {
                    "name": name,
                    "costs": verdict.costs[1]._asdict(),
                    "quantities": [asdict(row) for row in verdict.rows],
                    "gates": [asdict(gate) for gate in verdict.gates],
                }
                for name, verdict in zip(self.names, self.verdicts, strict=True)
            ],
        }

    def to_history(self) -> dict[str, Mapping[str, float | None]]:
        """Return the values to store in a history for each model but the first, by subject."""
        pairs = zip(self.names[1:], self.verdicts[1:], strict=True)
        return {f"{self.names[0]} and {name}": verdict.to_history() for name, verdict in pairs}


@dataclass(frozen=True, slots=True)
class Results:
    """Several closed-loop results."""

    names: tuple[str, ...]  # the results
    # Metrics: name -> one value per result; NaN if a result lacks it.
    figures: tuple[tuple[str, tuple[float, ...]], ...]

    @property
    def differing(self) -> dict[str, tuple[float, ...]]:
        """The metrics that differ between results."""
        # NaN is unequal to itself, so compare texts: a metric that all lack does not differ.
        return {name: row for name, row in self.figures if len({repr(one) for one in row}) > 1}

    def lines(self) -> list[Line]:
        """Return the rows of the table."""
        return [(printable(name), *map(number, row)) for name, row in self.differing.items()]

    def text(self) -> str:
        """Return the table as text."""
        count = len(self.differing)
        title = f"{count_text(count, 'figure')} {'differs' if count == 1 else 'differ'}"
        return "\n".join([title, format_table(("figure", *self.names), self.lines())])

    def page(self) -> str:
        """Return the table as an HTML page."""
        lines = self.lines()
        whole = [line for line in lines if "." not in line[0]]
        parts = [line for line in lines if "." in line[0]]
        header = ("metric", *self.names)
        count = count_text(len(parts), "metric")
        return _page(
            f'<p class="lead">{escape(self.lead())}</p>{table_part(header, whole)}'
            + (
                folded(f"{count} of single scenarios and drives", table_part(header, parts))
                if parts
                else ""
            ),
            self.names,
        )

    def lead(self) -> str:
        """Return the main metrics of each: completed drives, departures, offset."""
        figures = dict(self.figures)
        said = []
        for name, label, unit in TELLING:
            if name in figures:
                values = (
                    f"{who} {number(one)}{unit}"
                    for who, one in zip(self.names, figures[name], strict=True)
                )
                said.append(f"{label}: {', '.join(values)}.")
        return (
            " ".join(said) or "Drives completed, departures, collisions and offsets are the same."
        )

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as plain values."""
        return {"candidates": list(self.names), "figures": self.differing}

    def to_history(self) -> dict[str, Mapping[str, float | None]]:
        """Return the values to store in a history for each result but the first, by subject."""
        return {
            f"{self.names[0]} and {name}": {figure: row[place] for figure, row in self.figures}
            for place, name in enumerate(self.names[1:], 1)
        }


def _spread_cells(spread: Spread, unit: str) -> list[str]:
    texts = [value_text(value, unit, spread.p99) for value in (spread.mean, spread.p99)]
    # Write the common unit of a pair once.
    first, _, ending = texts[0].rpartition(" ")
    return [first if texts[1].endswith(f" {ending}") and first else texts[0], texts[1]]


def _cells_of(cells: Sequence[tuple[float, str]], *, is_judged: bool) -> str:
    """Return the HTML cells of a row; the smallest value is marked as best if values differ."""
    known = {value for value, _ in cells if math.isfinite(value)}
    texts = {text for value, text in cells if value == min(known, default=math.nan)}
    is_different = is_judged and len({text for _, text in cells}) > 1
    best = texts if is_different else set()
    return "".join(
        f'<td class="number{" best" if text in best else ""}">{escape(text)}</td>'
        for _, text in cells
    )


def _page(content: str, names: Sequence[str]) -> str:
    title = f"{count_text(len(names), 'candidate')} side by side"
    head = f"<header><h1>{escape(title)}</h1></header>"
    return whole_page(title, [head, f"<section>{content}</section>"])


def candidates_of(paths: Sequence[Path], gates: Gates, truth: Path | None) -> Candidates:
    """Return a comparison of several models.

    `paths`: directories that `modeld replay` wrote for each model, or logs. `gates`: gates to judge
    over all drives, with or without the prefix ``all.``. `truth`: see `truth_of_drive`.

    Raises:
        CompareError: the models have no drive in common.
        LogError: a log cannot be read.
    """
    models = [read_replayed(path) for path in paths]
    # Single logs are assumed to be of the same drive, whatever their names.
    if all(not path.is_dir() for path in paths):
        models = [type(one)(one.name, {"": next(iter(one.logs.values()))}) for one in models]
    drives = [name for name in models[0].logs if all(name in one.logs for one in models)]
    if not drives:
        raise CompareError(
            f"{paths[-1]}: expected a drive that all candidates have, found none; replay the same "
            "drives with each"
        )
    left_out = {name for one in models for name in one.logs} - set(drives)
    notes = [f"omitted, since not all have them: {', '.join(sorted(left_out))}"] if left_out else []
    true = {name: truth_of_drive(truth, name, len(drives)) for name in drives}
    known = {name: None if one is None else true_behaviour(one) for name, one in true.items()}
    first = {name: behaviour_of_log(models[0].logs[name]) for name in drives}
    over_all = Gates(
        tuple(replace(one, name=ALL + one.name.removeprefix(ALL)) for one in gates.all)
    )
    verdicts = []
    for one in models:
        sides = {
            name: Sides(
                first[name],
                first[name] if one is models[0] else behaviour_of_log(one.logs[name]),
                known[name],
            )
            for name in drives
        }
        costs = models[0].costs(drives), one.costs(drives)
        verdicts.append(judge_whole(sides, costs, over_all))
    told = _unique_names(paths, [one.name for one in models])
    return Candidates(told, tuple(drives), tuple(notes), tuple(verdicts))


def results_of(paths: Sequence[Path], ignore: Sequence[str]) -> Results:
    """Return a comparison of several closed-loop results.

    Raises:
        CompareError: a file is not such a result.
    """
    found = [chosen_figures(read_result(path), ignore) for path in paths]
    names = dict.fromkeys(name for one in found for name in one)
    rows = [(name, tuple(one.get(name, math.nan) for one in found)) for name in names]
    return Results(_unique_names(paths, [path.stem for path in paths]), tuple(rows))


def _unique_names(paths: Sequence[Path], names: Sequence[str]) -> tuple[str, ...]:
    return tuple(
        str(path) if names.count(name) > 1 else name
        for path, name in zip(paths, names, strict=True)
    )
