"""The findings of a checkup, and the report that is made of them.

A `Section` is the result of one part of the checkup. It has `Finding` objects, each a sentence or
phrase with a verdict, most with advice. `report_text` and `report_plain` return the report.

Reports are attached to public issues. The parts of a checkup collect no private data on purpose.
`Scrubber` removes what gets in by accident, such as paths in error messages of drivers, and
replaces values of environment variables with the variables' names::

    /home/ann/models on ann-laptop, tcp://10.0.0.5     ->     ~/models on <host>, tcp://<address>
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Final, Self

from runtime.texts import count_text
from tools.lib.terminal import format_table, printable

_INDENT: Final = "  "
# Shorter values of variables are words such as "1" or "dark", which are not private.
MIN_VALUE: Final = 6
MIN_NAME: Final = 3
# Names and paths that many machines have, and that are therefore not private.
_PUBLIC_USERS: Final = frozenset({"root", "user", "nobody", "comma", "video", "render", "modeld"})
_PUBLIC_HOSTS: Final = frozenset({"localhost", "modeld", "comma"})
_PUBLIC_PATHS: Final = re.compile(
    r"/(?:(?:usr|bin|sbin|etc|dev|tmp|var|opt|proc|sys|run)(?:/\w+)?)?"
)
_RULES: Final = (
    # Homes of all users, not only of the current one.
    (re.compile(r"/(?:home|Users)/[^/\s:'\",;)]+"), "~"),
    (re.compile(r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b"), "<id>"),
    (re.compile(r"\b(?:[0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}\b"), "<address>"),
    (re.compile(r"(?<=tcp://)(?!127\.0\.0\.1|localhost)[^\s:/+]+"), "<address>"),
    (re.compile(r"(?i)(?<=serial)([\s:=]+)\S+"), r"\1<id>"),
)


class Verdict(StrEnum):
    """A verdict; the members are ordered from best to worst."""

    GOOD = "good"
    LOOK = "to look at"
    BAD = "bad"

    @property
    def rank(self) -> int:
        """The rank: 0 for the best verdict, higher for worse ones."""
        return list(Verdict).index(self)


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of a checkup."""

    text: str  # a sentence or phrase
    verdict: Verdict = Verdict.GOOD
    advice: str = ""  # what to do next, or ""


@dataclass(slots=True)
class Section:
    """The result of one part of a checkup."""

    name: str
    findings: list[Finding] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)  # measured values, for JSON
    table: Sequence[Sequence[Any]] = ()  # a header and rows, or ()
    seconds: float = 0.0  # duration of the part

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of the findings."""
        return max((f.verdict for f in self.findings), key=lambda v: v.rank, default=Verdict.GOOD)

    def good(self, text: str) -> None:
        """Add a finding without a problem."""
        self.findings.append(Finding(text))

    def look(self, text: str, advice: str) -> None:
        """Add a finding that can be a problem."""
        self.findings.append(Finding(text, Verdict.LOOK, advice))

    def bad(self, text: str, advice: str) -> None:
        """Add a finding that keeps the daemon from working."""
        self.findings.append(Finding(text, Verdict.BAD, advice))

    def plain(self) -> dict[str, Any]:
        """Return the section as plain data for JSON."""
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
        """Return the section from the result of `plain`."""
        findings = [
            Finding(f["text"], Verdict(f["verdict"]), f["advice"]) for f in value["findings"]
        ]
        return cls(value["name"], findings, value["facts"], value["table"], value["seconds"])


def summary(sections: Sequence[Section]) -> dict[str, int]:
    """Return the number of sections with each verdict."""
    return {str(v): sum(s.verdict is v for s in sections) for v in Verdict}


def report_text(sections: Sequence[Section]) -> str:
    """Return the report as text: the findings and tables of each section, and a summary."""
    lines: list[str] = []
    for section in sections:
        lines.append(f"{section.name}: {section.verdict} ({section.seconds:.1f} s)")
        for finding in section.findings:
            mark = "" if finding.verdict is Verdict.GOOD else f"{finding.verdict}: "
            lines.append(f"{_INDENT}{mark}{printable(finding.text)}")
            if finding.advice:
                lines.append(f"{_INDENT * 2}-> {printable(finding.advice)}")
        if section.table:
            table = format_table(section.table[0], section.table[1:])
            lines += [f"{_INDENT}{line}" for line in table.splitlines()]
        lines.append("")
    return "\n".join([*lines, _sum_text(summary(sections))])


def _sum_text(counts: Mapping[str, int]) -> str:
    bad, look = counts[Verdict.BAD], counts[Verdict.LOOK]
    if not bad and not look:
        return "all is well"
    parts = [f"{count_text(bad, 'section')} bad"] if bad else []
    parts += [f"{count_text(look, 'section')} to look at"] if look else []
    return ", ".join(parts)


def report_plain(sections: Sequence[Section]) -> dict[str, Any]:
    """Return the report as plain data for JSON."""
    return {"summary": summary(sections), "sections": [s.plain() for s in sections]}


class Scrubber:
    """Removes private data from texts: names, home directories, addresses, serial numbers.

    `user`, `home` and `host` are those of this machine. `environment` are its variables.
    """

    def __init__(self, user: str, home: str, host: str, environment: Mapping[str, str]) -> None:
        self._exact = dict(_replacements(home, environment))
        names = {host: "<host>", host.partition(".")[0]: "<host>", user: "<user>"}
        public = _PUBLIC_HOSTS | _PUBLIC_USERS
        self._names = [
            (re.compile(rf"(?<![\w-]){re.escape(name)}(?![\w])"), mark)
            for name, mark in names.items()
            if len(name) >= MIN_NAME and name not in public
        ]

    def text(self, text: str) -> str:
        """Return a text without private data."""
        for value in sorted(self._exact, key=len, reverse=True):
            text = text.replace(value, self._exact[value])
        for pattern, mark in (*_RULES, *self._names):
            text = pattern.sub(mark, text)
        return text

    def plain(self, value: Any) -> Any:
        """Return plain data without private data in its texts and keys."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.text(str(key)): self.plain(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.plain(item) for item in value]
        return value


def _replacements(home: str, environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield private values and their replacements; the home is last and takes precedence."""
    for name, value in environment.items():
        parts = value.split(":") if "/" in value and "://" not in value else [value]
        for part in (p.rstrip("/") for p in parts):
            if len(part) >= MIN_VALUE and not _PUBLIC_PATHS.fullmatch(part):
                yield part, f"${name}"
    if len(home) >= MIN_NAME:
        yield home.rstrip("/"), "~"
