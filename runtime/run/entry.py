"""Binds an artifact's entry points to a device: kernels with arguments, and arrays for outputs.

Kernels refer to buffers by their index in the manifest's buffer table. Their arguments are set
once, when the program is loaded. If the caller passes an input in a device buffer of its own, the
arguments of all kernels and recordings (launches that the driver holds as one command) that read it
are updated.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.errors import ArtifactError, InputError, first_line
from runtime.format.manifest import BufferSpec, EntrySpec, KernelSpec, Manifest
from runtime.opencl.binding import cl
from runtime.opencl.recording import Recorder
from runtime.opencl.steps import Launch, Recorded, Step
from runtime.run.megakernel import Megakernel
from runtime.run.memory import DeviceMemory


class Arguments:
    """Tracks which kernel arguments use each buffer of the table, to replace it by a caller's."""

    def __init__(self) -> None:
        self._users: dict[int, list[Callable[[cl.Buffer], None]]] = {}
        self._moved: dict[int, cl.Buffer | None] = {}

    def add_kernel(self, kernel: cl.Kernel, arguments: tuple[int, ...]) -> None:
        """Register a kernel; `arguments` has the buffer table index of each argument."""
        for position, index in enumerate(arguments):
            self._users.setdefault(index, []).append(functools.partial(kernel.set_arg, position))

    def add_recording(self, recorded: Recorded, arguments: list[tuple[int, ...]]) -> None:
        """Register a recording by the arguments of its launches. Call it before any `move`."""
        for launch, indices in enumerate(arguments):
            for position, index in enumerate(indices):
                change = functools.partial(recorded.change, launch, position)
                self._users.setdefault(index, []).append(change)

    def move(self, index: int, memory: cl.Buffer) -> None:
        """Let all kernels use `memory` for a buffer of the table, from the next run on.

        Raises pyopencl.Error if the driver refuses it.
        """
        # Usually nothing changes, so this is fast: it is called for every input that is a buffer.
        if self._moved.get(index) == memory:
            return
        self._moved[index] = None  # if the driver refuses, only some arguments have changed
        for use in self._users.get(index, ()):
            use(memory)
        self._moved[index] = memory

    def restore(self, index: int, own: cl.Buffer) -> None:
        """Let all kernels use the table's own buffer again; raises as `move` does."""
        if index in self._moved:
            self.move(index, own)
            del self._moved[index]


