"""The megakernel: one kernel that runs all launches of an entry on a CPU.

Its source is in scheduler/emit/megakernel.py. A table lists the work of each launch, in words of 8
bytes:

    record 0: function, work-items, index of its first argument word
    record 1: ...
    argument words of record 0, of record 1, ...: offset in bytes, + 1 if it is into the data

A function is the number of a launch's code in the megakernel; -1 in the manifest means that the
launch is not part of it. Every offset comes from the checked manifest, so the file contains no
offsets to damage. The counters have one cache line each: one counts workers that have left; then,
for each record, one counts finished tasks (pieces of its work-items), and one per worker counts the
tasks taken from that worker's part. All are zero between runs, because the last worker to leave
resets them. An aborted run leaves arbitrary values, so they are cleared when a program is loaded or
reset, and before the first run after a failed one.
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
    """The table and counters of a program on the device, and the kernels that use them."""

    def __init__(
        self,
        manifest: Manifest,
        program: cl.Program,
        device: Device,
        memory: cl.Buffer,
        data: cl.Buffer,
        places: Sequence[int],
    ) -> None:
        """Write the table; raise ArtifactError if the built program has no megakernel.

        `memory` holds the arena, inputs, outputs and states; `data` holds the weights. `places` has
        the argument word of each buffer.
        """
        # One worker per compute unit: more would wait for each other on the same core.
        self.workers = device.info.compute_units
        self._program = program
        self._manifest = manifest
        self._first: dict[str, int] = {}  # entry -> index of its first record
        records = self._records(manifest)
        table = _table(manifest, records, places)
        # The counters of the longest entry are enough for all entries. Each launch has one line,
        # and one more per worker.
        lines = 1 + max((len(e.launches) for e in manifest.entries), default=0) * (self.workers + 1)
        # Each counter has its own cache line to avoid false sharing between workers.
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
        """Return the kernel index of each record, entry by entry."""
        records: list[int] = []
        for entry in manifest.entries:
            self._first[entry.name] = len(records)
            records += [i for i in entry.launches if manifest.kernels[i].function >= 0]
        return records

    def kernel(self, entry: EntrySpec, first: int, count: int) -> cl.Kernel:
        """Return a kernel that runs `count` launches of an entry, starting with launch `first`.

        Raises ArtifactError if the program lacks the kernel, or its argument count is wrong.
        """
        # Launches without a function have no record, so launch and record indices differ.
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
        """Enqueue setting the counters to zero; raise pyopencl.Error on failure."""
        zero = np.zeros(_LINE_INTS, np.int32)
        cl.enqueue_fill_buffer(queue, self._buffers[3], zero, 0, self._counter_ints * 4)

    def idle(self, queue: cl.CommandQueue) -> bool:
        """Return whether all counters are zero, as between runs. Waits for the queue."""
        counters = np.empty(self._counter_ints, np.int32)
        cl.enqueue_copy(queue, counters, self._buffers[3])
        return not counters.any()

    def release(self) -> None:
        """Release the table and the counters."""
        # The first two buffers are the program's memory, which it releases itself.
        for buffer in self._buffers[2:]:
            buffer.release()


def _table(
    manifest: Manifest, records: Sequence[int], places: Sequence[int]
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    head: list[int] = []
    words: list[int] = []
    for index in records:
        kernel = manifest.kernels[index]
        # Argument words follow the heads of all records; each record has the index of its first.
        at = RECORD_WORDS * len(records) + len(words)
        head += (kernel.function, kernel.global_size[0], at)
        words += [places[argument] for argument in kernel.args]
    # OpenCL does not allow empty buffers, so a table without records is a single zero.
    return np.array(head + words or [0], np.int64)
