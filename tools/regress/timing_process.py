"""Times the runs of one program on request; one side of the timing gate.

``tools.regress.time.timing_sides`` starts one process for each side, with one worker thread of
PoCL. A baseline can belong to another checkout, which then runs its own copy of this module. The
communication is therefore versioned: raise `PROTOCOL` when changing its meaning, the file of
recorded frames or the calibration workload.

Each line on stdin is a request, answered with one line of JSON::

    time FRAME               one run of a frame, by number, and the calibration workload
    profile FRAME RUNS       each launch of a frame separately

On a CPU, times are processor times of this process, so other processes on the core do not count. On
other devices, they are wall times until the device has finished.
"""

from __future__ import annotations

import argparse
import itertools
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

import runtime
from runtime.opencl.device import Device, DeviceInfo, choose_device
from tools.lib.json_output import print_json
from tools.regress.time.timing_frames import TimedFrame, read_frames
from tools.timing.program_inputs import make_inputs
from tools.timing.run_parts import Stepper

PROTOCOL: Final = 2
# Name of the only frame if none was recorded.
RANDOM: Final = "random inputs"
CHAINS = 12  # independent multiply-adds: two units with a latency of 4 need 8, registers hold 12
CPU_ITEMS = 64
GPU_ITEMS = 1 << 16
ROUNDS = 4000
WIDTH, HEIGHT = 512, 256  # size of the sampled output, as large as a model's input
IMAGE_WIDTH, IMAGE_HEIGHT = 1344, 760
REPEATS = 4

SOURCE = """
__kernel void chains(__global float8* out, const int rounds) {
  float8 x[CHAINS];
  #pragma unroll
  for (int k = 0; k < CHAINS; k++) x[k] = (float8)(0.25f * k + get_global_id(0));
  for (int i = 0; i < rounds; i++) {
    #pragma unroll
    for (int k = 0; k < CHAINS; k++) x[k] = x[k] * 0.999f + 0.001f;
  }
  float8 sum = x[0];
  #pragma unroll
  for (int k = 1; k < CHAINS; k++) sum += x[k];
  out[get_global_id(0)] = sum;
}

__kernel void sample(__global const uchar* image, __global float* out) {
  const int y = get_global_id(0);
  for (int x = 0; x < WIDTH; x++) {
    const int u = (int)(x * 2.5f), v = (int)(y * 2.9f);
    const __global uchar* p = image + v * IMAGE_WIDTH + u;
    out[y * WIDTH + x] = p[0] * 0.25f + p[1] * 0.25f + p[IMAGE_WIDTH] * 0.5f;
  }
}
"""


class Timed(NamedTuple):
    """The times of one call."""

    busy_ms: float  # processor time on a CPU, else wall time
    wall_ms: float  # wall time until it returned
    disturbed: bool  # whether the system gave the processor to another process meanwhile


class TimedProgram:
    """A loaded program and the frames that it runs.

    `program`, `device`, `entry`: what is timed. `frames`: recorded frames. Their states are set
    before each run if the program has the same ones.
    """

    def __init__(
        self, program: runtime.Program, device: Device, entry: str, frames: Sequence[TimedFrame]
    ) -> None:
        self._program, self._entry = program, entry
        self._stepper = Stepper(program)
        sizes = {name: state.nbytes for name, state in self._stepper.states().items()}
        self._frames = [
            frame._replace(
                states={n: s for n, s in frame.states.items() if sizes.get(n) == s.nbytes}
            )
            for frame in frames
        ]
        self._calibration = CalibrationWorkload(device)
        self._is_cpu = device.info.kind == "cpu"

    def hello(self) -> dict[str, Any]:
        """Run each frame once, and return a description of this side."""
        for number in range(len(self._frames)):
            self._prepared(number)()
        return {
            "protocol": PROTOCOL,
            "device": timed_device(self._program.device),
            "clock": "processor" if self._is_cpu else "wall",
            "frames": [frame.name for frame in self._frames],
        }

    def time(self, number: int) -> dict[str, Any]:
        """Run a frame between two calibrations, and return its time relative to their mean."""
        run = self._prepared(number)
        before = _timed(self._calibration.run, is_cpu=self._is_cpu)
        one = _timed(run, is_cpu=self._is_cpu)
        after = _timed(self._calibration.run, is_cpu=self._is_cpu)
        return {
            "ratio": 2.0 * one.busy_ms / (before.busy_ms + after.busy_ms),
            "ms": one.busy_ms,
            "waiting": None if one.disturbed else 1.0 - one.busy_ms / one.wall_ms,
        }

    def profile(self, number: int, runs: int) -> dict[str, Any]:
        """Return the shortest time of each launch of a frame, and that of the calibration.

        Device times also count while another process has the core, and on a busy machine this
        happens to nearly every long kernel. On a CPU the times are therefore processor times from
        launch to launch. They include enqueuing and, for the first launch, writing the inputs.
        """
        frame = self._frames[number]
        spec = self._program.manifest.entry(self._entry)
        assert spec is not None  # it has run
        before = _timed(self._calibration.run, is_cpu=self._is_cpu)
        if self._is_cpu:
            times = [
                min(one) for one in zip(*(self._stepped(frame) for _ in range(runs)), strict=True)
            ]
        else:
            profiled = self._program.profile(frame.inputs, self._entry, runs)
            times = [one.min_ms for one in profiled]
        after = _timed(self._calibration.run, is_cpu=self._is_cpu)
        kernels = [self._program.manifest.kernels[index] for index in spec.launches]
        launches = [
            [kernel.name, list(kernel.origin), ms]
            for kernel, ms in zip(kernels, times, strict=True)
        ]
        calibration_ms = (before.busy_ms + after.busy_ms) / 2.0
        return {"launches": launches, "calibration_ms": calibration_ms}

    def _stepped(self, frame: TimedFrame) -> list[float]:
        """Return the processor time of each launch, in ms."""
        self._stepper.set_states(frame.states)
        marks_ns = [time.process_time_ns()]
        for _ in self._stepper.launches(frame.inputs, self._entry):
            marks_ns.append(time.process_time_ns())  # noqa: PERF401 - each as it comes
        return [(end - start) / 1e6 for start, end in itertools.pairwise(marks_ns)]

    def _prepared(self, number: int) -> Callable[[], object]:
        """Set the states of a frame; return a function that runs it."""
        frame = self._frames[number]
        self._stepper.set_states(frame.states)
        return lambda: self._program.run(frame.inputs, self._entry)


