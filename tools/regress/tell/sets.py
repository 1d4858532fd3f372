"""Compares two directories of logs: pairs drives by name and gives one verdict over all of them.

`modeld replay -o DIR` writes such directories, with one log per drive, times and sizes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Any, Final

from cereal.errors import CerealError
from cereal.log_reader import read_log_bytes
from runtime.texts import count_text
from tools.behaviour.describe import TITLE as BEHAVIOUR
from tools.behaviour.describe import (
    behaviour_lines,
    behaviour_part,
    gates_sentence,
    length_text,
    path_sentence,
    worst_path,
)
from tools.behaviour.difference import Spread
from tools.behaviour.quantities import Behaviour, BehaviourReader
from tools.behaviour.truth import Truth, read_truth
from tools.compare.compare import CompareOptions, compare_logs
from tools.compare.findings import Comparison, describe_json, verdict
from tools.compare.page import COMPARE_STYLE, findings_part, verdict_part
from tools.errors import CompareError, ToolError
from tools.playback.batch import file_name, provenance_path
from tools.playback.outcome import frames_path, load_frames
from tools.regress.tell.whole import (
    Costs,
    WholeVerdict,
    costs_of,
    judge_whole,
    per_drive_gates,
    whole_section,
)
from tools.report.report_page import folded, table_part, title_of_two, whole_page

# File name endings of logs, longest first; the first match is removed.
_ENDINGS: Final = (
    *(f"{log}{packed}" for log in (".rlog", ".qlog") for packed in (".zst", ".bz2")),
    *(".rlog", ".qlog", ".zst", ".bz2"),
)


@dataclass(frozen=True, slots=True)
class Replayed:
    """The logs of one model over some drives."""

    name: str  # display name of the model
    logs: Mapping[str, Path]  # drive name -> log

    def costs(self, drives: list[str]) -> Costs:
        """Return times and artifact size over some of the drives, as far as they were recorded.

        Raises:
            DriveError: a frame table is damaged.
        """
        logs = [self.logs[drive] for drive in drives]
        tables = [frames_path(log) for log in logs]
        times = [load_frames(table).execution_s.tolist() for table in tables if table.is_file()]
        sizes = {_noted(log).get("artifact_bytes") for log in logs}
        size = sizes.pop() if len(sizes) == 1 else None
        return costs_of(times, size if isinstance(size, int) else None)


def read_replayed(path: Path) -> Replayed:
    """Return the logs of a directory, or a single log.

    Raises:
        CompareError: there are no logs, or two are of one drive.
    """
    if not path.is_dir():
        return Replayed(path.name, {drive_name(path): path})
    logs: dict[str, Path] = {}
    for one in sorted(path.iterdir()):
        if one.name.endswith(_ENDINGS) and one.is_file():
            other = logs.setdefault(drive_name(one), one)
            if other != one:
                raise CompareError(
                    f"{path}: expected one log of each drive, found {other.name} and {one.name}"
                )
    if not logs:
        inside = sorted(one.name for one in path.iterdir() if one.is_dir())
        advice = (
            f"name one of its directories: {', '.join(inside[:4])}"
            if inside
            else ("it has to be a directory that modeld replay wrote for a model")
        )
        raise CompareError(f"{path}: expected logs, found none; {advice}")
    return Replayed(path.name or str(path), logs)


def drive_name(log: Path) -> str:
    """Return the drive name of a log: its file name without the ending."""
    ending = next((one for one in _ENDINGS if log.name.endswith(one)), "")
    return log.name.removesuffix(ending)


def behaviour_of_log(log: Path) -> Behaviour:
    """Return the model's outputs as a driver would feel them, frame by frame.

    Raises:
        LogError: the log cannot be read.
    """
    reader = BehaviourReader()
    for data in read_log_bytes(log, lambda _warning: None):
        reader.add(data)
    return reader.behaviour()


def truth_of_drive(path: Path | None, drive: str, drives: int) -> Truth | None:
    """Return the ground truth of one of several drives; None if it is unknown.

    `path`: a truth, or a directory with one per drive, under the drive's name; or None. `drives`:
    number of drives; with a single one, the truth can have any name.

    Raises:
        CompareError: the truth is damaged, or does not exist at the path.
    """
    if path is None:
        return None
    if path.is_dir():
        for one in sorted(path.iterdir()):
            if one.is_dir() and file_name(one.name) == drive:
                return read_truth(one)
        if drives > 1:
            return None
    return read_truth(path)


def _noted(log: Path) -> Mapping[str, Any]:
    with suppress(OSError, ValueError):
        found = json.loads(provenance_path(log).read_text(encoding="utf-8"))
        if isinstance(found, dict):
            return found
    return {}


SIDES = ("left", "right")


@dataclass(frozen=True, slots=True)
class PairOutcome:
    """The comparison of one drive."""

    drive: str
    comparison: Comparison | None = None  # None if it could not be compared
    error: str = ""  # error in one line; "" if it was compared
    exit_code: int = 0  # exit code of the error

    @property
    def word(self) -> str:
        """The verdict in one word."""
        if self.comparison is None:
            return "FAILED"
        return "AGREE" if self.comparison.passed else "DIFFER"

    @property
    def text(self) -> str:
        """The verdict in one line, without that word."""
        return verdict(self.comparison).split(": ", 1)[1] if self.comparison else self.error


@dataclass(frozen=True, slots=True)
class SetComparison:
    """The comparison of two directories."""

    left: str  # the reference
    right: str  # the directory compared with it
    pairs: tuple[PairOutcome, ...]  # one per drive of either directory
    whole: WholeVerdict

    @property
    def exit_code(self) -> int:
        """0: all agree; 1: one differs; else that of the first drive that was not compared."""
        codes = [pair.exit_code or 1 for pair in self.pairs if pair.comparison is None]
        if codes:
            return codes[0]
        agrees = all(pair.comparison and pair.comparison.passed for pair in self.pairs)
        return 0 if agrees and self.whole.holds else 1

    @property
    def conclusion(self) -> str:
        """The conclusion in one line."""
        total = count_text(len(self.pairs), "drive")
        words = [pair.word for pair in self.pairs]
        if "FAILED" in words:
            more = f"; {words.count('DIFFER')} differ" if "DIFFER" in words else ""
            return f"{words.count('FAILED')} of {total} could not be compared{more}"
        missed = sum(not gate.holds for gate in self.whole.gates)
        gates = f"{count_text(missed, 'gate')} over all drives not held" if missed else ""
        differ = f"{words.count('DIFFER')} of {total} differ" if "DIFFER" in words else ""
        return "; ".join(one for one in (differ, gates) if one) or f"{total} agree"

    def text(self) -> str:
        """Return the comparison as text."""
        width = max(len(pair.drive) for pair in self.pairs)
        lines = [f"{pair.word:8}{pair.drive:{width}}  {pair.text}" for pair in self.pairs]
        for pair in self.pairs:
            if pair.comparison and not pair.comparison.passed:
                shown = behaviour_lines(pair.comparison.behaviour, SIDES)
                lines += ["", f"{pair.drive}, " + "\n".join(shown)] if shown else []
        whole = self.whole.lines(SIDES)
        lines += ["", *whole, ""] if whole else []
        return "\n".join([*lines, self.conclusion])

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as plain values."""
        return {
            "left": self.left,
            "right": self.right,
            "passed": self.exit_code == 0,
            "exit_code": self.exit_code,
            "verdict": self.conclusion,
            "drives": [
                {
                    "drive": pair.drive,
                    "error": pair.error or None,
                    **(describe_json(pair.comparison) if pair.comparison else {}),
                }
                for pair in self.pairs
            ],
            "whole": self.whole.to_json(),
        }

    def to_history(self) -> dict[str, Mapping[str, float | None]]:
        """Return the values to store in a history, by subject; empty if nothing was compared."""
        subject = f"{Path(self.left).name} and {Path(self.right).name}"
        return {subject: self.whole.to_history()} if self.whole.drives else {}

    def page(self) -> str:
        """Return the comparison as an HTML page: the conclusion, then the drives, worst first."""
        title = title_of_two(self.left, self.right)
        ordered = sorted(self.pairs, key=_badness, reverse=True)
        rows = [
            row for pair in ordered if pair.comparison for row in pair.comparison.behaviour.rows
        ]
        moved = " ".join(filter(None, (path_sentence(rows), gates_sentence(self.whole.gates))))
        drives = [(pair.word, pair.drive, *_moved(pair), pair.text) for pair in ordered]
        css = "bad" if self.exit_code else "good"
        lead = f'<p class="lead">{escape(moved)}</p><p class="{css}">{escape(self.conclusion)}.</p>'
        parts = [
            f"<header><h1>{escape(title)}</h1>{lead}</header>",
            f"<section><h2>Drives</h2>{table_part(_DRIVES, drives)}</section>",
            whole_section(self.whole, SIDES),
            *map(_section, ordered),
        ]
        return whole_page(title, parts, COMPARE_STYLE)


