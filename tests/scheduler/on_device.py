"""Compile a few tensors and run them on the OpenCL device, as often as a test likes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from runtime.artifact import from_memory
from runtime.device import choose_device
from runtime.executor import Program
from runtime.program_cache import shared_cache
from scheduler.emit.artifact import Emitted, emit
from scheduler.pipeline import schedule
from scheduler.tensor.tensor import Tensor

Array = NDArray[Any]


def emitted(outputs: Mapping[str, Tensor], writes: Sequence[Tensor] = ()) -> Emitted:
    """Return the artifact of one entry "run"."""
    plan = schedule({n: t.node for n, t in outputs.items()}, [w.node for w in writes])
    return emit({"run": plan}, name="test", kind="plain")


def load(outputs: Mapping[str, Tensor], writes: Sequence[Tensor] = ()) -> Program:
    """Return the loaded program of one entry "run"; the caller closes it."""
    made = emitted(outputs, writes)
    device = choose_device(None)
    return Program(from_memory(made.manifest, made.data), device, shared_cache(device))


def compute(tensor: Tensor, **inputs: Array) -> Array:
    """Compile and run one tensor once."""
    with load({"y": tensor}) as program:
        return program.run(inputs)["y"].copy()
