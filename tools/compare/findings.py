"""The result of comparing two logs: findings, statistics, and their description.

A `Finding` is one kind of difference in one field, with the number of frames that have it;
`Tallies` counts them. A `Comparison` holds all results as plain values. `describe_text` and
`describe_json` return it as text and as plain data.
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
    "missing",  # a message of the left log that the right log lacks
    "extra",  # a message of the right log that the left log lacks
    "repeated",  # a frame id that occurs twice in the right log only
    "reordered",  # a frame at another position in the order
    "value",  # numbers, texts or enumerants beyond the tolerance
    "nonfinite",  # NaN or infinity on one side, or different ones on both
    "length",  # lists of different lengths
    "type",  # a union member or a structure that the other side lacks
    "shift",  # values within their tolerance, but all of them moved to one side
]
# The meaning of each kind, as shown to users. The order is the order of findings: the first kinds
# matter most, because they often cause the others.
KIND_TEXTS: dict[FindingKind, str] = {
    "missing": "messages that only the first log has",
    "extra": "messages that only the second log has",
    "repeated": "frames that occur twice in the second log",
    "reordered": "frames in another order",
    "type": "different members of a union, or damaged",
    "length": "lists of different lengths",
    "nonfinite": "NaN or infinity on one side",
    "value": "beyond the tolerance",
    "shift": "within the tolerance, but all to one side",
}
_SHOWN_NUMBER = ".7g"
_MAX_TEXT = 40


@dataclass(frozen=True, slots=True)
class Finding:
    """One kind of difference in one field, over all frames.

    Frames are given by frame id, or by position for messages without one.
    """

    kind: FindingKind
    service: str  # for example ``modelV2``
    # Path below the service without indices, such as ``laneLines[].y``. "" is the message itself,
    # and ``.valid`` is the Event's ``valid``.
    field: str
    frames: int  # number of frames with this difference
    first_frame: int  # the first of them
    worst_frame: int  # the frame with the largest difference
    worst_place: str  # path of the largest difference, with indices: ``laneLines[1].y[32]``
    left: str  # value at that place in the left log, as text
    right: str  # value at that place in the right log, as text
    worst_absolute: float  # |left - right| at that place; NaN if it has no meaning
    worst_relative: float  # the same relative to the larger magnitude; NaN if it has no meaning
    limit: str  # the tolerance as text: ``abs 1e-3, rel 1e-2``


@dataclass(frozen=True, slots=True)
class FieldStatistics:
    """Statistics of the differences of one numeric field over all frames."""

    service: str  # for example ``modelV2``
    field: str  # path as in `Finding`
    values: int  # number of compared values
    differing: int  # number of values that are not bit-equal
    mean_difference: float  # mean of right - left
    standard_error: float  # standard error of that mean, over frames
    rms_difference: float  # root mean square of right - left
    largest: float  # the largest |right - left|
    drift_per_frame: float  # slope of the frames' mean difference over the frame number
    left_rms: float  # root mean square of the left values


@dataclass(frozen=True, slots=True)
class FieldSeries:
    """The values of one field that differs, over the frames; long logs are thinned out."""

    service: str  # for example ``modelV2``
    field: str  # path as in `Finding`
    frames: NDArray[np.int64]  # (n,) frame ids, or positions
    left: NDArray[np.float64]  # (n,) mean of the field's left values in a frame; NaN without any
    right: NDArray[np.float64]  # (n,) mean of its right values
    # (n,) largest |right - left|, including the omitted frames after each frame.
    largest: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of comparing two logs."""

    left: str  # name of the reference
    right: str  # name of the other log
    frames: int  # number of compared frame ids
    skipped: int  # number of frames before the calibration, which are not compared
    messages: int  # number of compared messages of all services
    findings: Sequence[Finding]  # worst first; empty if the logs agree
    statistics: Sequence[FieldStatistics]  # one for every numeric field
    warnings: Sequence[str]  # for example truncated logs, or services that only one side has
    series: Sequence[FieldSeries] = ()  # one for every numeric field that differs, for plots
    # The effect of the difference on the drive, and the gates on it.
    behaviour: BehaviourVerdict = field(default_factory=BehaviourVerdict)
    # The time spans of both logs.
    times: tuple[DriveTime, DriveTime] = field(default_factory=lambda: (DriveTime(), DriveTime()))
    # The behaviours of both models, frame by frame, to judge several drives together; None if they
    # were not collected.
    sides: Sides | None = field(default=None, repr=False)

    @property
    def passed(self) -> bool:
        """Whether no finding fails and all gates hold."""
        return not self.failing and self.behaviour.holds

    @property
    def failing(self) -> list[Finding]:
        """The findings that no gate overrides."""
        overrides = self.behaviour.overrides
        return [one for one in self.findings if not overrides(one.kind, one.field)]


