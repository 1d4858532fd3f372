"""Opens a drive of any kind by the text a user types: a path, a route, a segment or a range.

A kind is a module with three functions. ``expand(text, options) -> list[str] | None`` returns the
drives that a text denotes, or None if the text is not of this kind. ``open_drive(text, options) ->
Drive`` opens one of them. ``input_files(text, options) -> list[Path]`` returns the files and
directories that belong to them. Kinds are tried in the order of ``KINDS`` and imported on demand.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

from tools.drives.drive import Drive
from tools.errors import DriveError
from tools.lib.named_file import what_is_at
from tools.lib.options import MOST_HZ, MOST_PX, above, refuse
from tools.messages.camera import VideoCamera, read_video_camera
from tools.messages.telemetry import DEFAULT_SPEED_MPS, MAX_GAP_S

VIDEOS = "tools.drives.video_drive"
KINDS = ("tools.drives.openpilot", "tools.drives.comma2k19", VIDEOS)


@dataclass(frozen=True, slots=True)
class DriveOptions:
    """Options for opening drives; `telemetry`, `camera` and `rate_hz` are for videos only."""

    # Directory of routes that are named without a path. None: the working directory.
    data_dir: Path | None = None
    # Car state for a video: a CSV file, or the directory of a comma2k19 segment.
    telemetry: Path | None = None
    focal_px: float | None = None  # focal length of a video's camera in pixels; None: 0.9 widths
    # Camera of a video. None: level, with the usual height and focal length. `focal_px` takes
    # precedence over its focal length.
    camera: VideoCamera | None = None
    # Frames per second for the model. None: every frame of a video below 40 Hz, and otherwise every
    # n-th frame at the lowest rate of at least 20 Hz.
    rate_hz: float | None = None
    driver_camera: bool = False  # also deliver frames of the driver camera
    # Deliver frames of the road and wide cameras. Without them the driver camera defines moments.
    road_cameras: bool = True
    # Treat each segment of a route as a drive of its own instead of joining consecutive ones.
    split: bool = False


class Kind(Protocol):
    """The functions of a module for one kind of drive."""

    def expand(self, text: str, options: DriveOptions) -> list[str] | None:
        """Return one text for each drive that `text` denotes; None: not of this kind."""

    def open_drive(self, text: str, options: DriveOptions) -> Drive:
        """Open one of the drives that `expand` returned."""

    def input_files(self, text: str, options: DriveOptions) -> list[Path]:
        """Return the files and directories of the drives; empty if `text` is of another kind."""


def expand_drives(texts: Sequence[str], options: DriveOptions) -> list[str]:
    """Return one text per drive, in order; ranges and whole routes are expanded.

    Raises:
        DriveError: a text names nothing that can be opened.
        UsageError: an option is for videos only, and a text names another kind of drive.
    """
    return [one for text in texts for one in _expand(text, options)[1]]


def open_drive(text: str, options: DriveOptions) -> Drive:
    """Open a single drive.

    Raises:
        DriveError: the text names no drive or several, or the drive cannot be read. Each kind
            raises further errors.
        UsageError: an option is for videos only, and the drive is of another kind.
    """
    kind, drives = _expand(text, options)
    if len(drives) != 1:
        raise DriveError(
            f"{text}: expected one drive, found {len(drives)}: {', '.join(drives[:4])} ...; "
            "name one of them"
        )
    return kind.open_drive(drives[0], options)


def input_files(text: str, options: DriveOptions) -> list[Path]:
    """Return the files that opening a text reads, and the directories that contain them.

    Incomplete drives have such files, too. The list is empty if the text names nothing.
    """
    kinds = (cast("Kind", importlib.import_module(name)) for name in KINDS)
    return [path for kind in kinds for path in kind.input_files(text, options)]


def _expand(text: str, options: DriveOptions) -> tuple[Kind, list[str]]:
    for name in KINDS:
        kind = cast("Kind", importlib.import_module(name))
        drives = kind.expand(text, options)
        if drives is not None:
            if name != VIDEOS:
                _refuse_options_of_videos(text, options)
            return kind, drives
    raise DriveError(
        f"{text}: expected a segment directory, a route, a comma2k19 segment or a video file, "
        f"found {what_is_at(Path(text))}; check the path, and --data-dir for routes"
    )


def _refuse_options_of_videos(text: str, options: DriveOptions) -> None:
    shown = text.replace("{", "{{").replace("}", "}}")
    given = {"telemetry": options.telemetry, "camera": options.camera, "rate": options.rate_hz}
    message = f"expected a video, found {shown}, whose recording has its own; leave the option out"
    refuse(given, [("telemetry|camera|rate", message)])


# --- Options of every command that opens drives -----------------------------------------------

TELEMETRY = (
    "Telemetry of a video is a CSV file with the columns t_s,speed_mps and optionally "
    "steering_angle_deg, left_blinker, right_blinker, or the directory of a comma2k19 segment. "
    "t_s is in seconds since the first video frame (for a segment: since its first camera frame, "
    "or its first speed if it has no pose), speed in m/s, the steering wheel's angle in degrees, "
    "positive to the left; blinkers are 0 or 1. Speed and angle are interpolated linearly at each "
    "frame; blinkers keep the last row's value. An empty cell or nan is a missing value. Gaps "
    f"beyond {MAX_GAP_S:g} s are interpolated, too, with a warning. The first row's values hold "
    "before it, the last row's after it. It is an error if no time is within the video. "
    f"Without telemetry the car goes straight on at {DEFAULT_SPEED_MPS:g} m/s."
)


def add_drive_arguments(parser: argparse.ArgumentParser, *, may_split: bool = False) -> None:
    """Add the options that control how drives are opened.

    `parser`: the parser of the command. `may_split`: the command accepts several drives, so
    ``--split`` is added.
    """
    parser.add_argument(
        "--data-dir",
        type=Path,
        metavar="DIR",
        help="directory of routes that are named without a path",
    )
    if may_split:
        parser.add_argument(
            "--split", action="store_true", help="treat each segment of a route as a drive"
        )
    group = parser.add_argument_group("options for videos", TELEMETRY)
    group.add_argument(
        "--telemetry", type=Path, metavar="CSV|DIR", help="car state over time: CSV or comma2k19"
    )
    group.add_argument(
        "--focal-px",
        type=above("--focal-px", 0, MOST_PX),
        help="focal length in pixels (0.9 x width)",
    )
    group.add_argument(
        "--camera",
        type=Path,
        metavar="TOML|JSON",
        help="file with a table 'camera': focal_px, roll_deg, pitch_deg, yaw_deg, height_m "
        "(level, 1.22 m over the road)",
    )
    group.add_argument(
        "--rate",
        type=above("--rate", 0, MOST_HZ),
        metavar="HZ",
        help="use the frame nearest to each multiple of 1/HZ s; models are trained at 20 (every "
        "frame; from 40 frames/s on, the lowest rate of at least 20)",
    )


def drive_options(args: argparse.Namespace) -> DriveOptions:
    """Return the drive options from the parsed arguments."""
    return DriveOptions(
        data_dir=args.data_dir,
        telemetry=args.telemetry,
        focal_px=args.focal_px,
        camera=read_video_camera(args.camera) if args.camera else None,
        rate_hz=args.rate,
        split=getattr(args, "split", False),
    )
