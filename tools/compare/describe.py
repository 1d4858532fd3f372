"""Describes a comparison of logs: for people in lines, for machines as plain values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from runtime.texts import count_text
from tools.behaviour.describe import behaviour_lines
from tools.compare.findings import Comparison, FieldStatistics, Finding
from tools.lib.table import format_table, printable

# What each kind of finding means, for people.
KIND_TEXTS = {
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
