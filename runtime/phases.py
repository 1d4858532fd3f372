"""Runs of a program in phases, timed by the host: inputs written, kernels run, outputs read.

The device is idle between phases, so each has its own time; `Program.run` waits once.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from runtime.errors import InputError, RuntimeFault, first_line
from runtime.opencl import cl
from runtime.profile import Span
from runtime.program import Program
from runtime.queue import open_queue
from runtime.recording_api import RecordingError


@dataclass(frozen=True, slots=True)
class PhasedRun:
    """One run; stamps are ns of the host's monotonic clock.

    Attributes:
        begun_ns: the inputs were checked.
        written_ns: the device has the inputs.
        queued_ns: all launches are handed to the driver.
        done_ns: the device is idle.
        read_ns: the outputs are read.
        spans: of each launch by the device's clock; empty without profiling.
    """

    begun_ns: int
    written_ns: int
    queued_ns: int
    done_ns: int
    read_ns: int
    spans: tuple[Span, ...] = ()


def phased_runs(
    program: Program,
    inputs: Mapping[str, NDArray[Any]],
    entry: str,
    runs: int,
    *,
    profiling: bool = False,
) -> list[PhasedRun]:
    """Run an entry phase by phase; state advances as in `Program.run`.

    Args:
        program: loaded; stays the caller's.
        inputs: as for `Program.run`.
        entry: its name.
        runs: how many.
        profiling: launch kernels one by one, and time each by the device's clock.

    Raises:
        InputError: as `Program.run`, or `runs` is not positive.
        RuntimeFault: the device failed.
    """
    if runs < 1:
        raise InputError(f"runs: expected at least 1, got {runs}")
    bound = program._entry(entry)
    bound.check_inputs(inputs)
    queue = open_queue(program._device, profiling=True) if profiling else program._queue
    steps = program._steps_of(bound) if profiling else bound.steps
    pending = program._pending
    found = []
    try:
        program._recover(queue)
        program._unfinished = True
        for _ in range(runs):
            stamps = [time.monotonic_ns()]
            bound.write(inputs, queue, pending)
            queue.finish()
            stamps.append(time.monotonic_ns())
            events = [step.enqueue(queue) for step in steps]
            stamps.append(time.monotonic_ns())
            queue.finish()
            stamps.append(time.monotonic_ns())
            bound.read(queue, pending)
            stamps.append(time.monotonic_ns())
            pending.clear()
            spans = tuple(
                Span(n, step.name, event.profile.queued, event.profile.start, event.profile.end)
                for n, (step, event) in enumerate(zip(steps, events, strict=True))
                if profiling and event is not None
            )
            begun_ns, written_ns, queued_ns, done_ns, read_ns = stamps
            found.append(PhasedRun(begun_ns, written_ns, queued_ns, done_ns, read_ns, spans))
        program._unfinished = False
    except (cl.Error, RecordingError) as error:
        raise RuntimeFault(f"entry {entry!r}, in phases: {first_line(error)}") from error
    finally:
        queue.finish()
        pending.clear()
    return found
