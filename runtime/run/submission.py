"""How the launches of a program reach the device: queues, checks, and recordings of launches.

With `RUNTIME_CHECK=1` each run poisons the arena first (a kernel that reads what nothing wrote then
yields NaN), every floating point output must be finite afterwards and the counters of the
megakernel zero. With `RUNTIME_REPLAY=0` there is no megakernel. `RUNTIME_RECORD` says whether
drivers record launches: `0` never, `1` wherever they can, else where that is known to gain.
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

# <CL/cl_ext.h>, cl_khr_priority_hints: the property of a queue, and its values. pyopencl has no
# names for them.
PRIORITY_EXTENSION: Final = "cl_khr_priority_hints"
_CL_QUEUE_PRIORITY_KHR: Final = 0x1096
PRIORITIES: Final = MappingProxyType({"high": 1 << 0, "medium": 1 << 1, "low": 1 << 2})


def open_queue(device: Device, *, profiling: bool = False) -> cl.CommandQueue:
    """Open a queue that runs commands in order; raise RuntimeFault if the device has no more."""
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
    """Open a queue whose commands go before, or after, those of others; a hint that may be refused.

    `priority` is one of `PRIORITIES`, None for none. Returns the queue, and why it is without the
    priority, "" if it has it. Raises RuntimeFault if the device has no more.
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
        # pyopencl's stub knows flags only, but it takes a list of properties as well.
        return cl.CommandQueue(device.context, properties=properties), ""  # type: ignore[arg-type]
    except cl.Error as error:
        return open_queue(device), f"{device.info.name} refuses it: {first_line(error)}"


def drain(queue: cl.CommandQueue) -> None:
    """Wait for what a queue still runs; that it may fail, its user knows already."""
    try:
        queue.finish()
    except cl.Error as error:
        logger.debug("waiting for a queue: %s", first_line(error))


# --- What the environment switches on ---------------------------------------------------------


def checks_enabled() -> bool:
    """Whether `RUNTIME_CHECK` asks for checks; read once per program, when it is loaded."""
    return os.environ.get("RUNTIME_CHECK", "0") not in ("", "0")


def megakernel_enabled() -> bool:
    """Whether the megakernel may run launches as one; read once per program, when it is loaded."""
    return os.environ.get("RUNTIME_REPLAY", "1") != "0"


def _recording_wanted() -> bool | None:
    """The setting `RUNTIME_RECORD`, None if unset. Read once per program, when it is loaded."""
    return {"0": False, "1": True}.get(os.environ.get("RUNTIME_RECORD", ""))


def check_finite(outputs: Mapping[str, NDArray[Any]], entry: str) -> None:
    """Refuse NaN and infinity in floating point outputs of any shape.

    RuntimeFault names the first output, how many of its values are not finite, and where.
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


# --- How an entry's launches reach the device: one by one, or recorded as one command ---------
# Launches are recorded if the device has an extension for it and a run has several. On PoCL the
# megakernel is one launch already; the rest is not recorded, because PoCL takes a recording apart.
# If recording or a replay fails, launches go one by one, and the log says why.


def recorded_entries(
    entries: dict[str, BoundEntry],
    binder: Binder,
    device: Device,
    queue: cl.CommandQueue,
    run: Callable[[BoundEntry], None],
) -> dict[str, BoundEntry]:
    """Return the entries, recorded where that can be done.

    Each entry has run, so drivers have finished its kernels. `run` runs one on the inputs that are
    on the device.
    """
    support = device.info.recording
    # A single launch is one command already.
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
        # A driver that refuses one entry will refuse the next, so one line is enough.
        logger.warning("launches are enqueued one by one: %s", error)
        for bound in result.values():
            bound.release()
        return entries
    told = ", ".join(f"{b.name} {len(b.launches)}" for b in several)
    logger.info("launches run as one command (%s): %s", support.extension, told)
    return result
