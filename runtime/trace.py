"""Chrome trace export of profiled runs: load the file in chrome://tracing or Perfetto."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runtime.errors import RuntimeFault
from runtime.profile import Span
from runtime.whole_file import whole_file


def trace_events(iterations: Sequence[Sequence[Span]], device: str) -> dict[str, Any]:
    """Return the trace as the object of the Trace Event Format (complete events, times in us).

    Iterations follow each other on one device track; time 0 is the first launch's enqueue.
    """
    origin = min((span.queued_ns for spans in iterations for span in spans), default=0)
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": 1, "tid": 1, "name": "process_name", "args": {"name": device}}
    ]
    for number, spans in enumerate(iterations):
        events += [
            {
                "ph": "X",
                "pid": 1,
                "tid": 1,
                "cat": "kernel",
                "name": span.name,
                "ts": (span.start_ns - origin) / 1e3,
                "dur": (span.end_ns - span.start_ns) / 1e3,
                "args": {"iteration": number, "launch": span.launch},
            }
            for span in spans
        ]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def write_trace(
    path: str | os.PathLike[str], iterations: Sequence[Sequence[Span]], device: str
) -> None:
    """Write the trace as JSON; the file appears complete or not at all.

    Raises:
        RuntimeFault: the file cannot be written.
    """
    target = Path(path)
    try:
        with whole_file(target) as file:
            file.write(json.dumps(trace_events(iterations, device)).encode())
    except OSError as error:
        raise RuntimeFault(f"{target}: cannot write: {error.strerror or error}") from error
