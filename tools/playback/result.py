"""The result of a replay in a few numbers, and what is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cereal.log_reader import read_log
from tools.drives.drive import DriveInfo
from tools.lib.drive_log import OUTPUT_SERVICES, DriveLog, summarize, with_measured_times
from tools.playback.frame_table import frames_path, load_frames
from tools.playback.outcome import FrameTable
from tools.playback.pictures import Pictures


@dataclass(frozen=True, slots=True)
class DriveResult:
    """One drive through one model, finished.

    Attributes:
        info: the drive.
        model: path of the artifact.
        log: event log.
        drive: what the log says, with measured times.
        frames: frame by frame.
        pictures: some frames as (frame id, JPEG).
        kept: it was finished before, and not done again.
    """

    info: DriveInfo
    model: Path
    log: Path
    drive: DriveLog
    frames: FrameTable
    pictures: Pictures
    kept: bool = False

    @property
    def problem(self) -> str | None:
        """What is wrong with what the daemon said, in one line; None: nothing.

        A frame that follows a gap has no message, as in the car. Before the calibration has been
        seen messages are not valid; afterwards all are.
        """
        published = int(self.frames.published.sum())
        valid = self.frames.valid[self.frames.published]
        first = int(np.argmax(valid)) if valid.any() else 0
        expected, found = published - first, int(valid.sum())
        drive = self.drive
        messages = {name: drive.counts[name] for name in OUTPUT_SERVICES}
        complete = all(count == published for count in messages.values())
        if published and complete and found == expected and drive.all_finite:
            return None
        return (
            f"{self.log}: expected {expected} valid messages of each kind with finite values, "
            f"found {messages}, {found} valid, finite: {drive.all_finite}; run with -v for the "
            "daemon's log"
        )

    def as_json(self) -> dict[str, Any]:
        """Return the figures for ``--json`` and the summary."""
        times = self.drive.execution_ms
        return {
            "drive": self.info.name,
            "kind": self.info.kind,
            "identity": self.info.identity,
            "model": str(self.model),
            "frames": int(self.frames.frame_id.size),
            "published": int(self.frames.published.sum()),
            "dropped": int(self.frames.dropped.sum()),
            "messages": {name: self.drive.counts[name] for name in OUTPUT_SERVICES},
            "valid": self.drive.counts["modelV2:valid"],
            "finite": self.drive.all_finite,
            "execution_ms": {
                "median": round(float(np.median(times)), 3),
                "p99": round(float(np.percentile(times, 99)), 3),
                "max": round(float(times.max()), 3),
            }
            if times.size
            else None,
            "log": str(self.log),
            "frame_table": str(frames_path(self.log)),
            "kept": self.kept,
            "problem": self.problem,
        }


def read_result(info: DriveInfo, model: Path, log: Path, pictures: Pictures) -> DriveResult:
    """Read a finished log and its frame table back.

    Raises:
        LogError, DriveError: one of them cannot be read.
    """
    frames = load_frames(frames_path(log))
    shown = {frame_id for frame_id, _ in pictures}
    drive = with_measured_times(
        summarize(read_log(log), curves_of=shown), frames.frame_id, frames.execution_s
    )
    return DriveResult(info, model, log, drive, frames, pictures)
