"""Recordings of launches: what a device has for them, and how a list of launches is recorded.

A run then hands the driver one command in place of a hundred. Which extension is used follows from
what the device reports. The decision is ADR 0040.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from runtime import recording_api as api
from runtime.command_buffer import CommandBuffers
from runtime.opencl import cl
from runtime.recordable_queue import RecordableQueue
from runtime.steps import Launch, Recording


@dataclass(frozen=True, slots=True)
class Support:
    """What a device says of recordings.

    Attributes:
        extension: its name.
        longest: launches of one recording; 0 for any number.
        changes: whether arguments may change from run to run.
        mutable: version of the layer of command buffers that changes them, None without it.
    """

    extension: str
    longest: int
    changes: bool
    mutable: tuple[int, int, int] | None = None


def support_of(handle: cl.Device) -> Support | None:
    """Return what a device has, None where it has nothing of use."""
    extensions = handle.extensions.split()
    if api.QCOM in extensions:
        longest = api.device_number(handle, api.DEVICE_RECORDABLE_QUEUE_MAX_SIZE, api.Uint)
        if longest > 1:
            return Support(api.QCOM, longest, changes=True)
    if api.KHR in extensions:
        # Our queue has no properties, so a driver that requires some has nothing for it.
        properties = api.DEVICE_COMMAND_BUFFER_REQUIRED_QUEUE_PROPERTIES
        if not api.device_number(handle, properties, api.Ulong):
            mutable = _version(handle, api.KHR_MUTABLE) if api.KHR_MUTABLE in extensions else None
            fields = api.device_number(handle, api.DEVICE_MUTABLE_DISPATCH_CAPABILITIES, api.Ulong)
            if not fields & api.MUTABLE_DISPATCH_ARGUMENTS:
                mutable = None
            return Support(api.KHR, 0, mutable is not None, mutable)
    return None


class Recorder(Protocol):
    """Records launches for one queue, which runs in order."""

    def record(self, launches: Sequence[Launch]) -> Recording:
        """Record launches, with the arguments that their kernels have now.

        Raises:
            RecordingError: the driver refuses.
        """


def recorder_of(support: Support, queue: cl.CommandQueue) -> Recorder:
    """Return what records for a queue.

    Raises:
        RecordingError: the driver refuses, or lacks a function.
    """
    if support.extension == api.QCOM:
        return RecordableQueue(queue, support.longest)
    return CommandBuffers(queue, support.mutable)


def _version(handle: cl.Device, extension: str) -> tuple[int, int, int] | None:
    """Return the version of an extension that the device has, None where it does not say."""
    try:
        found = {entry.name: entry.version for entry in handle.extensions_with_version}
    except cl.Error:
        return None
    version = found.get(extension)
    # <CL/cl.h>: 10 bits, 10 bits, 12 bits.
    return None if version is None else (version >> 22, version >> 12 & 0x3FF, version & 0xFFF)
