"""The options of `DriveOptions` on a command line."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from tools.drives.open_drive import DriveOptions
from tools.errors import UsageError


def add_drive_options(parser: argparse.ArgumentParser) -> None:
    """Declare how a drive is opened."""
    group = parser.add_argument_group("drive")
    group.add_argument("--data-dir", type=Path, metavar="DIR", help="where routes lie")
    group.add_argument(
        "--telemetry", type=Path, metavar="FILE", help="car state beside a video: CSV or comma2k19"
    )
    group.add_argument(
        "--focal-px", type=float, metavar="PX", help="focal length of a video (0.9 widths)"
    )
    group.add_argument(
        "--rate", type=float, metavar="HZ", help="frames per second, resampled (as recorded)"
    )
    group.add_argument(
        "--driver-camera", action="store_true", help="the driver camera's frames, too"
    )


def drive_options(args: argparse.Namespace) -> DriveOptions:
    """Return how a drive is opened.

    Raises:
        UsageError: a number is not positive.
    """
    for option, value in (("--focal-px", args.focal_px), ("--rate", args.rate)):
        if value is not None and not (math.isfinite(value) and value > 0.0):
            raise UsageError(f"{option}: expected a positive number, found {value:g}")
    return DriveOptions(
        data_dir=args.data_dir,
        telemetry=args.telemetry,
        focal_px=args.focal_px,
        rate_hz=args.rate,
        driver_camera=args.driver_camera,
    )
