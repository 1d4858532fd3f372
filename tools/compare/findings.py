"""The findings of a comparison of two logs: counted, summed up, and described.

`Tallies` counts one finding for each kind and field, however many frames have it. A `Comparison`
holds plain values that are stored and drawn; functions describe it for people and for machines.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from runtime.texts import count_text
from tools.behaviour.describe import behaviour_lines
from tools.behaviour.difference import BehaviourVerdict, Sides
from tools.compare.align import Message, Pair
from tools.lib.terminal import format_table, printable
from tools.messages.drive_log import DriveTime

FindingKind = Literal[
    "missing",  # a frame, or a message, of the left log that the right one lacks
    "extra",  # the other way round
    "repeated",  # a frame id that comes twice in the right log only
    "reordered",  # the same frames in another order
    "value",  # numbers, texts or enumerants beyond the tolerance
    "nonfinite",  # NaN or infinity on one side, or of another kind
    "length",  # lists of different lengths
    "type",  # a union member or a structure that the other side does not have
    "shift",  # each value within its tolerance, but all of them moved to one side
]
# What each kind of finding means, for people. The first kinds matter most: what follows is often
# their consequence.
KIND_TEXTS: dict[FindingKind, str] = {
    "missing": "messages that only the first log has",
    "extra": "messages that only the second log has",
    "repeated": "frames that come twice in the second log",
    "reordered": "frames in another order",
    "type": "another member of a union, or damaged",
    "length": "lists of other lengths",
    "nonfinite": "NaN or infinity on one side",
    "value": "beyond the tolerance",
    "shift": "within the tolerance, but all to one side",
}
_SHOWN_NUMBER = ".7g"
_MAX_TEXT = 40


@dataclass(frozen=True, slots=True)
class Finding:
    """One difference between the logs, summed up over all frames."""

    kind: FindingKind  # what differs
    service: str  # e.g. ``modelV2``
    # Path below the service, lists as ``[]``: ``laneLines[].y``; "" for whole messages; ``valid``
    # of the Event is ``.valid``.
    field: str
    frames: int  # how many frames have it
    first_frame: int  # frame id of the first one; -1 where messages have none (then a position)
    worst_frame: int  # frame id of the largest one
    worst_place: str  # where in that frame, with indices: ``laneLines[1].y[32]``
    left: str  # value there, in the left log, as text
    right: str  # value there, in the right log
    worst_absolute: float  # |left - right| there; NaN where it has no meaning
    worst_relative: float  # the same over the larger magnitude; NaN where it has no meaning
    limit: str  # the tolerance as text: ``abs 1e-3, rel 1e-2``


@dataclass(frozen=True, slots=True)
class FieldStatistics:
    """How one field differs over all frames, also where it stays within its tolerance."""

    service: str  # e.g. ``modelV2``
    field: str  # path as in `Finding`
    values: int  # numbers compared
    differing: int  # of them, not bit-equal
    mean_difference: float  # mean of right - left
    standard_error: float  # of that mean, over frames
    rms_difference: float  # root of the mean square
    largest: float  # the largest |right - left|
    drift_per_frame: float  # slope of the frames' mean difference over the frame number
    left_rms: float  # size of the left values, to judge the rest by


@dataclass(frozen=True, slots=True)
class FieldSeries:
    """What one field that differs at all did over the frames; thinned out in long logs."""

    service: str  # e.g. ``modelV2``
    field: str  # path as in `Finding`
    frames: NDArray[np.int64]  # (n,) int64 frame ids, or positions
    # (n,) float64 mean of the field's values in the left log; NaN where it has none.
    left: NDArray[np.float64]
    right: NDArray[np.float64]  # (n,) the same of the right log
    # (n,) the largest |right - left| of a frame, kept of frames that are left out.
    largest: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two logs compared."""

    left: str  # name of the reference
    right: str  # name of what is compared with it
    frames: int  # frame ids that both have and that were compared
    skipped: int  # frames before the calibration, which are not compared
    messages: int  # messages compared, of all services
    findings: Sequence[Finding]  # worst first; none means that the logs agree
    statistics: Sequence[FieldStatistics]  # of every numeric field
    # What a user should know: truncated logs, services of one side only that are ignored.
    warnings: Sequence[str]
    series: Sequence[FieldSeries] = ()  # of every numeric field that differs at all, for plots
    # What the difference does to the drive, and gates on it.
    behaviour: BehaviourVerdict = field(default_factory=BehaviourVerdict)
    # Of both logs.
    times: tuple[DriveTime, DriveTime] = field(default_factory=lambda: (DriveTime(), DriveTime()))
    # What both models wanted, frame by frame, for judging several drives as one; None where nobody
    # noted it.
    sides: Sides | None = field(default=None, repr=False)

    @property
    def passed(self) -> bool:
        """Whether nothing differs beyond what is allowed."""
        return not self.failing and self.behaviour.holds

    @property
    def failing(self) -> list[Finding]:
        """The findings that no gate stands in for."""
        stands_in = self.behaviour.stands_in_for
        return [one for one in self.findings if not stands_in(one.kind, one.field)]


