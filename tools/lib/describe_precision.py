"""Describes `--precision fp16`: how much became half, what did not, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from runtime.quantities import count_text, size_text


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
