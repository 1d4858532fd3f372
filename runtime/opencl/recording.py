"""Recordings of launches by ``cl_khr_command_buffer`` or ``cl_qcom_recordable_queues``.

Arguments of command buffers change if the driver has the layer for that. A command buffer belongs
to one queue. That runs in order, and so do the commands of the buffer; no two enqueued at the same
time are the same buffer, because a run waits for its end.
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
    """Records launches for a queue; see `runtime.opencl.recording.Recorder`.

    `mutable` is the version of the layer that changes arguments; None without it. Raises
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
        """Record launches, with their kernels' present arguments, or raise RecordingError."""
        status = api.Int()
        queues = (api.Pointer * 1)(self._queue)
        # A driver without the layer must be asked neither for changes nor for handles.
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
    """A recorded buffer; see `runtime.opencl.steps.Recording`.

    It remembers arguments that it was given. The description of a change is made at the first one
    of an argument and used again.
    """

    submissions = 1

    def __init__(self, recorder: CommandBuffers, handle: int) -> None:
        self._recorder = recorder
        self.handle = handle
        self.commands: list[int] = []
        self._known: dict[tuple[int, int], tuple[Any, ...]] = {}
        self._waiting: dict[tuple[int, int], Any] = {}  # not given to the buffer yet

    def replay(self) -> None:
        """Enqueue all launches, with the arguments that have changed since."""
        if self._waiting:
            self._update()
        found = self._recorder.enqueue(0, None, self.handle, 0, None, None)
        if found:
            check(found, "clEnqueueCommandBufferKHR")

    def change(self, launch: int, position: int, memory: cl.MemoryObject) -> None:
        """Give a launch other memory from the next replay on."""
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
            self._known[key] = (value, config, argument)  # the second points to the third
        value, config, _ = self._known[key]
        value.value = memory.int_ptr
        self._waiting[key] = config

    def _update(self) -> None:
        function, configs = self._recorder.update, list(self._waiting.values())
        assert function is not None  # or nothing would wait
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
        """Give the command buffer back."""
        self._recorder.release(self.handle)


# --- Recordings by ``cl_qcom_recordable_queues``, the extension of drivers of Adreno GPUs -----
# A special queue keeps launches, and another queue enqueues them as often as wanted. The device
# limits the launches of a recording, so a long list is several, enqueued one after another.


class RecordableQueue:
    """Records launches for a queue; see `runtime.opencl.recording.Recorder`.

    A recording has at most `longest` launches. Raises RecordingError if the driver has no such
    queue.
    """

    def __init__(self, queue: cl.CommandQueue, longest: int) -> None:
        self._new, self._end, self.release, self.enqueue = (
            api.extension_function(queue.device, f"cl{name}RecordingQCOM")
            for name in ("New", "End", "Release", "Enqueue")
        )
        self.queue = queue.int_ptr
        self.longest = longest
        try:
            # The property stands alone: drivers refuse it beside others, such as profiling.
            properties: Any = api.QUEUE_RECORDABLE  # none of those that pyopencl knows by name
            self._keeping = cl.CommandQueue(queue.context, properties=properties)
        except cl.Error as error:
            raise RecordingError(f"no recordable queue: {error}") from error

    def record(self, launches: Sequence[Launch]) -> LaunchesOfQueue:
        """Record launches, with their kernels' present arguments, or raise RecordingError."""
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
        # pyopencl always asks for an event, which launches that do not run need not have.
        enqueue = api.core_function("clEnqueueNDRangeKernel")
        for launch in launches:
            sizes = [(api.Size * 3)(*size) for size in (launch.global_size, launch.local_size)]
            found = enqueue(keeping, launch.kernel.int_ptr, 3, None, *sizes, 0, None, None)
            check(found, f"recording {launch.name!r}: clEnqueueNDRangeKernel")
        check(self._end(handle), "clEndRecordingQCOM")


class LaunchesOfQueue:
    """A list of recordings; see `runtime.opencl.steps.Recording`."""

    def __init__(self, recorder: RecordableQueue) -> None:
        self._recorder = recorder
        self.parts: list[_Part] = []

    @property
    def submissions(self) -> int:
        """How many recordings the launches are."""
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
        """Give a launch other memory from the next replay on."""
        part, within = divmod(launch, self._recorder.longest)
        self.parts[part].change(within, position, memory)

    def release(self) -> None:
        """Give the recordings back."""
        for part in self.parts:
            self._recorder.release(part.handle)
        self.parts.clear()


class _Part:
    """One recording, and all arguments that have changed since.

    They are given with every replay, as nothing says that drivers remember them.
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


# --- The recorder for a device, chosen by the device's extensions (ADR 0040) ------------------


@dataclass(frozen=True, slots=True)
class Support:
    """A device's support of recordings."""

    extension: str  # its name
    longest: int  # launches of one recording; 0 for any number
    changes: bool  # whether arguments may change from run to run
    # Version of the layer of command buffers that changes them.
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
        """Record launches, with their kernels' present arguments, or raise RecordingError."""


def recorder_of(support: Support, queue: cl.CommandQueue) -> Recorder:
    """Return the recorder of a queue; raise RecordingError if the driver lacks or refuses it."""
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
