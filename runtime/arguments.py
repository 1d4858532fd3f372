"""Arguments that change between runs: an input, say, that lies in another buffer each frame.

Kernels are given their arguments once. What reads a buffer of the table that lies elsewhere now is
told so here: the kernels that are launched by themselves, and the recordings that hold them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from runtime.opencl import cl
from runtime.steps import Recorded


class Arguments:
    """Who reads each entry of the buffer table, and where it lies where not in its own place."""

    def __init__(self) -> None:
        self._users: dict[int, list[Callable[[cl.Buffer], None]]] = {}
        self._moved: dict[int, cl.Buffer | None] = {}

    def add_kernel(self, kernel: cl.Kernel, arguments: tuple[int, ...]) -> None:
        """Note a kernel by what its arguments are: places in the buffer table."""
        for position, index in enumerate(arguments):
            self._users.setdefault(index, []).append(functools.partial(kernel.set_arg, position))

    def add_recording(self, recorded: Recorded, arguments: list[tuple[int, ...]]) -> None:
        """Note a recording by the arguments of its launches; call it before anything moves."""
        for launch, indices in enumerate(arguments):
            for position, index in enumerate(indices):
                change = functools.partial(recorded.change, launch, position)
                self._users.setdefault(index, []).append(change)

    def move(self, index: int, memory: cl.Buffer) -> None:
        """Let everybody read an entry of the table in this buffer from the next run on.

        Raises:
            pyopencl.Error: the driver does not take it.
        """
        # Cheap where nothing changes: it is called for each input that is a buffer.
        if self._moved.get(index) == memory:
            return
        self._moved[index] = None  # some may be told and some not, should the driver refuse
        for use in self._users.get(index, ()):
            use(memory)
        self._moved[index] = memory

    def restore(self, index: int, own: cl.Buffer) -> None:
        """Let everybody read it in its own place again.

        Raises:
            pyopencl.Error: as `move`.
        """
        if index in self._moved:
            self.move(index, own)
            del self._moved[index]
