"""Runs a program in parts: in phases that the host times, or launch by launch.

`phased_runs` waits for the device after each phase (inputs written, kernels run, outputs read), so
that each phase has its own time; `Program.run` waits only once. A `Stepper` waits after each
launch, so that tools that search for a wrong launch can read every buffer; this is slow.

`trace_events` makes a Chrome trace of phased runs (for chrome://tracing or Perfetto). A run is a
slice that contains its launches, which are named after their ONNX nodes. The host has its own
track: writing inputs, queuing launches, waiting, reading outputs. Host and device have different
clocks; they are aligned at the moment when a run's first launch is queued.
"""

import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.errors import InputError, RuntimeFault, first_line
from runtime.files.user_file import whole_file
from runtime.format.manifest import BufferSpec, KernelSpec, Manifest
from runtime.opencl.binding import cl
from runtime.opencl.recording_api import RecordingError
from runtime.run.profile import Span
from runtime.run.program import Program
from runtime.run.submission import open_queue
from runtime.texts import short_origin
from tools.lib.json_output import json_text

# The maximum number of launches in a trace: about 20 MB of JSON, which viewers open in seconds.
MAX_EVENTS = 20_000
_DEVICE = {"pid": 1, "tid": 1}
_HOST = {"pid": 1, "tid": 2}
_HASH = re.compile(r"_[0-9a-f]{12}$")  # the digest that the compiler appends to a kernel's kind


@dataclass(frozen=True, slots=True)
class PhasedRun:
    """The times of one run, in ns on the host's monotonic clock."""

    begun_ns: int  # inputs are checked
    written_ns: int  # inputs are on the device
    queued_ns: int  # launches are queued
    done_ns: int  # the device is idle
    read_ns: int  # outputs are read
    spans: tuple[Span, ...] = ()  # each launch on the device's clock; empty without profiling


def phased_runs(
    program: Program,
    inputs: Mapping[str, NDArray[Any]],
    entry: str,
    runs: int,
    *,
    profiling: bool = False,
) -> list[PhasedRun]:
    """Run an entry `runs` times, phase by phase; state advances as in `Program.run`.

    With `profiling`, kernels are launched one by one and timed by the device's clock.

    Raises:
        InputError: an input is invalid, or `runs` is not positive.
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


def traceable_runs(launches: int, wanted: int) -> int:
    """Return the number of runs in a trace: `wanted`, or fewer to stay within `MAX_EVENTS`."""
    return max(1, min(wanted, MAX_EVENTS // max(1, launches)))


def trace_events(
    runs: Sequence[PhasedRun], device: str, manifest: Manifest, entry: str
) -> dict[str, Any]:
    """Return the trace as the object of the Trace Event Format (complete events, times in µs).

    There is one track for the device and one for the host. Time 0 is the earliest event. Spans of
    `runs` are in launch order.
    """
    spec = manifest.entry(entry)
    assert spec is not None  # the entry has been run
    notes = [_note(manifest.kernels[index], manifest.buffers) for index in spec.launches]
    # Device clock - host clock, for each run.
    offsets = [r.spans[0].queued_ns - r.written_ns if r.spans else 0 for r in runs]
    begun = (run.begun_ns + offset for run, offset in zip(runs, offsets, strict=True))
    origin = min((*begun, *(span.queued_ns for run in runs for span in run.spans)), default=0)
    events: list[dict[str, Any]] = [
        {"ph": "M", **_DEVICE, "name": "process_name", "args": {"name": device}},
        *(
            {"ph": "M", **where, "name": "thread_name", "args": {"name": name}}
            for where, name in ((_DEVICE, f"{manifest.name} {entry}"), (_HOST, "host"))
        ),
    ]
    for number, (run, offset) in enumerate(zip(runs, offsets, strict=True)):
        if run.spans:
            whole = {
                "run": number,
                "launches": len(run.spans),
                "flops": sum(note["args"]["flops"] for note in notes),
                "bytes": sum(note["args"]["bytes"] for note in notes),
            }
            start, end = min(s.start_ns for s in run.spans), max(s.end_ns for s in run.spans)
            events.append(_slice(f"run {number}", "run", (start - origin, end - origin), whole))
        for span in run.spans:
            note = notes[span.launch]
            args = {"run": number, "launch": span.launch, **note["args"]}
            args |= _rates(note["args"], span.end_ns - span.start_ns)
            times = (span.start_ns - origin, span.end_ns - origin)
            events.append(_slice(note["name"], note["kind"], times, args))
        events += _host_events(run, number, offset - origin)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _host_events(run: PhasedRun, number: int, offset_ns: int) -> list[dict[str, Any]]:
    """Return the phases of a run as slices on the host's track."""
    phases = {
        "write inputs": (run.begun_ns, run.written_ns),
        "queue launches": (run.written_ns, run.queued_ns),
        "wait": (run.queued_ns, run.done_ns),
        "read outputs": (run.done_ns, run.read_ns),
    }
    return [
        _slice(name, "host", (start + offset_ns, end + offset_ns), {"run": number}, _HOST)
        for name, (start, end) in phases.items()
    ]