@dataclass(frozen=True, slots=True)
class Tally:
    """A finding with its sort keys."""

    finding: Finding
    score: float  # worst difference / tolerance; infinite for values without a distance
    first: int  # position in its log of the first message with the finding


class Tallies:
    """Counts the findings of one service."""

    def __init__(self, service: str) -> None:
        self.service = service
        self._found: dict[tuple[FindingKind, str], Tally] = {}

    def add(self, tally: Tally) -> None:
        """Add a finding; one of the same kind and field is merged with it."""
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
        """Add a difference that has no distance; the finding shows the first such frame.

        Args:
            kind: the kind of finding.
            place: the path without and with indices.
            message: the message with the difference.
            texts: the left and the right value as text.
            limit: the tolerance as text.
        """
        frame, (pattern, exact) = message.frame, place
        nan = math.nan
        finding = Finding(
            kind, self.service, pattern, 1, frame, frame, exact, *texts, nan, nan, limit
        )
        self.add(Tally(finding, math.inf, message.position))

    def has(self, kind: FindingKind, field: str) -> bool:
        """Return whether there is a finding of this kind in this field."""
        return (kind, field) in self._found

    def all(self) -> list[Tally]:
        """Return all findings, in no particular order."""
        return list(self._found.values())


def _badness(tally: Tally) -> tuple[float, int]:
    return (tally.score, -tally.first)


def sorted_findings(tallies: Iterable[Tally]) -> list[Finding]:
    """Return the findings of `tallies`, worst first."""
    kinds = list(KIND_TEXTS)
    ranked = sorted(
        tallies, key=lambda t: (kinds.index(t.finding.kind), -t.score, t.first, t.finding.field)
    )
    kinds = list(KIND_TEXTS)
    return [tally.finding for tally in ranked]


def shown(value: object) -> str:
    """Return a value as a short text."""
    text = value if isinstance(value, str) else value.hex() if isinstance(value, bytes) else None
    if text is None:
        return repr(value) if isinstance(value, float) else str(value).lower()
    if isinstance(value, bytes):
        return f"{len(value)} bytes" + (f" {text[:16]}" if text else "")
    return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 3]}..."


class Order:
    """Finds frames whose order differs, from the positions of paired messages."""

    # Pairs arrive out of order. This many are sorted by position before the first is checked.
    _HORIZON = 2048

    def __init__(self) -> None:
        self._waiting: list[tuple[int, int, int]] = []
        self._last = -1

    def add(self, pair: Pair, tallies: Tallies) -> None:
        """Add a pair; findings are added to `tallies`."""
        entry = (pair.left.position, pair.right.position, pair.left.frame)
        heapq.heappush(self._waiting, entry)
        if len(self._waiting) > self._HORIZON:
            self._look(tallies)

    def finish(self, tallies: Tallies) -> None:
        """Check the remaining pairs."""
        while self._waiting:
            self._look(tallies)

    def _look(self, tallies: Tallies) -> None:
        left, right, frame = heapq.heappop(self._waiting)
        # A delayed frame counts once, not once for each frame that overtook it.
        if right < self._last:
            nan = math.nan
            text = (f"message {left}", f"message {right}")
            finding = Finding(
                "reordered", tallies.service, "", 1, frame, frame, "", *text, nan, nan, "exact"
            )
            tallies.add(Tally(finding, math.inf, left))
        self._last = right


def verdict(comparison: Comparison) -> str:
    """Return one line that says whether the logs agree, and how much was compared."""
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
    """Return the finding with the first frame in the log; shifts do not count."""
    dated = [finding for finding in findings if finding.kind != "shift"]
    return min(dated, key=lambda finding: finding.first_frame, default=None)


def describe_text(comparison: Comparison, limit: int) -> str:
    """Return the comparison as text that shows at most `limit` findings."""
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
    """Return service and field as one name, in the form of ``--ignore`` and the tables."""
    return f"{finding.service}.{finding.field}" if finding.field else finding.service


def short_number(text: str) -> str:
    """Return a number with the precision of a float32, and other text unchanged."""
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
    """Return a line about the field with the largest difference relative to its values."""
    differing = [field for field in statistics if field.differing and field.left_rms > 0]
    if not differing:
        return []
    most = max(differing, key=lambda field: field.rms_difference / field.left_rms)
    share = most.rms_difference / most.left_rms
    return [f"largest difference: {name_of(most)}, rms {share:.2g} of its size"]


def describe_json(comparison: Comparison) -> dict[str, Any]:
    """Return the comparison as plain data, without the series."""
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
