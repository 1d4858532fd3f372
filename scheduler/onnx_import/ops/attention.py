"""Translator of Attention of opset 23, 24 and 25. Formulas: ONNX operator documentation."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from scheduler.errors import ModelError
from scheduler.ir import dtype as dt
from scheduler.onnx_import.context import NodeContext, Value
from scheduler.onnx_import.ops.scaled_dot import (
    Mask,
    attention_mask,
    join_heads,
    scaled_dot,
    split_heads,
)
from scheduler.tensor.tensor import Tensor


def attention(ctx: NodeContext) -> Sequence[Value]:
    """Translate Attention: inputs of 3 or 4 axes, grouped heads, masks, a cache in or outside.

    The softmax is computed in float32 or wider whatever `softmax_precision` asks for. Outputs: Y,
    the keys and values with the past ones before them, and the scores of qk_matmul_output_mode.
    """
    q, k, v = (ctx.tensor(i) for i in range(3))
    packed = q.ndim == 3
    if packed:
        heads = [ctx.integer(f"{name}_num_heads", 0) for name in ("q", "kv", "kv")]
        q, k, v = (split_heads(x, n) for x, n in zip((q, k, v), heads, strict=True))
    if q.ndim != 4 or k.ndim != 4 or v.ndim != 4:
        raise ModelError("expected queries, keys and values of 3 axes each, or of 4 axes each")
    past = 0
    if ctx.has(4) or ctx.has(5):
        if not (ctx.has(4) and ctx.has(5)) or ctx.has(6):
            raise ModelError(
                "expected past_key and past_value together and without nonpad_kv_seqlen"
            )
        past = ctx.tensor(4).shape[2]
        k, v = (Tensor.cat([ctx.tensor(4 + i), x], axis=2) for i, x in enumerate((k, v)))
    scale = ctx.attribute("scale")
    factor = 1.0 / math.sqrt(q.shape[3]) if scale is None else float(scale)
    mask = _mask(ctx, q.shape[2], k.shape[2], past)
    y, scores = scaled_dot(q, k, v, mask, factor, ctx.number("softcap", 0.0))
    mode = ctx.integer("qk_matmul_output_mode", 0)
    shown = (scores.raw, scores.capped, scores.masked, scores.weights)
    if not 0 <= mode < len(shown):
        raise ModelError(f"qk_matmul_output_mode must be 0 to 3, found {mode}")
    results: list[Value] = [join_heads(y) if packed else y, k, v, shown[mode].as_type(q.dtype)]
    return results[: max(1, ctx.outputs)]


def _mask(ctx: NodeContext, rows: int, keys: int, past: int) -> Mask:
    """Return which keys each query (row) may attend to; `past` of the keys come from a cache."""
    mask = attention_mask(ctx.value(3), keys) if ctx.has(3) else Mask()
    left, right = (ctx.integer(f"{side}_window_size", -1) for side in ("left", "right"))
    if min(left, right) < -1:
        raise ModelError(f"window sizes must be -1 or more, found {left} and {right}")
    if ctx.integer("is_causal", 0):
        right = 0 if right < 0 else min(right, 0)
    lengths = None
    if ctx.has(6):
        given = ctx.value(6)
        lengths = ctx.tensor(6).cast(dt.int32).reshape((-1, 1, 1, 1))
        least = 0 if isinstance(given, Tensor) else int(np.min(given))
        known = mask.added is None and mask.allowed is None
        key = Tensor.arange(keys).reshape((1, 1, 1, keys))
        mask = mask.restricted(key < lengths, may_be_empty=least < 1 or not known)
    else:
        least = past + rows
    if left < 0 and right < 0:
        return mask
    # A query's own position among the keys; the first one's is how many keys are there before it.
    first: Tensor | int = past if lengths is None else lengths - rows
    ahead = Tensor.arange(keys) - (Tensor.arange(rows).unsqueeze(1) + first)
    # With another mask, its keys and those of the window may have none in common.
    empty = ctx.has(3) or least < rows or (left >= 0 and past + rows - 1 - left > keys - 1)
    if right >= 0:
        mask = mask.restricted(ahead <= right, may_be_empty=empty)
    if left >= 0:
        mask = mask.restricted(ahead >= -left, may_be_empty=empty)
    return mask
