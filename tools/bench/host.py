"""``modeld bench --host`` and ``--submission``: measure the host's part of a frame's cost.

``--host`` measures the cost of a frame outside its model. The daemon's loop runs in this process,
on a live bus and frame rings that a camera process feeds at 20 Hz. The model is replaced by a
program that immediately returns the outputs of an earlier run. The rest is the daemon's own code.
The metrics cover the given number of frames, after those that fill the model's histories:

- ``cpu_us``: CPU time of the loop's thread in one step, including the wait for frames.
- ``wall_us``: time from the frames' arrival in the loop until the last message is handed to the
  transport. The transport's threads count only while they preempt the loop.

``--submission`` measures the cost of handing a run to the driver. The artifact is loaded twice,
once with launches that the driver records and once with launches that are enqueued one by one, and
both run in alternating blocks of 20. ``host`` is the CPU time of the calling thread in one run:
copying inputs and outputs, and enqueuing the launches; it sleeps while it waits. ``run`` is the
elapsed time of a run. Ratios are recorded / one by one within one round.
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np

import runtime
from cereal.clock import MonotonicClock
from cereal.frames import FrameRingReader
from cereal.transport import ZmqTransport
from modeld.daemon import Daemon
from modeld.service import realtime
from modeld.service.config import Config
from modeld.startup import ROAD_STREAM, WIDE_STREAM
from modeld.vehicle.cameras import Camera, DeviceCameras
from runtime.texts import count_text
from tools.bench.daemon import FOCAL_PER_WIDTH, RATE_HZ, camera_size
from tools.errors import ToolError, UsageError
from tools.lib.json_output import print_json
from tools.lib.processes import Child
from tools.lib.wrapped_program import WrappedProgram
from tools.timing.program_inputs import make_inputs
from tools.timing.run_times import FRAMES, PAUSE_S, compare

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from runtime import Program

# Enough frames to fill histories of 25 frames, each 4 apart, and for the first calibration.
WARM_UP_STEPS = 110
MOST_STEPS_WITHOUT_FRAMES = 100
TIMES = ("cpu_us", "wall_us")
PARTS = ("min", "p50", "p99")
CLOCKS = {"host": time.thread_time_ns, "run": time.perf_counter_ns}


class FixedOutputs(WrappedProgram):
    """A fake driving program that always returns the outputs of one run on random inputs."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        outputs = program.run(make_inputs(program.entry_inputs("run"), seed=0), "run")
        self._outputs = {name: np.nan_to_num(array) for name, array in outputs.items()}

    def run(
        self, _inputs: Mapping[str, NDArray[Any]], entry: str | None = None
    ) -> Mapping[str, NDArray[Any]]:
        """Return the stored outputs for the entry `run`, and none for `prepare`."""
        return self._outputs if entry == "run" else {}

    def reset(self) -> None:
        """Do nothing: there is no state."""


def run(args: argparse.Namespace) -> int:
    """Measure frames, print the result and return exit code 0.

    Raises:
        UsageError: there is no `--model`, or the camera size is invalid.
        ArtifactError, ArtifactMismatchError: the file is no driving artifact for that camera.
        ProcessError, ToolError: the camera process ended or sends nothing.
    """
    if args.model is None:
        raise UsageError("--host: expected the artifact as --model driving.pkl, found none")
    size = camera_size(args.model, args.camera)
    result = measure_frames(args.model, size, args.iters, args.device)
    if args.json:
        print_json(result)
    else:
        print(f"{result['frames']} frames at {RATE_HZ:g} Hz, with a model that returns immediately")
        for name in TIMES:
            values = ", ".join(f"{result[f'{name}_{part}']:.0f} {part}" for part in PARTS)
            print(f"  {name.replace('_', ' ')}  {values}")
    return 0


def measure_frames(
    model: Path, size: tuple[int, int], frames: int, device: str | None = None
) -> dict[str, Any]:
    """Run camera and loop; return the object of ``--json``.

    `size` is (width, height) of the cameras, `frames` the number of measured frames.

    Raises:
        ProcessError: the camera process ended.
        ToolError: the camera process sends nothing.
    """
    with tempfile.TemporaryDirectory(prefix="modeld-bench-") as directory, ExitStack() as stack:
        bus, server = f"ipc://{directory}", f"bench-{os.getpid()}"
        program = stack.enter_context(runtime.load_program(model, device))
        transport = ZmqTransport(bus)
        stack.callback(transport.close)
        serve = ["--server", server, "--bus", bus, "--size", *map(str, size)]
        serve += ["--frames", "1", "--rate-hz", str(RATE_HZ)]
        camera = stack.enter_context(Child("camera", "tools.bench.camera", serve))
        camera.write_line("count")
        if camera.read_line(timeout_s=30.0) is None:
            raise ToolError("camera: expected its first frame within 30 s, found none")
        width, height = size
        road, wide = (Camera(width, height, width * focal) for focal in FOCAL_PER_WIDTH.values())
        rings = [
            FrameRingReader(server, stream, conflate=stream == ROAD_STREAM)
            for stream in (ROAD_STREAM, WIDE_STREAM)
        ]
        for ring in rings:
            stack.callback(ring.close)
        config = Config(cameras=DeviceCameras(road, wide))
        # The daemon's process settings: no garbage collection, a short thread switch interval.
        stack.enter_context(realtime.collector_restored())
        realtime.apply_to_process(config.realtime)
        daemon = Daemon(
            config,
            FixedOutputs(program),
            transport,
            MonotonicClock(),
            *rings,
        )
        stack.callback(daemon.close)
        times_us = np.array([_step(daemon) for _ in range(WARM_UP_STEPS + frames)])[WARM_UP_STEPS:]
    result: dict[str, Any] = {"frames": frames, "rate_hz": RATE_HZ}
    for name, values in zip(TIMES, times_us.T, strict=True):
        figures = (values.min(), *np.percentile(values, (50, 99)))
        result |= {f"{name}_{p}": float(v) for p, v in zip(PARTS, figures, strict=True)}
    return result


