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


class CommandBuffers:
    """Records launches; see `runtime.recording.Recorder`.

    Args:
        queue: that replays enqueue to.
        mutable: version of the layer that changes arguments; None without it.

    Raises:
        RecordingError: the driver lacks a function.
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
        """Record launches, with the arguments that their kernels have now.

        Raises:
            RecordingError: the driver refuses.
        """
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
    """What was recorded; see `runtime.steps.Recording`.

    It remembers arguments that it was given. What describes a change is made at the first one of an
    argument and used again.
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