def _slice(
    name: str,
    kind: str,
    times_ns: tuple[int, int],
    args: dict[str, Any],
    track: Mapping[str, int] = _DEVICE,
) -> dict[str, Any]:
    start_ns, end_ns = times_ns
    where = {"ts": start_ns / 1e3, "dur": (end_ns - start_ns) / 1e3}
    return {"ph": "X", **track, "cat": kind, "name": name, **where, "args": args}


def _note(kernel: KernelSpec, buffers: Sequence[BufferSpec]) -> dict[str, Any]:
    """Return name, kind and arguments of a launch's events."""
    kind = _HASH.sub("", kernel.name)
    nodes = list(kernel.origin)
    return {
        "name": short_origin(nodes) if nodes else kind,
        "kind": kind,
        "args": {
            "kernel": kernel.name,
            "nodes": nodes,
            "arguments": [_describe(buffers[index]) for index in kernel.args],
            "flops": kernel.flops,
            "bytes": kernel.bytes_moved,
            "global_size": list(kernel.global_size),
            "local_size": list(kernel.local_size),
        },
    }


def _describe(buffer: BufferSpec) -> str:
    """Return a kernel argument as text: "weight float32[64, 12, 3, 3] conv.weight"."""
    kind = "intermediate" if buffer.kind == "arena" else buffer.kind
    return f"{kind} {buffer.dtype}{list(buffer.shape)} {buffer.name}".rstrip()


def _rates(work: dict[str, Any], duration_ns: int) -> dict[str, float]:
    if duration_ns <= 0:
        return {}
    rates = {"GFLOP/s": work["flops"] / duration_ns, "GB/s": work["bytes"] / duration_ns}
    return {unit: round(rate, 3) for unit, rate in rates.items()}


def write_trace(path: str | os.PathLike[str], trace: dict[str, Any]) -> None:
    """Write a trace as JSON. The file is replaced atomically.

    Raises:
        RuntimeFault: the file cannot be written.
    """
    target = Path(path)
    try:
        with whole_file(target) as file:
            file.write(json_text(trace).encode())
    except OSError as error:
        raise RuntimeFault(f"{target}: cannot write: {error.strerror or error}") from error


class Stepper:
    """Runs a loaded program launch by launch; its state advances as in `Program.run`."""

    def __init__(self, program: Program) -> None:
        self._program = program

    def states(self) -> dict[str, NDArray[Any]]:
        """Return copies of all state buffers, by name."""
        buffers = self._program.manifest.buffers
        return {spec.name: self._program.state(spec.name) for spec in buffers if self._is(spec)}

    def set_states(self, values: Mapping[str, NDArray[Any]]) -> None:
        """Write state buffers, given their values by name.

        Values must have the declared size in bytes. Unknown names are ignored.

        Raises:
            RuntimeFault: the device failed.
        """
        for index, spec in enumerate(self._program.manifest.buffers):
            value = values.get(spec.name)
            if not self._is(spec) or value is None:
                continue
            assert value.nbytes == spec.payload_bytes, spec.name
            self._copy(self._program._memory.buffer(index), np.asarray(value, order="C"), spec.name)

    def launches(self, inputs: Mapping[str, NDArray[Any]], entry: str) -> Iterator[int]:
        """Run an entry and yield the index of each launch once it has finished.

        `inputs` are those of `Program.run`.

        Raises:
            InputError: an input is invalid.
            RuntimeFault: the device failed.
        """
        program = self._program
        bound = program._entry(entry)
        bound.check_inputs(inputs)
        queue = program._queue
        try:
            program._recover(queue)
            bound.write(inputs, queue, program._pending)
            for number, step in enumerate(program._steps_of(bound)):
                step.enqueue(queue)
                queue.finish()
                yield number
        except cl.Error as error:
            raise RuntimeFault(f"entry {entry!r}, step by step: {first_line(error)}") from error
        finally:
            queue.finish()
            program._pending.clear()

    def read(self, index: int) -> NDArray[np.uint8] | None:
        """Return the bytes of buffer `index` of the manifest, without padding; None for images."""
        spec = self._program.manifest.buffers[index]
        if spec.image is not None or spec.payload_bytes == 0:
            return None
        found = np.empty(spec.payload_bytes, np.uint8)
        self._copy(found, self._program._memory.buffer(index), spec.name)
        return found

    @staticmethod
    def _is(spec: Any) -> bool:
        return bool(spec.kind == "state")

    def _copy(self, to: Any, source: Any, name: str) -> None:
        try:
            cl.enqueue_copy(self._program._queue, to, source)
        except cl.Error as error:
            raise RuntimeFault(f"buffer {name!r}: {first_line(error)}") from error