_DRIVES = ("", "drive", "path moves at most", "in frame", "result")


def _path_of(pair: PairOutcome) -> Spread | None:
    return worst_path(pair.comparison.behaviour.rows) if pair.comparison else None


def _badness(pair: PairOutcome) -> tuple[bool, bool, float]:
    """Return the sort key of a drive: not compared, different, then the path's displacement."""
    path = _path_of(pair)
    return pair.comparison is None, pair.word == "DIFFER", path.max if path else 0.0


def _moved(pair: PairOutcome) -> tuple[str, str]:
    path = _path_of(pair)
    if path is None:
        return "-", "-"
    return length_text(path.max), str(path.frame) if path.max > 0.0 else "-"


def _section(pair: PairOutcome) -> str:
    if pair.comparison is None or not pair.comparison.findings:
        return ""
    behaviour = behaviour_part(pair.comparison.behaviour, SIDES)
    findings = pair.comparison.findings
    return (
        f"<section><h2>{escape(pair.drive)}</h2>{verdict_part(pair.comparison)}"
        f"{f'<h3>{BEHAVIOUR}</h3>{behaviour}' if behaviour else ''}"
        f"{folded(count_text(len(findings), 'finding'), findings_part(findings))}</section>"
    )


def compare_directories(
    left: Path, right: Path, options: CompareOptions, truth: Path | None = None
) -> SetComparison:
    """Compare the logs of two directories, for each drive and over all drives.

    `left`: the reference. `right`: the directory compared with it. `options`: how logs are
    compared; its ``truth`` is not used. `truth`: see `truth_of_drive`.

    Raises:
        CompareError: a directory has no logs.
    """
    sides = read_replayed(left), read_replayed(right)
    names = [*sides[0].logs, *(name for name in sides[1].logs if name not in sides[0].logs)]
    single = replace(options, gates=per_drive_gates(options.gates))
    pairs = tuple(_pairs(sides, names, single, truth))
    compared = {
        pair.drive: pair.comparison.sides
        for pair in pairs
        if pair.comparison and pair.comparison.sides
    }
    costs = sides[0].costs([*compared]), sides[1].costs([*compared])
    whole = judge_whole(compared, costs, options.gates)
    return SetComparison(str(left), str(right), pairs, whole)


def _pairs(
    sides: tuple[Replayed, Replayed], names: list[str], options: CompareOptions, truth: Path | None
) -> Iterator[PairOutcome]:
    for name in names:
        logs = [side.logs.get(name) for side in sides]
        try:
            if logs[0] is None or logs[1] is None:
                only = sides[0 if logs[0] else 1].name
                raise CompareError(
                    f"{name}: expected the drive on both sides, found it in {only} only; replay it "
                    "with both models"
                )
            true = truth_of_drive(truth, name, len(names))
            yield PairOutcome(name, compare_logs(logs[0], logs[1], replace(options, truth=true)))
        except (ToolError, CerealError) as error:
            yield PairOutcome(name, error=str(error), exit_code=error.exit_code)
