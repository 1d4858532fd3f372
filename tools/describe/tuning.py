"""Describes a search for loops, as `modeld compile --tune` prints it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from runtime.quantities import count_text, size_text
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


# --- Describes `--precision fp16`: how much became half, what did not, and why ----------------


def describe_precision(entries: Mapping[str, Mapping[str, Any]], *, in_full: bool) -> Iterator[str]:
    """Yield lines about the largest entry; none where no half storage was asked for.

    Args:
        entries: by entry name, as `scheduler.passes.halves.precision.PrecisionReport.plain` gives
            them.
        in_full: name each value that stays float32, and say why.
    """
    if not entries:
        return
    name, report = max(entries.items(), key=lambda item: item[1]["weight_bytes"][0])
    weights, values = report["halves"]
    for what, count, key in (
        ("weight", weights, "weight_bytes"),
        ("intermediate", values, "value_bytes"),
    ):
        before, after = report[key]
        if count:
            sizes = f"{size_text(before)} -> {size_text(after)} ({after / before:.0%})"
            yield f"{name}: {count_text(count, what)} stored as fp16: {sizes}"
    if report.get("eight_bits"):
        yield f"{name}: {count_text(report['eight_bits'], 'weight')} of them as 8 bits, exactly"
    biases = count_text(report["biases"], "bias or scale", "biases and scales")
    others = f", {count_text(len(report['kept']), 'other value')}" if report["kept"] else ""
    yield f"stay float32: {biases}{others}{'' if in_full or not others else ' (-v names them)'}"
    for kept in report["kept"] if in_full else ():
        shape = "x".join(map(str, kept["shape"]))
        yield f"  {kept['what']} {kept['name']} ({shape}): {kept['reason']}"
