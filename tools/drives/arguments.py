"""Options of every command that opens drives."""

from __future__ import annotations

import argparse
from pathlib import Path

from tools.drives.open_drive import DriveOptions
from tools.lib.number_options import MOST_HZ, MOST_PX, above
from tools.messages.telemetry import DEFAULT_SPEED_MPS, MAX_GAP_S
from tools.video.video_camera import read_video_camera

TELEMETRY = (
    "Telemetry of a video is a CSV file with the columns t_s,speed_mps and optionally "
    "steering_angle_deg, left_blinker, right_blinker, or the directory of a comma2k19 segment. "
    "t_s is seconds from the first video frame (a segment's: from its first camera frame, without "
    "a pose from its first speed); speed in m/s; the steering wheel's angle in degrees, positive "
    "to the left; blinkers 0 or 1. Speed and angle are interpolated linearly at each frame, "
    "blinkers keep the last row's value. An empty cell or nan is a value that was not measured. "
    f"Gaps beyond {MAX_GAP_S:g} s are interpolated too, with a warning; before the first and after "
    "the last row, its values hold. Times none of which is one of the video's are an error. "
    f"Without telemetry the car goes straight on at {DEFAULT_SPEED_MPS:g} m/s."
)


def add_drive_arguments(parser: argparse.ArgumentParser, *, may_split: bool = False) -> None:
    """Declare how drives are opened.

    Args:
        parser: of the command.
        may_split: the command takes several drives, and a route may be several.
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
    group = parser.add_argument_group("drives that are videos", TELEMETRY)
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
        help="take the frame nearest to each multiple of 1/HZ s; 20 is what models are trained on "
        "(every frame; of 40 frames/s or more the lowest rate of at least 20)",
    )


def drive_options(args: argparse.Namespace) -> DriveOptions:
    """Return the options that were given."""
    return DriveOptions(
        data_dir=args.data_dir,
        telemetry=args.telemetry,
        focal_px=args.focal_px,
        camera=read_video_camera(args.camera) if args.camera else None,
        rate_hz=args.rate,
        split=getattr(args, "split", False),
    )
