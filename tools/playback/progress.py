"""A progress bar over all frames of all drives, on a terminal only. Imports tqdm lazily."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from modeld.daemon import StepResult
from tools.drives.drive import DriveInfo, Moment


class Progress:
    """Counts moments; shows them, their rate and the time left where there is a bar."""

    def __init__(self, bar: Any | None, limit: int | None) -> None:
        self._bar = bar
        self._limit = limit

    def count(self, moment: Moment, result: StepResult | None) -> None:  # noqa: ARG002 - `OnMoment`
        """Count a moment that was played; give it as `on_moment`."""
        self.tick()

    def tick(self) -> None:
        """Count one."""
        if self._bar is not None:
            self._bar.update()

    def skip(self, info: DriveInfo) -> None:
        """Take a drive that is not played out of what is left."""
        moments = moments_of(info, self._limit)
        if self._bar is not None and self._bar.total is not None and moments is not None:
            self._bar.total -= moments
            self._bar.refresh()


@contextmanager
def progress(
    drives: Sequence[DriveInfo], *, models: int, limit: int | None, show: bool
) -> Iterator[Progress]:
    """Show a bar while the block runs.

    `drives`: what is to be played. `models`: by how many models each. `limit`: moments that are
    played of each drive; None: all. `show`: whether a bar is wanted; none is drawn where stderr is
    no terminal.
    """
    if not (show and sys.stderr.isatty()):
        yield Progress(None, limit)
        return
    from tqdm import tqdm

    counts = [moments_of(info, limit) for info in drives]
    known = [count for count in counts if count is not None]
    total = models * sum(known) if len(known) == len(counts) else None
    with tqdm(total=total, unit="frame", file=sys.stderr) as bar:
        yield Progress(bar, limit)


def moments_of(info: DriveInfo, limit: int | None) -> int | None:
    """Return how many moments of a drive are played, as far as that is known."""
    if info.moments is None:
        return limit
    return info.moments if limit is None else min(info.moments, limit)
