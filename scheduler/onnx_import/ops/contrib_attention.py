"""Translators of Attention, QAttention and MultiHeadAttention of com.microsoft, without caches.

Formulas: ONNX Runtime's documentation of its contributed operators.
"""

from __future__ import annotations

import math

from scheduler.errors import ModelError
from scheduler.ir import dtype as dt
from scheduler.onnx_import.context import NodeContext, Value
from scheduler.onnx_import.ops.quantize import real_product, scheme_at
from scheduler.onnx_import.ops.scaled_dot import Mask, join_heads, scaled_dot, split_heads
from scheduler.tensor.tensor import Tensor

# What is added to the scores of masked keys, unless the node says otherwise.
_MASKED = -10000.0


def packed_attention(ctx: NodeContext) -> Value:
    """Translate Attention: x (N, S, W), weights of Q, K and V side by side, bias optional.

    The mask is (N, T), (N, S, T), or (N,) lengths; scores may get an addend.
    """
    _refuse_extras(ctx, past=4)
    x, weight = ctx.tensor(0), ctx.tensor(1)
    joined = x.matmul(weight)
    if ctx.has(2):
        joined = joined + ctx.tensor(2)
    sizes = ctx.ints_attribute("qkv_hidden_sizes") or [joined.shape[2] // 3] * 3
    return _attend(ctx, *_heads(ctx, joined, sizes), mask=3, addend=5)


def _refuse_extras(ctx: NodeContext, past: int) -> None:
    """Refuse what neither form of Attention computes here."""
    if ctx.has(past) or ctx.outputs > 1:
        raise ModelError("a cache (past, present) is not supported")
    if ctx.integer("do_rotary", 0):
        raise ModelError("do_rotary=1 is not supported")


def quantized_attention(ctx: NodeContext) -> Value:
    """Translate QAttention: Attention of a quantised x and weight, everything else float32.

    Inputs: x, weight, bias, scales of x and weight, mask, zero points of x and weight.
    """
    _refuse_extras(ctx, past=8)
    left, right = scheme_at(ctx, 3, 6), scheme_at(ctx, 4, 7)
    joined = real_product(left, ctx.tensor(0), right, ctx.tensor(1)) + ctx.tensor(2)
    heads = _heads(ctx, joined, [joined.shape[2] // 3] * 3)
    return _attend(ctx, *heads, mask=5, addend=ctx.count)


def _heads(ctx: NodeContext, joined: Tensor, sizes: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    heads = ctx.integer("num_heads", 0)
    q, k, v = (split_heads(part, heads) for part in joined.split(sizes, axis=2))
    return q, k, v


def multi_head_attention(ctx: NodeContext) -> Value:
    """Translate MultiHeadAttention: Q (N, S, W), K and V (N, T, ·) or (N, heads, T, ·).

    Inputs: query, key, value, bias of all three, key_padding_mask, addend to the scores.
    """
    if any(ctx.has(i) for i in (6, 7, 8, 9)) or ctx.outputs > 1:
        raise ModelError("a cache (past_key, past_value) is not supported")
    if not (ctx.has(1) and ctx.has(2)) or ctx.tensor(0).ndim != 3:
        raise ModelError("packed queries, keys and values are not supported; expected three inputs")
    heads = ctx.integer("num_heads", 0)
    parts = [ctx.tensor(i) for i in range(3)]
    if ctx.has(3):
        widths = [p.shape[2] if p.ndim == 3 else p.shape[1] * p.shape[3] for p in parts]
        biases = ctx.tensor(3).split(widths, axis=0)
        parts = [p + b if p.ndim == 3 else p for p, b in zip(parts, biases, strict=True)]
    q, k, v = (split_heads(p, heads) if p.ndim == 3 else p for p in parts)
    return _attend(ctx, q, k, v, mask=4, addend=5)


def _attend(ctx: NodeContext, q: Tensor, k: Tensor, v: Tensor, *, mask: int, addend: int) -> Tensor:
    keys, rows = k.shape[2], q.shape[2]
    added = ctx.tensor(addend) if ctx.has(addend) else None
    if ctx.has(mask):
        kept = _kept(ctx.tensor(mask), k.shape[0], keys)
        filter_value = ctx.number("mask_filter_value", _MASKED)
        more = kept.where(0.0, Tensor(filter_value, dt.float32))
        added = more if added is None else added + more
    whole = Mask(added=added)
    if ctx.integer("unidirectional", 0):
        ahead = Tensor.arange(keys) - Tensor.arange(rows).unsqueeze(1)
        whole = whole.restricted(ahead <= keys - rows, may_be_empty=rows > keys)
    scale = ctx.number("scale", 0.0) or 1.0 / math.sqrt(q.shape[3])
    return join_heads(scaled_dot(q, k, v, whole, scale)[0])


def _kept(mask: Tensor, batch: int, keys: int) -> Tensor:
    """Return which keys count, (N, 1, 1 or S, T), from what a node says about padding."""
    if mask.shape == (batch,):
        return Tensor.arange(keys) < mask.reshape((batch, 1, 1, 1))
    if mask.shape == (batch, keys):
        return mask.reshape((batch, 1, 1, keys)).bool()
    if mask.ndim == 3 and mask.shape[::2] == (batch, keys):
        return mask.unsqueeze(1).bool()
    raise ModelError(
        f"a mask of shape {mask.shape} is not supported; expected lengths ({batch},), "
        f"({batch}, {keys}) or ({batch}, queries, {keys})"
    )