@dataclass(frozen=True, slots=True)
class Tally:
    """A finding with what it is sorted by."""

    finding: Finding  # as it will be reported
    score: float  # how bad the worst frame is, in tolerances; infinite where there is no measure
    first: int  # position in its log of the first frame that has it


class Tallies:
    """Counts findings of one service."""

    def __init__(self, service: str) -> None:
        self.service = service
        self._found: dict[tuple[FindingKind, str], Tally] = {}

    def add(self, tally: Tally) -> None:
        """Add some frames that have a finding."""
        finding = tally.finding
        key = (finding.kind, finding.field)
        known = self._found.get(key)
        if known is None:
            self._found[key] = tally
            return
        worse, first = max(tally, known, key=_badness), min(tally, known, key=lambda t: t.first)
        merged = replace(
            worse.finding,
            frames=known.finding.frames + finding.frames,
            first_frame=first.finding.first_frame,
        )
        self._found[key] = Tally(merged, worse.score, first.first)

    def add_discrete(
        self,
        kind: FindingKind,
        place: tuple[str, str],
        message: Message,
        texts: tuple[str, str],
        limit: str = "exact",
    ) -> None:
        """Add one frame whose difference has no measure; the first such frame stands for all.

        `place`: pattern and exact place. `message`: of the log that has the frame. `texts`: left
        and right. `limit`: the tolerance.
        """
        frame, (pattern, exact) = message.frame, place
        nan = math.nan
        finding = Finding(
            kind, self.service, pattern, 1, frame, frame, exact, *texts, nan, nan, limit
        )
        self.add(Tally(finding, math.inf, message.position))

    def has(self, kind: FindingKind, field: str) -> bool:
        """Return whether there is such a finding."""
        return (kind, field) in self._found

    def all(self) -> list[Tally]:
        """Return what was found, in no order."""
        return list(self._found.values())


def _badness(tally: Tally) -> tuple[float, int]:
    return (tally.score, -tally.first)


def sorted_findings(tallies: Iterable[Tally]) -> list[Finding]:
    """Return findings worst first."""
    kinds = list(KIND_TEXTS)
    ranked = sorted(
        tallies, key=lambda t: (kinds.index(t.finding.kind), -t.score, t.first, t.finding.field)
    )
    kinds = list(KIND_TEXTS)
    return [tally.finding for tally in ranked]


def shown(value: object) -> str:
    """Return a value for people, in one line that is not long."""
    text = value if isinstance(value, str) else value.hex() if isinstance(value, bytes) else None
    if text is None:
        return repr(value) if isinstance(value, float) else str(value).lower()
    if isinstance(value, bytes):
        return f"{len(value)} bytes" + (f" {text[:16]}" if text else "")
    return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 3]}..."


class Order:
    """Counts frames that come in another order, from the positions of both messages of pairs."""

    # Pairs complete in any order; so many are sorted before they are looked at.
    _HORIZON = 2048

    def __init__(self) -> None:
        self._waiting: list[tuple[int, int, int]] = []
        self._last = -1

    def add(self, pair: Pair, tallies: Tallies) -> None:
        """Take note of a pair."""
        entry = (pair.left.position, pair.right.position, pair.left.frame)
        heapq.heappush(self._waiting, entry)
        if len(self._waiting) > self._HORIZON:
            self._look(tallies)

    def finish(self, tallies: Tallies) -> None:
        """Look at the rest."""
        while self._waiting:
            self._look(tallies)

    def _look(self, tallies: Tallies) -> None:
        left, right, frame = heapq.heappop(self._waiting)
        # A frame that was delayed is one finding, not one for each frame that overtook it.
        if right < self._last:
            nan = math.nan
            text = (f"message {left}", f"message {right}")
            finding = Finding(
                "reordered", tallies.service, "", 1, frame, frame, "", *text, nan, nan, "exact"
            )
            tallies.add(Tally(finding, math.inf, left))
        self._last = right


