"""Measure models' lane lines against hand-labelled lines of real footage.

CLIP is played through the daemon's own loop, once for each model, with the camera that its labels
describe. In each labelled frame the model's lines are compared with the labels, in pixels across
the picture and in metres on a level road, at about 8, 15 and 30 m and over all labelled rows. Two
references are shown, too: a parabola through the labels, which is the best possible result, and a
straight lane with the car in its centre, the output of a blind model.

Models are trained at 20 frames/s; a video of another rate is thinned or repeated (--rate).

Example:
  modeld footage solidWhiteRight.mp4 --labels labels.json --model driving.pkl
  modeld footage solidWhiteRight.mp4 --labels labels.json --model new.pkl old.pkl --report out.html
  modeld footage solidWhiteRight.mp4 --labels labels.json --model driving.pkl --telemetry car.csv
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from cereal.log_reader import read_log
from tools.behaviour.footage import Subject, blind_lane, perfect_fit, subject_of
from tools.behaviour.footage_page import HEADER, headline, page_parts, table_rows
from tools.behaviour.labels import Labels, read_labels
from tools.drives.open_drive import DriveOptions
from tools.drives.video_drive import MODEL_HZ, VideoDrive, open_drive
from tools.errors import UsageError
from tools.lib.json_output import print_json
from tools.lib.options import MOST_HZ, above
from tools.lib.terminal import format_table
from tools.messages.drive_log import summarize
from tools.playback.model import load_model
from tools.playback.progress import progress
from tools.playback.run_drive import PlaybackOptions, run_drive
from tools.report.picture import encode_jpeg
from tools.report.report_page import write_page
from tools.video.video import read_planes

CEILING = "parabola through the labels (the best possible)"
BLIND = "straight lane, car in its middle (a blind model)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("clip", metavar="CLIP", type=Path, help="the video that was labelled")
    parser.add_argument(
        "--labels", type=Path, required=True, metavar="JSON", help="labelled frames and the camera"
    )
    parser.add_argument(
        "--model", type=Path, nargs="+", default=[], metavar="PKL", help="driving artifacts"
    )
    parser.add_argument("--report", type=Path, metavar="HTML", help="also write a page with frames")
    parser.add_argument(
        "--telemetry", type=Path, metavar="CSV", help="car state over time (straight on at 20 m/s)"
    )
    parser.add_argument(
        "--rate",
        type=above("--rate", 0, MOST_HZ),
        default=MODEL_HZ,
        metavar="HZ",
        help="frames per second that the model sees (20)",
    )
    parser.add_argument("--device", help="OpenCL device, see modeld devices (the best)")
    parser.add_argument("--no-progress", action="store_true", help="no progress bar on a terminal")


def run(args: argparse.Namespace) -> int:
    """Measure the models, print the results and return exit code 0.

    Raises:
        LabelsError: the labels are damaged, or belong to another clip.
        UsageError: a labelled frame is not shown at this rate.
        ToolError, RuntimeFault: the clip or a model cannot be played.
    """
    labels = read_labels(args.labels)
    labels.check_clip(args.clip)
    options = DriveOptions(telemetry=args.telemetry, rate_hz=args.rate, camera=labels.video_camera)
    drive = open_drive(str(args.clip), options)
    if drive.info.cameras is not None:
        labels = replace(labels, pixel_aspect=drive.info.cameras.road.pixel_aspect)
    try:
        moments = _moments(drive, labels)
        subjects = [_play(args, path, drive, labels, moments) for path in args.model]
        pictures = _pictures(drive, moments) if args.report else {}
    finally:
        drive.close()
    subjects += [
        subject_of(CEILING, labels, perfect_fit(labels)),
        subject_of(BLIND, labels, blind_lane(labels)),
    ]
    if args.report:
        write_page(args.report, page_parts(labels, subjects, pictures))
    _print(args, labels, subjects)
    return 0


def _moments(drive: VideoDrive, labels: Labels) -> dict[int, int]:
    """Return moment -> number of the labelled frame that it shows.

    Raises:
        UsageError: a labelled frame is not shown at this rate.
    """
    numbers = drive.numbers()
    shown = {number: moment for moment, number in reversed(list(enumerate(numbers)))}
    for frame in labels.frames:
        if frame.number not in shown:
            raise UsageError(
                f"--rate {drive.info.rate_hz:g}: expected every labelled frame to be shown, frame "
                f"{frame.number} is not; choose the rate of the clip"
            )
    return {shown[frame.number]: frame.number for frame in labels.frames}


def _play(
    args: argparse.Namespace,
    path: Path,
    drive: VideoDrive,
    labels: Labels,
    moments: Mapping[int, int],
) -> Subject:
    """Play the clip through one model and return its lines in the labelled frames."""
    shows = not (args.no_progress or args.quiet)
    with (
        tempfile.TemporaryDirectory() as directory,
        load_model(path, args.device) as model,
        progress([drive.info], models=1, limit=None, show=shows) as bar,
    ):
        log = Path(directory) / "clip.rlog"
        run_drive(drive, model, log, PlaybackOptions(on_moment=bar.count))
        found = summarize(read_log(log), curves_of=moments)
    curves = {moments[frame_id]: one for frame_id, one in found.curves.items()}
    return subject_of(path.name, labels, curves)


def _pictures(drive: VideoDrive, moments: Mapping[int, int]) -> dict[int, bytes]:
    """Return the labelled frames as JPEG files, by frame number."""
    pictures = {}
    for moment in drive.moments():
        if moment.index in moments:
            frame = moment.frames["road"]
            planes = read_planes(frame.data, frame.format)
            pictures[moments[moment.index]] = encode_jpeg(*planes)
    return pictures


def _print(args: argparse.Namespace, labels: Labels, subjects: Sequence[Subject]) -> None:
    if args.json:
        print_json(
            {
                "clip": str(args.clip),
                "labels": str(args.labels),
                "frames": len(labels.frames),
                "rows_m": [round(one, 2) for one in labels.ahead_m.tolist()],
                "subjects": [one.as_json() for one in subjects],
                "report": str(args.report) if args.report else None,
            }
        )
        return
    print(f"{args.clip}: {len(labels.frames)} labelled frames of {labels.rows_px.size} rows")
    for subject in subjects:
        print(f"\n{headline(subject)}\n{format_table(HEADER, table_rows(subject))}")
    if args.report:
        print(f"\nreport: {args.report}")
