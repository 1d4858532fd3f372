"""Chrome trace export of profiled runs: load the file in chrome://tracing or Perfetto.

Each run is a slice with its launches inside; a launch is named after the ONNX nodes it computes,
and carries what the manifest says of it: nodes, arguments with their shapes, operations, bytes.
"""

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runtime.errors import RuntimeFault
from runtime.manifest import BufferSpec, KernelSpec, Manifest
from runtime.origin import short_origin
from runtime.profile import Span
from runtime.whole_file import whole_file

# About 20 MB of JSON, which viewers open in seconds.
MAX_EVENTS = 20_000
_PROCESS = {"pid": 1, "tid": 1}
_HASH = re.compile(r"_[0-9a-f]{12}$")  # what the compiler appends to the kind of a kernel


def traceable_runs(launches: int, wanted: int) -> int:
    """Return how many runs a trace holds: as many as wanted, at most `MAX_EVENTS` launches."""
    return max(1, min(wanted, MAX_EVENTS // max(1, launches)))


def trace_events(
    iterations: Sequence[Sequence[Span]], device: str, manifest: Manifest, entry: str
) -> dict[str, Any]:
    """Return the trace as the object of the Trace Event Format (complete events, times in us).

    Runs follow each other on one device track; time 0 is the first launch's enqueue.

    Args:
        iterations: for each run, the spans of all launches in launch order.
        device: its name.
        manifest: of the program that ran.
        entry: which entry ran.
    """
    spec = manifest.entry(entry)
    assert spec is not None  # it has run
    notes = [_note(manifest.kernels[index], manifest.buffers) for index in spec.launches]
    origin = min((span.queued_ns for spans in iterations for span in spans), default=0)
    named = {"process_name": device, "thread_name": f"{manifest.name} {entry}"}
    events: list[dict[str, Any]] = [
        {"ph": "M", **_PROCESS, "name": what, "args": {"name": name}}
        for what, name in named.items()
    ]
    for number, spans in enumerate(iterations):
        if spans:
            whole = {
                "run": number,
                "launches": len(spans),
                "flops": sum(note["args"]["flops"] for note in notes),
                "bytes": sum(note["args"]["bytes"] for note in notes),
            }
            start, end = min(s.start_ns for s in spans), max(s.end_ns for s in spans)
            events.append(_slice(f"run {number}", "run", (start - origin, end - origin), whole))
        for span in spans:
            note = notes[span.launch]
            args = {"run": number, "launch": span.launch, **note["args"]}
            args |= _rates(note["args"], span.end_ns - span.start_ns)
            times = (span.start_ns - origin, span.end_ns - origin)
            events.append(_slice(note["name"], note["kind"], times, args))
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _slice(name: str, kind: str, times_ns: tuple[int, int], args: dict[str, Any]) -> dict[str, Any]:
    start_ns, end_ns = times_ns
    where = {"ts": start_ns / 1e3, "dur": (end_ns - start_ns) / 1e3}
    return {"ph": "X", **_PROCESS, "cat": kind, "name": name, **where, "args": args}


def _note(kernel: KernelSpec, buffers: Sequence[BufferSpec]) -> dict[str, Any]:
    """Return name, kind and arguments of the events of one launch."""
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
    """Return what a kernel is given: "weight float32[64, 12, 3, 3] conv.weight"."""
    kind = "intermediate" if buffer.kind == "arena" else buffer.kind
    return f"{kind} {buffer.dtype}{list(buffer.shape)} {buffer.name}".rstrip()


def _rates(work: dict[str, Any], duration_ns: int) -> dict[str, float]:
    if duration_ns <= 0:
        return {}
    rates = {"GFLOP/s": work["flops"] / duration_ns, "GB/s": work["bytes"] / duration_ns}
    return {unit: round(rate, 3) for unit, rate in rates.items()}


def write_trace(path: str | os.PathLike[str], trace: dict[str, Any]) -> None:
    """Write a trace as JSON; the file appears complete or not at all.

    Raises:
        RuntimeFault: the file cannot be written.
    """
    target = Path(path)
    try:
        with whole_file(target) as file:
            file.write(json.dumps(trace).encode())
    except OSError as error:
        raise RuntimeFault(f"{target}: cannot write: {error.strerror or error}") from error