def _step(daemon: Daemon) -> tuple[float, float]:
    """Process one frame; return CPU time of the step and time from frame to message, in µs."""
    for _ in range(MOST_STEPS_WITHOUT_FRAMES):
        before_ns = time.thread_time_ns()
        result = daemon.step()
        cpu_ns = time.thread_time_ns() - before_ns
        if result is not None and result.published:
            return cpu_ns / 1e3, (daemon.state.published_ns - daemon.state.iterated_ns) / 1e3
    raise ToolError(f"camera: expected frames, found none in {MOST_STEPS_WITHOUT_FRAMES} waits")


def run_submission(args: argparse.Namespace) -> int:
    """Measure the submission of runs, print the result and return exit code 0.

    Raises:
        UsageError: the device cannot record launches.
        RuntimeFault: the artifact or the device cannot be used.
    """
    result = measure_submission(args.path[0], args.device, args.entry, args.blocks, args.seed)
    if args.json:
        print_json(result)
        return 0
    launches = count_text(result["launches"], "launch")
    commands = count_text(result["submissions"], "command")
    print(f"{result['artifact']}, entry {result['entry']}, on {result['device']}")
    print(f"  {launches} as {commands} ({result['extension']}) and one by one")
    for name in CLOCKS:
        found = result[name]
        print(
            f"  {name:4}  {found['recorded_ms']:.3f} and {found['single_ms']:.3f} ms, ratio "
            f"{found['ratio']:.3f} ({found['ratio_min']:.3f} to {found['ratio_max']:.3f})"
        )
    print(f"  saved host time: {result['saved_us_per_launch']:.2f} us per launch")
    return 0


def measure_submission(
    path: Path, device: str | None, entry: str | None, blocks: int, seed: int
) -> dict[str, Any]:
    """Load the artifact twice and run both in turns; return the object of ``--json``.

    `blocks` is the number of measured blocks of each, `seed` that of the random inputs. `entry` and
    `device` are names; None selects the first entry and the best device.

    Raises:
        UsageError: the device cannot record launches, or the entry's launches are not recorded.
    """
    recording = runtime.choose_device(device)
    support = recording.info.recording
    if support is None:
        raise UsageError(f"--submission: {recording.info.name} has no extension to record launches")
    single = dataclasses.replace(
        recording, info=dataclasses.replace(recording.info, recording=None)
    )
    with ExitStack() as stack:
        programs = {
            name: stack.enter_context(runtime.load_program(path, opened))
            for name, opened in {"recorded": recording, "single": single}.items()
        }
        program = programs["recorded"]
        name = entry or program.entries[0]
        submissions = program.submissions(name)
        if submissions == programs["single"].submissions(name):
            raise UsageError(
                f"--submission: {program.manifest.name}, entry {name!r}: its launches are not "
                "recorded (on PoCL's CPU devices only with RUNTIME_RECORD=1); the log says why"
            )
        inputs = make_inputs(program.entry_inputs(name), seed)
        found = _rounds(programs, inputs, name, blocks)
        result: dict[str, Any] = {
            "artifact": program.manifest.name,
            "entry": name,
            "device": program.stats.device,
            "extension": support.extension,
            "launches": program.stats.launches[name],
            "submissions": submissions,
        }
    for clock in CLOCKS:
        comparison = compare(found["recorded"][clock], found["single"][clock])
        result[clock] = {
            "recorded_ms": comparison.ours_ms,
            "single_ms": comparison.theirs_ms,
            "ratio": comparison.ratio,
            "ratio_min": comparison.ratio_min,
            "ratio_max": comparison.ratio_max,
        }
    saved_ms = result["host"]["single_ms"] - result["host"]["recorded_ms"]
    result["saved_us_per_launch"] = 1e3 * saved_ms / result["launches"]
    return result


def _rounds(
    programs: Mapping[str, Program], inputs: Mapping[str, NDArray[Any]], entry: str, blocks: int
) -> dict[str, dict[str, NDArray[np.float64]]]:
    """Return the median time of each block in ms, by program and clock."""
    names = list(programs)
    medians = {name: {clock: np.empty(blocks) for clock in CLOCKS} for name in names}
    for number in range(-1, blocks):
        # The order alternates from round to round. The first round (-1) is a warm-up.
        for name in names[:: 1 if number % 2 else -1]:
            time.sleep(PAUSE_S)
            times_ns = {clock: np.empty(FRAMES, np.int64) for clock in CLOCKS}
            for frame in range(FRAMES):
                before = {clock: read() for clock, read in CLOCKS.items()}
                programs[name].run(inputs, entry)
                for clock, read in CLOCKS.items():
                    times_ns[clock][frame] = read() - before[clock]
            for clock, values in times_ns.items():
                if number >= 0:
                    medians[name][clock][number] = np.median(values) / 1e6
    return medians
