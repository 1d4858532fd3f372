"""Writes the page of the demo: the model's outputs next to ground truth, and the car's path.

The page shows a clip of the drive, up to four frames with lane lines and paths drawn in, the
driving metrics, and the model's timing.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np

from runtime.files.user_file import whole_file
from runtime.format.artifact import read_artifact
from runtime.texts import count_text
from tools.errors import UsageError
from tools.messages.drive_log import Curves, DriveLog
from tools.messages.drive_messages import Mounting
from tools.report.report import (
    MAX_PICTURES,
    Picture,
    Report,
    counts_section,
    describe_models,
    pictures_section,
    timing_section,
)
from tools.simulator.closed_loop.device import DEVICE, SENSOR, device_cameras
from tools.simulator.closed_loop.film import (
    COMPARED_M,
    SIZE,
    Footage,
    Scene,
    line_errors_m,
    make_clip,
    road_pictures,
)
from tools.simulator.closed_loop.report import write_drive_report
from tools.simulator.closed_loop.result import Drive, Outcome
from tools.simulator.closed_loop.simulation import End

TITLE = "Demo drive"
# Name of the clip in the drive's directory.
CLIP = "drive.webp"


@dataclass(frozen=True, slots=True)
class DemoPaths:
    """Paths of a demo: the artifact, the drive's directory, and the page to write."""

    model: Path
    directory: Path
    report: Path


@dataclass(frozen=True, slots=True)
class FinishedDrive:
    """A finished drive.

    `scenes` maps the id of every frame after the hand-over to its scene. `footage` also contains
    the run-up, in which the simulation still steers.
    """

    drive: Drive
    scenes: Mapping[int, Scene]
    rate_hz: float
    footage: Footage


def write_demo_report(
    paths: DemoPaths,
    driven: FinishedDrive,
    log: DriveLog,
    truth: Mapping[int, Curves],
    line_error_m: float | None,
) -> None:
    """Write a page with the model's outputs, the car's path, and the model's speed.

    `truth` maps the ids of compared frames to the outputs of a perfect model. `line_error_m` is
    the mean error of lane lines, None if nothing was compared.

    Raises:
        UsageError: the page cannot be written.
    """
    road, trial = device_cameras().road, driven.drive.track.trial
    artifact = read_artifact(paths.model)
    facts = {
        "cameras": f"rendered road and wide camera, {road.width}x{road.height}, of a {DEVICE} with "
        f"{SENSOR}, at {driven.rate_hz:g} Hz",
        "artifact": f"{paths.model}, sha256 {artifact.sha256[:16]}",
        "models": describe_models(artifact.manifest),
        "lane lines": f"mean error {metres(line_error_m)}, up to {COMPARED_M:g} m ahead, in "
        f"{count_text(len(truth), 'frame')}",
        "drive": str(paths.directory),
    }
    shown = example_frames(log, truth)
    jpegs = road_pictures(trial, [driven.scenes[one] for one in shown])
    rows = {int(one): row for row, one in enumerate(log.frame_ids)}
    report = Report(
        title=TITLE,
        summary=headline(driven.drive, line_error_m),
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
    clip = make_clip(trial, driven.scenes, log.curves)
    write_clip(paths.directory / CLIP, clip)
    lead = f'<p class="lead">{escape(report.summary)}</p>'
    seen = [lead, clip_section(clip), pictures_section(report)]
    write_drive_report(paths.report, outcome, title=report.title, seen=seen, timing=timing)


def headline(drive: Drive, line_error_m: float | None) -> str:
    """Return a summary of the drive in sentences."""
    figures = drive.figures
    crossed = count_text(figures.departures, "time")
    kept = "without leaving the lane" if not figures.departures else f"and left the lane {crossed}"
    end = "" if drive.track.end is End.DONE else f"; outcome: {drive.track.end}"
    text = f"Drove {1e3 * figures.km:.0f} m {kept}{end}. Offset from lane centre: mean "
    text += f"{metres(figures.offset_mean_m)}, p99 {metres(figures.offset_p99_m)}."
    return text if line_error_m is None else f"{text} Lane-line error: {metres(line_error_m)}."


def example_frames(log: DriveLog, truth: Mapping[int, Curves]) -> list[int]:
    """Return at most four frames: the one with the largest line error, then evenly spread ones."""
    rows = set(log.frame_ids.tolist())
    known = [frame for frame in truth if frame in rows and frame in log.curves]
    errors = {frame: line_errors_m(log.curves[frame], truth[frame]) for frame in known}
    worst = max(known, key=lambda one: errors[one].mean() if errors[one].size else -1.0, default=-1)
    rest = [frame for frame in known if frame != worst]
    count = min(MAX_PICTURES - 1, len(rest))
    spread = np.linspace(0, len(rest) - 1, count).round().astype(int)
    return ([worst] if known else []) + [rest[at] for at in spread]


def clip_section(clip: bytes) -> str:
    """Return the clip as an HTML section, "" without a clip."""
    if not clip:
        return ""
    data = base64.b64encode(clip).decode()
    about = "The drive seen by its road camera, with the model's path and lane lines"
    return (
        f'<section><img class="clip" alt="{about}" src="data:image/webp;base64,{data}" '
        f'width="{SIZE[0]}" height="{SIZE[1]}"></section>'
    )


def write_clip(path: Path, clip: bytes) -> None:
    """Write the clip next to the page, if there is one.

    Raises:
        UsageError: the file cannot be written.
    """
    if not clip:
        return
    try:
        with whole_file(path) as file:
            file.write(clip)
    except OSError as error:
        raise UsageError(
            f"{path}: the clip cannot be written ({error.strerror or error}); free some disk space"
        ) from error


def metres(value: float | None) -> str:
    """Return a length as text."""
    return "-" if value is None else f"{value:.2f} m"
