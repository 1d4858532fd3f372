"""Programs of a few tensors, scheduled, emitted as an artifact, and run on the OpenCL device."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.format.artifact import from_memory
from runtime.opencl.device import choose_device
from runtime.opencl.program_cache import shared_cache
from runtime.run.executor import Program
from scheduler.context import CompileContext, context_for
from scheduler.debug.kernel_table import KernelTable, kernel_tables
from scheduler.emit.artifact import Emitted, emit
from scheduler.emit.schedule import Schedule
from scheduler.ir.origin import Origins
from scheduler.pipeline import schedule
from scheduler.tensor.tensor import Tensor

Array = NDArray[Any]


@dataclass(frozen=True)
class Made:
    """A scheduled program: plan, manifest and data, table of launches."""

    plan: Schedule
    manifest: dict[str, Any]
    data: bytes
    table: KernelTable

    @property
    def launches(self) -> int:
        """Launches of one run, copies included."""
        return len(self.table.launches)

    @property
    def loops(self) -> list[tuple[int, ...]]:
        nests = [nest for launch in self.table.launches for nest in launch.nests]
        return [loop for nest in nests for loop in nest.reduced]

    @property
    def source(self) -> str:
        """The OpenCL C of all kernels, each once: that of the megakernel is left out."""
        replay = self.manifest["replay"].get("program")
        programs = enumerate(self.manifest["programs"])
        return "\n".join(program["source"] for i, program in programs if i != replay)

    @property
    def stored(self) -> list[tuple[str, tuple[int, ...]]]:
        """Type and shape of what lies in the arena."""
        arena = [b for b in self.manifest["buffers"] if b["kind"] == "arena"]
        return [(b["dtype"], tuple(b["shape"])) for b in arena]

    def load(self) -> Program:
        """Return the loaded program; the caller closes it."""
        return loaded(self.manifest, self.data)


def plan_of(
    outputs: Mapping[str, Tensor],
    writes: Sequence[Tensor] = (),
    context: CompileContext | None = None,
    origins: Origins | None = None,
) -> Schedule:
    """Schedule outputs and state writes as one entry: here tests call the pipeline.

    Without a context it is for the row `cpu` and the flags of the environment.
    """
    nodes = {n: t.node for n, t in outputs.items()}
    states = [w.node for w in writes]
    return schedule(nodes, states, context=context or context_for(), origins=origins)


def plan_for(*outputs: Tensor, writes: Sequence[Tensor] = ()) -> Schedule:
    return plan_of({f"y{i}": t for i, t in enumerate(outputs)}, writes)


def artifact_of(plan: Schedule) -> Emitted:
    """Return the artifact of one entry "run"."""
    return emit({"run": plan}, name="test", kind="plain")


def emitted(
    outputs: Mapping[str, Tensor],
    writes: Sequence[Tensor] = (),
    context: CompileContext | None = None,
) -> Emitted:
    return artifact_of(plan_of(outputs, writes, context))


def loaded(manifest: dict[str, Any], data: bytes) -> Program:
    """Return an artifact as a program on the device; the caller closes it."""
    device = choose_device(None)
    return Program(from_memory(manifest, data), device, shared_cache(device))


def load(
    outputs: Mapping[str, Tensor],
    writes: Sequence[Tensor] = (),
    context: CompileContext | None = None,
) -> Program:
    made = emitted(outputs, writes, context)
    return loaded(made.manifest, made.data)


def compute(tensor: Tensor, **inputs: Array) -> Array:
    with load({"y": tensor}) as program:
        return program.run(inputs)["y"].copy()


def make_program(
    outputs: Mapping[str, Tensor],
    writes: Sequence[Tensor] = (),
    context: CompileContext | None = None,
    origins: Origins | None = None,
) -> Made:
    """Schedule and emit outputs and state writes as one entry "run"."""
    plan = plan_of(outputs, writes, context, origins)
    made = artifact_of(plan)
    (table,) = kernel_tables(made.manifest, {"run": plan})
    return Made(plan, made.manifest, made.data, table)


def program_of(
    *outputs: Tensor, writes: Sequence[Tensor] = (), context: CompileContext | None = None
) -> Made:
    """The same for outputs y0, y1, ..."""
    return make_program({f"y{i}": t for i, t in enumerate(outputs)}, writes, context)


def values_of(made: Made, **inputs: Array) -> list[Array]:
    """Run a program once and return its outputs, the caller's to keep."""
    with made.load() as program:
        return [value.copy() for value in program.run(inputs).values()]


def same(got: Array, want: Array, tolerance: float = 1e-5) -> None:
    """Compare with numpy: shapes and integers exactly, floats to a tolerance."""
    assert got.shape == want.shape
    limit = tolerance if got.dtype.kind == "f" else 0.0
    np.testing.assert_allclose(got, want, rtol=limit, atol=limit)


def x(*shape: int, name: str = "x") -> Tensor:
    return Tensor.input(name, shape)


def floats(*shape: int, seed: int = 0) -> Array:
    """Return values in [-1, 1)."""
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)
