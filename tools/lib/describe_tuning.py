"""Describes a search for loops, as `modeld compile --tune` prints it."""

from __future__ import annotations

from runtime.quantities import count_text
from scheduler.tuning.tune import Tuned
from tools.lib.table import format_table

MAX_NAME = 48
# Kernels beyond this share of the time are listed together.
MIN_SHARE = 0.002


def describe_tuning(tuned: Tuned) -> str:
    """Return a table of kernels and a line of totals.

    Times are minima of one launch of a kernel that runs by itself, times the launches of a run.
    """
    total = tuned.heuristic_ms
    shown = [k for k in tuned.lines if k.times * k.heuristic_ms >= MIN_SHARE * total]
    rows = [
        (
            k.name if len(k.name) <= MAX_NAME else f"{k.name[: MAX_NAME - 3]}...",
            k.times,
            k.times * k.heuristic_ms,
            k.times * k.best_ms,
            k.choice or "-",
            k.state,
        )
        for k in shown
    ]
    header = ("kernel", "times", "heuristic ms", "best ms", "choice", "")
    rest = len(tuned.lines) - len(shown)
    gain = 1 - tuned.best_ms / total if total else 0.0
    return (
        f"{format_table(header, rows)}\n"
        f"tuned in {tuned.seconds:.1f} s: {total:.3f} ms of kernels, now {tuned.best_ms:.3f} "
        f"({100 * gain:.1f} % less); {count_text(rest, 'kernel')} of less than "
        f"{100 * MIN_SHARE:g} % not shown"
    )
