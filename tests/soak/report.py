"""The report of a soak, in Markdown."""

import platform
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from tests.soak.watch import NS_PER_S, Fault, Watch, count_dropped


@dataclass(frozen=True, slots=True)
class Facts:
    """What a soak was asked for."""

    seed: int
    seconds: float
    per_minute: float
    model: str
    slack: float = 1.0


def report(watch: Watch, facts: Facts) -> str:
    parts = [_head(watch, facts)]
    if watch.faults:
        parts.append(_kinds(watch))
    parts += [_processes(watch), _violations(watch)]
    return "\n".join(parts)


def _head(watch: Watch, facts: Facts) -> str:
    messages = watch.world.recorder.since(watch.start_ns)
    invalid = sum(not message.valid for message in messages)
    arrivals = np.array([message.arrived_ns for message in messages]) / 1e6
    gaps_ms = np.diff(arrivals)
    verdict = "broken" if watch.violations else "held"
    rows = [
        ("Promises", f"**{verdict}** ({len(watch.violations)} violations)"),
        ("Seed", str(facts.seed)),
        ("Seconds", f"{facts.seconds:.0f}"),
        ("Model", facts.model),
        ("Bounds", "of the table" if facts.slack == 1.0 else f"{facts.slack:g} times the table's"),
        ("Faults", f"{len(watch.faults)} of {len({f.kind.test for f in watch.faults})} kinds"),
        ("Messages modelV2", f"{len(messages)}, {invalid} of them not valid"),
        ("Processes", str(len(watch.world.service.lives))),
        ("The machine itself stood still", _standstills(watch)),
        ("Machine", f"{platform.machine()}, Python {platform.python_version()}"),
    ]
    if not watch.faults and len(messages) > 1:
        rows += [
            ("Frames dropped", str(count_dropped(messages))),
            ("Between messages, median", f"{np.median(gaps_ms):.2f} ms"),
            ("Between messages, p99", f"{np.percentile(gaps_ms, 99):.2f} ms"),
            ("Between messages, longest", f"{gaps_ms.max():.1f} ms"),
        ]
    lines = ["# Soak", "", "| What | Value |", "|---|---|"]
    return "\n".join([*lines, *(f"| {name} | {value} |" for name, value in rows), ""])


def _standstills(watch: Watch) -> str:
    spans_s = [(one.end_ns - one.start_ns) / NS_PER_S for one in watch.standstills]
    if not spans_s:
        return "never"
    return f"{len(spans_s)} times, {sum(spans_s):.1f} s in all, {max(spans_s):.2f} s at most"


def _kinds(watch: Watch) -> str:
    by_kind: dict[str, list[Fault]] = defaultdict(list)
    for fault in watch.faults:
        by_kind[fault.kind.test].append(fault)
    lines = [
        "## Faults",
        "",
        "Valid again: from the end of the fault, or from its start where it does not end.",
        "",
        "| Fault | Times | Valid again, median | Worst | Bound |",
        "|---|---|---|---|---|",
    ]
    for found in sorted(by_kind.values(), key=lambda one: one[0].kind.row.fault):
        resumed = [watch.resumed_s(fault) for fault in found]
        row = found[0].kind.row
        lines.append(
            f"| {row.fault} | {len(found)} | {np.median(resumed):.2f} s | {max(resumed):.2f} s | "
            f"{row.within_s:g} s |"
        )
    return "\n".join([*lines, ""])


def _processes(watch: Watch) -> str:
    lines = [
        "## Memory and descriptors",
        "",
        "Of each process that lived long enough, from its 20th second on, between faults; growth",
        "is the slope of a line through the samples times their span.",
        "",
        "| Process | Seconds | Memory, first and last | Growth | Descriptors | Growth |",
        "|---|---|---|---|---|---|",
    ]
    for number, (life, span_s, mib, fds) in enumerate(watch.growth(), 1):
        mine = [sample.usage for sample in watch.samples if sample.life is life]
        lines.append(
            f"| {number} | {span_s:.0f} | {mine[0].rss_mib:.1f}, {mine[-1].rss_mib:.1f} MiB | "
            f"{mib:+.2f} MiB | {mine[0].fds}, {mine[-1].fds} | {fds:+d} |"
        )
    return "\n".join([*lines, ""])


def _violations(watch: Watch) -> str:
    lines = ["## Violations", ""]
    lines += [f"- {text}" for text in watch.violations] or ["None."]
    if watch.violations:
        start_ns = watch.start_ns
        lines += ["", "The last lines of the log:", "", "```"]
        lines += [
            f"{(line.arrived_ns - start_ns) / NS_PER_S:8.2f} {line.text}"
            for line in watch.world.service.log[-200:]
        ]
        lines.append("```")
    return "\n".join([*lines, ""])
