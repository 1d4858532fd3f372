"""The device memory of one program: a buffer for each entry of the manifest's buffer table.

Weights are the mapped file itself where the device shares the host's memory, a copy elsewhere;
arena buffers are windows of one allocation, as the compiler's memory plan laid them out.
"""

import numpy as np

from runtime.artifact import Artifact
from runtime.device import Device
from runtime.errors import ArtifactError, RuntimeFault, first_line
from runtime.manifest import BufferSpec
from runtime.opencl import cl


class DeviceMemory:
    """Allocates on construction; `buffers[i]` belongs to `manifest.buffers[i]`."""

    def __init__(self, artifact: Artifact, device: Device, queue: cl.CommandQueue) -> None:
        self._specs = artifact.manifest.buffers
        self._arena_size = artifact.manifest.arena_size
        self._blob = artifact.data
        self._device = device
        self._queue = queue
        _check_sizes(artifact, device)
        self._arena: cl.Buffer | None = None
        self.buffers: list[cl.Buffer] = []
        spec: BufferSpec | None = None
        try:
            if self._arena_size:
                flags = cl.mem_flags.READ_WRITE
                self._arena = cl.Buffer(device.context, flags, self._arena_size)
            for spec in self._specs:
                self.buffers.append(self._allocate(spec))
        except cl.Error as error:
            where = f"buffer {spec.name!r} of {spec.size} bytes" if spec else "the arena"
            raise RuntimeFault(
                f"{device.info.name}: cannot allocate {where}: {first_line(error)}"
            ) from error

    def _allocate(self, spec: BufferSpec) -> cl.Buffer:
        context, flags = self._device.context, cl.mem_flags
        if spec.kind == "weight":
            # USE_HOST_PTR on a CPU makes the page cache the weights' only copy.
            how = flags.USE_HOST_PTR if self._device.info.kind == "cpu" else flags.COPY_HOST_PTR
            host = self._data(spec.offset, spec.size)
            return cl.Buffer(context, flags.READ_ONLY | how, hostbuf=host)
        if spec.kind == "arena":
            assert self._arena is not None
            return self._arena.get_sub_region(spec.offset, spec.size)
        buffer = cl.Buffer(context, flags.READ_WRITE, spec.size)
        self._fill(buffer, spec.size, 0)  # the padding behind an input must not be random
        return buffer

    def _data(self, offset: int, size: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        return np.frombuffer(self._blob, np.uint8, size, offset)

    def _fill(self, buffer: cl.Buffer, size: int, value: int) -> None:
        # Whole words where possible: PoCL's fill writes one pattern at a time.
        pattern = np.full(16 if size % 16 == 0 else 1, value, np.uint8)
        cl.enqueue_fill_buffer(self._queue, buffer, pattern, 0, size)

    def reset(self) -> None:
        """Set every state buffer to its reset value; returns when the device has done so."""
        for spec, buffer in zip(self._specs, self.buffers, strict=True):
            if spec.kind != "state":
                continue
            if spec.reset < 0:
                self._fill(buffer, spec.size, 0)
            else:
                cl.enqueue_copy(self._queue, buffer, self._data(spec.reset, spec.size))
        self._queue.finish()

    def poison(self) -> None:
        """Fill the arena with 0xFF (NaN as float), so that a read before any write shows."""
        if self._arena is not None:
            self._fill(self._arena, self._arena_size, 0xFF)

    def release(self) -> None:
        """Give the memory back now and let go of the mapped file."""
        for buffer in self.buffers:
            buffer.release()
        self.buffers.clear()
        if self._arena is not None:
            self._arena.release()
            self._arena = None
        self._blob = memoryview(b"")


def _check_sizes(artifact: Artifact, device: Device) -> None:
    """Compare with the device's limits first: a driver's own refusal names no buffer."""
    manifest, info = artifact.manifest, device.info
    limit = info.max_alloc_bytes
    wanted = [("the arena", manifest.arena_size)]
    wanted += [(f"buffer {b.name!r}", b.size) for b in manifest.buffers if b.kind != "arena"]
    for what, size in wanted:
        if size > limit:
            raise ArtifactError(
                f"{what} takes {size} bytes, {info.name} allows {limit} in one piece; "
                "choose another device or compile for smaller inputs"
            )
