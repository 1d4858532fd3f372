"""Records launches with ``cl_khr_command_buffer`` or ``cl_qcom_recordable_queues``.

A recording is replayed as one command. Its arguments can be changed if the driver supports that. A
command buffer belongs to one in-order queue, and its commands also run in order. It is never
enqueued twice at the same time, because each run waits for its end.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from runtime.opencl import recording_api as api
from runtime.opencl.binding import cl
from runtime.opencl.recording_api import RecordingError, check
from runtime.opencl.steps import Launch, Recording

Version = tuple[int, int, int]


class CommandBuffers:
    """Records launches of a queue in command buffers; see `runtime.opencl.recording.Recorder`.

    `mutable` is the version of the extension layer that changes arguments, or None. Raises
    RecordingError if the driver lacks a function.
    """

    def __init__(self, queue: cl.CommandQueue, mutable: Version | None) -> None:
        names = ("CreateCommandBuffer", "CommandNDRangeKernel", "FinalizeCommandBuffer")
        self._create, self._command, self._finalize, self.release, self.enqueue = (
            api.extension_function(queue.device, f"cl{name}KHR")
            for name in (*names, "ReleaseCommandBuffer", "EnqueueCommandBuffer")
        )
        self._queue = queue.int_ptr
        self.linked = mutable is not None and mutable < api.UPDATES_ARE_LISTS
        self.update: api.Function | None = None
        if mutable is not None:
            prototype = api.LINKED_UPDATE if self.linked else None
            name = "clUpdateMutableCommandsKHR"
            self.update = api.extension_function(queue.device, name, prototype)

    def record(self, launches: Sequence[Launch]) -> CommandBuffer:
        """Record launches with their kernels' current arguments, or raise RecordingError."""
        status = api.Int()
        queues = (api.Pointer * 1)(self._queue)
        # A driver without the layer accepts neither its properties nor handles of commands.
        flags = self._properties(api.COMMAND_BUFFER_FLAGS, api.COMMAND_BUFFER_MUTABLE)
        fields = (api.MUTABLE_DISPATCH_UPDATABLE_FIELDS, api.MUTABLE_DISPATCH_ARGUMENTS)
        made = CommandBuffer(self, self._create(1, queues, flags, ctypes.byref(status)))
        check(status.value, "clCreateCommandBufferKHR")
        try:
            for launch in launches:
                sizes = [(api.Size * 3)(*size) for size in (launch.global_size, launch.local_size)]
                command = api.Pointer()
                handle = None if self.update is None else ctypes.byref(command)
                found = self._command(
                    *(made.handle, None, self._properties(*fields), launch.kernel.int_ptr),
                    *(3, None, *sizes, 0, None, None, handle),
                )
                check(found, f"recording {launch.name!r}: clCommandNDRangeKernelKHR")
                made.commands.append(command.value or 0)
            check(self._finalize(made.handle), "clFinalizeCommandBufferKHR")
        except RecordingError:
            made.release()
            raise
        return made

    def _properties(self, key: int, value: int) -> ctypes.Array[ctypes.c_uint64] | None:
        return None if self.update is None else (api.Ulong * 3)(key, value, 0)


