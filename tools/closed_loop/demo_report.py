"""The page of the demo: what the model saw beside what is true, and how the car went."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from runtime.artifact import read_artifact
from runtime.quantities import count_text
from tools.closed_loop.cameras import device_cameras
from tools.closed_loop.film import Footage
from tools.closed_loop.messages import DEVICE, SENSOR
from tools.closed_loop.report import write_drive_report
from tools.closed_loop.result import Drive, Outcome
from tools.closed_loop.scenes import COMPARED_M, Scene, road_pictures
from tools.lib.drive_log import Curves, DriveLog
from tools.lib.drive_messages import Mounting
from tools.lib.report import (
    MAX_PICTURES,
    Picture,
    Report,
    counts_section,
    describe_models,
    pictures_section,
    timing_section,
)


@dataclass(frozen=True, slots=True)
class Asked:
    """Where things are.

    Attributes:
        model: the artifact.
        directory: of the drive.
        report: page to write.
    """

    model: Path
    directory: Path
    report: Path


@dataclass(frozen=True, slots=True)
class Driven:
    """What came of the drive.

    Attributes:
        drive: the car's way.
        scenes: every frame after the hand-over, by its id.
        rate_hz: of the cameras.
        footage: all of it, from the begin of the run-up.
    """

    drive: Drive
    scenes: Mapping[int, Scene]
    rate_hz: float
    footage: Footage


def write_demo_report(
    asked: Asked,
    driven: Driven,
    log: DriveLog,
    truth: Mapping[int, Curves],
    line_error_m: float | None,
) -> None:
    """Write what the model saw beside what is true, the way of the car, and how fast it was.

    Args:
        asked: where things are.
        driven: the drive.
        log: what was said about its frames.
        truth: frame id -> what a perfect model would have said, of the frames that are compared.
        line_error_m: how far the lane lines are off in the mean; None: nothing was compared.

    Raises:
        UsageError: the page cannot be written.
    """
    road, trial = device_cameras().road, driven.drive.track.trial
    artifact = read_artifact(asked.model)
    facts = {
        "cameras": f"painted road and wide camera, {road.width}x{road.height}, as of {DEVICE} with "
        f"{SENSOR}, at {driven.rate_hz:g} Hz",
        "artifact": f"{asked.model}, sha256 {artifact.sha256[:16]}",
        "models": describe_models(artifact.manifest),
        "lane lines": f"{metres(line_error_m)} beside the painted ones in the mean, up to "
        f"{COMPARED_M:g} m ahead, of {count_text(len(truth), 'frame')}",
        "drive": str(asked.directory),
    }
    count = min(MAX_PICTURES, len(truth))
    shown = [list(truth)[at] for at in np.linspace(0, len(truth) - 1, count).round().astype(int)]
    jpegs = road_pictures(trial, [driven.scenes[one] for one in shown])
    rows = {int(one): row for row, one in enumerate(log.frame_ids)}
    report = Report(
        title="Demo drive",
        summary="",
        facts=facts,
        drive=log,
        frames_sent=len(driven.scenes),
        pictures=[
            Picture(rows[one], jpeg, road, truth[one])
            for one, jpeg in zip(shown, jpegs, strict=True)
        ],
        mounting=Mounting(DEVICE, SENSOR, trial.rpy_rad, trial.height_m),
    )
    timing = [counts_section(report), *([timing_section(report)] if rows else [])]
    outcome = Outcome("the daemon process", (driven.drive,), facts)
    seen = [pictures_section(report)]
    write_drive_report(asked.report, outcome, title=report.title, seen=seen, timing=timing)


def metres(value: float | None) -> str:
    """Return a length for people."""
    return "-" if value is None else f"{value:.2f} m"
