"""Recordings by ``cl_khr_command_buffer``; arguments change where the driver has its layer for it.

A command buffer belongs to one queue. That runs in order, and so do the commands of the buffer; no
two enqueued at the same time are the same buffer, because a run waits for its end.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from runtime import recording_api as api
from runtime.opencl import cl
from runtime.recording_api import RecordingError, check
from runtime.steps import Launch

Version = tuple[int, int, int]


class CommandBuffer:
    """The launches of one step; see `runtime.steps.Recording`.

    Args:
        queue: that `replay` enqueues to.
        launches: in order, at least one.
        mutable: version of the layer that changes arguments; None without it.

    Raises:
        RecordingError: the driver refuses.
    """

    def __init__(
        self, queue: cl.CommandQueue, launches: Sequence[Launch], mutable: Version | None
    ) -> None:
        find = api.extension_function
        self._create, self._command, self._finalize, self._release, self._enqueue = (
            find(queue.device, f"cl{name}KHR")
            for name in (
                *("CreateCommandBuffer", "CommandNDRangeKernel", "FinalizeCommandBuffer"),
                *("ReleaseCommandBuffer", "EnqueueCommandBuffer"),
            )
        )
        self._update: _Update | None = None
        if mutable is not None:
            linked = mutable < api.UPDATES_ARE_LISTS
            prototype = api.LINKED_UPDATE if linked else None
            function = find(queue.device, "clUpdateMutableCommandsKHR", prototype)
            self._update = _Update(function, linked=linked)
        self._commands: list[api.Pointer] = []
        status = api.Int()
        queues = (api.Pointer * 1)(queue.int_ptr)
        flags = (ctypes.c_uint64 * 3)(api.COMMAND_BUFFER_FLAGS, api.COMMAND_BUFFER_MUTABLE, 0)
        how = None if mutable is None else flags
        self._handle: int | None = self._create(1, queues, how, ctypes.byref(status))
        check(status.value, "clCreateCommandBufferKHR")
        try:
            for launch in launches:
                self._record(launch)
            check(self._finalize(self._handle), "clFinalizeCommandBufferKHR")
        except RecordingError:
            self.release()
            raise

    def _record(self, launch: Launch) -> None:
        sizes = [(api.Size * 3)(*size) for size in (launch.global_size, launch.local_size)]
        fields = (api.MUTABLE_DISPATCH_UPDATABLE_FIELDS, api.MUTABLE_DISPATCH_ARGUMENTS, 0)
        how = None if self._update is None else (ctypes.c_uint64 * 3)(*fields)
        # A driver without the layer must not be asked for handles.
        command = api.Pointer()
        handle = None if self._update is None else ctypes.byref(command)
        found = self._command(
            *(self._handle, None, how, launch.kernel.int_ptr, 3, None, *sizes),
            *(0, None, None, handle),
        )
        check(found, f"recording {launch.name!r}: clCommandNDRangeKernelKHR")
        self._commands.append(command)

    def replay(self) -> None:
        """Enqueue all launches, with the arguments that have changed since."""
        if self._update is not None:
            self._update.apply(self._handle)
        found = self._enqueue(0, None, self._handle, 0, None, None)
        if found:
            check(found, "clEnqueueCommandBufferKHR")

    def change(self, launch: int, position: int, memory: cl.MemoryObject) -> None:
        """Give a launch other memory from the next replay on."""
        if self._update is None:
            raise RecordingError(f"the driver does not have {api.KHR_MUTABLE}")
        self._update.add(self._commands[launch], position, memory)

    def release(self) -> None:
        """Give the command buffer back."""
        if self._handle is not None:
            self._release(self._handle)
        self._handle = None


class _Update:
    """Changes that a command buffer has not been given yet; it remembers those that it was given.

    What describes a change is made at the first one of an argument and used again.
    """

    def __init__(self, function: api.Function, *, linked: bool) -> None:
        self._function = function
        self._linked = linked
        self._config = api.LinkedDispatchConfig if linked else api.DispatchConfig
        self._known: dict[tuple[int, int], tuple[Any, ...]] = {}
        self._waiting: dict[tuple[int, int], Any] = {}

    def add(self, command: api.Pointer, position: int, memory: cl.MemoryObject) -> None:
        key = (command.value or 0, position)
        if key not in self._known:
            value = api.Pointer()
            argument = api.KhrArgument(position, ctypes.sizeof(value), ctypes.addressof(value))
            config = self._config(command=command, num_args=1, arg_list=ctypes.addressof(argument))
            if self._linked:
                config.type = api.LINKED_DISPATCH_CONFIG
            self._known[key] = (value, config, argument)  # the second points to the third
        value, config, _ = self._known[key]
        value.value = memory.int_ptr
        self._waiting[key] = config

    def apply(self, handle: int | None) -> None:
        if not self._waiting:
            return
        configs = list(self._waiting.values())
        count = len(configs)
        if self._linked:
            listed = (self._config * count)(*configs)
            address = ctypes.addressof(listed)
            base = api.LinkedBaseConfig(api.LINKED_BASE_CONFIG, None, count, address)
            found = self._function(handle, ctypes.byref(base))
        else:
            kinds = (api.Uint * count)(*[api.DISPATCH_CONFIG] * count)
            pointers = (api.Pointer * count)(*map(ctypes.addressof, configs))
            found = self._function(handle, count, kinds, pointers)
        check(found, "clUpdateMutableCommandsKHR")
        self._waiting.clear()
