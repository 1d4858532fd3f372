"""A checkup as text for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from runtime.quantities import count_text
from tools.checkup.findings import Section, Verdict
from tools.lib.table import format_table, printable

_INDENT: Final = "  "


def summary(sections: Sequence[Section]) -> dict[str, int]:
    """Return how many sections have each verdict."""
    return {str(v): sum(s.verdict is v for s in sections) for v in Verdict}


def report_text(sections: Sequence[Section]) -> str:
    """Return a line for each finding under its section, tables below, and the sum of it."""
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
    """Return the report as plain data."""
    return {"summary": summary(sections), "sections": [s.plain() for s in sections]}
