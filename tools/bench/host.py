"""``modeld bench --host``: a frame's cost outside its model.

The daemon's loop runs in this process, on a live bus and frame rings that a camera process feeds at
20 Hz; in place of the model stands what answers at once with outputs that the model gave before.
All else is the daemon's own: pairing, messages in, judging, parsing, filling, sending. For the
given number of frames, after those that fill the model's histories:

- ``cpu_us``: CPU time of the loop's thread in one step, the wait for frames included;
- ``wall_us``: from the frames' arrival in the loop to the last message handed to the transport. The
  transport's own threads are in it only as far as they take the processor from the loop.
"""

from __future__ import annotations

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
from tools.bench.daemon import FOCAL_PER_WIDTH, RATE_HZ, camera_size
from tools.errors import ToolError, UsageError
from tools.lib.json_output import print_json
from tools.lib.processes import Child
from tools.lib.wrapped_program import WrappedProgram
from tools.timing.program_inputs import make_inputs

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from runtime import Program

# Histories of 25 frames each 4 apart, and the first calibration.
WARM_UP_STEPS = 110
MOST_STEPS_WITHOUT_FRAMES = 100
TIMES = ("cpu_us", "wall_us")
PARTS = ("min", "p50", "p99")


class AnswersAtOnce(WrappedProgram):
    """A stand-in for a driving program: answers with the outputs of one run on random inputs."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        outputs = program.run(make_inputs(program.entry_inputs("run"), seed=0), "run")
        self._outputs = {name: np.nan_to_num(array) for name, array in outputs.items()}

    def run(
        self, _inputs: Mapping[str, NDArray[Any]], entry: str | None = None
    ) -> Mapping[str, NDArray[Any]]:
        """Return the outputs; none of an entry that only prepares."""
        return self._outputs if entry == "run" else {}

    def reset(self) -> None:
        """Do nothing: there is no state."""


def run(args: argparse.Namespace) -> int:
    """Measure and print.

    Raises:
        UsageError: the arguments cannot work. ArtifactError, ArtifactMismatchError: not a driving
            artifact for that camera. ProcessError, ToolError: the camera process ended or is mute.
    """
    if args.model is None:
        raise UsageError("--host: expected the artifact as --model driving.pkl, found none")
    size = camera_size(args.model, args.camera)
    result = measure(args.model, size, args.iters, args.device)
    if args.json:
        print_json(result)
    else:
        print(f"{result['frames']} frames at {RATE_HZ:g} Hz, a model that answers at once")
        for name in TIMES:
            values = ", ".join(f"{result[f'{name}_{part}']:.0f} {part}" for part in PARTS)
            print(f"  {name.replace('_', ' ')}  {values}")
    return 0


def measure(
    model: Path, size: tuple[int, int], frames: int, device: str | None = None
) -> dict[str, Any]:
    """Run camera and loop for some frames; return the object of ``--json``.

    `size` is (width, height) of the cameras; `frames` count.

    Raises:
        ProcessError: the camera process ended. ToolError: it sends nothing.
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
        # As the daemon's process has it: no collector, the interpreter handed over soon.
        stack.enter_context(realtime.collector_restored())
        realtime.apply_to_process(config.realtime)
        daemon = Daemon(
            config,
            AnswersAtOnce(program),
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
    """Do one frame; return the CPU time of the step and the time from its frames on, us."""
    for _ in range(MOST_STEPS_WITHOUT_FRAMES):
        before_ns = time.thread_time_ns()
        result = daemon.step()
        cpu_ns = time.thread_time_ns() - before_ns
        if result is not None and result.published:
            return cpu_ns / 1e3, (daemon.state.published_ns - daemon.state.iterated_ns) / 1e3
    raise ToolError(f"camera: expected frames, found none in {MOST_STEPS_WITHOUT_FRAMES} waits")
