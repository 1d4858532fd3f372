"""Submits the launches of a program to the device: queues, checks, and recordings of launches.

Environment variables: `RUNTIME_CHECK=1` fills the arena with NaN before each run, which reveals
reads of unwritten memory, and requires finite outputs and zero megakernel counters after it.
`RUNTIME_REPLAY=0` disables the megakernel. `RUNTIME_RECORD` controls whether drivers record
launches: `0` never, `1` whenever possible, otherwise where it is known to help.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from runtime.errors import RuntimeFault, first_line
from runtime.opencl.binding import cl
from runtime.opencl.device import Device
from runtime.opencl.recording import recorder_of
from runtime.opencl.recording_api import RecordingError
from runtime.run.entry import Binder, BoundEntry

logger = logging.getLogger(__name__)

# From <CL/cl_ext.h>, cl_khr_priority_hints: a queue property and its values, for which pyopencl has
# no names.
PRIORITY_EXTENSION: Final = "cl_khr_priority_hints"
_CL_QUEUE_PRIORITY_KHR: Final = 0x1096
PRIORITIES: Final = MappingProxyType({"high": 1 << 0, "medium": 1 << 1, "low": 1 << 2})


def open_queue(device: Device, *, profiling: bool = False) -> cl.CommandQueue:
    """Open an in-order queue; raise RuntimeFault if the device cannot create one."""
    try:
        if not profiling:
            return cl.CommandQueue(device.context)
        enable = cl.command_queue_properties.PROFILING_ENABLE
        return cl.CommandQueue(device.context, properties=enable)
    except cl.Error as error:
        raise RuntimeFault(
            f"{device.info.name}: cannot make a command queue: {first_line(error)}"
        ) from error


def open_first_queue(device: Device, priority: str | None) -> tuple[cl.CommandQueue, str]:
    """Open a queue with a scheduling priority, which is a hint that the driver may refuse.

    `priority` is a key of `PRIORITIES`, or None. Returns the queue and the reason that it does not
    have the priority, "" if it does. Raises RuntimeFault if the device cannot create a queue.
    """
    if priority is None:
        return open_queue(device), ""
    wanted = PRIORITIES.get(priority)
    if wanted is None:
        return open_queue(device), f"expected one of {', '.join(PRIORITIES)}, found {priority!r}"
    if PRIORITY_EXTENSION not in device.info.extensions:
        return open_queue(device), f"{device.info.name} does not have {PRIORITY_EXTENSION}"
    try:
        properties = [_CL_QUEUE_PRIORITY_KHR, wanted]
        # pyopencl's stub declares only flags, but a list of properties works too.
        return cl.CommandQueue(device.context, properties=properties), ""  # type: ignore[arg-type]
    except cl.Error as error:
        return open_queue(device), f"{device.info.name} refuses it: {first_line(error)}"


def drain(queue: cl.CommandQueue) -> None:
    """Wait for a queue's commands. A failure is only logged: the caller has reported it already."""
    try:
        queue.finish()
    except cl.Error as error:
        logger.debug("waiting for a queue: %s", first_line(error))


# --- Settings from the environment ------------------------------------------------------------


def checks_enabled() -> bool:
    """Return whether `RUNTIME_CHECK` enables checks. Read once per program, when it is loaded."""
    return os.environ.get("RUNTIME_CHECK", "0") not in ("", "0")


def megakernel_enabled() -> bool:
    """Return whether `RUNTIME_REPLAY` allows the megakernel. Read once per program, at loading."""
    return os.environ.get("RUNTIME_REPLAY", "1") != "0"


def _recording_wanted() -> bool | None:
    """Return the setting of `RUNTIME_RECORD`; None if unset. Read once per program, at loading."""
    return {"0": False, "1": True}.get(os.environ.get("RUNTIME_RECORD", ""))


def check_finite(outputs: Mapping[str, NDArray[Any]], entry: str) -> None:
    """Raise RuntimeFault if a floating point output contains NaN or infinity.

    The error names the first such output, the number of affected values and the first position.
    """
    for name, array in outputs.items():
        if array.dtype.kind != "f":
            continue
        bad = np.flatnonzero(~np.isfinite(array.ravel()))
        if bad.size:
            raise RuntimeFault(
                f"entry {entry!r}: output {name!r} has {bad.size} of {array.size} values that are "
                f"not finite, the first at flat index {bad[0]}; "
                "check the inputs, then bisect with `modeld bench --profile`"
            )


# --- Recorded launches ------------------------------------------------------------------------
# Launches are recorded as one command if the device has an extension for it and a run has several.
# PoCL is excluded: its megakernel is one launch already, and PoCL executes recorded launches one by
# one. If recording or a replay fails, launches are enqueued one by one, and the reason is logged.


def recorded_entries(
    entries: dict[str, BoundEntry],
    binder: Binder,
    device: Device,
    queue: cl.CommandQueue,
    run: Callable[[BoundEntry], None],
) -> dict[str, BoundEntry]:
    """Return the entries, with recorded launches where possible.

    Each entry has run once, so drivers have finished its kernels. `run` runs an entry on the
    inputs that are already on the device.
    """
    support = device.info.recording
    # A single launch is already one command.
    several = [bound for bound in entries.values() if len(bound.steps) > 1]
    wanted = _recording_wanted()
    if wanted is None:
        wanted = not device.info.is_pocl
    if support is None or not wanted or not several:
        return entries
    result = dict(entries)
    try:
        recorder = recorder_of(support, queue)
        for bound in several:
            result[bound.name] = binder.recorded(bound, recorder)
            run(result[bound.name])
    except (RecordingError, RuntimeFault) as error:
        # A driver that refuses one entry will refuse the others, so one log line is enough.
        logger.warning("launches are enqueued one by one: %s", error)
        for bound in result.values():
            bound.release()
        return entries
    recorded = ", ".join(f"{b.name} {len(b.launches)}" for b in several)
    logger.info("launches run as one command (%s): %s", support.extension, recorded)
    return result
