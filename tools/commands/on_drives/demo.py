"""Let the trained model drive: real daemon process, real bus, a simulated car in closed loop.

Needs no other files. The command compiles the model of tools/models (once), starts the daemon, and
lets it drive a car along an unseen road, for --frames frames after 5 s of warm-up. Then it stops
the daemon with SIGTERM, counts the messages and writes a report with the model's outputs next to
the ground truth, the car's path, and all times. Messages and pictures are kept as a drive in
openpilot's segment layout, warm-up included; the pictures are rendered again afterwards. If
rendering and inference are too slow for 20 Hz, simulated time runs slower, which is reported. The
address of the bus is printed with a command that subscribes to it. The exit code is 1 if too few
messages arrived.

Example:
  modeld demo --directory build/demo
  modeld view build/demo
  modeld demo --bus ipc:///tmp/demo-bus &
  modeld subscribe modelV2 --bus ipc:///tmp/demo-bus
"""

from __future__ import annotations

import argparse
import math
import shlex
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from cereal.log_reader import read_log
from cereal.stacks import BusAddress
from runtime.texts import count_text
from tools.errors import ToolError, UsageError
from tools.lib.json_output import print_json
from tools.lib.options import real, whole
from tools.lib.terminal import progress_bar
from tools.messages.drive_log import OUTPUT_SERVICES, summarize
from tools.playback.model import check_frame, read_driving_artifact
from tools.simulator.closed_loop.demo_report import (
    DemoPaths,
    FinishedDrive,
    headline,
    write_demo_report,
)
from tools.simulator.closed_loop.device import device_cameras, formats
from tools.simulator.closed_loop.film import (
    Footage,
    Scene,
    clip_frames,
    line_errors_m,
    scene_of,
    true_curves,
    write_footage,
)
from tools.simulator.closed_loop.live import (
    FULL_RATE_HZ,
    START_TIMEOUT_S,
    LiveLoop,
    LiveOptions,
    live_loop,
)
from tools.simulator.closed_loop.simulation import FRAME_S, Simulation
from tools.simulator.closed_loop.trained_model import trained_model
from tools.simulator.closed_loop.trial import RUN_UP_S, STANDARD, make_trial

# Half an hour at 20 Hz: the whole road is kept in memory.
MOST_FRAMES = 36_000
FASTEST_MPS = 40.0
# Its road has three lanes, a curve in each direction, and other cars.
SEED = 38
# Route name of the written drive, in a device's form: a counter and ten digits.
ROUTE = f"{SEED:08x}--{'de30':0>10}"
# Number of outputs, while the car stands, that measure the speed of this machine.
RATE_SAMPLES = 8
# At lower rates, messages sent with every fifth frame are too old for the daemon.
SLOWEST_HZ = 3.0
# Frames from one printed line to the next.
PRINTED_EVERY = 20
# Frames from one comparison of lane lines with the ground truth to the next.
COMPARED_EVERY = 5
# Minimum share of frames with output. A busy machine loses some; a demo without half of them fails.
MIN_PUBLISHED = 0.5


@dataclass(frozen=True, slots=True)
class Plan:
    """The settings of the demo."""

    model: Path
    frames: int
    rate_hz: float | None  # None: 20 Hz, or the fastest that this machine reaches
    server: str  # name of the frame rings
    directory: Path
    log: Path  # event log of the bus, later split into the logs of the drive's segments
    report: Path
    quiet: bool

    def say(self, text: str) -> None:
        """Print a line, unless the demo is quiet."""
        if not self.quiet:
            print(text, flush=True)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--directory", type=Path, default=Path("build/demo"), help="output directory (build/demo)"
    )
    parser.add_argument("--model", type=Path, help="use this artifact instead of the trained one")
    parser.add_argument(
        "--frames",
        type=whole("--frames", 1, MOST_FRAMES),
        default=100,
        help="length of the drive (100)",
    )
    parser.add_argument(
        "--rate-hz",
        type=real("--rate-hz", 0.5, FULL_RATE_HZ),
        help="camera rate (20, or as fast as possible)",
    )
    parser.add_argument("--camera-server", default="demo", help="name of the frame rings (demo)")
    parser.add_argument(
        "--bus",
        metavar="ADDRESS",
        help="tcp://HOST or ipc:///DIRECTORY, created if missing (private)",
    )


