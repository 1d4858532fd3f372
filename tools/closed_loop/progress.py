"""Reports each finished drive: a line on stderr, and a line of JSON in a file.

An interrupted long run has reported the drives before.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from tools.closed_loop.result import Drive, OnDrive
from tools.errors import UsageError
from tools.lib.json_output import json_text


@contextmanager
def telling(drives: int, lines: Path | None, *, show: bool) -> Iterator[OnDrive]:
    """Yield a function to call after each drive; `lines` gets one JSON object a line.

    Raises:
        UsageError: the file cannot be written.
    """
    if lines is None:
        yield _Teller(drives, None, show=show)
        return
    try:
        file = lines.open("w", encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"--lines {lines}: cannot be written: {error.strerror}; name another file"
        ) from error
    with file:
        yield _Teller(drives, file, show=show)


class _Teller:
    """Counts and reports drives."""

    def __init__(self, drives: int, file: TextIO | None, *, show: bool) -> None:
        self._all = drives
        self._done = 0
        self._file = file
        self._show = show

    def __call__(self, drive: Drive) -> None:
        """Report a finished drive."""
        self._done += 1
        if self._file is not None:
            self._file.write(f"{json_text(drive.as_json())}\n")
            # Whatever happens next, this one is not lost.
            self._file.flush()
        if self._show:
            print(f"{self._done} of {self._all}: {line_of(drive)}", file=sys.stderr, flush=True)


def line_of(drive: Drive) -> str:
    """Return the result of a drive, in one line."""
    trial, figures = drive.track.trial, drive.figures
    offset = "-" if figures.offset_mean_m is None else f"{figures.offset_mean_m:.3f} m"
    recovered = {None: "", 0.0: ", did not recover", 1.0: ", recovered"}
    planted = f" with {drive.fault}" if drive.fault else ""
    return (
        f"{trial.scenario.name} {trial.seed}{planted}: {figures.km:.2f} km, {drive.track.end}"
        f"{recovered[figures.recovered_share]}, departures {figures.departures}, offset {offset}, "
        f"{drive.wall_s:.1f} s"
    )
