"""Make a model, compile it, and drive it: real daemon process, real bus, rendered cameras.

Needs no file from outside. Writes the example models, compiles them for the demo's cameras (kept
for the next time), starts the daemon, a camera process that fills the shared-memory frame rings,
and a subscriber process that prints and logs what arrives; then stops the daemon with SIGTERM,
counts the messages and writes a report. Where one frame takes longer than 20 Hz allow, the cameras
are slowed down, and it says so. The address of its bus is printed with the command that watches it
from outside. Exit code 1 if too few messages arrived.

Example:
  modeld demo --directory build/demo
  modeld demo --bus ipc:///tmp/demo-bus &
  modeld subscribe modelV2 --bus ipc:///tmp/demo-bus
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import shlex
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import scheduler
from cereal.frame_format import nv12_format
from cereal.log_reader import read_log
from cereal.transport import ZmqTransport
from runtime import load_program
from runtime.artifact import read_artifact
from runtime.quantities import count_text
from tools import example_models
from tools.bench import make_inputs, measure
from tools.errors import ToolError, UsageError
from tools.lib.drive_log import OUTPUT_SERVICES, DriveLog, summarize
from tools.lib.drive_messages import DRIVE_SERVICES
from tools.lib.json_output import print_json
from tools.lib.picture import encode_jpeg
from tools.lib.processes import Child, ProcessError
from tools.lib.report import MAX_PICTURES, Picture, Report, describe_models, write_report
from tools.playback.model import check_frame, read_driving_artifact
from tools.render.demo_camera import (
    DRIVE_HZ,
    MOUNTING,
    TICKS_PER_FRAME,
    demo_cameras,
    demo_painter,
    demo_world,
)

# Loading and building kernels for the first time; a cold machine needs about a quarter of it.
FIRST_MESSAGE_TIMEOUT_S = 120.0
# Camera period per model time: the rest of the period is for the other processes.
HEADROOM = 1.3
TIMING_RUNS = 12
# A busy machine may lose some frames; a demo that loses more than half of them shows nothing.
MIN_PUBLISHED = 0.5


@dataclass(frozen=True, slots=True)
class Plan:
    """How the demo is run.

    Attributes:
        model: the artifact.
        frames: length of the drive.
        rate_hz: of the cameras.
        server: name of the camera server.
        bus: address; None: one of its own.
        log: event log to write.
        report: page to write.
        quiet: print nothing on stdout but the result.
    """

    model: Path
    frames: int
    rate_hz: float
    server: str
    bus: str | None
    log: Path
    report: Path
    quiet: bool


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--directory", type=Path, default=Path("build/demo"), help="for all files (build/demo)"
    )
    parser.add_argument("--model", type=Path, help="take this artifact instead of making one")
    parser.add_argument("--frames", type=int, default=100, help="length of the drive (100)")
    parser.add_argument("--rate-hz", type=float, help="camera rate (20, or as fast as it goes)")
    parser.add_argument("--camera-server", default="demo", help="name of the frame rings (demo)")
    parser.add_argument(
        "--bus",
        metavar="ADDRESS",
        help="tcp://HOST or ipc:///DIRECTORY, which is made (a private directory)",
    )


def run(args: argparse.Namespace) -> int:
    """Run the demo."""
    if args.frames < 1:
        raise UsageError(f"--frames: expected at least 1, found {args.frames}")
    if args.rate_hz is not None and not 0.1 <= args.rate_hz <= DRIVE_HZ:
        raise UsageError(f"--rate-hz: expected 0.1 to {DRIVE_HZ:g}, found {args.rate_hz}")
    quiet = args.json
    if args.bus is not None:
        # Refused here and now in one line, rather than later by each of the processes.
        ZmqTransport(args.bus).close()
        if args.bus.startswith("ipc://"):
            _make_directory("--bus", Path(args.bus.removeprefix("ipc://")))
    _make_directory("--directory", args.directory)
    model = args.model or _make_model(args.directory, quiet=quiet)
    camera = demo_cameras().road
    check_frame(model, read_driving_artifact(model), nv12_format(camera.width, camera.height))
    rate_hz = args.rate_hz or _choose_rate(model, quiet=quiet)
    plan = Plan(
        model=model,
        frames=args.frames,
        rate_hz=rate_hz,
        server=args.camera_server,
        bus=args.bus,
        log=args.directory / "drive.rlog.zst",
        report=args.directory / "report.html",
        quiet=quiet,
    )
    with _bus_address(plan.bus) as bus:
        # On stderr beside a JSON object: it is of use only while the demo runs.
        print(
            f"bus: {bus}; watch it with: modeld subscribe modelV2 --bus {shlex.quote(bus)}",
            file=sys.stderr if quiet else sys.stdout,
            flush=True,
        )
        first, last = _drive(plan, bus)
    drive = summarize(_of_drive(read_log(plan.log), first, last))
    shown = {int(drive.frame_ids[row]) for row in _shown_rows(drive)}
    drive = summarize(_of_drive(read_log(plan.log), first, last), curves_of=shown)
    write_report(plan.report, _make_report(plan, drive, first))
    logged = Counter(str(event.which()) for event in read_log(plan.log))
    return _print_result(plan, drive, {name: logged[name] for name in OUTPUT_SERVICES})


def _say(text: str, *, quiet: bool) -> None:
    if not quiet:
        print(text, flush=True)


def _make_model(directory: Path, *, quiet: bool) -> Path:
    """Compile the example models with the commands a user would type; reuse an earlier result."""
    target = directory / "driving.pkl"
    stamp = directory / "driving.stamp"
    fingerprint = _fingerprint()
    if target.exists() and stamp.exists() and stamp.read_text(encoding="utf-8") == fingerprint:
        _say(f"model: {target}, compiled earlier", quiet=quiet)
        return target
    stamp.unlink(missing_ok=True)
    models = directory / "models"
    _modeld("make-model", str(models), quiet=quiet)
    onnx_files = [str(models / "vision.onnx"), str(models / "policy.onnx")]
    _modeld("compile", *onnx_files, "-o", str(target), quiet=quiet)
    stamp.write_text(fingerprint, encoding="utf-8")
    return target


def _fingerprint() -> str:
    """Digest of everything the artifact is made from: compiler and example models, as source."""
    digest = hashlib.sha256()
    for package in (scheduler, example_models):
        assert package.__file__ is not None
        for source in sorted(Path(package.__file__).parent.rglob("*")):
            if source.suffix in (".py", ".toml"):
                digest.update(source.read_bytes())
    return digest.hexdigest()


def _modeld(*arguments: str, quiet: bool) -> None:
    _say(f"$ modeld {' '.join(arguments)}", quiet=quiet)
    done = subprocess.run(  # noqa: S603 - our own module, no shell
        [sys.executable, "-m", "tools.cli", *arguments],
        check=False,
        stdout=subprocess.DEVNULL if quiet else None,
    )
    if done.returncode:
        raise ProcessError(
            f"modeld {arguments[0]}: expected exit code 0, found {done.returncode}; its message "
            "is above"
        )


def _choose_rate(model: Path, *, quiet: bool) -> float:
    """Time the model as the daemon runs it; return the fastest camera rate it can follow."""
    with load_program(model) as program:
        entry = program.entries[0]
        inputs = make_inputs(program.entry_inputs(entry), seed=0)
        median_s = measure(program, inputs, entry, TIMING_RUNS)["median_ms"] / 1e3
    rate_hz = DRIVE_HZ
    if median_s * HEADROOM > 1.0 / DRIVE_HZ:
        rate_hz = max(1.0, math.floor(1.0 / (median_s * HEADROOM)))
    slowed = "" if rate_hz == DRIVE_HZ else ", slowed down so that this machine can follow"
    _say(
        f"one frame takes {1e3 * median_s:.1f} ms; cameras run at {rate_hz:g} Hz{slowed}",
        quiet=quiet,
    )
    return rate_hz


def _make_directory(option: str, path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"{option} {path}: cannot be made ({error.strerror}); name another one"
        ) from error


@contextmanager
def _bus_address(given: str | None) -> Iterator[str]:
    """Yield the address of the demo's bus; a directory of its own is removed afterwards."""
    if given is not None:
        yield given
        return
    with tempfile.TemporaryDirectory(prefix="modeld-") as directory:
        yield f"ipc://{directory}"