def timed_device(info: DeviceInfo) -> str:
    """Return the name under which a device's times are stored; only equal names are compared."""
    return f"{info.name}, {_processor()}" if info.kind == "cpu" else info.name


def _processor() -> str:
    """Return the processor's family, model and stepping, since names do not imply the speed."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\n\n")[0].splitlines()
    pairs = (line.partition(":") for line in lines)
    values = {name.strip(): value.strip() for name, _, value in pairs}
    wanted = ("cpu family", "model", "stepping", "CPU part")  # the last one on ARM
    return ", ".join(f"{name} {values[name]}" for name in wanted if name in values)


def _timed(run: Callable[[], object], *, is_cpu: bool) -> Timed:
    switches = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
    busy_ns, wall_ns = time.process_time_ns(), time.perf_counter_ns()
    run()
    wall_ms = (time.perf_counter_ns() - wall_ns) / 1e6
    busy_ms = (time.process_time_ns() - busy_ns) / 1e6 if is_cpu else wall_ms
    disturbed = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw != switches
    return Timed(busy_ms, wall_ms, disturbed)


class CalibrationWorkload:
    """A fixed workload; a model's time is divided by its time, to cancel the machine's load.

    It is two handwritten kernels, compiled by the driver alone, so our compiler and runtime do not
    affect their time. One is chains of vector multiply-adds in registers; it depends on the clock
    under vector load. The other reads scattered bytes with scalar arithmetic; it depends on the
    rest of a core. Of the mixtures tried, this one kept the ratio of the 8 M driving model within
    3 % from process to process, both on a quiet machine and next to a process that never sleeps
    (2026-11-22, 2 shared cores of AMD Zen 4, PoCL 3.0). Kernels that stream from L2 or DRAM varied
    by 10 to 20 %, because a neighbor's use of a shared cache affects them differently.

    `device`: an opened device.
    """

    def __init__(self, device: Device) -> None:
        from runtime.opencl.binding import cl

        self._queue = cl.CommandQueue(device.context)
        sizes = {"CHAINS": CHAINS, "WIDTH": WIDTH, "IMAGE_WIDTH": IMAGE_WIDTH}
        options = [f"-D{name}={value}" for name, value in sizes.items()]
        program = cl.Program(device.context, SOURCE).build(options=options)
        self._chains = cl.Kernel(program, "chains")
        self._sample = cl.Kernel(program, "sample")
        # A CPU processes the items one after another; a GPU has thousands in flight.
        self._items = CPU_ITEMS if device.info.kind == "cpu" else GPU_ITEMS
        self._local = (1,) if device.info.kind == "cpu" else None
        flags = cl.mem_flags
        self._out = cl.Buffer(
            device.context, flags.READ_WRITE, max(32 * self._items, 4 * WIDTH * HEIGHT)
        )
        image = np.arange(IMAGE_WIDTH * IMAGE_HEIGHT, dtype=np.uint32).astype(np.uint8)
        self._image = cl.Buffer(
            device.context, flags.READ_ONLY | flags.COPY_HOST_PTR, hostbuf=image
        )

    def run(self) -> None:
        """Run the workload once and wait; it takes a tenth of the 8 M model's time on one core."""
        for _ in range(REPEATS):
            self._chains(self._queue, (self._items,), self._local, self._out, np.int32(ROUNDS))
            self._sample(self._queue, (HEIGHT,), self._local, self._image, self._out)
        self._queue.finish()


def main() -> int:
    """Answer requests until stdin ends; an error ends the process with a line on stderr."""
    parser = argparse.ArgumentParser(description="one side of the timing gate")
    parser.add_argument("--protocol", type=int, required=True)
    parser.add_argument("--artifact", type=Path, required=True)
    parser.add_argument("--entry")
    parser.add_argument("--device")
    parser.add_argument("--frames", type=Path)
    args = parser.parse_args()
    if args.protocol != PROTOCOL:
        parser.error(f"--protocol: expected {PROTOCOL}, found {args.protocol}")
    try:
        device = choose_device(args.device)
        with runtime.load_program(args.artifact, device) as program:
            entry = args.entry or program.entries[0]
            frames = [] if args.frames is None else read_frames(args.frames)
            if not frames:
                frames = [TimedFrame(RANDOM, make_inputs(program.entry_inputs(entry), 0), {})]
            timed = TimedProgram(program, device, entry, frames)
            print_json(timed.hello())
            answers: Mapping[str, Callable[..., dict[str, Any]]]
            answers = {"time": timed.time, "profile": timed.profile}
            for line in sys.stdin:
                what, *numbers = line.split()
                print_json(answers[what](*map(int, numbers)))
    except runtime.RuntimeFault as error:
        sys.exit(f"timing process: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
