"""Render a drive with known ground truth, in openpilot's segment format.

A car keeps and changes its lanes on a winding three-lane road over hills, behind another car. The
road and wide cameras of a device film the drive, and the log has the messages of the car. Each
minute becomes a directory DIR/COUNT--ID--N with rlog.zst, qlog.zst, fcamera.hevc, ecamera.hevc and
truth.npz, the ground truth of each picture. Equal options give equal bytes. A segment is written
completely or not at all. With --small only the files that devices upload are written: qlog.zst and
qcamera.ts, the small pictures of the road camera.

Example:
  modeld make-drive drives --minutes 10 --seed 3
"""

from __future__ import annotations

import argparse
import math
import os
from pathlib import Path

from runtime.texts import count_text
from tools.errors import UsageError
from tools.lib.json_output import print_json
from tools.lib.options import above, seed, whole
from tools.lib.terminal import progress_bar
from tools.simulator.render.script import recorded_script, recording_digest
from tools.simulator.render.spec import SENSOR_OF_DEVICE, SMALL, DriveSpec
from tools.simulator.render.write_drive import write_drive

RATE_HZ = 20
# Ten hours.
MAX_SECONDS = 36_000.0
# Largest mounting angles in rad. Beyond them openpilot rejects the calibration, and the road leaves
# the picture.
MAX_RPY_RAD = (0.05, 0.15, 0.1)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument(
        "directory", metavar="DIR", type=Path, help="output directory; created if missing"
    )
    length = parser.add_mutually_exclusive_group()
    length.add_argument(
        "--minutes",
        type=above("--minutes", 0, MAX_SECONDS / 60),
        help="length of the drive (1)",
    )
    length.add_argument(
        "--seconds", type=above("--seconds", 0, MAX_SECONDS), help="the same in seconds"
    )
    parser.add_argument(
        "--seed", type=seed(), default=0, help="seed of the road and the traffic (0)"
    )
    parser.add_argument(
        "--device",
        choices=sorted(SENSOR_OF_DEVICE),
        default="mici",
        help="device whose cameras are simulated (mici)",
    )
    parser.add_argument(
        "--rpy",
        metavar="ROLL,PITCH,YAW",
        default="0,0.02,-0.01",
        help="mounting in rad, like liveCalibration.rpyCalib (0,0.02,-0.01)",
    )
    parser.add_argument(
        "--drop",
        metavar="[STREAM:]FRAME,...",
        default="",
        help="frames that a camera lost: neither state nor picture; road:, wide: or driver: names "
        "the camera, otherwise all of them",
    )
    parser.add_argument(
        "--telemetry",
        metavar="DIR",
        type=Path,
        help="comma2k19 segment: drive its path at its speed, by its poses; all of it if no "
        "length is given",
    )
    parser.add_argument("--missing", choices=["wide"], help="simulate a device without this camera")
    parser.add_argument(
        "--driver-camera", action="store_true", help="also dcamera.hevc: a simple drawing of a face"
    )
    parser.add_argument(
        "--small", action="store_true", help="only what devices upload: qlog.zst and qcamera.ts"
    )
    parser.add_argument(
        "--workers",
        type=whole("--workers"),
        default=os.cpu_count() or 1,
        help="maximum processes (one per processor)",
    )
    parser.add_argument("--no-progress", action="store_true", help="no progress bar on a terminal")


def run(args: argparse.Namespace) -> int:
    """Render the drive, list its segments and return exit code 0."""
    spec = parse_spec(args)
    pictures = sum(
        len(spec.delivered(stream, segment))
        for stream in spec.streams
        for segment in range(spec.segments)
    )
    shows = not (args.no_progress or args.quiet)
    with progress_bar(pictures, "picture", is_shown=shows) as progress:
        segments = write_drive(spec, args.directory, args.workers, progress)
    if args.json:
        print_json(
            {
                "route": spec.route,
                "segments": [str(segment) for segment in segments],
                "frames": spec.frames,
                "pictures": pictures,
                "seed": spec.seed,
                "device": spec.device,
                "sensor": spec.sensor,
                "rpy_rad": list(spec.rpy_rad),
            }
        )
        return 0
    for segment in segments:
        print(segment)
    print(
        f"{count_text(spec.frames, 'frame')}, {count_text(pictures, 'picture')}, "
        f"{count_text(len(segments), 'segment')} of {spec.route}"
    )
    return 0


def parse_spec(args: argparse.Namespace) -> DriveSpec:
    """Return the drive that the options describe.

    Raises:
        UsageError: an option is out of range.
        ToolError: the telemetry cannot be used.
    """
    frames = _parse_length(args)
    telemetry_digest = ""
    if args.telemetry is not None:
        # Read here for its errors and its length. Workers read it again.
        asked = args.minutes is not None or args.seconds is not None
        _, frames = recorded_script(args.telemetry, args.seed, frames if asked else None)
        telemetry_digest = recording_digest(args.telemetry)
    streams = ["road"]
    if args.missing != "wide":
        streams.append("wide")
    if args.driver_camera:
        streams.append("driver")
    if args.small and streams != ["road", "wide"]:
        raise UsageError(
            "--small: expected without --missing and --driver-camera, found both; a reduced drive "
            "has the road camera's pictures only"
        )
    return DriveSpec(
        seed=args.seed,
        frames=frames,
        device=args.device,
        rpy_rad=_parse_rpy(args.rpy),
        streams=(SMALL,) if args.small else tuple(streams),
        dropped=_parse_drops(args.drop, tuple(streams), frames),
        telemetry=args.telemetry,
        telemetry_digest=telemetry_digest,
    )


def _parse_length(args: argparse.Namespace) -> int:
    option, value, unit_s = "--minutes", args.minutes, 60.0
    if args.seconds is not None:
        option, value, unit_s = "--seconds", args.seconds, 1.0
    seconds = 60.0 if value is None else value * unit_s
    if not 1.0 / RATE_HZ <= seconds <= MAX_SECONDS:
        raise UsageError(
            f"{option}: expected {1.0 / RATE_HZ:g} to {MAX_SECONDS:g} s in all, found {value}"
        )
    return round(seconds * RATE_HZ)


def _parse_rpy(text: str) -> tuple[float, float, float]:
    try:
        roll, pitch, yaw = (float(part) for part in text.split(","))
    except ValueError:
        raise UsageError(
            f"--rpy: expected three angles in rad as ROLL,PITCH,YAW, found {text!r}"
        ) from None
    for value, limit in zip((roll, pitch, yaw), MAX_RPY_RAD, strict=True):
        if not (math.isfinite(value) and abs(value) <= limit):
            limits = ", ".join(f"{limit:g}" for limit in MAX_RPY_RAD)
            raise UsageError(f"--rpy: expected angles of at most {limits} rad, found {text}")
    return roll, pitch, yaw


def _parse_drops(text: str, streams: tuple[str, ...], frames: int) -> dict[str, frozenset[int]]:
    drops: dict[str, set[int]] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        stream, _, number = item.rpartition(":")
        if (stream and stream not in streams) or not number.isdecimal():
            raise UsageError(
                f"--drop: expected a frame number, or {', '.join(streams)} and one as in road:45, "
                f"found {item!r}"
            )
        if int(number) >= frames:
            raise UsageError(f"--drop: expected frames below {frames}, found {number}")
        for name in (stream,) if stream else streams:
            drops.setdefault(name, set()).add(int(number))
    return {stream: frozenset(ids) for stream, ids in drops.items()}
