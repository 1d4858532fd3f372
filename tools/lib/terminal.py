"""Formats output for a terminal: plain text tables, and progress as a bar or in one line.

Progress is shown on stderr, and only if that is a terminal.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

Progress = Callable[[int], None]  # receives the number of finished items


class Section(NamedTuple):
    """A table with a title."""

    title: str
    header: tuple[str, ...]
    rows: list[tuple[object, ...]]


def format_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return the rows below their header. Columns of numbers are right-aligned.

    Floats are shown with three decimals, None as "-".
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
    """Return text with control characters, which a terminal would interpret, replaced by "?"."""
    return "".join(c if c.isprintable() else "?" for c in text)


@contextmanager
def progress_bar(total: int, unit: str, *, is_shown: bool) -> Iterator[Progress]:
    """Yield a function that shows progress as a bar, if `is_shown` and stderr is a terminal."""
    if not (is_shown and sys.stderr.isatty()):
        yield lambda _done: None
        return
    from tqdm import tqdm

    with tqdm(total=total, unit=unit, file=sys.stderr) as bar:

        def show(done: int) -> None:
            bar.update(done - bar.n)

        yield show


def counted(what: str, done: int, total: int) -> None:
    """Print progress in one line, which the next call overwrites, if stderr is a terminal."""
    if sys.stderr.isatty():
        end = "\n" if done == total else ""
        print(f"\r{what}: {done}/{total}", end=end, file=sys.stderr, flush=True)
