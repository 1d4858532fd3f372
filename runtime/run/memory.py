"""The device memory of a program: its buffers, its images, and access to its states.

The arena is the one allocation for all intermediate results. A state is a buffer that keeps its
value between runs; its reset value is zeros or part of the artifact's data.
"""

import contextlib
import math
import mmap
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.errors import ArtifactError, InputError, RuntimeFault, first_line
from runtime.format.artifact import Artifact
from runtime.format.manifest import ALIGNMENT, BufferSpec, Manifest
from runtime.format.parts import TEXEL, ImageSpec
from runtime.opencl.binding import cl
from runtime.opencl.device import Device


def check_images(specs: list[tuple[str, ImageSpec]], device: Device) -> None:
    """Check the names and sizes of images against the device, whose own error names no image.

    Raises ArtifactError if the device has no images, or an image is too large.
    """
    if not specs:
        return
    info = device.info
    if not info.images:
        raise ArtifactError(f"it reads images, {info.name} has none; compile for another --target")
    most = info.max_image
    for name, image in specs:
        if image.width > most[0] or image.height > most[1]:
            raise ArtifactError(
                f"image {name!r} has {image.width}x{image.height} texels, {info.name} takes "
                f"{most[0]}x{most[1]}; compile for another --target"
            )


def check_image_arguments(manifest: Manifest, device: Device) -> None:
    """Raise ArtifactError if a kernel reads or writes more images than the device allows."""
    info = device.info
    for kernel in manifest.kernels:
        images = [manifest.buffers[index].image is not None for index in kernel.args]
        counts = sum(images[kernel.writes :]), sum(images[: kernel.writes])
        for count, most, verb in zip(counts, info.max_image_args, ("reads", "writes"), strict=True):
            if count > most:
                raise ArtifactError(
                    f"kernel {kernel.name!r} {verb} {count} images, {info.name} takes {most}; "
                    "compile with `--target auto` on the device, or for another --target"
                )


def make_image(
    device: Device, image: ImageSpec, dtype: str, data: NDArray[np.uint8] | None
) -> cl.Image:
    """Return an image with a copy of `data`, or an empty one for None. Components have `dtype`.

    Raises pyopencl.Error if the device refuses it.
    """
    kind = cl.channel_type.HALF_FLOAT if dtype == "float16" else cl.channel_type.FLOAT
    texels = cl.ImageFormat(cl.channel_order.RGBA, kind)
    flags, shape = cl.mem_flags, (image.width, image.height)
    if data is None:
        return cl.create_image(device.context, flags.READ_WRITE, texels, shape=shape)
    how, host = flags.READ_ONLY | flags.COPY_HOST_PTR, data.view(dtype)
    return cl.create_image(device.context, how, texels, shape=shape, hostbuf=host)


def poison_image(queue: cl.CommandQueue, memory: cl.Image, image: ImageSpec) -> None:
    """Fill an image with NaN."""
    texel = np.full(TEXEL, np.nan, np.float32)
    cl.enqueue_fill_image(queue, memory, texel, (0, 0, 0), (image.width, image.height, 1))


# --- The buffers of a program -----------------------------------------------------------------
# On a CPU there are two pieces, and kernels get sub-buffers of them. On other devices, or if a
# piece exceeds the device's limit, each buffer has its own allocation, except that arena buffers
# are sub-buffers of one.
#     memory: arena | input x | output y | state s | ...        data: weights, reset values

IN_DATA = 1  # flag in a place: the offset is into the data; offsets are multiples of ALIGNMENT


