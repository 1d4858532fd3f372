"""Text for people and for HTML, shared by the parts of the page."""

from __future__ import annotations

from html import escape
from typing import Final

__all__ = ["ROW_LIMIT", "count_text", "escape", "flops_text", "size_text"]

# Beyond this many kernels the drawings start folded.
ROW_LIMIT: Final = 400


def size_text(size: float) -> str:
    """Return bytes for people: "512 B", "3.4 KiB", "29.0 MiB"."""
    if size < 1024:
        return f"{size:.0f} B"
    for unit in ("KiB", "MiB"):
        size /= 1024
        if size < 1024:
            return f"{size:.1f} {unit}"
    return f"{size / 1024:.1f} GiB"


def flops_text(flops: float) -> str:
    """Return operations for people: "512 flop", "3.4 kflop", "1.6 Gflop"."""
    if flops < 1000:
        return f"{flops:.0f} flop"
    for unit in ("k", "M"):
        flops /= 1000
        if flops < 1000:
            return f"{flops:.1f} {unit}flop"
    return f"{flops / 1000:.2f} Gflop"


def count_text(count: int, noun: str) -> str:
    """Return "1 node", "1,368 nodes"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
