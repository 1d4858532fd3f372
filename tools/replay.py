"""Send a recorded drive through the daemon's own code and write everything said to an event log.

A video has no calibration and no car around it. The camera is taken to be a pinhole of 0.9 widths
focal length (58 degrees, what dashcams and phones film with; change it with --focal-px), level and
1.22 m over the road; it stands in for the wide camera too. Car state comes from --telemetry, a CSV
with the columns t_s,speed_mps[,steering_angle_deg,left_blinker,right_blinker], else the car goes
straight on at 20 m/s. Every frame becomes one model frame; a video of 40 frames/s or more is
thinned out to the lowest rate that is at least 20. The log's fields are the same in every run,
except for measured times.

Example:
  modeld replay drive.mp4 --model driving.pkl -o out.rlog.zst --report out.html
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cereal.frames import nv12_format
from cereal.log_reader import read_log
from cereal.log_writer import LogWriter
from modeld.calibration import Camera, DeviceCameras
from modeld.config import Config
from runtime import load_program
from runtime.artifact import Artifact, read_artifact
from runtime.quantities import count_text
from tools.errors import ArtifactMismatchError, UsageError
from tools.lib.camera import stand_in_camera
from tools.lib.drive_log import OUTPUT_SERVICES, DriveLog, summarize
from tools.lib.drive_messages import Mounting
from tools.lib.json_output import print_json
from tools.lib.outputs import check_outputs
from tools.lib.picture import PictureKeeper
from tools.lib.replay_session import ReplaySession
from tools.lib.report import Report, describe_models, pictures_of, write_report
from tools.lib.telemetry import Telemetry, constant_telemetry, read_telemetry
from tools.lib.video import Video, VideoFrame, VideoInfo

MODEL_HZ = 20


@dataclass(frozen=True, slots=True)
class Job:
    """What is replayed, after everything has been checked that can be without decoding.

    Attributes:
        args: the command line.
        info: the video's header.
        camera: what the video is taken to be filmed with.
        telemetry: the car.
        artifact: the checked artifact file.
        mounting: calibration.
    """

    args: argparse.Namespace
    info: VideoInfo
    camera: Camera
    telemetry: Telemetry
    artifact: Artifact
    mounting: Mounting


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("video", type=Path, help="video file; anything FFmpeg decodes")
    parser.add_argument("--model", type=Path, required=True, help="driving artifact")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        required=True,
        metavar="LOG",
        help="event log to write; .zst or .bz2 compresses, else raw",
    )
    parser.add_argument("--report", type=Path, metavar="HTML", help="also write a one-page report")
    parser.add_argument("--telemetry", type=Path, metavar="CSV", help="car state over time")
    parser.add_argument("--focal-px", type=float, help="focal length in pixels (0.9 x width)")
    parser.add_argument("--limit", type=int, metavar="N", help="stop after N frames")
    parser.add_argument("--device", help="OpenCL device, see modeld devices (the best)")
    parser.add_argument("--no-progress", action="store_true", help="no progress bar on a terminal")


def run(args: argparse.Namespace) -> int:
    """Replay; return 0, or 1 when a frame has no message or a value is not finite."""
    _check_arguments(args)
    telemetry = read_telemetry(args.telemetry) if args.telemetry else constant_telemetry()
    with Video(args.video) as video:
        camera = stand_in_camera(video.info.width, video.info.height, args.focal_px)
        artifact = read_artifact(args.model)
        _check_artifact(args.model, artifact, camera)
        job = Job(args, video.info, camera, telemetry, artifact, Mounting())
        keeper = PictureKeeper()
        frames_sent = _replay(job, video, keeper)
    drive = summarize(read_log(args.output))
    if args.report:
        write_report(args.report, _make_report(job, drive, frames_sent, keeper))
    return _print_summary(job, drive, frames_sent)


def _check_arguments(args: argparse.Namespace) -> None:
    if args.limit is not None and args.limit < 1:
        raise UsageError(f"--limit: expected at least 1 frame, found {args.limit}")
    check_outputs(
        {"--output": args.output, "--report": args.report},
        [args.video, args.model, args.telemetry],
    )


def _check_artifact(path: Path, artifact: Artifact, camera: Camera) -> None:
    """Refuse an artifact of another camera size before anything is decoded or built."""
    size = f"{camera.width}x{camera.height}"
    names = [entry.name for entry in artifact.manifest.entries]
    if artifact.manifest.kind != "driving":
        raise ArtifactMismatchError(
            f"{path}: expected a driving artifact, found a {artifact.manifest.kind} one; compile "
            "a vision and a policy model without --plain"
        )
    if f"run:{size}" not in names:
        sizes = sorted(name.partition(":")[2] for name in names if name.startswith("run:"))
        raise ArtifactMismatchError(
            f"{path}: expected an entry for frames of {size}, found {', '.join(sizes) or 'none'}; "
            f"compile it with: modeld compile VISION.onnx POLICY.onnx -o {path.name} "
            f"--camera {size}"
        )


def _replay(job: Job, video: Video, keeper: PictureKeeper) -> int:
    """Write the log; return the number of frames offered to the daemon."""
    frames_sent = 0
    with (
        load_program(job.args.model, job.args.device) as program,
        LogWriter(job.args.output) as log,
    ):
        session = ReplaySession(
            Config(demo=True, cameras=DeviceCameras(road=job.camera, wide=None)),
            program,
            nv12_format(job.camera.width, job.camera.height),
            job.mounting,
            log.write,
        )
        session.warm_up()
        for frame in _with_progress(_thinned(video), job):
            planes = (frame.luma, frame.chroma)
            session.step(frames_sent, frame.time_s, planes, job.telemetry.at(frame.time_s))
            if job.args.report:
                keeper.offer(frames_sent, *planes)
            frames_sent += 1
            if frames_sent == job.args.limit:
                break
    return frames_sent


def _stride(info: VideoInfo) -> int:
    """Take every n-th frame, so that the rate is the lowest that is at least the model's."""
    return max(1, int(info.fps // MODEL_HZ))


def _thinned(video: Video) -> Iterator[VideoFrame]:
    stride = _stride(video.info)
    return (frame for frame in video.frames() if frame.index % stride == 0)


def _with_progress(frames: Iterator[VideoFrame], job: Job) -> Iterator[VideoFrame]:
    args = job.args
    if args.no_progress or args.quiet or not sys.stderr.isatty():
        return frames
    from tqdm import tqdm

    total = -(-job.info.frame_count // _stride(job.info)) or None
    if args.limit is not None:
        total = min(args.limit, total or args.limit)
    progress: Iterator[VideoFrame] = tqdm(frames, total=total, unit="frame", file=sys.stderr)
    return progress


def _make_report(job: Job, drive: DriveLog, frames_sent: int, keeper: PictureKeeper) -> Report:
    info, camera, manifest = job.info, job.camera, job.artifact.manifest
    given = "given" if job.args.focal_px is not None else "assumed: the video has no calibration"
    horizontal_fov = 2.0 * np.degrees(np.arctan(camera.width / 2 / camera.focal_px))
    stride = _stride(info)
    facts = {
        "video": f"{info.path.name}, {camera.width}x{camera.height}, {info.fps:g} frames/s"
        + (f", every {stride}th frame" if stride > 1 else ""),
        "camera": f"focal length {camera.focal_px:g} px ({horizontal_fov:.0f} degrees, {given}), "
        f"level, {job.mounting.height_m:g} m over the road; also stands in for the wide camera",
        "car state": job.args.telemetry.name if job.args.telemetry else "constant, straight on",
        "artifact": f"{job.args.model.name}, sha256 {job.artifact.sha256[:16]}, compiled for "
        f"{manifest.target.name} ({manifest.target.device})",
        "models": describe_models(manifest),
    }
    summary = (
        f"{count_text(frames_sent, 'frame')} of {camera.width}x{camera.height} at {info.fps:g} "
        "frames/s, through the daemon's own loop."
    )
    return Report(
        title=f"Replay of {info.path.name}",
        summary=summary,
        facts=facts,
        drive=drive,
        frames_sent=frames_sent,
        pictures=pictures_of(drive, keeper, camera),
        mounting=job.mounting,
    )


def _print_summary(job: Job, drive: DriveLog, frames_sent: int) -> int:
    args, times = job.args, drive.execution_ms
    messages = {name: drive.counts[name] for name in OUTPUT_SERVICES}
    valid = drive.counts["modelV2:valid"]
    complete = all(count == frames_sent for count in messages.values())
    result: dict[str, Any] = {
        "video": str(args.video),
        "frames": frames_sent,
        "messages": messages,
        "valid": valid,
        "finite": drive.all_finite,
        "execution_ms": {
            "median": round(float(np.median(times)), 3),
            "p99": round(float(np.percentile(times, 99)), 3),
            "max": round(float(times.max()), 3),
        }
        if times.size
        else None,
        "log": str(args.output),
        "report": str(args.report) if args.report else None,
    }
    if args.json:
        print_json(result)
    else:
        size = f"{job.camera.width}x{job.camera.height}"
        print(f"{args.video}: {count_text(frames_sent, 'frame')} of {size}")
        print("  ".join(f"{name} {count}" for name, count in messages.items()) + f"  valid {valid}")
        if times.size:
            figures = "  ".join(f"{k} {v:.1f}" for k, v in result["execution_ms"].items())
            print(f"execution ms: {figures}")
        print(f"log: {args.output}")
        if args.report:
            print(f"report: {args.report}")
    if complete and valid == frames_sent and drive.all_finite:
        return 0
    print(
        f"modeld: error: {args.output}: expected {frames_sent} valid messages of each kind with "
        f"finite values, found {messages}, {valid} valid, finite: {drive.all_finite}; "
        "run with -v for the daemon's log",
        file=sys.stderr,
    )
    return 1
