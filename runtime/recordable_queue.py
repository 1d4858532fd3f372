"""Recordings by ``cl_qcom_recordable_queues``, the extension of drivers of Adreno GPUs.

A queue of a special kind keeps launches instead of running them; kept ones are enqueued to another
queue as often as wanted. A recording has at most as many launches as the device says, so a long
list is several recordings, which are enqueued one after another.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from runtime import recording_api as api
from runtime.opencl import cl
from runtime.recording_api import RecordingError, check
from runtime.steps import Launch


class RecordableQueue:
    """The launches of one step; see `runtime.steps.Recording`.

    Args:
        queue: that `replay` enqueues to.
        launches: in order, at least one.
        longest: launches of one recording.

    Raises:
        RecordingError: the driver refuses.
    """

    def __init__(self, queue: cl.CommandQueue, launches: Sequence[Launch], longest: int) -> None:
        names = ("New", "End", "Release", "Enqueue")
        self._new, self._end, self._release, self._enqueue = (
            api.extension_function(queue.device, f"cl{name}RecordingQCOM") for name in names
        )
        self._queue = queue.int_ptr
        self._longest = longest
        self._parts: list[_Part] = []
        try:
            # The property stands alone: drivers refuse it beside others, such as profiling.
            keeping = cl.CommandQueue(queue.context, properties=api.QUEUE_RECORDABLE)  # type: ignore[arg-type]
        except cl.Error as error:
            raise RecordingError(f"no recordable queue: {error}") from error
        try:
            for start in range(0, len(launches), longest):
                self._record(keeping, launches[start : start + longest])
        except RecordingError:
            self.release()
            raise
        # Recordings are of the queue that they were made with.
        self._keeping = keeping

    def _record(self, keeping: cl.CommandQueue, launches: Sequence[Launch]) -> None:
        status = api.Int()
        handle = self._new(keeping.int_ptr, ctypes.byref(status))
        check(status.value, "clNewRecordingQCOM")
        self._parts.append(_Part(handle, len(launches)))
        # pyopencl always asks for an event, which launches that do not run need not have.
        enqueue = api.core_function("clEnqueueNDRangeKernel")
        for launch in launches:
            sizes = (_sizes(launch.global_size), _sizes(launch.local_size))
            found = enqueue(keeping.int_ptr, launch.kernel.int_ptr, 3, None, *sizes, 0, None, None)
            check(found, f"recording {launch.name!r}: clEnqueueNDRangeKernel")
        check(self._end(handle), "clEndRecordingQCOM")

    def replay(self) -> None:
        """Enqueue all launches."""
        for part in self._parts:
            found = self._enqueue(
                *(self._queue, part.handle, part.count, part.changes),
                *(0, None, 0, None, 0, None, 0, None, None),
            )
            if found:
                check(found, "clEnqueueRecordingQCOM")

    def change(self, launch: int, position: int, memory: cl.MemoryObject) -> None:
        """Give a launch other memory from the next replay on."""
        part, within = divmod(launch, self._longest)
        self._parts[part].change(within, position, memory)

    def release(self) -> None:
        """Give the recordings back."""
        for part in self._parts:
            self._release(part.handle)
        self._parts.clear()


class _Part:
    """One recording, and all arguments that are not what was recorded.

    They are given with every replay, as drivers need not remember them.
    """

    def __init__(self, handle: int, launches: int) -> None:
        self.handle = handle
        self.launches = launches
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


def _sizes(values: tuple[int, int, int]) -> ctypes.Array[ctypes.c_size_t]:
    return (api.Size * 3)(*values)