def run(args: argparse.Namespace) -> int:
    """Run the demo and return exit code 0.

    Raises:
        UsageError: an option is out of range, or a directory cannot be created.
        ToolError: too few messages arrived, or a message has numbers that are not finite.
    """
    _check(args)
    quiet = args.json
    if args.bus is not None:
        # A bad address is reported here in one line, not later by each process.
        directory = BusAddress.parse(args.bus).directory
        if directory is not None:
            _make_directory("--bus", directory)
    _make_directory("--directory", args.directory)
    model = args.model or trained_model(args.directory, quiet=quiet)
    artifact = read_driving_artifact(model)
    for layout in formats(device_cameras()).values():
        check_frame(model, artifact, layout)
    with (
        _bus_address(args.bus) as bus,
        tempfile.TemporaryDirectory(prefix=".demo.", dir=args.directory) as unfinished,
    ):
        plan = Plan(
            model=model,
            frames=args.frames,
            rate_hz=args.rate_hz,
            server=args.camera_server,
            directory=args.directory,
            log=Path(unfinished) / "bus.rlog",
            report=args.directory / "report.html",
            quiet=quiet,
        )
        # With --json this line goes to stderr: it is useful only while the demo runs.
        print(
            f"bus: {bus}; watch it with: modeld subscribe modelV2 --bus {shlex.quote(bus)}",
            file=sys.stderr if quiet else sys.stdout,
            flush=True,
        )
        driven = _drive(plan, bus)
        segments = _film(plan, driven.footage, shows=not (quiet or args.quiet))
    result = _result(plan, driven, segments)
    if quiet:
        print_json(result)
    else:
        _print_result(plan, driven, result)
    _check_published(result)
    return 0


def _check(args: argparse.Namespace) -> None:
    if not 1 <= args.frames <= MOST_FRAMES:
        raise UsageError(f"--frames: expected 1 to {MOST_FRAMES}, found {args.frames}")
    if args.rate_hz is not None and not 0.5 <= args.rate_hz <= FULL_RATE_HZ:
        raise UsageError(f"--rate-hz: expected 0.5 to {FULL_RATE_HZ:g}, found {args.rate_hz}")


def _make_directory(option: str, path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"{option} {path}: cannot be made ({error.strerror}); name another one"
        ) from error


@contextmanager
def _bus_address(given: str | None) -> Iterator[str]:
    """Yield the given address of the bus, or one in a temporary directory."""
    if given is not None:
        yield given
        return
    with tempfile.TemporaryDirectory(prefix="modeld-") as directory:
        yield f"ipc://{directory}"


def _drive(plan: Plan, bus: str) -> FinishedDrive:
    """Run the daemon process in closed loop and return the drive."""
    # The road is longer than the fastest car's drive.
    trial = make_trial(STANDARD, SEED, plan.frames * FRAME_S * FASTEST_MPS)
    options = LiveOptions(
        plan.model,
        bus,
        plan.rate_hz or FULL_RATE_HZ,
        log=plan.log,
        server=plan.server,
        is_trial=plan.rate_hz is None,
    )
    seen: dict[int, Scene] = {}
    scenes: dict[int, Scene] = {}

    def watch(frame_id: int, simulation: Simulation) -> None:
        seen[frame_id] = scene_of(simulation)
        if not simulation.is_engaged:
            return
        if len(scenes) % PRINTED_EVERY == 0:
            plan.say(_line_of(simulation))
        scenes[frame_id] = seen[frame_id]

    with ExitStack() as stack:
        loop = stack.enter_context(live_loop(options))
        loop.wait_for_answer(trial, START_TIMEOUT_S, RATE_SAMPLES)
        if plan.rate_hz is None and _chosen_rate(loop, plan) < FULL_RATE_HZ:
            # Restart the daemon with the lower rate, so that it waits longer for each frame.
            stack.close()
            options = replace(options, rate_hz=_chosen_rate(loop), is_trial=False)
            loop = stack.enter_context(live_loop(options))
            loop.wait_for_answer(trial, START_TIMEOUT_S)
        plan.say(
            f"an expert drives for {RUN_UP_S:g} s to fill the model's history; "
            "then the model drives:"
        )
        # Start two frames early, to include the messages that the first frame of the drive uses.
        begin_ns = time.monotonic_ns() - round(2e9 / loop.rate_hz)
        drive = loop.drive(trial, plan.frames, watch)
        footage = Footage(trial, seen, plan.log, (begin_ns, time.monotonic_ns()))
        return FinishedDrive(drive, scenes, loop.rate_hz, footage)


def _chosen_rate(loop: LiveLoop, plan: Plan | None = None) -> float:
    """Return the camera rate that this machine can follow, in Hz, at most the full rate.

    Prints it if `plan` is given.
    """
    latency_ms = float(np.median(loop.pace.latencies_ms))
    rate_hz = rate_of(latency_ms)
    is_slowed = rate_hz < FULL_RATE_HZ
    if plan is not None:
        plan.say(
            f"rendering a frame plus inference takes {latency_ms:.1f} ms; cameras run at "
            f"{rate_hz:g} Hz{', slowed down so that this machine can follow' * is_slowed}"
        )
    return rate_hz