def _drive(plan: Plan, bus: str) -> tuple[int, int]:
    """Run the processes; return the first and the last frame id of the drive."""
    watch = [*OUTPUT_SERVICES, "--log-only", *DRIVE_SERVICES]
    watch += ["--bus", bus, "--every", "10", "--output", str(plan.log)]
    serve = ["--server", plan.server, "--bus", bus]
    serve += ["--frames", str(plan.frames), "--rate-hz", str(plan.rate_hz)]
    work = ["run", "--model", str(plan.model), "--demo"]
    work += ["--bus", bus, "--camera-server", plan.server]
    with (
        Child("subscriber", "tools.subscribe", watch) as subscriber,
        Child("camera", "tools.render.demo_camera", serve) as camera,
        Child("daemon", "tools.cli", work) as daemon,
    ):
        _await_valid_model(subscriber, [camera, daemon], quiet=plan.quiet)
        camera.write_line("drive")
        ids = _await_end(camera, subscriber, daemon, plan)
        # The last frame is still being worked on.
        time.sleep(2.0 / plan.rate_hz)
        for child in (daemon, camera, subscriber):
            code = child.stop()
            if code != 0:
                raise ProcessError(
                    f"{child.name}: expected exit code 0 after SIGTERM, found {code}"
                )
        for line in subscriber.remaining_lines():
            _say(line, quiet=plan.quiet)
    return ids


