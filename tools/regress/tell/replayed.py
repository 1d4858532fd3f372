"""Logs that `modeld replay -o DIR` wrote for a model, one for each drive, with times and sizes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cereal.log_reader import read_log_bytes
from tools.behaviour.behaviour import Behaviour, BehaviourReader
from tools.behaviour.truth import Truth, read_truth
from tools.errors import CompareError
from tools.playback.batch import file_name
from tools.playback.frame_table import frames_path, load_frames
from tools.playback.provenance import provenance_path
from tools.regress.tell.whole import Costs, costs_of

# Longest first: a name loses the first that fits.
_ENDINGS: Final = (
    *(f"{log}{packed}" for log in (".rlog", ".qlog") for packed in (".zst", ".bz2")),
    *(".rlog", ".qlog", ".zst", ".bz2"),
)


@dataclass(frozen=True, slots=True)
class Replayed:
    """What one model said over some drives.

    Attributes:
        name: of the model, for people.
        logs: log by the drive's name.
    """

    name: str
    logs: Mapping[str, Path]

    def costs(self, drives: list[str]) -> Costs:
        """Return times and size over some of the drives, as far as they were noted.

        Raises:
            DriveError: a frame table is damaged.
        """
        logs = [self.logs[drive] for drive in drives]
        tables = [frames_path(log) for log in logs]
        times = [load_frames(table).execution_s.tolist() for table in tables if table.is_file()]
        sizes = {_noted(log).get("artifact_bytes") for log in logs}
        size = sizes.pop() if len(sizes) == 1 else None
        return costs_of(times, size if isinstance(size, int) else None)


def read_replayed(path: Path) -> Replayed:
    """Return the logs of a directory, or of a single log.

    Raises:
        CompareError: there is none, or two are of one drive.
    """
    if not path.is_dir():
        return Replayed(path.name, {drive_name(path): path})
    logs: dict[str, Path] = {}
    for one in sorted(path.iterdir()):
        if one.name.endswith(_ENDINGS) and one.is_file():
            other = logs.setdefault(drive_name(one), one)
            if other != one:
                raise CompareError(
                    f"{path}: expected one log of each drive, found {other.name} and {one.name}"
                )
    if not logs:
        inside = sorted(one.name for one in path.iterdir() if one.is_dir())
        advice = (
            f"name one of its directories: {', '.join(inside[:4])}"
            if inside
            else ("it has to be a directory that modeld replay wrote for a model")
        )
        raise CompareError(f"{path}: expected logs, found none; {advice}")
    return Replayed(path.name or str(path), logs)


def drive_name(log: Path) -> str:
    """Return the name of a log's drive: that of its file."""
    ending = next((one for one in _ENDINGS if log.name.endswith(one)), "")
    return log.name.removesuffix(ending)


def behaviour_of_log(log: Path) -> Behaviour:
    """Return what a model wanted, frame by frame.

    Raises:
        LogError: the log cannot be read.
    """
    reader = BehaviourReader()
    for data in read_log_bytes(log, lambda _warning: None):
        reader.add(data)
    return reader.behaviour()


def truth_of_drive(path: Path | None, drive: str, drives: int) -> Truth | None:
    """Return the truth of one of several drives; None where nobody knows it.

    Args:
        path: a truth, or a directory with one for each drive, under the drive's name; or None.
        drive: its name.
        drives: how many there are: the truth of a single one may have any name.

    Raises:
        CompareError: it is damaged, or there is nothing at the path.
    """
    if path is None:
        return None
    if path.is_dir():
        for one in sorted(path.iterdir()):
            if one.is_dir() and file_name(one.name) == drive:
                return read_truth(one)
        if drives > 1:
            return None
    return read_truth(path)


def _noted(log: Path) -> Mapping[str, Any]:
    with suppress(OSError, ValueError):
        found = json.loads(provenance_path(log).read_text(encoding="utf-8"))
        if isinstance(found, dict):
            return found
    return {}
