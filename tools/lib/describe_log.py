"""What `modeld inspect` says of an event log."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from cereal.log_reader import read_log
from runtime.quantities import count_text
from tools.inspect import Section

if TYPE_CHECKING:
    from pathlib import Path


def describe(path: Path) -> tuple[dict[str, Any], list[Section]]:
    """Return counts and rates per service.

    Raises:
        LogError: the log cannot be read.
    """
    counts: Counter[str] = Counter()
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for event in read_log(path):
        service = str(event.which())
        counts[service] += 1
        first.setdefault(service, event.logMonoTime)
        last[service] = event.logMonoTime
    services = [_facts(name, counts[name], last[name] - first[name]) for name in sorted(counts)]
    duration_s = (max(last.values()) - min(first.values())) / 1e9 if counts else 0.0
    facts = {"messages": counts.total(), "duration_s": duration_s, "services": services}
    rows: list[tuple[object, ...]] = [tuple(service.values()) for service in services]
    title = f"{count_text(counts.total(), 'message')} over {duration_s:.3f} s"
    return facts, [Section(title, ("service", "count", "span s", "Hz"), rows)]


def _facts(name: str, count: int, span_ns: int) -> dict[str, Any]:
    """Rates are of the gaps between messages: n messages have n - 1 of them."""
    rate = (count - 1) * 1e9 / span_ns if span_ns > 0 else None
    return {"service": name, "count": count, "span_s": span_ns / 1e9, "rate_hz": rate}
