"""Translators of products with quantised weights of com.microsoft, as quantisers write them.

Formulas: ONNX Runtime's documentation of its contributed operators.
"""

from __future__ import annotations

import numpy as np

from scheduler.errors import ModelError
from scheduler.ir import dtype as dt
from scheduler.onnx_import.context import Array, NodeContext, Value
from scheduler.onnx_import.ops.quantize import dynamically_quantized, real_product, scheme_at
from scheduler.tensor.tensor import Tensor


def dynamic_quantize_matmul(ctx: NodeContext) -> Value:
    """Translate DynamicQuantizeMatMul: A float32, quantised to uint8 by its own range; A B + bias.

    Inputs: A, B, scale and zero point of B (one, or one for each column), bias.
    """
    left, quantized = dynamically_quantized(ctx.tensor(0))
    product = real_product(left, quantized, scheme_at(ctx, 2, 3), ctx.tensor(1))
    return _with_bias(ctx, product, 4)


def matmul_integer_to_float(ctx: NodeContext) -> Value:
    """Translate MatMulIntegerToFloat: A, B, scales of both, zero points of both, bias."""
    left, right = scheme_at(ctx, 2, 4), scheme_at(ctx, 3, 5)
    return _with_bias(ctx, real_product(left, ctx.tensor(0), right, ctx.tensor(1)), 6)


def matmul_nbits(ctx: NodeContext) -> Value:
    """Translate MatMulNBits: A (..., K) times B' + bias, B (N, K) of 2, 4 or 8 bits, packed.

    Along K each block of B has a scale and a zero point: packed like B, or a float. All of B's
    inputs must be constants. `accuracy_level` allows less than float32, which is not made use of.

    Raises:
        ModelError: the sizes do not fit, or the columns are reordered (g_idx).
    """
    if ctx.has(4):
        raise ModelError("g_idx is not supported; export without reordered columns")
    bits, block = ctx.integer("bits", 4), ctx.integer("block_size", 0)
    size, count = ctx.integer("K", 0), ctx.integer("N", 0)
    if bits not in (2, 4, 8) or block < 16 or size < 1 or count < 1:
        raise ModelError(f"expected bits of 2, 4 or 8, found bits={bits}, block_size={block}")
    blocks = -(-size // block)
    values = _unpacked(ctx.const(1, "B").reshape(count, -1), bits)
    a, scales = ctx.tensor(0), ctx.tensor(2)
    if values.shape != (count, blocks * block) or scales.size != count * blocks:
        raise ModelError(f"B and its scales do not hold {count} x {blocks} blocks of {block}")
    zero: Tensor | float = float(1 << (bits - 1))
    if ctx.has(3):
        zero = _zero_points(ctx.const(3, "zero points"), count, blocks, bits)
    parts = Tensor.weight(values.reshape(count, blocks, block)).cast(dt.float32) - zero
    weight = (parts * scales.cast(dt.float32).reshape((count, blocks, 1))).reshape((count, -1))
    product = a.cast(dt.float32).matmul(weight[:, :size].transpose())
    return _with_bias(ctx, product, 5).as_type(a.dtype)


def _with_bias(ctx: NodeContext, product: Tensor, index: int) -> Tensor:
    return product + ctx.tensor(index).cast(product.dtype) if ctx.has(index) else product


def _unpacked(packed: Array, bits: int) -> Array:
    """Return unsigned numbers (rows, n) from bytes that hold several, the lowest bits first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    numbers = (packed.astype(np.uint8)[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    return np.asarray(numbers.reshape(packed.shape[0], -1), order="C")


def _zero_points(given: Array, count: int, blocks: int, bits: int) -> Tensor:
    """Return zero points (N, blocks, 1) in float32."""
    found = given.reshape(count, -1)
    found = _unpacked(found, bits)[:, :blocks] if found.dtype == np.uint8 else found
    if found.shape != (count, blocks):
        raise ModelError(f"expected zero points of {count} x {blocks} blocks, found {given.shape}")
    return Tensor.weight(np.asarray(found[..., None], np.float32, order="C"))
