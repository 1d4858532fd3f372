"""Findings of a checkup: what was seen, how good that is, and what to do about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Self


class Verdict(StrEnum):
    """How good something is, from best to worst."""

    GOOD = "good"
    LOOK = "to look at"
    BAD = "bad"

    @property
    def rank(self) -> int:
        """0 for the best."""
        return list(Verdict).index(self)


@dataclass(frozen=True, slots=True)
class Finding:
    """One sentence.

    `advice` is what to do next; "" if there is nothing to do.
    """

    text: str
    verdict: Verdict = Verdict.GOOD
    advice: str = ""


@dataclass(slots=True)
class Section:
    """What one part of a checkup found.

    `facts` are names and values of what was read; `table` is a header and rows, () without one.
    """

    name: str
    findings: list[Finding] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    table: Sequence[Sequence[Any]] = ()
    seconds: float = 0.0

    @property
    def verdict(self) -> Verdict:
        """The worst of its findings."""
        return max((f.verdict for f in self.findings), key=lambda v: v.rank, default=Verdict.GOOD)

    def good(self, text: str) -> None:
        """Add what is as it should be."""
        self.findings.append(Finding(text))

    def look(self, text: str, advice: str) -> None:
        """Add what may be a problem."""
        self.findings.append(Finding(text, Verdict.LOOK, advice))

    def bad(self, text: str, advice: str) -> None:
        """Add what the daemon cannot work with."""
        self.findings.append(Finding(text, Verdict.BAD, advice))

    def plain(self) -> dict[str, Any]:
        """Return it as JSON knows it."""
        return {
            "name": self.name,
            "verdict": str(self.verdict),
            "seconds": round(self.seconds, 2),
            "findings": [{**asdict(f), "verdict": str(f.verdict)} for f in self.findings],
            "facts": self.facts,
            "table": [list(row) for row in self.table],
        }

    @classmethod
    def of_plain(cls, value: Mapping[str, Any]) -> Self:
        """Return the section that `plain` was of."""
        findings = [
            Finding(f["text"], Verdict(f["verdict"]), f["advice"]) for f in value["findings"]
        ]
        return cls(value["name"], findings, value["facts"], value["table"], value["seconds"])
