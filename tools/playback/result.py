"""Summarizes a finished replay in a few numbers, and checks it for problems.

`read_result` reads the event log and its frame table back. `DriveResult.problem` describes missing,
invalid or infinite outputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cereal.log_reader import read_log
from runtime.texts import count_text
from tools.drives.drive import DriveInfo
from tools.messages.drive_log import (
    MONITORING_SERVICE,
    OUTPUT_SERVICES,
    DriveLog,
    summarize,
    with_measured_times,
)
from tools.playback.model import DRIVING, MONITORING
from tools.playback.outcome import FrameTable, frames_path, load_frames
from tools.playback.pictures import Pictures


@dataclass(frozen=True, slots=True)
class DriveResult:
    """One drive replayed through one model."""

    info: DriveInfo
    models: Mapping[str, Path]  # paths of the artifacts by kind, ``driving`` and ``monitoring``
    log: Path  # the event log
    drive: DriveLog  # summary of the log, with measured times
    frames: FrameTable  # the frame table
    pictures: Pictures  # some frames as (frame id, JPEG)
    kept: bool = False  # whether an earlier run had finished it

    @property
    def model(self) -> Path:
        """The path of the driving artifact, or of driver monitoring if it ran alone."""
        return self.models.get(DRIVING) or self.models[MONITORING]

    @property
    def services(self) -> tuple[str, ...]:
        """The services that the daemons publish."""
        driving = OUTPUT_SERVICES if DRIVING in self.models else ()
        return driving if self.frames.driver is None else (*driving, MONITORING_SERVICE)

    @property
    def problem(self) -> str | None:
        """A one-line description of what is wrong with the daemons' outputs; None if nothing is.

        A frame after a gap has no message, as in the car. Driving messages are invalid until the
        calibration is known, and must all be valid afterwards. Driver monitoring messages must
        always be valid.
        """
        driving = self._driving_problem() if DRIVING in self.models else None
        return driving or self._monitoring_problem()

    def _monitoring_problem(self) -> str | None:
        driver = self.frames.driver
        if driver is None:
            return None
        frames, found = driver.frame_id.size, self.drive.counts[MONITORING_SERVICE]
        valid = self.drive.counts[f"{MONITORING_SERVICE}:valid"]
        if 0 < frames == found == valid:
            return None
        return (
            f"{self.log}: expected a valid {MONITORING_SERVICE} for each of {frames} frames of "
            f"the driver camera, found {found}, {valid} valid; run with -v for the daemon's log"
        )

    def _driving_problem(self) -> str | None:
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
        """Return the metrics for ``--json`` and the summary."""
        driver = self.frames.driver
        # If driver monitoring ran alone, all metrics are its own.
        table = self.frames if DRIVING in self.models or driver is None else driver
        figures = {
            "drive": self.info.name,
            "kind": self.info.kind,
            "identity": self.info.identity,
            "model": str(self.model),
            "frames": int(table.frame_id.size),
            "published": int(table.published.sum()),
            "dropped": int(table.dropped.sum()),
            "messages": {name: self.drive.counts[name] for name in self.services},
            "valid": self.drive.counts[f"{self.services[0]}:valid"],
            "finite": self.drive.all_finite,
            "execution_ms": _spread(
                1e3 * table.execution_s if table is driver else self.drive.execution_ms
            ),
            "log": str(self.log),
            "frame_table": str(frames_path(self.log)),
            "kept": self.kept,
            "problem": self.problem,
        }
        if driver is None:
            return figures
        monitoring = {
            "model": str(self.models[MONITORING]),
            "frames": int(driver.frame_id.size),
            "dropped": int(driver.dropped.sum()),
            "valid": self.drive.counts[f"{MONITORING_SERVICE}:valid"],
            "execution_ms": _spread(1e3 * driver.execution_s),
        }
        return figures | {"monitoring": monitoring}

    @property
    def monitoring_line(self) -> str | None:
        """The metrics of driver monitoring as one line of text; None if it did not run."""
        figures = self.as_json().get("monitoring")
        if figures is None:
            return None
        times = figures["execution_ms"] or {}
        spread = "".join(f"  {name} {value:.1f}" for name, value in times.items())
        frames = count_text(figures["frames"], "frame")
        return (
            f"{self.models[MONITORING].name}, {frames} of the driver camera, "
            f"{figures['valid']} valid; execution ms:{spread or ' none'}"
        )


def _spread(times: NDArray[np.float64]) -> dict[str, float] | None:
    if not times.size:
        return None
    return {
        "median": round(float(np.median(times)), 3),
        "p99": round(float(np.percentile(times, 99)), 3),
        "max": round(float(times.max()), 3),
    }


def read_result(
    info: DriveInfo, models: Mapping[str, Path], log: Path, pictures: Pictures
) -> DriveResult:
    """Read a finished log and its frame table.

    Raises:
        LogError, DriveError: one of the files cannot be read.
    """
    frames = load_frames(frames_path(log))
    shown = {frame_id for frame_id, _ in pictures}
    drive = with_measured_times(
        summarize(read_log(log), curves_of=shown), frames.frame_id, frames.execution_s
    )
    return DriveResult(info, models, log, drive, frames, pictures)
