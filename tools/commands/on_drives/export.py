"""Convert a log for other programs: MCAP for Foxglove and PlotJuggler, video, rerun.

--mcap writes every service of a log as a channel /NAME of JSON messages with their schema, named
cereal.NAME. PlotJuggler plots each number; Foxglove shows all. Fields are the schema's, enumerants
are text, bytes are base64, __valid is the message's validity, and __notFinite holds numbers that
JSON cannot express. Times are logMonoTime. The exceptions are initData, which is placed at the
log's beginning, and messages after a second boot, whose times continue those of the first.

/view/model shows plan, lane lines, road edges and leads in Foxglove's 3D panel. /tf has the
calibration as three frames: road is x forward, y LEFT, z up, on the road below the camera; calib is
the same at the camera; camera is x right, y down, z into the picture.

--drive names the drive that the log was made from. With it, /view/camera has some of its pictures;
--video and --rerun need it. The video shows each frame with the planned path, road edges, leads and
the model's action, and lane lines that are more opaque the more probable they are. It marks frames
without an output.

A truncated log is exported up to its end. Damaged messages, and messages newer than the schema, are
skipped and counted.

Example:
  modeld export rlog.zst --mcap drive.mcap
  modeld export out.rlog.zst --mcap drive.mcap --drive drive.mp4 --service modelV2
  modeld export out.rlog.zst --video out.mp4 --drive drive.mp4
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from runtime.texts import count_text
from tools.describe.log import selections
from tools.drives.open_drive import add_drive_arguments, drive_options, open_drive
from tools.errors import UsageError
from tools.lib.json_output import print_json
from tools.lib.options import MOST_HZ, above

OUTPUTS = ("mcap", "video", "rerun")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("log", type=Path, metavar="LOG", help="event log; raw, .zst or .bz2")
    parser.add_argument("--mcap", type=Path, metavar="OUT", help="write an MCAP file")
    parser.add_argument(
        "--service",
        action="append",
        default=[],
        metavar="NAME",
        help="with --mcap: only messages of this service; may be repeated (all)",
    )
    parser.add_argument(
        "--no-views", action="store_true", help="with --mcap: only messages, no /view and no /tf"
    )
    parser.add_argument(
        "--picture-rate",
        type=above("--picture-rate", 0, MOST_HZ),
        default=5.0,
        metavar="HZ",
        help="with --mcap and --drive: at most this many pictures a second (5)",
    )
    parser.add_argument("--video", type=Path, metavar="MP4", help="write an overlay video")
    parser.add_argument("--rerun", type=Path, metavar="RRD", help="write a recording for rerun")
    parser.add_argument("--drive", metavar="DRIVE", help="the drive whose log it is")
    parser.add_argument("--no-progress", action="store_true", help="no progress bar on a terminal")
    add_drive_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Write the requested files and return exit code 0."""
    outputs = {f"--{name}": getattr(args, name) for name in OUTPUTS}
    if not any(outputs.values()):
        raise UsageError(f"expected one of {', '.join(outputs)}, found none; name an output")
    for name in ("video", "rerun"):
        if getattr(args, name) and args.drive is None:
            raise UsageError(
                f"--{name}: expected --drive with it, found none; name the drive with the frames"
            )
    figures: dict[str, Any] = {"log": str(args.log)}
    with _progress(args) as on_event:
        if args.mcap:
            figures["mcap"] = _mcap(args, on_event)
        if args.video:
            figures["video"] = _video(args, on_event)
        if args.rerun:
            figures["rerun"] = _rerun(args, on_event)
    if args.json:
        print_json(figures)
    elif not args.quiet:
        for name in OUTPUTS:
            if name in figures:
                print(_describe(figures[name]))
    return 0


def _mcap(args: argparse.Namespace, on_event: Callable[[], None]) -> dict[str, Any]:
    from tools.views.export_mcap import McapOptions, export_mcap

    _, members = selections(args.service, [])
    drive = open_drive(args.drive, drive_options(args)) if args.drive else None
    try:
        options = McapOptions(members, not args.no_views, drive, args.picture_rate, on_event)
        found = export_mcap(args.log, args.mcap, options)
    finally:
        if drive is not None:
            drive.close()
    return {
        "file": str(args.mcap),
        "channels": found.topics,
        "messages": sum(found.topics.values()),
        "damaged": found.damaged,
        "newer": found.newer,
    }


def _video(args: argparse.Namespace, on_frame: Callable[[], None]) -> dict[str, Any]:
    from tools.views.pass_over import Written
    from tools.views.recordings import write_overlay_video

    drive = open_drive(args.drive, drive_options(args))
    written = Written(args.video, on_frame=on_frame)
    try:
        write_overlay_video(drive, args.log, written)
    finally:
        drive.close()
    return written.as_json()


def _rerun(args: argparse.Namespace, on_frame: Callable[[], None]) -> dict[str, Any]:
    from tools.views.pass_over import Written
    from tools.views.recordings import write_rerun

    drive = open_drive(args.drive, drive_options(args))
    written = Written(args.rerun, on_frame=on_frame)
    try:
        write_rerun(drive, args.log, written)
    finally:
        drive.close()
    return written.as_json()


def _describe(figures: dict[str, Any]) -> str:
    if "channels" in figures:
        messages = count_text(figures["messages"], "message")
        return f"{figures['file']}: {messages} in {count_text(len(figures['channels']), 'channel')}"
    return (
        f"{figures['file']}: {count_text(figures['frames'], 'frame')}, "
        f"{figures['answered']} with model output"
    )


@contextmanager
def _progress(args: argparse.Namespace) -> Iterator[Callable[[], None]]:
    """Yield a function that counts events and frames on a terminal; the total is unknown."""
    if args.no_progress or args.quiet or not sys.stderr.isatty():
        yield lambda: None
        return
    from tqdm import tqdm

    with tqdm(unit=" events and frames", file=sys.stderr) as bar:
        yield bar.update