class CommandBuffer:
    """A recorded command buffer; see `runtime.opencl.steps.Recording`.

    It remembers changed arguments. The description of a change is created once per argument and
    reused.
    """

    submissions = 1

    def __init__(self, recorder: CommandBuffers, handle: int) -> None:
        self._recorder = recorder
        self.handle = handle
        self.commands: list[int] = []  # handle of each launch; 0 if arguments cannot be changed
        # (launch, position) -> the value, its change, and the memory to which the change points.
        self._known: dict[tuple[int, int], tuple[Any, ...]] = {}
        self._waiting: dict[tuple[int, int], Any] = {}  # changes not yet applied to the buffer

    def replay(self) -> None:
        """Enqueue all launches, with the arguments changed since the last replay."""
        if self._waiting:
            self._update()
        found = self._recorder.enqueue(0, None, self.handle, 0, None, None)
        if found:
            check(found, "clEnqueueCommandBufferKHR")

    def change(self, launch: int, position: int, memory: cl.MemoryObject) -> None:
        """Replace the memory of an argument from the next replay on."""
        if self._recorder.update is None:
            raise RecordingError(f"the driver does not have {api.KHR_MUTABLE}")
        key = (launch, position)
        if key not in self._known:
            value = api.Pointer()
            argument = api.KhrArgument(position, ctypes.sizeof(value), ctypes.addressof(value))
            about = {"num_args": 1, "arg_list": ctypes.addressof(argument)}
            about["command"] = self.commands[launch]
            linked = {"type": api.LINKED_DISPATCH_CONFIG}
            config = (
                api.LinkedDispatchConfig(**linked, **about)
                if self._recorder.linked
                else api.DispatchConfig(**about)
            )
            self._known[key] = (value, config, argument)  # `config` points to `argument`
        value, config, _ = self._known[key]
        value.value = memory.int_ptr
        self._waiting[key] = config

    def _update(self) -> None:
        function, configs = self._recorder.update, list(self._waiting.values())
        assert function is not None  # otherwise `_waiting` would be empty
        count = len(configs)
        if self._recorder.linked:
            listed = (api.LinkedDispatchConfig * count)(*configs)
            address = ctypes.addressof(listed)
            base = api.LinkedBaseConfig(api.LINKED_BASE_CONFIG, None, count, address)
            found = function(self.handle, ctypes.byref(base))
        else:
            kinds = (api.Uint * count)(*[api.DISPATCH_CONFIG] * count)
            pointers = (api.Pointer * count)(*map(ctypes.addressof, configs))
            found = function(self.handle, count, kinds, pointers)
        check(found, "clUpdateMutableCommandsKHR")
        self._waiting.clear()

    def release(self) -> None:
        """Release the command buffer."""
        self._recorder.release(self.handle)


# --- Recordings with ``cl_qcom_recordable_queues``, the extension of Adreno drivers -----------
# A special queue records launches, and another queue enqueues the recording any number of times.
# The device limits the launches per recording, so a long list is split into several recordings.


class RecordableQueue:
    """Records launches in a recordable queue; see `runtime.opencl.recording.Recorder`.

    A recording has at most `longest` launches. Raises RecordingError if the driver cannot create
    such a queue.
    """

    def __init__(self, queue: cl.CommandQueue, longest: int) -> None:
        self._new, self._end, self.release, self.enqueue = (
            api.extension_function(queue.device, f"cl{name}RecordingQCOM")
            for name in ("New", "End", "Release", "Enqueue")
        )
        self.queue = queue.int_ptr
        self.longest = longest
        try:
            # Drivers refuse this property in combination with others, such as profiling.
            properties: Any = api.QUEUE_RECORDABLE  # pyopencl has no name for this property
            self._keeping = cl.CommandQueue(queue.context, properties=properties)
        except cl.Error as error:
            raise RecordingError(f"no recordable queue: {error}") from error

    def record(self, launches: Sequence[Launch]) -> LaunchesOfQueue:
        """Record launches with their kernels' current arguments, or raise RecordingError."""
        made = LaunchesOfQueue(self)
        try:
            for start in range(0, len(launches), self.longest):
                self._record(made, launches[start : start + self.longest])
        except RecordingError:
            made.release()
            raise
        return made

    def _record(self, made: LaunchesOfQueue, launches: Sequence[Launch]) -> None:
        status, keeping = api.Int(), self._keeping.int_ptr
        handle = self._new(keeping, ctypes.byref(status))
        check(status.value, "clNewRecordingQCOM")
        made.parts.append(_Part(handle))
        # pyopencl always requests an event, but a launch that is only recorded has none.
        enqueue = api.core_function("clEnqueueNDRangeKernel")
        for launch in launches:
            sizes = [(api.Size * 3)(*size) for size in (launch.global_size, launch.local_size)]
            found = enqueue(keeping, launch.kernel.int_ptr, 3, None, *sizes, 0, None, None)
            check(found, f"recording {launch.name!r}: clEnqueueNDRangeKernel")
        check(self._end(handle), "clEndRecordingQCOM")


