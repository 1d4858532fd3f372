"""Compile tensors and run them once on a device: what `Tensor.numpy` does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime import run_once
from scheduler.emit import emit
from scheduler.schedule import schedule
from scheduler.tensor_core import TensorCore


def run(
    tensors: Sequence[TensorCore],
    inputs: Mapping[str, NDArray[Any]] | None = None,
    device: str | None = None,
) -> list[NDArray[Any]]:
    """Compile and run tensors on an OpenCL device.

    Args:
        tensors: what to compute.
        inputs: values of input buffers by name; states are zeros.
        device: as for `runtime.load_program`.

    Returns:
        One array per tensor, owned by the caller.

    Raises:
        SchedulerError: a tensor cannot be compiled.
        RuntimeFault: there is no device, a program does not build, an input does not fit.
    """
    names = [f"out{i}" for i in range(len(tensors))]
    plan = schedule({n: t.node for n, t in zip(names, tensors, strict=True)})
    emitted = emit({"run": plan}, name="tensor", kind="plain")
    outputs = run_once(emitted.manifest, emitted.data, inputs or {}, device)
    return [np.array(outputs[n]) for n in names]
