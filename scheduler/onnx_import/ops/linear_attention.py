"""Translator of LinearAttention (opset 27). Formulas: ONNX operator documentation."""

from __future__ import annotations

import math
from collections.abc import Sequence

from scheduler.errors import ModelError
from scheduler.onnx_import.context import NodeContext, Value
from scheduler.onnx_import.ops.normalize import wide
from scheduler.onnx_import.ops.recurrent import MAX_STEPS
from scheduler.onnx_import.ops.scaled_dot import join_heads, split_heads
from scheduler.tensor.tensor import Tensor

# Update rule -> whether it takes a decay, and an update rate.
_RULES = {
    "linear": (False, False),
    "gated": (True, False),
    "delta": (False, True),
    "gated_delta": (True, True),
}


def linear_attention(ctx: NodeContext) -> Sequence[Value]:
    """Translate LinearAttention, unrolled over the tokens: a state (N, heads, E, F) is updated.

    Raises:
        ModelError: shapes do not fit, an input of the rule is missing, or there are too many tokens
            to unroll.
    """
    rule = ctx.text("update_rule", "gated_delta")
    if rule not in _RULES:
        raise ModelError(f"update_rule must be one of {list(_RULES)}, found {rule!r}")
    gated, corrected = _RULES[rule]
    heads, groups = ctx.integer("q_num_heads", 0), ctx.integer("kv_num_heads", 0)
    if groups < 1 or heads < 1 or heads % groups:
        raise ModelError(f"q_num_heads={heads} must be a multiple of kv_num_heads={groups}")
    if ctx.has(4) != gated or ctx.has(5) != corrected:
        raise ModelError(f'inputs decay and beta do not fit update_rule="{rule}"')
    query = ctx.tensor(0)
    q = split_heads(wide(query), heads)
    k, v = (split_heads(wide(ctx.tensor(i)), groups) for i in (1, 2))
    batch, _, steps, size = k.shape
    if not 1 <= steps <= MAX_STEPS:
        raise ModelError(f"{steps} tokens cannot be unrolled; expected 1 to {MAX_STEPS}")
    # (N, T, heads*E) or (N, T, heads) -> (N, heads, T, E or 1)
    decay = split_heads(wide(ctx.tensor(4)), groups).exp() if gated else None
    beta = wide(ctx.tensor(5)).permute(0, 2, 1).unsqueeze(3) if corrected else None
    shape = (batch, groups, size, v.shape[3])
    state = wide(ctx.tensor(3)) if ctx.has(3) else Tensor.zeros(*shape, dtype=q.dtype)
    if state.shape != shape:
        raise ModelError(f"expected past_state of shape {shape}, found {state.shape}")
    rows = []
    for t in range(steps):
        key, value = k[:, :, t].unsqueeze(3), v[:, :, t].unsqueeze(2)
        if decay is not None:
            state = state * decay[:, :, t].unsqueeze(3)
        if beta is not None:
            value = (value - (state * key).sum(2, keepdim=True)) * beta[:, :, t].unsqueeze(2)
        state = state + key * value
        asked = q[:, :, t].reshape((batch, groups, heads // groups, size))
        rows.append(asked.matmul(state).reshape((batch, heads, v.shape[3])))
    scale = ctx.number("scale", 0.0) or 1.0 / math.sqrt(size)
    y = join_heads(Tensor.stack(rows, axis=2)) * scale
    kept = ctx.tensor(3).dtype if ctx.has(3) else query.dtype
    return [y.as_type(query.dtype), state.as_type(kept)][: max(1, ctx.outputs)]
