"""Small hand-written kernels, and programs of them compared with the interpreter."""

from __future__ import annotations

import numpy as np

from scheduler import CustomKernel, custom_kernel
from scheduler.ir import dtype as dt
from scheduler.tensor.tensor import Tensor
from tests.scheduler.support.programs import Array, Made, same, values_of

F32 = dt.float32


def scale(*shape: int, slot: bool = True, factor: float = 2.0) -> CustomKernel:
    """y = factor * x, one work-item per element."""
    size = int(np.prod(shape))
    store = "EPILOGUE(value, i);" if slot else "out0[i] = value;"
    source = f"const int i = get_global_id(0);\nconst float value = {factor}f * in0[i];\n{store}"
    return CustomKernel("scale", source, [(shape, F32)], size, lambda v: v * np.float32(factor))


def scaled(t: Tensor, *, slot: bool = True) -> Tensor:
    (y,) = custom_kernel(scale(*t.shape, slot=slot), t)
    return y


def kinds(made: Made) -> list[str]:
    return [launch.kind for launch in made.table.launches]


def check(made: Made, outputs: list[Tensor], **inputs: Array) -> None:
    """Compare every output with the interpreter."""
    for got, tensor in zip(values_of(made, **inputs), outputs, strict=True):
        same(got, tensor.interp(inputs))
