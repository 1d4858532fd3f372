"""Recordings by ``cl_qcom_recordable_queues``, the extension of drivers of Adreno GPUs.

A queue of a special kind keeps launches instead of running them; kept ones are enqueued to another
queue as often as wanted. A recording has at most as many launches as the device says, so a long
list is several recordings, which are enqueued one after another.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from runtime import recording_api as api
from runtime.opencl import cl
from runtime.recording_api import RecordingError, check
from runtime.steps import Launch


class RecordableQueue:
    """Records launches; see `runtime.recording.Recorder`.

    Args:
        queue: that replays enqueue to.
        longest: launches of one recording.

    Raises:
        RecordingError: the driver has no such queue.
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
        """Record launches, with the arguments that their kernels have now.

        Raises:
            RecordingError: the driver refuses.
        """
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
    """What was recorded; see `runtime.steps.Recording`."""

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
    """One recording, and all arguments that are not what was recorded.

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