class LaunchesOfQueue:
    """Several recordings as one; see `runtime.opencl.steps.Recording`."""

    def __init__(self, recorder: RecordableQueue) -> None:
        self._recorder = recorder
        self.parts: list[_Part] = []

    @property
    def submissions(self) -> int:
        """Number of recordings."""
        return len(self.parts)

    def replay(self) -> None:
        """Enqueue all launches."""
        recorder = self._recorder
        for part in self.parts:
            found = recorder.enqueue(
                *(recorder.queue, part.handle, part.count, part.changes),
                *(0, None, 0, None, 0, None, 0, None, None),
            )
            if found:
                check(found, "clEnqueueRecordingQCOM")

    def change(self, launch: int, position: int, memory: cl.MemoryObject) -> None:
        """Replace the memory of an argument from the next replay on."""
        part, within = divmod(launch, self._recorder.longest)
        self.parts[part].change(within, position, memory)

    def release(self) -> None:
        """Release the recordings."""
        for part in self.parts:
            self._recorder.release(part.handle)
        self.parts.clear()


class _Part:
    """One recording, and all arguments changed since it was made.

    Every replay passes all of them, because drivers are not required to remember them.
    """

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self.count = 0
        self.changes: ctypes.Array[api.QcomArgument] | None = None
        self._values: dict[tuple[int, int], api.Pointer] = {}

    def change(self, launch: int, position: int, memory: cl.MemoryObject) -> None:
        value = self._values.get((launch, position))
        if value is not None:
            value.value = memory.int_ptr
            return
        self._values[launch, position] = api.Pointer(memory.int_ptr)
        self.count = len(self._values)
        self.changes = (api.QcomArgument * self.count)()
        for entry, ((number, at), cell) in zip(self.changes, self._values.items(), strict=True):
            entry.dispatch_index, entry.arg_index = number, at
            entry.arg_size, entry.arg_value = ctypes.sizeof(cell), ctypes.addressof(cell)


# --- The choice of a recorder, by the device's extensions (ADR 0040) --------------------------


@dataclass(frozen=True, slots=True)
class Support:
    """A device's support for recordings."""

    extension: str  # name of the extension
    longest: int  # the maximum number of launches of one recording; 0 for no limit
    changes: bool  # whether arguments can change between replays
    # Version of the command buffers' layer that changes arguments; None without it.
    mutable: tuple[int, int, int] | None = None


def support_of(handle: cl.Device) -> Support | None:
    """Return a device's support for recordings, None if it has none that we can use."""
    extensions = handle.extensions.split()
    if api.QCOM in extensions:
        longest = api.device_number(handle, api.DEVICE_RECORDABLE_QUEUE_MAX_SIZE, api.Uint)
        if longest > 1:
            return Support(api.QCOM, longest, changes=True)
    if api.KHR in extensions:
        # Our queue has no properties, so a driver that requires some cannot be used.
        properties = api.DEVICE_COMMAND_BUFFER_REQUIRED_QUEUE_PROPERTIES
        if not api.device_number(handle, properties, api.Ulong):
            mutable = _version(handle, api.KHR_MUTABLE) if api.KHR_MUTABLE in extensions else None
            fields = api.device_number(handle, api.DEVICE_MUTABLE_DISPATCH_CAPABILITIES, api.Ulong)
            if not fields & api.MUTABLE_DISPATCH_ARGUMENTS:
                mutable = None
            return Support(api.KHR, 0, mutable is not None, mutable)
    return None


class Recorder(Protocol):
    """Records launches for one in-order queue."""

    def record(self, launches: Sequence[Launch]) -> Recording:
        """Record launches with their kernels' current arguments, or raise RecordingError."""


def recorder_of(support: Support, queue: cl.CommandQueue) -> Recorder:
    """Return a recorder for a queue; raise RecordingError if the driver does not support it."""
    if support.extension == api.QCOM:
        return RecordableQueue(queue, support.longest)
    return CommandBuffers(queue, support.mutable)


def _version(handle: cl.Device, extension: str) -> tuple[int, int, int] | None:
    """Return the device's version of an extension, None if it does not report versions."""
    try:
        found = {entry.name: entry.version for entry in handle.extensions_with_version}
    except cl.Error:
        return None
    version = found.get(extension)
    # Version fields of <CL/cl.h>: 10, 10 and 12 bits.
    return None if version is None else (version >> 22, version >> 12 & 0x3FF, version & 0xFFF)
