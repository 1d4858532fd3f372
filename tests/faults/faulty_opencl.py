"""The daemon with an OpenCL layer that fails on command, where PoCL cannot be made to.

``python -m tests.faults.faulty_opencl CONTROL run ...`` wraps the calls of pyopencl that the
executor makes and runs the command line. CONTROL is a small file of shared memory in which a test
says which fault, how often, and of which program; see ADR 0060. The wall clock can be another one,
too, as far as Python's `time` has it: the machine's own is not ours to set. And the loop can get
stuck where no run is watched, in sending: what only the watchdog ends.
"""

import mmap
import struct
import sys
import threading
import time
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np

SIZE = 64
# mode, how many more times, how many have happened, ms; then the start of a program's name.
_LAYOUT = struct.Struct("<4i32s")
_FOR_EVER = 1 << 30
_LOOK_S = 0.005


class Mode(IntEnum):
    """What fails."""

    NOTHING = 0
    DEVICE_LOST = 1
    OUT_OF_RESOURCES = 2
    HANG = 3
    SLOW = 4
    NOT_FINITE = 5
    WRONG = 6
    CLOCK = 7
    STUCK = 8


# What happens elsewhere than in a run.
_BESIDE_RUNS = (Mode.NOTHING, Mode.CLOCK, Mode.STUCK)
# CL_DEVICE_NOT_AVAILABLE and CL_OUT_OF_RESOURCES of the OpenCL headers.
_CODES = {Mode.DEVICE_LOST: -2, Mode.OUT_OF_RESOURCES: -5}


class Control:
    """The file through which faults are ordered, at both ends."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(b"\0" * SIZE)
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), SIZE)
        self._lock = threading.Lock()

    def order(self, mode: Mode, times: int = _FOR_EVER, *, ms: int = 0, program: str = "") -> None:
        """Let the next `times` runs of programs whose name begins so fail."""
        _LAYOUT.pack_into(self._memory, 0, mode, times, 0, ms, program.encode())

    def clear(self) -> None:
        """Let nothing fail any more; what hangs goes on."""
        self.order(Mode.NOTHING, 0)

    @property
    def happened(self) -> int:
        """How often the fault that was ordered has happened."""
        return int(_LAYOUT.unpack_from(self._memory)[2])

    def mode(self) -> Mode:
        """What fails now."""
        return Mode(_LAYOUT.unpack_from(self._memory)[0])

    @property
    def clock_ms(self) -> int:
        """How far the wall clock is ahead."""
        mode, _, _, ms, _ = _LAYOUT.unpack_from(self._memory)
        return int(ms) if mode == Mode.CLOCK else 0

    def take(self, program: str) -> tuple[Mode, int]:
        """Return what happens to a run of a program that begins now, and its ms."""
        with self._lock:
            mode, times, happened, ms, name = _LAYOUT.unpack_from(self._memory)
            wanted = name.rstrip(b"\0").decode()
            if mode in _BESIDE_RUNS or times <= 0 or not program.startswith(wanted):
                return Mode.NOTHING, 0
            struct.pack_into("<2i", self._memory, 4, times - 1, happened + 1)
            return Mode(mode), int(ms)


def shift_clock(control: Control) -> None:
    """Wrap Python's wall clock, in this process."""

    def shifted(real: Callable[[], Any], per_ms: Any) -> Callable[[], Any]:
        return lambda: real() + control.clock_ms * per_ms

    for name, per_ms in (("time", 1e-3), ("time_ns", 1_000_000)):
        setattr(time, name, shifted(getattr(time, name), per_ms))


def stick(control: Control) -> None:
    """Let the loop's thread, and no other, not come back from sending, in this process."""
    from cereal.pubsub import PubMaster

    real = PubMaster.send

    def stuck_send(self: Any, service: str, message: Any) -> None:
        is_loop = threading.current_thread() is not threading.main_thread()
        while is_loop and control.mode() is Mode.STUCK:
            time.sleep(_LOOK_S)
        real(self, service, message)

    PubMaster.send = stuck_send  # type: ignore[method-assign]


def failing(
    real: Callable[..., Any],
    control: Control,
    run: threading.local,
    error: Callable[[int], Exception],
) -> Callable[..., Any]:
    """Return a call of the driver to which happens what was ordered for the run."""

    def called(*args: Any, **options: Any) -> Any:
        mode = getattr(run, "mode", Mode.NOTHING)
        if mode in _CODES:
            raise error(_CODES[mode])
        if mode is Mode.HANG:
            run.mode = Mode.NOTHING
            while control.mode() is Mode.HANG:
                time.sleep(_LOOK_S)
        elif mode is Mode.SLOW:
            run.mode = Mode.NOTHING
            time.sleep(run.ms / 1e3)
        return real(*args, **options)

    return called


def install(control: Control) -> None:
    """Wrap what the executor calls, in this process."""
    from runtime.opencl import steps
    from runtime.opencl.binding import cl
    from runtime.opencl.recording_api import RecordingError
    from runtime.run import entry, program

    # What was ordered for the run that this thread is in.
    run = threading.local()
    real_run, real_enqueue = program.Program.run, cl.enqueue_nd_range_kernel
    real_read = entry.BoundEntry.read

    def faulty_run(self: Any, inputs: Any, entry: str | None = None) -> Any:
        run.mode, run.ms = control.take(self.manifest.name)
        try:
            return real_run(self, inputs, entry)
        finally:
            run.mode = Mode.NOTHING

    def faulty_read(self: Any, *args: Any) -> None:
        real_read(self, *args)
        mode = getattr(run, "mode", Mode.NOTHING)
        for array in self.results.values():
            if mode is Mode.NOT_FINITE:
                array.flat[0] = np.nan
            elif mode is Mode.WRONG:
                np.add(array, 1.0, out=array)

    program.Program.run = faulty_run  # type: ignore[method-assign]
    entry.BoundEntry.read = faulty_read  # type: ignore[method-assign,assignment]

    def launch_error(code: int) -> Exception:
        return cl.RuntimeError(cl._cl._ErrorRecord("clEnqueueNDRangeKernel", code, ""))

    def replay_error(code: int) -> Exception:
        return RecordingError(f"clEnqueueRecordingQCOM failed: {code}")

    cl.enqueue_nd_range_kernel = failing(real_enqueue, control, run, launch_error)
    replay = failing(steps.Recorded.enqueue, control, run, replay_error)
    steps.Recorded.enqueue = replay  # type: ignore[method-assign]


def main() -> int:
    """Install the layer and run the command line; return its exit code."""
    from tools import cli

    control = Control(Path(sys.argv[1]))
    install(control)
    shift_clock(control)
    stick(control)
    sys.argv[1:] = sys.argv[2:]
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
