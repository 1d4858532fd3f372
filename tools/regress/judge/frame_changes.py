"""Finds changes between the frame tables of two runs: inputs, handling of frames, output bytes.

A frame table has one row per frame of the main camera: checksums of the program's inputs, and
whether the frame was dropped, published and valid. Each difference becomes a `Change` for the user.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from runtime.texts import count_text
from tools.playback.outcome import INPUT_NAMES, MONITORING_INPUT_NAMES, OUTPUTS, FrameTable

ChangeKind = Literal["input", "frames", "weights", "launches", "outputs", "bits", "gate"]


@dataclass(frozen=True, slots=True)
class Change:
    """One difference from the reference."""

    kind: ChangeKind  # category of the change
    text: str  # one line with the old and the new value
    frames: int = 0  # number of affected frames
    first_frame: int = -1  # id of the first affected frame; -1 if it belongs to no frame


def input_changes(before: FrameTable, now: FrameTable) -> list[Change]:
    """Return the inputs of the program that differ, earliest first."""
    rows_before, rows_now = _common_rows(before, now)
    changes = []
    for name in (*INPUT_NAMES, *MONITORING_INPUT_NAMES):
        if name not in before.input_crc or name not in now.input_crc:
            continue
        differs = before.input_crc[name][rows_before] != now.input_crc[name][rows_now]
        if not differs.any():
            continue
        ids = now.frame_id[rows_now]
        first, count = int(ids[np.argmax(differs)]), int(differs.sum())
        where = f"from frame {first} on" if _runs_on(differs) else f"first at frame {first}"
        changes.append(
            Change(
                "input",
                f"input {name} differs {where} ({count} of {count_text(len(differs), 'frame')}): "
                "the cause is before the program",
                count,
                first,
            )
        )
    return sorted(changes, key=lambda change: (change.first_frame, -change.frames))


def _runs_on(differs: NDArray[np.bool_]) -> bool:
    """Whether all frames after the first difference differ too."""
    return bool(differs[int(np.argmax(differs)) :].all())


def frame_changes(before: FrameTable, now: FrameTable) -> list[Change]:
    """Return the frames that were handled differently: taken, dropped, published, valid."""
    changes = []
    for what, lost in (
        ("was processed, and is not now", np.setdiff1d(before.frame_id, now.frame_id)),
        ("was not processed, and is now", np.setdiff1d(now.frame_id, before.frame_id)),
    ):
        if lost.size:
            more = f", {lost.size - 1} more" if lost.size > 1 else ""
            text = f"frame {lost[0]} {what}{more}"
            changes.append(Change("frames", text, int(lost.size), int(lost[0])))
    rows_before, rows_now = _common_rows(before, now)
    for name, what in (
        ("dropped", "frames counted as missing before it"),
        ("published", "whether it was published"),
        ("valid", "whether it was valid"),
    ):
        old, new = getattr(before, name)[rows_before], getattr(now, name)[rows_now]
        differs = old != new
        if differs.any():
            at = int(np.argmax(differs))
            first, count = int(now.frame_id[rows_now][at]), int(differs.sum())
            text = f"frame {first}: {what}: {_plain(old[at])} before, {_plain(new[at])} now"
            more = f" ({count_text(count, 'frame')})" if count > 1 else ""
            changes.append(Change("frames", text + more, count, first))
    return changes


def strict_changes(before: FrameTable, now: FrameTable) -> list[Change]:
    """Return the frames with different output bytes, for programs with strict numerics."""
    changes = []
    for what, old, new in (
        ("the program", before, now),
        ("driver monitoring", before.driver, now.driver),
    ):
        if old is None or new is None:
            continue
        rows = _common_rows(old, new)
        crc = [table.input_crc.get(OUTPUTS) for table in (old, new)]
        if crc[0] is None or crc[1] is None:
            continue
        differs = crc[0][rows[0]] != crc[1][rows[1]]
        if differs.any():
            first, count = int(new.frame_id[rows[1]][np.argmax(differs)]), int(differs.sum())
            text = (
                f"{what} gives other bytes from frame {first} on ({count} of "
                f"{count_text(len(differs), 'frame')}), with strict numerics"
            )
            changes.append(Change("bits", text, count, first))
    return changes


def _common_rows(before: FrameTable, now: FrameTable) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the row numbers of the frames that both tables contain, matched by frame id."""
    _, rows_before, rows_now = np.intersect1d(before.frame_id, now.frame_id, return_indices=True)
    return rows_before, rows_now


def _plain(value: np.generic) -> str:
    if isinstance(value, np.bool_):
        return "yes" if value else "no"
    return str(value)
