"""Translators of matrix products."""

from __future__ import annotations

import numpy as np

from scheduler.errors import ModelError
from scheduler.onnx_import.context import NodeContext, Value
from scheduler.tensor.tensor import Tensor


def matmul(ctx: NodeContext) -> Value:
    """Translate MatMul: numpy's rules for vectors and batches."""
    a, b = ctx.tensor(0), ctx.tensor(1)
    if a.ndim == 0 or b.ndim == 0:
        raise ModelError(f"expected at least one axis each, found shapes {a.shape} and {b.shape}")
    return a.matmul(b).cast(a.dtype)


def gemm(ctx: NodeContext) -> Tensor:
    """Translate Gemm: alpha A' B' + beta C, A' (M, K), B' (K, N), C broadcasts to (M, N).

    With integers alpha and beta are cut to integers.
    """
    a, b = ctx.tensor(0), ctx.tensor(1)
    if a.ndim != 2 or b.ndim != 2:
        raise ModelError(f"expected two matrices, found shapes {a.shape} and {b.shape}")
    if ctx.integer("transA", 0):
        a = a.transpose()
    if ctx.integer("transB", 0):
        b = b.transpose()
    product = _scaled(a.matmul(b).cast(a.dtype), ctx.number("alpha", 1.0))
    beta = ctx.number("beta", 1.0)
    if not ctx.has(2) or beta == 0.0:
        return product
    c = ctx.tensor(2)
    if np.broadcast_shapes(c.shape, product.shape) != product.shape:
        raise ModelError(f"C of shape {c.shape} does not broadcast to {product.shape}")
    return product + _scaled(c, beta)


def _scaled(x: Tensor, factor: float) -> Tensor:
    if factor == 1.0:
        return x
    return x * factor if x.dtype.is_float else (x * int(factor)).cast(x.dtype)
