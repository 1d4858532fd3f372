"""Describes a verification: every output beside its reference, worst first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from runtime.quantities import count_text
from tools.lib.table import format_table, printable

if TYPE_CHECKING:
    from scheduler.check.outputs import OutputCheck
    from scheduler.check.self_check import Report

MAX_OUTPUTS = 12
MAX_PARTS = 8


def describe_check(reports: Sequence[Report]) -> Iterator[str]:
    """Yield the lines of a self-check; none where there was none."""
    return map(printable, _lines(reports))


def _lines(reports: Sequence[Report]) -> Iterator[str]:
    for report in reports:
        verdict = "failed" if report.failures else "verified"
        kinds = "".join(f", {kind}" for kind in report.kinds)
        sets = count_text(report.seeds, "set of inputs", "sets of inputs") + kinds
        yield f"{report.model}: {verdict} against {report.reference}, {sets}"
        if report.outputs:
            header = ("output", "max abs", "of largest", "allowed", "at", "")
            rows = [_row(c) for c in report.outputs[:MAX_OUTPUTS]]
            rows += [_part(c) for c in report.parts[:MAX_PARTS]]
            table = format_table(header, rows)
            yield from (f"  {line}" for line in table.splitlines())
        if len(report.outputs) > MAX_OUTPUTS:
            rest = count_text(len(report.outputs) - MAX_OUTPUTS, "output")
            yield f"  and {rest} closer than these"
        if report.constant:
            yield f"  depends on no input: {', '.join(report.constant)}"
        if report.unchanged:
            names = ", ".join(report.unchanged)
            yield f"  warning: never changed, here and in the reference: {names}"
        if report.reason:
            yield f"  {report.reason}"
        if report.left_out:
            yield f"  skipped: {'; '.join(report.left_out)}"
        yield from (f"  {failure}" for failure in report.failures)


def _row(check: OutputCheck) -> tuple[object, ...]:
    where = "-" if check.where is None else f"[{', '.join(map(str, check.where))}]"
    return (
        check.name,
        f"{check.max_abs:.2e}",
        f"{check.max_rel:.1e}",
        f"{check.tolerance:.0e}",
        f"{where} {check.part}".rstrip(),
        "wrong" if check.problem else f"ok: {check.note}" if check.note else "ok",
    )


def _part(check: OutputCheck) -> tuple[object, ...]:
    """Return the row of an output slice, which is compared with its own largest value."""
    return (*_row(check)[:3], "-", _row(check)[4], "")
