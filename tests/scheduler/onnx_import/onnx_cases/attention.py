"""Attention, rotary embedding, linear attention."""

from typing import Any

import numpy as np

from tests.scheduler.onnx_import.onnx_cases.case import Case, Const, case, f, flags, k, own

HEADS: dict[str, Any] = {"q_num_heads": 4, "kv_num_heads": 2}
# (N, heads, S, E), (N, kv heads, T, E), (N, kv heads, T, F)
QKV = (f(2, 4, 3, 8), f(2, 2, 6, 8), f(2, 2, 6, 5))
PACKED = (f(2, 3, 32), f(2, 6, 16), f(2, 6, 10))
NO_KEY = np.array([[1, 0, 1, 1, 0, 1], [0] * 6, [1] * 6], bool)
ADDED = np.where(NO_KEY, f(3, 6), -np.inf).astype(np.float32)
CACHES = (np.cos(f(9, 4)), np.sin(f(9, 4)))
POSITIONS = np.random.default_rng(1).integers(0, 9, (2, 3))
FIXED = tuple(map(Const, (*CACHES, POSITIONS)))
PARTLY = {"num_heads": 5, "rotary_embedding_dim": 8}


def attention(*inputs: Any, opset: int = 23, **given: Any) -> Case:
    return own("Attention", *inputs, opset=opset, **given)


def linear(*inputs: Any, rule: str, queries: int = 2, **attributes: Any) -> Case:
    attributes |= {"update_rule": rule, "q_num_heads": queries, "kv_num_heads": 2}
    return own("LinearAttention", *inputs, opset=27, outputs=2, **attributes)


CASES = [
    attention(*QKV),
    attention(*PACKED, **HEADS, scale=0.2, softcap=2.0),
    attention(*QKV, NO_KEY),
    attention(*QKV, Const(ADDED)),
    attention(*QKV, flags(2, 1, 3, 4) | (np.arange(4) == 1), opset=24),
    attention(*QKV, f(4, 3, 6), is_causal=1),
    attention(*QKV, None, f(2, 2, 2, 8), f(2, 2, 2, 5), is_causal=1, outputs=3),
    *(
        # In mode 0 onnx's evaluator returns capped scores, too, against its documentation.
        attention(*QKV, NO_KEY, outputs=4, qk_matmul_output_mode=mode, softcap=1.5 * (mode > 0))
        for mode in range(4)
    ),
    attention(*(x.astype(np.float16) for x in QKV), is_causal=1),
    attention(*QKV, None, None, None, np.array([2, 6]), opset=24, is_causal=1),
    attention(*QKV, None, None, None, k(4, 6), opset=24),
    attention(*QKV, opset=25, left_window_size=1, right_window_size=2),
    attention(*QKV, Const(NO_KEY), opset=25, left_window_size=1, is_causal=1),
    *(
        case("RotaryEmbedding", f(2, 5, 3, 8), *CACHES, POSITIONS, opset=23, interleaved=i)
        for i in (0, 1)
    ),
    case("RotaryEmbedding", f(2, 3, 40), f(2, 3, 4), f(2, 3, 4), opset=23, num_heads=5),
    *(
        own("RotaryEmbedding", f(2, 3, 50), *FIXED, opset=23, **PARTLY, interleaved=i)
        for i in (0, 1)
    ),
    linear(f(2, 3, 8), f(2, 3, 8), f(2, 3, 6), rule="linear"),
    linear(f(2, 3, 16), f(2, 3, 8), f(2, 3, 6), f(2, 2, 4, 3), f(2, 3, 8), rule="gated", queries=4),
    linear(f(2, 3, 8), f(2, 3, 8), f(2, 3, 6), None, None, f(2, 3, 1), rule="delta", scale=0.3),
    linear(f(2, 3, 8), f(2, 3, 8), f(2, 3, 6), None, f(2, 3, 2), f(2, 3, 2), rule="gated_delta"),
    own("SwiGLU", f(3, 4), f(3, 4), opset=28),
    own("SwiGLU", f(3, 4), f(3, 4), opset=28, alpha=0.7),
]