# Inputs of a run: arrays, or device buffers that already hold an input.
Inputs = Mapping[str, NDArray[Any] | cl.Buffer]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name, shape and dtype of an input or output. A partial input may be shorter than `shape`."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    partial: bool = False

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Return whether an array of this shape is accepted; a partial one must not be empty."""
        if not self.partial:
            return shape == self.shape
        return len(shape) == 1 and min(1, self.shape[0]) <= shape[0] <= self.shape[0]


@dataclass(frozen=True, slots=True)
class InputSlot:
    """An input, its buffer, and a view of its memory; the view is None without host access."""

    name: str
    spec: TensorSpec
    index: int  # index in the buffer table
    buffer: cl.Buffer
    view: NDArray[Any] | None


@dataclass(frozen=True, slots=True)
class OutputSlot:
    """An output, its buffer, and the host array into which every run reads it."""

    name: str
    spec: TensorSpec
    buffer: cl.Buffer
    view: NDArray[Any] | None
    array: NDArray[Any]


@dataclass(frozen=True, slots=True)
class BoundEntry:
    """An entry bound to the device, for `Program.run`. It never changes after loading."""

    name: str
    inputs: tuple[InputSlot, ...]
    outputs: tuple[OutputSlot, ...]
    launches: tuple[KernelSpec, ...]  # the manifest's kernels, in launch order
    steps: tuple[Step, ...]  # one per launch, or one for many joined by megakernel or driver
    results: dict[str, NDArray[Any]]  # the return value of `Program.run`
    arguments: Arguments | None  # the kernels' arguments; None with a megakernel

    def check_inputs(self, inputs: Inputs) -> None:
        """Check the names, dtypes, shapes and layout of inputs, but not their data.

        Raises InputError, which names the first input that does not fit.
        """
        for slot in self.inputs:
            array = inputs.get(slot.name)
            if (
                # Only the exact type: subclasses such as masked arrays can give their memory
                # another meaning.
                type(array) is not np.ndarray
                or array.dtype != slot.spec.dtype
                or not (array.shape == slot.spec.shape or slot.spec.fits(array.shape))
                or not array.flags.c_contiguous
            ) and not _is_memory(slot, array):
                raise InputError(self._mismatch(slot.spec, array))
        # All known inputs were found, so a different number means an unknown one.
        if len(inputs) != len(self.inputs):
            known = [slot.name for slot in self.inputs]
            extra = ", ".join(repr(name) for name in inputs if name not in known)
            raise InputError(
                f"entry {self.name!r}: unknown input {extra}; it takes: {', '.join(known)}"
            )

    def write(self, inputs: Inputs, queue: cl.CommandQueue, pending: list[cl.Event]) -> None:
        """Write checked inputs, or enqueue their copies. `pending` must outlive the commands.

        Raises pyopencl.Error if the device refuses.
        """
        arguments = self.arguments
        for slot in self.inputs:
            array = inputs[slot.name]
            if isinstance(array, cl.Buffer):
                # If arguments can change, kernels read the caller's buffer directly.
                if arguments is not None:
                    arguments.move(slot.index, array)
                else:
                    size = slot.buffer.size
                    copied = cl.enqueue_copy(queue, slot.buffer, array, byte_count=size)
                    pending.append(copied)
                continue
            if arguments is not None:
                arguments.restore(slot.index, slot.buffer)
            # The host can write its own memory directly, because the queue is idle between runs.
            if slot.view is not None:
                # The rest of a partial input stays unchanged.
                view = slot.view[: array.size] if slot.spec.partial else slot.view
                np.copyto(view, array)
            else:
                # No wait is needed: the queue is in order, so the kernels run after the copy.
                copied = cl.enqueue_copy(queue, slot.buffer, array, is_blocking=False)
                pending.append(copied)

    def read(self, queue: cl.CommandQueue, pending: list[cl.Event]) -> None:
        """Wait for the queue and read the outputs; raise pyopencl.Error if the device failed."""
        for out in self.outputs:
            if out.view is None:
                copied = cl.enqueue_copy(queue, out.array, out.buffer, is_blocking=False)
                pending.append(copied)
        # Wait for kernels and copies together. Before that, views may hold incomplete results.
        queue.finish()
        for out in self.outputs:
            if out.view is not None:
                np.copyto(out.array, out.view)

    def release(self) -> None:
        """Release the recordings; the entry is not run again."""
        for step in self.steps:
            if isinstance(step, Recorded):
                step.release()

    def _mismatch(self, spec: TensorSpec, array: object) -> str:
        where = f"entry {self.name!r}, input {spec.name!r}"
        most = f"[1 to {spec.shape[0]}]" if spec.partial else f"{list(spec.shape)}"
        wanted = f"expected {spec.dtype}{most}"
        if array is None:
            return f"{where}: {wanted}, it is missing"
        if not isinstance(array, np.ndarray):
            return f"{where}: {wanted} as numpy array, found {type(array).__name__}"
        if array.dtype == spec.dtype and spec.fits(array.shape):
            return f"{where}: {wanted}, C-contiguous; use numpy.ascontiguousarray"
        return f"{where}: {wanted}, found {array.dtype}{list(array.shape)}"


def _is_memory(slot: InputSlot, given: object) -> bool:
    """Return whether `given` is a buffer that kernels can read in place of the input's own."""
    return isinstance(given, cl.Buffer) and given.size >= slot.buffer.size


