"""Command queues: opened with or without profiling and a priority, and drained after an error."""

import logging
from types import MappingProxyType
from typing import Final

from runtime.errors import RuntimeFault, first_line
from runtime.opencl.binding import cl
from runtime.opencl.device import Device

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
