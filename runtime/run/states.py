"""The states of a program by name: read and written between runs."""

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.errors import InputError, RuntimeFault, first_line
from runtime.format.manifest import BufferSpec, Manifest
from runtime.opencl.binding import cl
from runtime.run.memory import DeviceMemory


class States:
    """Copies states from and to the device; the queue is idle before and after each call."""

    def __init__(self, manifest: Manifest, memory: DeviceMemory, queue: cl.CommandQueue) -> None:
        self._name = manifest.name
        self._memory = memory
        self._queue = queue
        self._found = {b.name: (i, b) for i, b in enumerate(manifest.buffers) if b.kind == "state"}

    def read(self, name: str) -> NDArray[Any]:
        """Return a copy of a state, of its declared dtype and shape.

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
        """Write a state from a C-contiguous array of exactly its dtype and shape, free afterwards.

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
    """Turn the device's error into one that says which state was copied."""
    try:
        yield
    except cl.Error as error:
        raise RuntimeFault(f"{program}: state {state!r}: {first_line(error)}") from error
