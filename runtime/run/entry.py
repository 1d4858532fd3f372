"""Entry points bound to a device: kernels with their arguments, host arrays for outputs.

Kernels are given their arguments once. If an input moves to another buffer, its readers are
updated: the kernels that are launched by themselves, and the recordings that hold them.
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
    """The readers of each entry of the buffer table, and its place if it has moved."""

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
        """Let all kernels read an entry of the table in this buffer from the next run on.

        Raises pyopencl.Error if the driver does not take it.
        """
        # Cheap where nothing changes: it is called for each input that is a buffer.
        if self._moved.get(index) == memory:
            return
        self._moved[index] = None  # should the driver refuse, some may have it and some not
        for use in self._users.get(index, ()):
            use(memory)
        self._moved[index] = memory

    def restore(self, index: int, own: cl.Buffer) -> None:
        """Let all kernels read it in its own place again; raise as `move`."""
        if index in self._moved:
            self.move(index, own)
            del self._moved[index]


# Inputs of a run: arrays, or buffers of the device that hold an input already.
Inputs = Mapping[str, NDArray[Any] | cl.Buffer]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name, shape and dtype of an input or output; of a partial input the shape is the longest."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    partial: bool = False

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Return whether an array of this shape is taken; one of no bytes is not partial."""
        if not self.partial:
            return shape == self.shape
        return len(shape) == 1 and min(1, self.shape[0]) <= shape[0] <= self.shape[0]


@dataclass(frozen=True, slots=True)
class InputSlot:
    """An input, the buffer it is written to, and its memory where the host has access."""

    name: str
    spec: TensorSpec
    index: int  # of the buffer table
    buffer: cl.Buffer
    view: NDArray[Any] | None


@dataclass(frozen=True, slots=True)
class OutputSlot:
    """An output, its buffer, and the host array it is read into on every run."""

    name: str
    spec: TensorSpec
    buffer: cl.Buffer
    view: NDArray[Any] | None
    array: NDArray[Any]


@dataclass(frozen=True, slots=True)
class BoundEntry:
    """The bound form of an entry, which `Program.run` executes; it never changes after loading."""

    name: str
    inputs: tuple[InputSlot, ...]
    outputs: tuple[OutputSlot, ...]
    launches: tuple[KernelSpec, ...]  # kernels of the manifest, in order
    steps: tuple[Step, ...]  # one for each launch, or one for many joined by megakernel or driver
    results: dict[str, NDArray[Any]]  # what `Program.run` returns
    arguments: Arguments | None  # of the kernels; None for the megakernel's, which never change

    def check_inputs(self, inputs: Inputs) -> None:
        """Check names, dtypes, shapes and layout; no data is looked at.

        InputError names the first input that does not fit.
        """
        for slot in self.inputs:
            array = inputs.get(slot.name)
            if (
                # The exact type is asked for: subclasses such as masked arrays may mean something
                # else by their memory.
                type(array) is not np.ndarray
                or array.dtype != slot.spec.dtype
                or not (array.shape == slot.spec.shape or slot.spec.fits(array.shape))
                or not array.flags.c_contiguous
            ) and not _is_memory(slot, array):
                raise InputError(self._mismatch(slot.spec, array))
        # All known inputs were found, so a difference in number is an unknown one.
        if len(inputs) != len(self.inputs):
            known = [slot.name for slot in self.inputs]
            extra = ", ".join(repr(name) for name in inputs if name not in known)
            raise InputError(
                f"entry {self.name!r}: unknown input {extra}; it takes: {', '.join(known)}"
            )

    def write(self, inputs: Inputs, queue: cl.CommandQueue, pending: list[cl.Event]) -> None:
        """Write checked inputs, or enqueue that; `pending` must outlive the commands.

        Raises pyopencl.Error if the device refuses.
        """
        arguments = self.arguments
        for slot in self.inputs:
            array = inputs[slot.name]
            if isinstance(array, cl.Buffer):
                # Kernels read the buffer where it is, if their arguments can change.
                if arguments is not None:
                    arguments.move(slot.index, array)
                else:
                    size = slot.buffer.size
                    copied = cl.enqueue_copy(queue, slot.buffer, array, byte_count=size)
                    pending.append(copied)
                continue
            if arguments is not None:
                arguments.restore(slot.index, slot.buffer)
            # Memory of the host needs no command: the queue is empty between runs.
            if slot.view is not None:
                # The rest of a partial input keeps its bytes.
                view = slot.view[: array.size] if slot.spec.partial else slot.view
                np.copyto(view, array)
            else:
                # The copy is not awaited: the queue runs in order, so kernels come after it.
                copied = cl.enqueue_copy(queue, slot.buffer, array, is_blocking=False)
                pending.append(copied)

    def read(self, queue: cl.CommandQueue, pending: list[cl.Event]) -> None:
        """Wait for the queue and read the outputs; raise pyopencl.Error if the device failed."""
        for out in self.outputs:
            if out.view is None:
                copied = cl.enqueue_copy(queue, out.array, out.buffer, is_blocking=False)
                pending.append(copied)
        # This wait ends kernels and copies alike; before it, views may show half a result.
        queue.finish()
        for out in self.outputs:
            if out.view is not None:
                np.copyto(out.array, out.view)

    def release(self) -> None:
        """Give recordings back; the entry does not run again."""
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
    """Return whether an input is a buffer that kernels can read in place of its own."""
    return isinstance(given, cl.Buffer) and given.size >= slot.buffer.size


