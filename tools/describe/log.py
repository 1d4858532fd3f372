"""Describes an event log, as `modeld inspect` prints it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from runtime.quantities import count_text
from tools.lib.table import Section
from tools.messages.drive_log import DriveTime, read_log_events

if TYPE_CHECKING:
    from pathlib import Path


def describe(path: Path) -> tuple[dict[str, Any], list[Section]]:
    """Return counts and rates per service; messages newer than the schema are only counted.

    Spans are those of the drive's time, see `tools.messages.drive_log`.

    Raises:
        LogError: the log cannot be read.
    """
    counts: Counter[str] = Counter()
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    unknown = 0
    time = DriveTime()
    for service, time_ns, _ in time.follow(read_log_events(path)):
        if service is None:
            unknown += 1
            continue
        counts[service] += 1
        first[service] = min(time_ns, first.get(service, time_ns))
        last[service] = max(time_ns, last.get(service, time_ns))
    services = [_facts(name, counts[name], last[name] - first[name]) for name in sorted(counts)]
    facts = {
        "messages": counts.total(),
        "unknown": unknown,
        **time.as_json(),
        "services": services,
    }
    rows: list[tuple[object, ...]] = [tuple(service.values()) for service in services]
    title = f"{count_text(counts.total(), 'message')} over {time.text()}"
    if unknown:
        title += f", and {count_text(unknown, 'message')} newer than the schema"
    return facts, [Section(title, ("service", "count", "span s", "Hz"), rows)]


def _facts(name: str, count: int, span_ns: int) -> dict[str, Any]:
    """Rates are of the gaps between messages: n messages have n - 1 of them."""
    rate = (count - 1) * 1e9 / span_ns if span_ns > 0 else None
    return {"service": name, "count": count, "span_s": span_ns / 1e9, "rate_hz": rate}
