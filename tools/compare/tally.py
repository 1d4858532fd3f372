"""Counts findings: one for each kind and field, however many frames have it."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from tools.compare.align import Message, Pair
from tools.compare.findings import Finding, FindingKind

# The first kinds matter most: what follows is often their consequence.
_ORDER: tuple[FindingKind, ...] = (
    "missing",
    "extra",
    "repeated",
    "reordered",
    "type",
    "length",
    "nonfinite",
    "value",
    "shift",
)
_MAX_TEXT = 40


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
    ranked = sorted(
        tallies, key=lambda t: (_ORDER.index(t.finding.kind), -t.score, t.first, t.finding.field)
    )
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