def _film(plan: Plan, footage: Footage, *, shows: bool) -> list[Path]:
    """Write the drive with its pictures, and return the directories of its segments."""
    plan.say(f"rendering the pictures of {count_text(len(footage.scenes), 'frame')} again")
    with progress_bar(2 * len(footage.scenes), "picture", is_shown=shows) as progress:
        return write_footage(footage, plan.directory, ROUTE, progress)


def rate_of(latency_ms: float) -> float:
    """Return the camera rate (Hz) at which an output arrives before the next frame is due.

    `latency_ms` is the time to render a frame and get its output.
    """
    if latency_ms <= 1e3 / FULL_RATE_HZ:
        return FULL_RATE_HZ
    return float(max(SLOWEST_HZ, math.floor(1e3 / latency_ms)))


def _line_of(simulation: Simulation) -> str:
    body, lanes = simulation.body, simulation.trial.world.lanes
    offset_m = body.offset_m - lanes.centre_m(simulation.lane)
    return (
        f"{simulation.time_s:5.1f} s  {body.s_m - simulation.trial.hand_over_m:4.0f} m driven  "
        f"{body.speed_mps:4.1f} m/s  {offset_m:+z.2f} m from the middle of the lane"
    )


def _result(plan: Plan, driven: FinishedDrive, segments: Sequence[Path]) -> dict[str, Any]:
    """Read the logs, write the report, and return the result as plain data."""
    logs = [segment / "rlog.zst" for segment in segments]
    events = (event for one in logs for event in read_log(one))
    compared = list(driven.scenes)[::COMPARED_EVERY]
    shown = clip_frames(list(driven.scenes))
    log = summarize(_of_drive(events, driven.scenes), curves_of=sorted({*compared, *shown}))
    trial = driven.drive.track.trial
    truth = {one: true_curves(trial, driven.scenes[one]) for one in compared if one in log.curves}
    errors = [line_errors_m(log.curves[one], true) for one, true in truth.items()]
    pooled = np.concatenate([np.zeros(0), *errors])
    line_error_m = round(float(pooled.mean()), 4) if pooled.size else None
    asked = DemoPaths(plan.model, plan.directory, plan.report)
    write_demo_report(asked, driven, log, truth, line_error_m)
    times = log.execution_ms
    return {
        "seed": trial.seed,
        "end": str(driven.drive.track.end),
        **driven.drive.figures.as_json(),
        "frames": len(driven.scenes),
        "rate_hz": driven.rate_hz,
        "messages": {name: log.counts[name] for name in OUTPUT_SERVICES},
        "logged": _logged(logs),
        "valid": log.counts["modelV2:valid"],
        "finite": log.all_finite,
        "execution_ms_median": round(float(np.median(times)), 3) if times.size else None,
        "line_error_mean_m": line_error_m,
        "drive": str(plan.directory),
        "segments": [str(segment) for segment in segments],
        "report": str(plan.report),
    }


def _logged(logs: Sequence[Path]) -> dict[str, int]:
    """Return the number of messages of each output service, warm-up included."""
    counts = Counter(str(event.which()) for path in logs for event in read_log(path))
    return {name: counts[name] for name in OUTPUT_SERVICES}


def _of_drive(events: Iterator[Any], frame_ids: Container[int]) -> Iterator[Any]:
    """Yield the events without output messages for frames outside `frame_ids`."""
    for event in events:
        name = str(event.which())
        if name in OUTPUT_SERVICES and getattr(event, name).frameId not in frame_ids:
            continue
        yield event


def _print_result(plan: Plan, driven: FinishedDrive, result: Mapping[str, Any]) -> None:
    messages = result["messages"]
    print(f"\n{headline(driven.drive, result['line_error_mean_m'])}")
    counts = ", ".join(f"{count} {name}" for name, count in messages.items())
    frames = count_text(result["frames"], "camera frame")
    print(f"published for {frames} at {driven.rate_hz:g} Hz: {counts}")
    median_ms = result["execution_ms_median"]
    print(f"valid: {result['valid']}; median execution {median_ms or math.nan:.1f} ms")
    early = max(result["logged"][name] - messages[name] for name in OUTPUT_SERVICES)
    more = f" (includes {early} warm-up frames)" if early else ""
    first, *others = result["segments"]
    rest = f", and {count_text(len(others), 'segment')} more" if others else ""
    print(f"event log: {first}/rlog.zst{rest}{more}")
    print(f"report: {plan.report}")
    print(f"view it with: modeld view {shlex.quote(str(plan.directory))}")


def _check_published(result: Mapping[str, Any]) -> None:
    """Raise ToolError if too few messages arrived, or if they have numbers that are not finite."""
    messages, frames = result["messages"], result["frames"]
    if min(messages.values()) < MIN_PUBLISHED * frames or not result["finite"]:
        raise ToolError(
            f"demo: expected at least {MIN_PUBLISHED:.0%} of {frames} frames with finite "
            f"messages of each kind, found {messages}, finite: {result['finite']}; the machine may "
            "be busy: try --rate-hz 5"
        )