def _await_valid_model(subscriber: Child, others: list[Child], *, quiet: bool) -> None:
    """Wait until the daemon has seen frames and a calibration; before, its answers are invalid."""
    deadline = time.monotonic() + FIRST_MESSAGE_TIMEOUT_S
    while time.monotonic() < deadline:
        line = subscriber.read_line(timeout_s=0.2)
        if line is not None:
            _say(line, quiet=quiet)
            if line.startswith("modelV2") and " valid " in line:
                return
            continue
        for child in others:
            child.check_running()
    raise ProcessError(
        f"daemon: expected a valid modelV2 within {FIRST_MESSAGE_TIMEOUT_S:g} s, found none; run "
        "it by hand with -v: modeld run --model ... --demo -v"
    )


def _await_end(camera: Child, subscriber: Child, daemon: Child, plan: Plan) -> tuple[int, int]:
    deadline = time.monotonic() + 2.0 * plan.frames / plan.rate_hz + 10.0
    while time.monotonic() < deadline:
        daemon.check_running()
        line = subscriber.read_line(timeout_s=0.1)
        if line is not None:
            _say(line, quiet=plan.quiet)
            continue
        report = camera.read_line(timeout_s=0.0)
        if report is not None:
            ids = json.loads(report)
            return int(ids["first_frame"]), int(ids["last_frame"])
    raise ProcessError(
        f"camera: expected {plan.frames} frames to take {plan.frames / plan.rate_hz:.0f} s, found "
        "more than twice that; the machine is overloaded"
    )


def _of_drive(events: Iterator[Any], first: int, last: int) -> Iterator[Any]:
    """Leave out what was said about frames before the drive."""
    for event in events:
        name = str(event.which())
        if name in OUTPUT_SERVICES and not first <= getattr(event, name).frameId <= last:
            continue
        yield event


def _shown_rows(drive: DriveLog) -> list[int]:
    """Return the rows of the frames whose pictures the report shows, spread over the drive."""
    count = min(MAX_PICTURES, drive.frame_ids.size)
    rows: list[int] = np.linspace(0, drive.frame_ids.size - 1, count).round().astype(int).tolist()
    return rows


def _make_report(plan: Plan, drive: DriveLog, first: int) -> Report:
    road = demo_cameras().road
    painter = demo_painter(demo_world(plan.frames), road)
    pictures = [
        Picture(
            row,
            encode_jpeg(
                *painter.paint((int(drive.frame_ids[row]) - first) * TICKS_PER_FRAME).nv12()
            ),
            road,
        )
        for row in _shown_rows(drive)
    ]
    artifact = read_artifact(plan.model)
    facts = {
        "cameras": f"rendered road and wide camera, {road.width}x{road.height}, as of "
        f"{MOUNTING.device_type} with {MOUNTING.sensor}, at {plan.rate_hz:g} Hz",
        "artifact": f"{plan.model}, sha256 {artifact.sha256[:16]}",
        "models": describe_models(artifact.manifest),
        "event log": str(plan.log),
    }
    return Report(
        title="Demo drive",
        summary=f"{count_text(plan.frames, 'rendered frame')} through the daemon process, over "
        "shared memory and ZeroMQ.",
        facts=facts,
        drive=drive,
        frames_sent=plan.frames,
        pictures=pictures,
        mounting=MOUNTING,
    )


def _print_result(plan: Plan, drive: DriveLog, logged: Mapping[str, int]) -> int:
    """Print what came of the drive; the log holds what the daemon said before it, too."""
    messages = {name: drive.counts[name] for name in OUTPUT_SERVICES}
    valid = drive.counts["modelV2:valid"]
    median_ms = float(np.median(drive.execution_ms)) if drive.execution_ms.size else math.nan
    if plan.quiet:
        result = {
            "frames": plan.frames,
            "rate_hz": plan.rate_hz,
            "messages": messages,
            "logged": dict(logged),
            "valid": valid,
            "finite": drive.all_finite,
            "execution_ms_median": round(median_ms, 3) if drive.execution_ms.size else None,
            "log": str(plan.log),
            "report": str(plan.report),
        }
        print_json(result)
    else:
        counts = ", ".join(f"{count} {name}" for name, count in messages.items())
        frames = count_text(plan.frames, "camera frame")
        print(f"\npublished for {frames} at {plan.rate_hz:g} Hz: {counts}")
        print(f"valid: {valid}; median execution {median_ms:.1f} ms")
        early = max(logged[name] - messages[name] for name in OUTPUT_SERVICES)
        more = f", with {early} more of each from before the drive" if early else ""
        print(f"event log: {plan.log}{more}")
        print(f"report:    {plan.report}")
    if min(messages.values()) < MIN_PUBLISHED * plan.frames or not drive.all_finite:
        raise ToolError(
            f"demo: expected at least {MIN_PUBLISHED:.0%} of {plan.frames} frames with finite "
            f"messages of each kind, found {messages}, finite: {drive.all_finite}; the machine may "
            "be busy: try --rate-hz 5"
        )
    return 0