class DeviceMemory:
    """Allocates all buffers when constructed. `buffer(i)` belongs to `manifest.buffers[i]`.

    `memory` and `data` are the two pieces; None if buffers are allocated separately. `places` has
    each buffer's offset in its piece, plus IN_DATA if that is the data; images have 0. Without
    pieces it is empty.
    """

    def __init__(self, artifact: Artifact, device: Device, queue: cl.CommandQueue) -> None:
        self._specs = artifact.manifest.buffers
        self._arena_size = artifact.manifest.arena_size
        self._blob = artifact.data
        self._device = device
        self._queue = queue
        _check_sizes(artifact, device)
        check_images([(s.name, s.image) for s in self._specs if s.image is not None], device)
        check_image_arguments(artifact.manifest, device)
        self.memory: cl.Buffer | None = None
        self.data: cl.Buffer | None = None
        self.places: list[int] = []
        self._host: NDArray[np.uint8] | None = None
        self._arena: cl.Buffer | None = None
        self._images: dict[int, cl.Image] = {}
        self._buffers: list[cl.Buffer | None] = [None] * len(self._specs)
        # A CPU uses host memory, so the megakernel can address two pieces, without extra copies.
        if device.info.kind == "cpu":
            self._allocate_pieces()
        self._allocate_images()
        if self.memory is None:
            self._allocate_apart()
        self._resets = self._reset_values()
        if device.info.kind != "cpu":
            # The device has a copy of the weights, so the artifact's data can be freed.
            self._blob = memoryview(b"")

    def _allocate_pieces(self) -> None:
        # The arena is first, then inputs, outputs and states, each at a multiple of ALIGNMENT.
        places, size = [], _aligned(self._arena_size)
        for spec in self._specs:
            if spec.image is not None:
                places.append(0)  # images are allocated separately, see _allocate_images
            elif spec.kind == "weight":
                places.append(spec.offset + IN_DATA)
            elif spec.kind == "arena":
                places.append(spec.offset)
            else:
                places.append(size)
                size += _aligned(spec.size)
        # OpenCL refuses empty buffers.
        size = max(size, ALIGNMENT)
        # A piece beyond the device's limit is not an error: single buffers may still fit.
        if max(size, len(self._blob)) > self._device.info.max_alloc_bytes:
            return
        context, flags = self._device.context, cl.mem_flags
        # On a CPU, USE_HOST_PTR avoids a second copy of the weights.
        host = self._data(0, len(self._blob)) if len(self._blob) else np.zeros(1, np.uint8)
        try:
            self.memory = self._allocate_memory(size)
            how = flags.READ_ONLY | flags.USE_HOST_PTR
            self.data = cl.Buffer(context, how, hostbuf=host)
            self._fill(self.memory, size, 0)  # the padding after an input must not be random
            if self._arena_size:
                self._arena = self.memory.get_sub_region(0, self._arena_size)
        except cl.Error as error:
            raise RuntimeFault(
                f"{self._device.info.name}: cannot allocate {size} bytes for arena, inputs, "
                f"outputs and states: {first_line(error)}"
            ) from error
        self.places = places

    def _allocate_memory(self, size: int) -> cl.Buffer:
        """Allocate the writable piece. On PoCL's CPU devices it is our own host memory."""
        flags = cl.mem_flags.READ_WRITE
        if not self._device.info.is_pocl:
            return cl.Buffer(self._device.context, flags, size)
        # USE_HOST_PTR may copy unaligned memory, so the piece starts at a page boundary.
        room = np.zeros(size + mmap.PAGESIZE, np.uint8)
        start = -room.ctypes.data % mmap.PAGESIZE
        self._host = room[start : start + size]
        how = flags | cl.mem_flags.USE_HOST_PTR
        return cl.Buffer(self._device.context, how, hostbuf=self._host)

    def view(self, index: int) -> NDArray[Any] | None:
        """Return the memory of an input or output as an array; None if the host has no access.

        PoCL runs kernels on the host, and a buffer over host memory is that memory. Therefore the
        caller can copy directly instead of enqueueing a command. Use the array only between runs.
        An array without elements has no memory, so the result is a new one.
        """
        spec = self._specs[index]
        if not spec.payload_bytes:
            return np.empty(spec.shape, spec.dtype)  # there is nothing to copy
        # IN_DATA, the lowest bit of a place, marks the data, which is never written.
        if self._host is None or spec.image is not None or self.places[index] & IN_DATA:
            return None
        start = self.places[index]
        # `size` may be larger, because padding follows the array.
        array = self._host[start : start + spec.payload_bytes].view(spec.dtype)
        return array.reshape(spec.shape)

    def _allocate_apart(self) -> None:
        spec: BufferSpec | None = None
        try:
            if self._arena_size:
                flags = cl.mem_flags.READ_WRITE
                self._arena = cl.Buffer(self._device.context, flags, self._arena_size)
            for index, spec in enumerate(self._specs):
                if spec.image is None:
                    self._buffers[index] = self._allocate(spec)
        except cl.Error as error:
            where = f"buffer {spec.name!r} of {spec.size} bytes" if spec else "the arena"
            raise RuntimeFault(
                f"{self._device.info.name}: cannot allocate {where}: {first_line(error)}"
            ) from error

    def _allocate_images(self) -> None:
        for index, spec in enumerate(self._specs):
            if spec.image is None:
                continue
            data = self._data(spec.offset, spec.size) if spec.kind == "weight" else None
            try:
                self._images[index] = make_image(self._device, spec.image, spec.dtype, data)
            except cl.Error as error:
                raise RuntimeFault(
                    f"{self._device.info.name}: cannot allocate image {spec.name!r} of "
                    f"{spec.image.width}x{spec.image.height}: {first_line(error)}"
                ) from error

    def _allocate(self, spec: BufferSpec) -> cl.Buffer:
        context, flags = self._device.context, cl.mem_flags
        if spec.kind == "weight":
            # A GPU cannot read the artifact's memory, so the weights are copied once.
            how = flags.USE_HOST_PTR if self._device.info.kind == "cpu" else flags.COPY_HOST_PTR
            host = self._data(spec.offset, spec.size)
            return cl.Buffer(context, flags.READ_ONLY | how, hostbuf=host)
        if spec.kind == "arena":
            assert self._arena is not None
            return self._arena.get_sub_region(spec.offset, spec.size)
        buffer = cl.Buffer(context, flags.READ_WRITE, spec.size)
        # A read before the first write then gives zeros instead of another process's memory.
        self._fill(buffer, spec.size, 0)
        return buffer

    def argument(self, index: int) -> cl.Buffer | cl.Image:
        """Return the kernel argument for an index of the buffer table: an image or a buffer."""
        image = self._images.get(index)
        return self.buffer(index) if image is None else image

    def buffer(self, index: int) -> cl.Buffer:
        """Return the buffer for an index of the buffer table. Sub-buffers are created on first use.

        Raises pyopencl.Error if the device refuses the sub-buffer.
        """
        found = self._buffers[index]
        if found is None:
            piece = self.data if self.places[index] & IN_DATA else self.memory
            assert piece is not None
            # The mask removes the bit IN_DATA: offsets are multiples of ALIGNMENT.
            offset = self.places[index] & -ALIGNMENT
            found = piece.get_sub_region(offset, self._specs[index].size)
            self._buffers[index] = found
        return found

    def _data(self, offset: int, size: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        return np.frombuffer(self._blob, np.uint8, size, offset)

    def _reset_values(self) -> dict[int, NDArray[np.uint8]]:
        """Return a copy of each state's reset value, except for states that reset to zeros."""
        return {
            index: self._data(spec.reset, spec.size).copy()
            for index, spec in enumerate(self._specs)
            if spec.kind == "state" and spec.reset >= 0
        }

    def _fill(self, buffer: cl.Buffer, size: int, value: int) -> None:
        # Use long patterns if possible, because PoCL's fill writes one pattern at a time.
        pattern = np.full(16 if size % 16 == 0 else 1, value, np.uint8)
        cl.enqueue_fill_buffer(self._queue, buffer, pattern, 0, size)

    def reset(self) -> None:
        """Set every state buffer to its reset value, and wait until the device has done so."""
        for index, spec in enumerate(self._specs):
            if spec.kind != "state":
                continue
            if spec.reset < 0:
                self._fill(self.buffer(index), spec.size, 0)
            else:
                cl.enqueue_copy(self._queue, self.buffer(index), self._resets[index])
        # The copies read memory that `release` frees, so wait until they are done.
        self._queue.finish()

    def poison(self) -> None:
        """Fill the arena with 0xFF (NaN as float), so that reads of unwritten memory show."""
        if self._arena is not None:
            self._fill(self._arena, self._arena_size, 0xFF)
        for index, memory in self._images.items():
            spec = self._specs[index]
            if spec.kind == "image" and spec.image is not None:
                poison_image(self._queue, memory, spec.image)

    def release(self) -> None:
        """Release the device memory and the reference to the artifact's memory."""
        windows = [buffer for buffer in self._buffers if buffer is not None]
        # Sub-buffers are released before their pieces.
        for buffer in (*windows, *self._images.values(), self._arena, self.memory, self.data):
            if buffer is not None:
                buffer.release()
        self._buffers.clear()
        self._images.clear()
        self._arena = self.memory = self.data = self._host = None
        self._blob = memoryview(b"")


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _check_sizes(artifact: Artifact, device: Device) -> None:
    """Check all sizes against the device's limits, because a driver's own error names no buffer."""
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
    most = math.inf if info.max_buffer_args is None else info.max_buffer_args
    for kernel in manifest.kernels:
        count = sum(manifest.buffers[index].image is None for index in kernel.args)
        if count > most:
            raise ArtifactError(
                f"kernel {kernel.name} has {count} buffers, the driver of {info.name} takes {most} "
                "and ends the process beyond; compile the model again with --target freedreno"
            )


# --- States, read and written by name between runs --------------------------------------------


class States:
    """Copies states from and to the device. The queue is idle before and after each call."""

    def __init__(self, manifest: Manifest, memory: DeviceMemory, queue: cl.CommandQueue) -> None:
        self._name = manifest.name
        self._memory = memory
        self._queue = queue
        self._found = {b.name: (i, b) for i, b in enumerate(manifest.buffers) if b.kind == "state"}

    def read(self, name: str) -> NDArray[Any]:
        """Return a copy of a state, with its declared dtype and shape.

        Raises:
            InputError: there is no such state.
            RuntimeFault: the device failed.
        """
        index, spec = self._state(name)
        array = np.empty(spec.shape, spec.dtype)
        with _naming(self._name, name):
            cl.enqueue_copy(self._queue, array, self._memory.buffer(index))
        return array

    def write(self, name: str, value: NDArray[Any]) -> None:
        """Write a state from a C-contiguous array of exactly its dtype and shape; copies the array.

        Raises:
            InputError: there is no such state, or the array does not fit it.
            RuntimeFault: the device failed.
        """
        index, spec = self._state(name)
        fits = (value.dtype, value.shape) == (np.dtype(spec.dtype), spec.shape)
        if not (fits and value.flags.c_contiguous):
            raise InputError(
                f"{self._name}: state {name!r}: expected {spec.dtype}{list(spec.shape)}, "
                f"C-contiguous, found {value.dtype}{list(value.shape)}"
            )
        with _naming(self._name, name):
            cl.enqueue_copy(self._queue, self._memory.buffer(index), value)

    def _state(self, name: str) -> tuple[int, BufferSpec]:
        found = self._found.get(name)
        if found is None:
            names = ", ".join(self._found)
            raise InputError(f"{self._name}: no state {name!r}; it has: {names or 'none'}")
        return found


@contextlib.contextmanager
def _naming(program: str, state: str) -> Iterator[None]:
    """Turn a device error into one that names the copied state."""
    try:
        yield
    except cl.Error as error:
        raise RuntimeFault(f"{program}: state {state!r}: {first_line(error)}") from error