class Binder:
    """Turns the launches of entries into steps. Entries share kernels launched one by one."""

    def __init__(
        self,
        manifest: Manifest,
        programs: Sequence[cl.Program | None],
        memory: DeviceMemory,
        megakernel: Megakernel | None,
    ) -> None:
        """Store the parts of steps; `programs` has None for each program that no step needs.

        The megakernel runs the kernels that have a function in it. Without one (None) each kernel
        is launched separately.
        """
        self._manifest = manifest
        self._programs = programs
        self._memory = memory
        self._megakernel = megakernel
        self._launches: dict[int, Launch] = {}
        self._arguments = Arguments()

    def bind(self, entry: EntrySpec) -> BoundEntry:
        """Create the steps of an entry and the arrays of its outputs.

        Raises ArtifactError if a program lacks a kernel, or the kernel has other arguments.
        """
        specs, buffer, view = self._manifest.buffers, self._memory.buffer, self._memory.view
        outputs = tuple(
            OutputSlot(
                specs[index].name,
                tensor_spec(specs[index]),
                buffer(index),
                view(index),
                np.zeros(specs[index].shape, specs[index].dtype),
            )
            for index in entry.outputs
        )
        return BoundEntry(
            name=entry.name,
            inputs=tuple(
                InputSlot(
                    specs[index].name, tensor_spec(specs[index]), index, buffer(index), view(index)
                )
                for index in entry.inputs
            ),
            outputs=outputs,
            launches=tuple(self._manifest.kernels[index] for index in entry.launches),
            steps=self._steps(entry, len(entry.launches)),
            results={slot.name: slot.array for slot in outputs},
            arguments=self._arguments if self._megakernel is None else None,
        )

    def recorded(self, bound: BoundEntry, recorder: Recorder) -> BoundEntry:
        """Return an entry with all launches recorded as one step; may raise RecordingError."""
        launches = [step for step in bound.steps if isinstance(step, Launch)]
        assert len(launches) == len(bound.steps)  # nothing is recorded yet
        step = Recorded(launches, recorder.record(launches))
        if bound.arguments is not None:
            bound.arguments.add_recording(step, [kernel.args for kernel in bound.launches])
        return replace(bound, steps=(step,))

    def single_steps(self, entry: EntrySpec) -> tuple[Step, ...]:
        """Return steps of one launch each, with the same code as those of `bind`."""
        return self._steps(entry, 1)

    def _steps(self, entry: EntrySpec, most: int) -> tuple[Step, ...]:
        """Return the steps of an entry, in order, with at most `most` launches each."""
        steps: list[Step] = []
        at = 0
        while at < len(entry.launches):
            count = self._as_one(entry.launches[at : at + most])
            if count and self._megakernel is not None:
                # The step's name consists of its first and last launch. Traces show it.
                names = [self._manifest.kernels[i].name for i in entry.launches[at : at + count]]
                name = names[0] if count == 1 else f"{names[0]} .. {names[-1]}"
                kernel = self._megakernel.kernel(entry, at, count)
                # Each work-item is a worker that runs for the whole step.
                steps.append(Launch(name, kernel, (self._megakernel.workers, 1, 1), (1, 1, 1)))
            else:
                steps.append(self._launch(entry.launches[at]))
            at += max(1, count)
        return tuple(steps)

    def _as_one(self, launches: Sequence[int]) -> int:
        """Return how many launches, from the first on, the megakernel can run together."""
        if self._megakernel is None:
            return 0
        kernels = self._manifest.kernels
        alone = (n for n, index in enumerate(launches) if kernels[index].function < 0)
        return next(alone, len(launches))

    def _launch(self, index: int) -> Launch:
        """Return the step that launches one kernel of the manifest."""
        # Entries share these steps, because a kernel has the same arguments in each entry.
        if index not in self._launches:
            spec = self._manifest.kernels[index]
            where = f"kernel {spec.name!r}"
            program = self._programs[spec.program]
            assert program is not None  # see programs_needed
            try:
                kernel = cl.Kernel(program, spec.name)
                # Otherwise a wrong number of arguments would fail only at launch, without a name.
                if kernel.num_args != len(spec.args):
                    raise ArtifactError(
                        f"{where}: its source takes {kernel.num_args} arguments, the manifest "
                        f"gives {len(spec.args)}"
                    )
                for position, argument in enumerate(spec.args):
                    kernel.set_arg(position, self._memory.argument(argument))
            except cl.Error as error:
                raise ArtifactError(f"{where}: cannot be bound: {first_line(error)}") from error
            self._arguments.add_kernel(kernel, tuple(spec.args))
            self._launches[index] = Launch(spec.name, kernel, spec.global_size, spec.local_size)
        return self._launches[index]


def programs_needed(manifest: Manifest, *, as_one: bool) -> frozenset[int]:
    """Return the programs that entries need; `as_one` if a megakernel runs all kernels it can."""
    used = [manifest.kernels[index] for entry in manifest.entries for index in entry.launches]
    # A kernel without a function in the megakernel is always launched from its own program.
    alone = {k.program for k in used if k.function < 0 or not as_one}
    if as_one and manifest.megakernel is not None and any(k.function >= 0 for k in used):
        alone.add(manifest.megakernel.program)
    return frozenset(alone)


def tensor_spec(spec: BufferSpec) -> TensorSpec:
    """Return the host array's spec for a buffer of the manifest."""
    return TensorSpec(spec.name, spec.shape, np.dtype(spec.dtype), spec.partial)
