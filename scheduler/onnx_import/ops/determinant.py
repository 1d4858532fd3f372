"""Translator of Det: determinants of batches of small matrices.

Up to 3 x 3 by the sum of signed products; larger ones by elimination, the row with the largest
first element brought up in every step (Golub, Van Loan, Matrix Computations, 3.4).
"""

from __future__ import annotations

import numpy as np

from scheduler.errors import ModelError
from scheduler.onnx_import.context import NodeContext, Value
from scheduler.onnx_import.ops.picks import ramp
from scheduler.tensor.tensor import Tensor

# Every step of an elimination is a few kernels.
MAX_SIZE = 16


def determinant(ctx: NodeContext) -> Value:
    """Translate Det: (..., n, n) -> (...), n up to 16 at run time."""
    x = ctx.tensor(0)
    if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        raise ModelError(f"expected square matrices, found shape {x.shape}")
    size = x.shape[-1]
    known = ctx.value(0)
    if size > MAX_SIZE and not isinstance(known, Tensor):
        return np.asarray(np.linalg.det(known.astype(np.float64)), known.dtype)
    if size > MAX_SIZE:
        raise ModelError(f"matrices of {size} x {size} are not supported, at most {MAX_SIZE}")
    if size <= 3:
        return _expanded(x, size)
    lead = x.shape[:-2]
    x = x.reshape((-1, size, size))
    total: Tensor | None = None
    for left in range(size, 3, -1):
        x, pivot = _eliminated(x, left)
        total = pivot if total is None else total * pivot
    last = _expanded(x, 3)
    return (last if total is None else total * last).reshape(lead)


def _expanded(x: Tensor, size: int) -> Tensor:
    """Return the determinant of (..., size, size), size up to 3."""
    if size == 0:
        return Tensor.ones(x.shape[:-2], dtype=x.dtype)

    def at(i: int, j: int) -> Tensor:
        return x[..., i, j]

    if size == 1:
        return at(0, 0)
    if size == 2:
        return at(0, 0) * at(1, 1) - at(0, 1) * at(1, 0)
    minors = [at(1, j) * at(2, k) - at(1, k) * at(2, j) for j, k in ((1, 2), (0, 2), (0, 1))]
    return at(0, 0) * minors[0] - at(0, 1) * minors[1] + at(0, 2) * minors[2]


def _eliminated(x: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return (batch, size-1, size-1), and the factor (batch,) that its determinant misses."""
    place = x[:, :, 0].abs().argmax(1, keepdim=True).contiguous()  # (batch, 1)
    chosen = ramp(size, 1, 2).eq(place).unsqueeze(2)
    row = chosen.where(x, 0).sum(1, keepdim=True)  # (batch, 1, size)
    below = chosen.where(x[:, :1], x)[:, 1:]
    pivot = row[:, :, :1]
    ratio = pivot.eq(0).where(0, below[:, :, :1] / pivot.eq(0).where(1, pivot))
    rest = (below[:, :, 1:] - ratio * row[:, :, 1:]).contiguous()
    signed = place.eq(0).where(pivot.reshape((-1, 1)), -pivot.reshape((-1, 1)))
    return rest, signed.reshape((-1,))
