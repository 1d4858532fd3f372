"""Plain text tables: columns aligned, numbers to the right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Section", "format_table", "printable"]


class Section(NamedTuple):
    """A table with a title."""

    title: str
    header: tuple[str, ...]
    rows: list[tuple[object, ...]]


def format_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return the rows under their header; a column of numbers is aligned to the right.

    Floats are shown with three significant decimals, None as "-".
    """
    texts = [[_cell(value) for value in row] for row in rows]
    widths = [
        max(len(title), *(len(row[column]) for row in texts), 0)
        for column, title in enumerate(header)
    ]
    right = [
        bool(rows) and all(isinstance(row[column], int | float) for row in rows)
        for column in range(len(header))
    ]
    lines = [_line(header, widths, right)]
    lines += [_line(row, widths, right) for row in texts]
    return "\n".join(lines)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _line(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    padded = (
        cell.rjust(width) if to_right else cell.ljust(width)
        for cell, width, to_right in zip(cells, widths, right, strict=True)
    )
    return "  ".join(padded).rstrip()


def printable(text: str) -> str:
    """Return text from a file without control characters, which a terminal would obey."""
    return "".join(c if c.isprintable() else "?" for c in text)
