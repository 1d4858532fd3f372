"""What `modeld compile --precision fp16` says: how much became half, what did not, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_MIB = 2**20


def describe_precision(entries: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield lines about the largest entry; none where no half storage was asked for.

    Args:
        entries: by entry name, as `scheduler.passes.precision.PrecisionReport.plain` gives them.
    """
    if not entries:
        return
    name, report = max(entries.items(), key=lambda item: item[1]["weight_bytes"][0])
    weights, values = report["halves"]
    for what, count, key in (
        ("weights", weights, "weight_bytes"),
        ("intermediates", values, "value_bytes"),
    ):
        before, after = (size / _MIB for size in report[key])
        share = after / before if before else 1.0
        yield f"{name}: {count} {what} are halves: {before:.2f} -> {after:.2f} MiB ({share:.0%})"
    yield f"stay float32: {report['biases']} biases and scales, and"
    for kept in report["kept"]:
        shape = "x".join(map(str, kept["shape"]))
        yield f"  {kept['what']} {kept['name']} ({shape}): {kept['reason']}"
