"""One entry point bound to a device: kernels with their arguments set, host arrays for outputs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.errors import ArtifactError, InputError, first_line
from runtime.manifest import BufferSpec, EntrySpec, KernelSpec, Manifest
from runtime.opencl import cl


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name, shape and dtype of an input or output."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


@dataclass(frozen=True, slots=True)
class InputSlot:
    """An input and the buffer it is written to."""

    name: str
    spec: TensorSpec
    buffer: cl.Buffer


@dataclass(frozen=True, slots=True)
class OutputSlot:
    """An output, its buffer, and the host array it is read into on every run."""

    name: str
    spec: TensorSpec
    buffer: cl.Buffer
    array: NDArray[Any]


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel with its arguments set once, and its index space."""

    name: str
    kernel: cl.Kernel
    global_size: tuple[int, int, int]
    local_size: tuple[int, int, int]
    origin: tuple[str, ...]
    flops: int
    bytes_moved: int


@dataclass(frozen=True, slots=True)
class BoundEntry:
    """What `Program.run` walks through; nothing in it changes after loading."""

    name: str
    inputs: tuple[InputSlot, ...]
    outputs: tuple[OutputSlot, ...]
    launches: tuple[Launch, ...]
    results: dict[str, NDArray[Any]]

    def check_inputs(self, inputs: Mapping[str, NDArray[Any]]) -> None:
        """Check names, dtypes, shapes and layout; no data is looked at.

        Raises:
            InputError: names the first input that does not fit.
        """
        for slot in self.inputs:
            array = inputs.get(slot.name)
            if (
                type(array) is not np.ndarray
                or array.dtype != slot.spec.dtype
                or array.shape != slot.spec.shape
                or not array.flags.c_contiguous
            ):
                raise InputError(self._mismatch(slot.spec, array))
        if len(inputs) != len(self.inputs):
            known = [slot.name for slot in self.inputs]
            extra = ", ".join(repr(name) for name in inputs if name not in known)
            raise InputError(
                f"entry {self.name!r}: unknown input {extra}; it takes: {', '.join(known)}"
            )

    def _mismatch(self, spec: TensorSpec, array: object) -> str:
        where = f"entry {self.name!r}, input {spec.name!r}"
        wanted = f"expected {spec.dtype}{list(spec.shape)}"
        if array is None:
            return f"{where}: {wanted}, it is missing"
        if not isinstance(array, np.ndarray):
            return f"{where}: {wanted} as numpy array, found {type(array).__name__}"
        if array.dtype == spec.dtype and array.shape == spec.shape:
            return f"{where}: {wanted}, C-contiguous; use numpy.ascontiguousarray"
        return f"{where}: {wanted}, found {array.dtype}{list(array.shape)}"


def bind_entry(
    entry: EntrySpec,
    manifest: Manifest,
    launches: Sequence[Launch],
    buffers: Sequence[cl.Buffer],
) -> BoundEntry:
    """Gather the launches of `entry` and make the arrays of its outputs.

    Args:
        entry: one of the manifest's.
        manifest: the whole.
        launches: for each kernel of the manifest, as `bind_launches` returns them.
        buffers: for each buffer of the manifest, the device's.
    """
    specs = manifest.buffers
    outputs = tuple(
        OutputSlot(
            specs[index].name,
            _tensor_spec(specs[index]),
            buffers[index],
            np.zeros(specs[index].shape, specs[index].dtype),
        )
        for index in entry.outputs
    )
    return BoundEntry(
        name=entry.name,
        inputs=tuple(
            InputSlot(specs[index].name, _tensor_spec(specs[index]), buffers[index])
            for index in entry.inputs
        ),
        outputs=outputs,
        launches=tuple(launches[index] for index in entry.launches),
        results={slot.name: slot.array for slot in outputs},
    )


def bind_launches(
    manifest: Manifest, programs: Sequence[cl.Program], buffers: Sequence[cl.Buffer]
) -> list[Launch]:
    """Create each kernel of the manifest with its arguments set; entries share them.

    Raises:
        ArtifactError: a program has no such kernel, or the kernel takes other arguments.
    """
    return [_bind_launch(spec, programs, buffers) for spec in manifest.kernels]


def _tensor_spec(spec: BufferSpec) -> TensorSpec:
    return TensorSpec(spec.name, spec.shape, np.dtype(spec.dtype))


def _bind_launch(
    spec: KernelSpec, programs: Sequence[cl.Program], buffers: Sequence[cl.Buffer]
) -> Launch:
    where = f"kernel {spec.name!r}"
    try:
        kernel = cl.Kernel(programs[spec.program], spec.name)
        if kernel.num_args != len(spec.args):
            raise ArtifactError(
                f"{where}: its source takes {kernel.num_args} arguments, the manifest gives "
                f"{len(spec.args)}"
            )
        for position, index in enumerate(spec.args):
            kernel.set_arg(position, buffers[index])
    except cl.Error as error:
        raise ArtifactError(f"{where}: cannot be bound: {first_line(error)}") from error
    return Launch(
        name=spec.name,
        kernel=kernel,
        global_size=spec.global_size,
        local_size=spec.local_size,
        origin=spec.origin,
        flops=spec.flops,
        bytes_moved=spec.bytes_moved,
    )
