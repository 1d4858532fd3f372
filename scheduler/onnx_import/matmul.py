"""Matrix products."""

from __future__ import annotations

from scheduler.errors import ModelError
from scheduler.onnx_import.context import NodeContext, Value


def matmul(ctx: NodeContext) -> Value:
    """Translate MatMul: numpy's rules for vectors and batches."""
    return ctx.tensor(0).matmul(ctx.tensor(1))


def gemm(ctx: NodeContext) -> Value:
    """Translate Gemm: alpha A' B' + beta C, A' (M, K), B' (K, N), C broadcasts to (M, N)."""
    a, b = ctx.tensor(0), ctx.tensor(1)
    if a.ndim != 2 or b.ndim != 2:
        raise ModelError(f"expected two matrices, found shapes {a.shape} and {b.shape}")
    if ctx.integer("transA", 0):
        a = a.transpose()
    if ctx.integer("transB", 0):
        b = b.transpose()
    product = a.matmul(b)
    alpha, beta = ctx.number("alpha", 1.0), ctx.number("beta", 1.0)
    if alpha != 1.0:
        product = product * alpha
    if not ctx.has(2) or beta == 0.0:
        return product
    c = ctx.tensor(2)
    return product + (c if beta == 1.0 else c * beta)
