"""One run of a program launch by launch, for tools that look for the launch that went wrong.

Slow on purpose: after each launch the device is idle and every buffer can be read.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.errors import RuntimeFault, first_line
from runtime.opencl.binding import cl
from runtime.run.program import Program


class Stepper:
    """Runs a program launch by launch; its state advances as in `Program.run`.

    `program`: loaded; stays the caller's.
    """

    def __init__(self, program: Program) -> None:
        self._program = program

    def states(self) -> dict[str, NDArray[Any]]:
        """Return copies of all state buffers by name."""
        buffers = self._program.manifest.buffers
        return {spec.name: self._program.state(spec.name) for spec in buffers if self._is(spec)}

    def set_states(self, values: Mapping[str, NDArray[Any]]) -> None:
        """Write state buffers.

        `values`: by name, of the declared size in bytes; names that are none are passed over.

        Raises:
            RuntimeFault: the device failed.
        """
        for index, spec in enumerate(self._program.manifest.buffers):
            value = values.get(spec.name)
            if not self._is(spec) or value is None:
                continue
            assert value.nbytes == spec.payload_bytes, spec.name
            self._copy(self._program._memory.buffer(index), np.asarray(value, order="C"), spec.name)

    def launches(self, inputs: Mapping[str, NDArray[Any]], entry: str) -> Iterator[int]:
        """Run an entry and yield the number of each launch when it is done.

        `inputs`: as for `Program.run`.

        Raises:
            InputError: as `Program.run`.
            RuntimeFault: the device failed.
        """
        program = self._program
        bound = program._entry(entry)
        bound.check_inputs(inputs)
        queue = program._queue
        try:
            program._recover(queue)
            bound.write(inputs, queue, program._pending)
            for number, step in enumerate(program._steps_of(bound)):
                step.enqueue(queue)
                queue.finish()
                yield number
        except cl.Error as error:
            raise RuntimeFault(f"entry {entry!r}, step by step: {first_line(error)}") from error
        finally:
            queue.finish()
            program._pending.clear()

    def read(self, index: int) -> NDArray[np.uint8] | None:
        """Return the bytes of a buffer of the manifest, without padding; None for an image."""
        spec = self._program.manifest.buffers[index]
        if spec.image is not None or spec.payload_bytes == 0:
            return None
        found = np.empty(spec.payload_bytes, np.uint8)
        self._copy(found, self._program._memory.buffer(index), spec.name)
        return found

    @staticmethod
    def _is(spec: Any) -> bool:
        return bool(spec.kind == "state")

    def _copy(self, to: Any, source: Any, name: str) -> None:
        try:
            cl.enqueue_copy(self._program._queue, to, source)
        except cl.Error as error:
            raise RuntimeFault(f"buffer {name!r}: {first_line(error)}") from error