def verdict(comparison: Comparison) -> str:
    """Return one line: whether the logs agree, and how much was compared."""
    compared = (
        f"{count_text(comparison.messages, 'message')} of "
        f"{count_text(comparison.frames, 'frame')} compared"
    )
    if comparison.skipped:
        compared += f", {count_text(comparison.skipped, 'frame')} before the calibration skipped"
    if comparison.findings and comparison.passed:
        count = count_text(len(comparison.findings), "finding")
        return f"AGREE: all gates hold, overriding {count}; {compared}"
    if comparison.passed:
        differing = sum(1 for field in comparison.statistics if field.differing)
        bits = (
            "equal to the last bit"
            if not differing
            else f"within tolerance; {count_text(differing, 'field')} not equal to the last bit"
        )
        return f"AGREE: {bits}; {compared}"
    failing = [count_text(len(comparison.failing), "finding")] if comparison.failing else []
    missed = sum(not gate.holds for gate in comparison.behaviour.gates)
    failing += [f"{count_text(missed, 'gate')} not held"] if missed else []
    return f"DIFFER: {', '.join(failing)}; {compared}"


def first_difference(findings: Sequence[Finding]) -> Finding | None:
    """Return the finding that comes first in the log; shifts have no beginning."""
    dated = [finding for finding in findings if finding.kind != "shift"]
    return min(dated, key=lambda finding: finding.first_frame, default=None)


def describe_text(comparison: Comparison, limit: int) -> str:
    """Return the comparison for people.

    `comparison`: what was found. `limit`: findings to show.
    """
    lines = [f"warning: {printable(warning)}" for warning in comparison.warnings]
    lines.append(verdict(comparison))
    left, right = (time.text() for time in comparison.times)
    if left != right:
        lines.append(f"time: left {left}; right {right}")
    findings = comparison.findings
    behaviour = behaviour_lines(comparison.behaviour, ("left", "right"))
    drive = ["", *behaviour] if behaviour else []
    if not findings:
        largest = _largest_share(comparison.statistics)
        return "\n".join([*lines, *largest, *drive])
    first = first_difference(findings)
    if first is not None:
        lines.append(f"first: frame {first.first_frame}, {name_of(first)} ({first.kind})")
    rows = [finding_row(finding) for finding in findings[:limit]]
    lines += ["", format_table(FINDING_HEADER, rows)]
    if len(findings) > limit:
        lines.append(f"... and {len(findings) - limit} more; --limit, --json or --html show all")
    lines += drive
    # If gates replace all findings, or only a gate failed, there is no finding to allow.
    if comparison.failing:
        lines += ["", _hint(comparison.failing)]
    return "\n".join(lines)


FINDING_HEADER = ("what", "field", "frames", "first", "worst", "where", "left", "right", "limit")


def finding_row(finding: Finding) -> tuple[str, ...]:
    """Return the cells of a finding under `FINDING_HEADER`."""
    return (
        finding.kind,
        name_of(finding),
        f"{finding.frames:,}",
        str(finding.first_frame),
        str(finding.worst_frame),
        printable(finding.worst_place) or "-",
        printable(short_number(finding.left)),
        printable(short_number(finding.right)),
        finding.limit,
    )


def name_of(finding: Finding | FieldStatistics) -> str:
    """Return service and field as one name, as ``--ignore`` and the table take it."""
    return f"{finding.service}.{finding.field}" if finding.field else finding.service


def short_number(text: str) -> str:
    """Return a number with the digits of a float32; other text as it is."""
    try:
        return f"{float(text):{_SHOWN_NUMBER}}" if "." in text or "e" in text else text
    except ValueError:
        return text


def _hint(findings: Sequence[Finding]) -> str:
    kinds = {finding.kind for finding in findings}
    if kinds <= {"missing", "extra"} and len(findings) < 4:
        return "hint: --service NAME compares chosen services only"
    if kinds == {"shift"}:
        return "hint: small, but on one side in all frames: a constant, a delay or rounding changed"
    return (
        "hint: --ignore FIELD leaves a field out, --tolerances FILE allows more, "
        "--html OUT draws both logs"
    )


def _largest_share(statistics: Sequence[FieldStatistics]) -> list[str]:
    """Return a line about the field that differs most against its own size."""
    differing = [field for field in statistics if field.differing and field.left_rms > 0]
    if not differing:
        return []
    most = max(differing, key=lambda field: field.rms_difference / field.left_rms)
    share = most.rms_difference / most.left_rms
    return [f"largest difference: {name_of(most)}, rms {share:.2g} of its size"]


def describe_json(comparison: Comparison) -> dict[str, Any]:
    """Return everything that was found as plain values; series are left to the page."""
    return {
        "left": comparison.left,
        "right": comparison.right,
        "passed": comparison.passed,
        "verdict": verdict(comparison),
        "frames": comparison.frames,
        "skipped": comparison.skipped,
        "messages": comparison.messages,
        "times": [time.as_json() for time in comparison.times],
        "findings": [asdict(finding) for finding in comparison.findings],
        "statistics": [asdict(field) for field in comparison.statistics],
        "warnings": list(comparison.warnings),
        "behaviour": comparison.behaviour.to_json(),
    }