class Binder:
    """Turns the launches of entries into steps; kernels launched by themselves are shared."""

    def __init__(
        self,
        manifest: Manifest,
        programs: Sequence[cl.Program | None],
        memory: DeviceMemory,
        megakernel: Megakernel | None,
    ) -> None:
        """Keep the parts of steps; `programs` has None for each program that no step needs.

        The megakernel runs the kernels that have a function; None launches each by itself.
        """
        self._manifest = manifest
        self._programs = programs
        self._memory = memory
        self._megakernel = megakernel
        self._launches: dict[int, Launch] = {}
        self._arguments = Arguments()

    def bind(self, entry: EntrySpec) -> BoundEntry:
        """Make the steps of an entry and the arrays of its outputs.

        Raises ArtifactError if a program has no such kernel, or the kernel takes other arguments.
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
        """Return an entry whose launches the driver recorded as one step; else RecordingError."""
        launches = [step for step in bound.steps if isinstance(step, Launch)]
        assert len(launches) == len(bound.steps)  # none is recorded yet
        step = Recorded(launches, recorder.record(launches))
        if bound.arguments is not None:
            bound.arguments.add_recording(step, [kernel.args for kernel in bound.launches])
        return replace(bound, steps=(step,))

    def single_steps(self, entry: EntrySpec) -> tuple[Step, ...]:
        """Return steps of one launch each, of the same code as those of `bind`; raise as it."""
        return self._steps(entry, 1)

    def _steps(self, entry: EntrySpec, most: int) -> tuple[Step, ...]:
        """Return steps in order; a step runs at most `most` launches."""
        steps: list[Step] = []
        at = 0
        while at < len(entry.launches):
            count = self._as_one(entry.launches[at : at + most])
            if count and self._megakernel is not None:
                # A step that joins launches is named by its first and last one, which traces show.
                names = [self._manifest.kernels[i].name for i in entry.launches[at : at + count]]
                name = names[0] if count == 1 else f"{names[0]} .. {names[-1]}"
                kernel = self._megakernel.kernel(entry, at, count)
                # Each work-item of the launch is a worker that lives for the whole step.
                steps.append(Launch(name, kernel, (self._megakernel.workers, 1, 1), (1, 1, 1)))
            else:
                steps.append(self._launch(entry.launches[at]))
            at += max(1, count)
        return tuple(steps)

    def _as_one(self, launches: Sequence[int]) -> int:
        """Return how many launches from the first on the megakernel runs."""
        if self._megakernel is None:
            return 0
        kernels = self._manifest.kernels
        alone = (n for n, index in enumerate(launches) if kernels[index].function < 0)
        return next(alone, len(launches))

    def _launch(self, index: int) -> Launch:
        """Return the step that launches a kernel of the manifest by itself."""
        # Entries share kernels that are launched alone: their arguments are the same in each.
        if index not in self._launches:
            spec = self._manifest.kernels[index]
            where = f"kernel {spec.name!r}"
            program = self._programs[spec.program]
            assert program is not None  # programs_needed
            try:
                kernel = cl.Kernel(program, spec.name)
                # A wrong number of arguments would only fail at the launch, without a name.
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
    """Return the programs that entries need, `as_one` if a megakernel runs what it can."""
    used = [manifest.kernels[index] for entry in manifest.entries for index in entry.launches]
    # A kernel without a function in the megakernel is always launched from its own program.
    alone = {k.program for k in used if k.function < 0 or not as_one}
    if as_one and manifest.megakernel is not None and any(k.function >= 0 for k in used):
        alone.add(manifest.megakernel.program)
    return frozenset(alone)


def tensor_spec(spec: BufferSpec) -> TensorSpec:
    """Return the array that a buffer of a manifest is for the host."""
    return TensorSpec(spec.name, spec.shape, np.dtype(spec.dtype), spec.partial)
