"""Numbers with their units for people: counts, bytes, operations."""

import re
from collections.abc import Sequence
from typing import Final


def count_text(count: int, noun: str, plural: str = "") -> str:
    """Return "1 launch", "1,368 launches".

    `plural` defaults to the noun with an "s" ("es" after s, x, z, ch and sh).
    """
    if count == 1:
        return f"1 {noun}"
    ending = "es" if noun.endswith(("s", "x", "z", "ch", "sh")) else "s"
    return f"{count:,} {plural or noun + ending}"


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
    """Return operations for people, to four digits: "512 FLOP", "3.456 kFLOP", "1.646 GFLOP"."""
    unit, size = _flops_unit(flops)
    return f"{flops / size:.4g} {unit}"


def flops_column(values: Sequence[int]) -> tuple[str, list[float]]:
    """Return the unit for a column of operations, and the values in it; that of the largest."""
    unit, size = _flops_unit(max(values, default=0))
    return unit, [value / size if size > 1 else value for value in values]


def _flops_unit(flops: float) -> tuple[str, int]:
    """Return the unit in which a number of operations has one to three digits, and its size."""
    size = 1
    for unit in ("FLOP", "kFLOP", "MFLOP", "GFLOP"):
        if flops < 999.95 * size:
            return unit, size
        size *= 1000
    return "TFLOP", size


# --- Numbers in text of other programs: digits of ASCII, and nothing between ------------------
# Python's own ``float`` and ``int`` also take ``1_0`` for 10, and digits of every script.

_FLOAT: Final = re.compile(
    r"[+-]?(?:(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:e[+-]?[0-9]+)?|nan|inf(?:inity)?)", re.IGNORECASE
)
# More digits than any number of ours has, and fewer than Python refuses to read.
_INT: Final = re.compile(r"[+-]?[0-9]{1,40}")


def float_of(text: str) -> float:
    """Return the number in a text, nan and inf too, ignoring spaces around it, or ValueError."""
    return float(_checked(_FLOAT, text))


def int_of(text: str) -> int:
    """Return the whole number in a text, ignoring spaces around it, or raise ValueError."""
    return int(_checked(_INT, text))


def _checked(form: re.Pattern[str], text: str) -> str:
    bare = text.strip()
    if form.fullmatch(bare) is None:
        raise ValueError(f"expected a number, found {text[:40]!r}")
    return bare
