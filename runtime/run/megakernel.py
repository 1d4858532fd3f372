"""The megakernel: all launches of an entry in one, on a CPU (scheduler/emit/megakernel.py).

The table, in words of 8 bytes:

    record 0: function, work-items, number of its first argument word
    record 1: ...
    argument words of record 0, of record 1, ...: offset in bytes, + 1 if it is into the data

Every offset comes from the checked manifest, so there is none in the file to damage. The counters,
one cache line each: workers that have left; then for each record the tasks that are finished and,
for each worker, the tasks taken of its part. All are zero between runs: the last worker to leave
sets them back. A run that did not come to its end leaves anything, so they are filled with zeros
when a program is loaded or reset, and before the first run after one that failed.
"""

from collections.abc import Sequence

import numpy as np

from runtime.errors import ArtifactError, RuntimeFault, first_line
from runtime.format.manifest import EntrySpec, Manifest
from runtime.format.parts import RECORD_WORDS
from runtime.opencl.binding import cl
from runtime.opencl.device import Device

KERNEL_NAME = "replay"
_LINE_BYTES = 64
_LINE_INTS = _LINE_BYTES // 4


class Megakernel:
    """The table and counters of one program on the device, and kernels that run parts of it."""

    def __init__(
        self,
        manifest: Manifest,
        program: cl.Program,
        device: Device,
        memory: cl.Buffer,
        data: cl.Buffer,
        places: Sequence[int],
    ) -> None:
        """Write the table, or raise ArtifactError if the built program has no megakernel.

        `memory` has arena, inputs, outputs and states; `data` has the weights. `places` has for
        each buffer the word that says where it is.
        """
        # A worker for each compute unit: more would wait for each other on one core.
        self.workers = device.info.compute_units
        self._program = program
        self._manifest = manifest
        self._first: dict[str, int] = {}
        records = self._records(manifest)
        table = _table(manifest, records, places)
        # Counters of the longest entry serve all: each launch has a line of its own and one for
        # each worker.
        lines = 1 + max((len(e.launches) for e in manifest.entries), default=0) * (self.workers + 1)
        # Counters have a cache line each, so that workers do not take lines from one another.
        self._counter_ints = lines * _LINE_INTS
        flags = cl.mem_flags
        try:
            self._buffers = (
                memory,
                data,
                cl.Buffer(device.context, flags.READ_ONLY | flags.COPY_HOST_PTR, hostbuf=table),
                cl.Buffer(device.context, flags.READ_WRITE, self._counter_ints * 4),
            )
        except cl.Error as error:
            raise RuntimeFault(
                f"{device.info.name}: cannot allocate the megakernel's table: {first_line(error)}"
            ) from error

    def _records(self, manifest: Manifest) -> list[int]:
        """Return the kernel of each record; entries follow each other."""
        records: list[int] = []
        for entry in manifest.entries:
            self._first[entry.name] = len(records)
            records += [i for i in entry.launches if manifest.kernels[i].function >= 0]
        return records

    def kernel(self, entry: EntrySpec, first: int, count: int) -> cl.Kernel:
        """Return a kernel that runs `count` launches of an entry, from launch `first` on.

        Raises ArtifactError if the program has no such kernel, or it takes other arguments.
        """
        # Launches without a function have no record, so positions in the two lists differ.
        before = entry.launches[:first]
        at = self._first[entry.name] + sum(self._manifest.kernels[i].function >= 0 for i in before)
        try:
            kernel = cl.Kernel(self._program, KERNEL_NAME)
            if kernel.num_args != len(self._buffers) + 2:
                raise ArtifactError(
                    f"kernel {KERNEL_NAME!r}: its source takes {kernel.num_args} arguments, "
                    f"expected {len(self._buffers) + 2}"
                )
            kernel.set_args(*self._buffers, np.int32(at), np.int32(at + count))
        except cl.Error as error:
            raise ArtifactError(
                f"kernel {KERNEL_NAME!r}: cannot be bound: {first_line(error)}"
            ) from error
        return kernel

    def clear(self, queue: cl.CommandQueue) -> None:
        """Set the counters to zero, after the queued commands; raise pyopencl.Error on failure."""
        zero = np.zeros(_LINE_INTS, np.int32)
        cl.enqueue_fill_buffer(queue, self._buffers[3], zero, 0, self._counter_ints * 4)

    def idle(self, queue: cl.CommandQueue) -> bool:
        """Whether all counters are zero, as they are between runs; waits for the queue."""
        counters = np.empty(self._counter_ints, np.int32)
        cl.enqueue_copy(queue, counters, self._buffers[3])
        return not counters.any()

    def release(self) -> None:
        """Give the table and the counters back."""
        # The first two buffers are the program's memory and go with it.
        for buffer in self._buffers[2:]:
            buffer.release()


def _table(
    manifest: Manifest, records: Sequence[int], places: Sequence[int]
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    head: list[int] = []
    words: list[int] = []
    for index in records:
        kernel = manifest.kernels[index]
        # Words follow the heads of all records; a record says where its own begin.
        at = RECORD_WORDS * len(records) + len(words)
        head += (kernel.function, kernel.global_size[0], at)
        words += [places[argument] for argument in kernel.args]
    # A buffer must hold something, so a table without records is one zero.
    return np.array(head + words or [0], np.int64)
