"""Shows a progress bar over all frames of all drives, on a terminal only."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from modeld.daemon import StepResult
from tools.drives.drive import DriveInfo, Moment


class Progress:
    """Counts moments and, if there is a bar, shows them with their rate and the remaining time."""

    def __init__(self, bar: Any | None, limit: int | None) -> None:
        self._bar = bar
        self._limit = limit

    def count(self, moment: Moment, result: StepResult | None) -> None:  # noqa: ARG002 - `OnMoment`
        """Count a played moment; pass this as `on_moment`."""
        self.tick()

    def tick(self) -> None:
        """Count one moment."""
        if self._bar is not None:
            self._bar.update()

    def skip(self, info: DriveInfo) -> None:
        """Remove a drive that is not played from the total."""
        moments = moments_of(info, self._limit)
        if self._bar is not None and self._bar.total is not None and moments is not None:
            self._bar.total -= moments
            self._bar.refresh()


@contextmanager
def progress(
    drives: Sequence[DriveInfo], *, models: int, limit: int | None, show: bool
) -> Iterator[Progress]:
    """Show a bar while the block runs.

    `drives`: the drives to play. `models`: number of models for each drive. `limit`: number of
    moments played of each drive; None for all. `show`: whether to show a bar; it is shown only if
    stderr is a terminal.
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
    """Return the number of played moments of a drive, None if it is unknown."""
    if info.moments is None:
        return limit
    return info.moments if limit is None else min(info.moments, limit)
