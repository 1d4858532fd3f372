"""Small hand-written kernels."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from scheduler import CustomKernel, custom_kernel
from scheduler.ir import dtype as dt
from scheduler.tensor.tensor import Tensor
from tests.scheduler.support.programs import Array, Made

F32 = dt.float32
ITEM = "int i = get_global_id(0); "
Shape = tuple[int, ...]


def by_hand(
    source: str,
    shape: Shape,
    reference: Callable[..., Array],
    *given: Tensor,
    kind: dt.DType = F32,
    items: int | None = None,
    lanes: int = 1,
    flops: int = 0,
) -> Tensor:
    """Return the output of a kernel of one work-item for each element, or of `items`."""
    count = items or int(np.prod(shape)) // lanes
    kernel = CustomKernel(
        "k", ITEM + source, [(shape, kind)], count, reference, lanes=lanes, flops=flops
    )
    return custom_kernel(kernel, *given)[0]


def scale(*shape: int, slot: bool = True, factor: float = 2.0) -> CustomKernel:
    """y = factor * x, one work-item per element."""
    store = "EPILOGUE(value, i);" if slot else "out0[i] = value;"
    source = f"{ITEM}const float value = {factor}f * in0[i];\n{store}"
    outputs, items = [(shape, F32)], int(np.prod(shape))
    return CustomKernel("scale", source, outputs, items, lambda v: v * np.float32(factor))


def scaled(t: Tensor, *, slot: bool = True) -> Tensor:
    return custom_kernel(scale(*t.shape, slot=slot), t)[0]


def pair(given: Tensor) -> tuple[Tensor, ...]:
    """2 x in the slot and x + 1 beside it, for 8 elements."""
    source = ITEM + "out1[i] = in0[i] + 1; EPILOGUE(in0[i] * 2, i);"
    outputs = [((8,), F32), ((8,), F32)]
    return custom_kernel(CustomKernel("pair", source, outputs, 8, lambda v: (v * 2, v + 1)), given)


SUMS = CustomKernel(
    "sums",
    "float s = 0; for (int i = 0; i < 4; i++) s += in0[i];\nout0[0] = s + 1; out1[0] = s * 2;",
    [((), F32), ((), F32)],
    1,
    lambda v: (v.sum() + 1, v.sum() * 2),
    flops=6,
)


def kinds(made: Made) -> str:
    return " ".join(launch.kind for launch in made.table.launches)
