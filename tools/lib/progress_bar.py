"""What a terminal shows while something is counted: a bar, or one line."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[int], None]
"""Called with the number that are done."""


@contextmanager
def progress_bar(total: int, unit: str, *, is_shown: bool) -> Iterator[Progress]:
    """Yield what shows progress; nothing is shown where stderr is no terminal."""
    if not (is_shown and sys.stderr.isatty()):
        yield lambda _done: None
        return
    from tqdm import tqdm

    with tqdm(total=total, unit=unit, file=sys.stderr) as bar:

        def show(done: int) -> None:
            bar.update(done - bar.n)

        yield show


def counted(what: str, done: int, total: int) -> None:
    """Print how far something is, in one line that is written over; on a terminal only."""
    if sys.stderr.isatty():
        end = "\n" if done == total else ""
        print(f"\r{what}: {done}/{total}", end=end, file=sys.stderr, flush=True)
