"""Translators of Attention (opsets 23 to 25), LinearAttention and RotaryEmbedding.

The parts that they share with the attention operators of com.microsoft are here too. Formulas: ONNX
operator documentation. In shapes, N is the batch, S the number of queries, T the number of keys,
and E and F the sizes of a key and a value in one head.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from scheduler.errors import ModelError
from scheduler.ir import dtype as dt
from scheduler.onnx_import.context import NodeContext, Value, as_tensor
from scheduler.onnx_import.layers.normalize import wide
from scheduler.onnx_import.layers.recurrent import MAX_STEPS
from scheduler.tensor.tensor import Tensor

# --- Attention on Tensors: softmax(Q K' + mask) V ---------------------------------------------
#
# Query heads that share a key head are grouped on one axis, so keys and values are not repeated.
# Masks that depend on positions only are computed by the kernel, not stored.


@dataclass(frozen=True, slots=True)
class Mask:
    """The keys that each query can attend to, and an addend to the scores."""

    allowed: Tensor | None = None  # bool, broadcasts to (N, heads, S, T); None allows all keys
    added: Tensor | None = None  # addend, broadcasts to (N, heads, S, T); None for no addend
    may_be_empty: bool = False  # whether a query can have no key; its result is then zeros

    def restricted(self, allowed: Tensor, *, may_be_empty: bool) -> Mask:
        """Return this mask with fewer keys allowed."""
        both = allowed if self.allowed is None else self.allowed & allowed
        return replace(self, allowed=both, may_be_empty=self.may_be_empty or may_be_empty)


@dataclass(frozen=True, slots=True)
class Scores:
    """The intermediate results of attention, each (N, heads, S, T)."""

    raw: Tensor  # scaled products of queries and keys
    capped: Tensor  # scores after softcap
    masked: Tensor  # scores after the mask
    weights: Tensor  # weights after softmax


def attention_mask(value: Value, keys: int) -> Mask:
    """Return the mask in an operator's input, for `keys` keys.

    The input broadcasts to (N, heads, S, T). It is bool (True: attend) or an addend to the scores.
    If its last axis is shorter than T, the remaining keys are masked.
    """
    mask, known = as_tensor(value), None if isinstance(value, Tensor) else value
    missing = keys - mask.shape[-1]
    if missing < 0:
        raise ModelError(f"a mask of shape {mask.shape} does not fit {keys} keys")
    widths = [(0, 0)] * (mask.ndim - 1) + [(0, missing)]
    if mask.shape[-1] == 1 < keys:
        missing, widths = 0, [(0, 0)] * mask.ndim  # a last axis of 1 broadcasts
    if mask.dtype is dt.bool_:
        empty = known is None or not bool(np.any(known, axis=-1).all())
        return Mask(allowed=mask.pad(widths, value=False), may_be_empty=empty)
    empty = known is None or bool(np.isneginf(known).all(axis=-1).any())
    # fp16 is too narrow for common addends.
    return Mask(added=wide(mask).pad(widths, -math.inf), may_be_empty=empty)


def scaled_dot(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float, softcap: float = 0.0
) -> tuple[Tensor, Scores]:
    """Return attention as (N, heads, S, F) in the type of q, and its intermediate results.

    Args:
        q: queries (N, heads, S, E).
        k: keys (N, kv_heads, T, E); kv_heads divides heads.
        v: values (N, kv_heads, T, F).
        mask: allowed keys and addends.
        scale: factor of the products.
        softcap: if not 0, scores become softcap*tanh(scores/softcap).
    """
    batch, heads, rows, _ = q.shape
    groups = k.shape[1]
    if v.shape[1] != groups or groups < 1 or heads % groups:
        raise ModelError(
            f"{heads} query heads must be a multiple of the {groups} key heads and the "
            f"{v.shape[1]} value heads"
        )
    shared = heads // groups
    queries = (wide(q) * scale).reshape(_grouped(q.shape, shared))
    keys, values = (x if shared == 1 else x.unsqueeze(2) for x in (wide(k), wide(v)))
    raw = queries.matmul(keys.transpose())
    capped = (raw / softcap).tanh() * softcap if softcap else raw
    masked = capped if mask.added is None else capped + _in_groups(mask.added, shared)
    if mask.allowed is not None:
        masked = _in_groups(mask.allowed, shared).where(masked, -math.inf)
    weights = softmax(masked, may_be_empty=mask.may_be_empty)
    mixed = weights.matmul(values).reshape((batch, heads, rows, v.shape[3])).as_type(q.dtype)
    shown = (batch, heads, rows, k.shape[2])
    return mixed, Scores(*(x.reshape(shown) for x in (raw, capped, masked, weights)))


def _grouped(shape: tuple[int, ...], shared: int) -> tuple[int, ...]:
    """Return shape (N, heads, ...) as (N, heads/shared, shared, ...), unchanged if shared is 1."""
    if shared == 1:
        return shape
    heads = (1, 1) if shape[1] == 1 else (shape[1] // shared, shared)
    return (shape[0], *heads, *shape[2:])


def _in_groups(mask: Tensor, shared: int) -> Tensor:
    whole = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
    return whole.reshape(_grouped(whole.shape, shared))


def softmax(scores: Tensor, *, may_be_empty: bool) -> Tensor:
    """Return the softmax along the last axis; `may_be_empty` gives zeros for a row of -inf."""
    if not may_be_empty:
        return scores.softmax(-1)
    # A finite maximum avoids -inf - -inf. Only an empty row sums to less than 1.
    lowest = float(np.finfo(scores.dtype.np).min)
    weights = (scores - scores.max(-1, keepdim=True).maximum(lowest)).exp()
    return weights / weights.sum(-1, keepdim=True).maximum(1.0)


def split_heads(x: Tensor, heads: int) -> Tensor:
    """Return (N, S, heads*E) as (N, heads, S, E)."""
    if heads < 1 or x.ndim != 3 or x.shape[2] % heads:
        raise ModelError(f"{heads} heads do not divide the last of 3 axes of {x.shape}")
    batch, rows, width = x.shape
    return x.reshape((batch, rows, heads, width // heads)).permute(0, 2, 1, 3)


def join_heads(x: Tensor) -> Tensor:
    """Return (N, heads, S, E) as (N, S, heads*E)."""
    batch, heads, rows, size = x.shape
    return x.permute(0, 2, 1, 3).reshape((batch, rows, heads * size))


def attention(ctx: NodeContext) -> Sequence[Value]:
    """Translate Attention of inputs with 3 or 4 axes.

    Outputs: Y, keys and values including past ones, and the scores that `qk_matmul_output_mode`
    selects. The softmax is computed in float32 or wider, regardless of `softmax_precision`.
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
    """Return the mask for `rows` queries; the first `past` of the keys come from a cache.

    It combines the input mask, the number of valid keys (input 6), and a window of positions around
    each query. A window size of -1 is no limit; causal attention allows no key after the query.
    """
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
        # The smallest number of valid keys, 0 if it is unknown.
        least = 0 if isinstance(given, Tensor) else int(np.min(given))
        known = mask.added is None and mask.allowed is None
        key = Tensor.arange(keys).reshape((1, 1, 1, keys))
        mask = mask.restricted(key < lengths, may_be_empty=least < 1 or not known)
    else:
        least = past + rows
    if left < 0 and right < 0:
        return mask
    # Position of the first query among the keys.
    first: Tensor | int = past if lengths is None else lengths - rows
    ahead = Tensor.arange(keys) - (Tensor.arange(rows).unsqueeze(1) + first)
    # The input mask and the window can exclude each other's keys.
    empty = ctx.has(3) or least < rows or (left >= 0 and past + rows - 1 - left > keys - 1)
    if right >= 0:
        mask = mask.restricted(ahead <= right, may_be_empty=empty)
    if left >= 0:
        mask = mask.restricted(ahead >= -left, may_be_empty=empty)
    return mask


# --- LinearAttention (opset 27) ---------------------------------------------------------------

# Update rule -> (whether it has a decay, whether it has an update rate beta).
_RULES = {
    "linear": (False, False),
    "gated": (True, False),
    "delta": (False, True),
    "gated_delta": (True, True),
}


def linear_attention(ctx: NodeContext) -> Sequence[Value]:
    """Translate LinearAttention, unrolled over tokens that each update a state (N, heads, E, F)."""
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


# --- Rotary position embedding (Su et al. 2021) of ONNX and of com.microsoft ------------------


def rotary_embedding(ctx: NodeContext) -> Value:
    """Translate RotaryEmbedding: x (N, heads, S, E), or (N, S, heads*E) with num_heads.

    The cos and sin caches are (positions, R/2) with position_ids (N, S), or (N, S, R/2) without.
    """
    x = ctx.tensor(0)
    cos, sin = (_rows(ctx, ctx.tensor(i), 3) for i in (1, 2))
    size = ctx.integer("rotary_embedding_dim", 0)
    interleaved = bool(ctx.integer("interleaved", 0))
    if x.ndim == 4:
        return rotate(x, cos, sin, size, interleaved=interleaved)
    heads = split_heads(x, ctx.integer("num_heads", 0))
    return join_heads(rotate(heads, cos, sin, size, interleaved=interleaved))


def contrib_rotary_embedding(ctx: NodeContext) -> Value:
    """Translate RotaryEmbedding of com.microsoft, whose inputs are in another order.

    x is (N, heads, S, E) or (N, S, heads*E). Positions are (N, S), or only the first as one number.
    """
    if ctx.integer("is_packed_batching", 0):
        raise ModelError("is_packed_batching=1 is not supported")
    x, positions = ctx.tensor(0), ctx.tensor(1)
    caches = [ctx.tensor(i) for i in (2, 3)]
    size = ctx.integer("rotary_embedding_dim", 0)
    heads = x if x.ndim == 4 else None
    if heads is None:
        # Without num_heads, the cache's width determines the size of a head.
        width = 2 * caches[0].shape[-1]
        heads = split_heads(x, ctx.integer("num_heads", 0) or x.shape[2] // width)
    if positions.size == 1 and positions.ndim < 2:
        positions = positions.reshape((1, 1)) + Tensor.arange(heads.shape[2]).cast(positions.dtype)
    cos, sin = (cache.gather(positions) for cache in caches)
    y = rotate(heads, cos, sin, size, interleaved=bool(ctx.integer("interleaved", 0)))
    return y if x.ndim == 4 else join_heads(y)


def rotate(x: Tensor, cos: Tensor, sin: Tensor, size: int, *, interleaved: bool) -> Tensor:
    """Return x (N, heads, S, E) with pairs of elements of the last axis rotated.

    Args:
        x: the queries or keys.
        cos: cosines of the angles, (N or 1, S, R/2).
        sin: sines of the angles, same shape.
        size: number R of elements to rotate, 0 for all; the others stay unchanged.
        interleaved: whether pairs are neighbors; otherwise element i is paired with i + R/2.
    """
    turned = size or x.shape[-1]
    half = turned // 2
    if turned % 2 or turned > x.shape[-1] or cos.shape[-1] != half or sin.shape[-1] != half:
        raise ModelError(
            f"cannot turn {turned} of {x.shape[-1]} elements with caches of {cos.shape[-1]} and "
            f"{sin.shape[-1]}; expected {half}"
        )
    values, (c, s) = wide(x), (wide(cache).unsqueeze(1) for cache in (cos, sin))
    first = values[..., 0:turned:2] if interleaved else values[..., :half]
    second = values[..., 1:turned:2] if interleaved else values[..., half:turned]
    real, imaginary = first * c - second * s, first * s + second * c
    if interleaved:
        result = Tensor.stack([real, imaginary], axis=4).flatten(3)
    else:
        result = Tensor.cat([real, imaginary], axis=3)
    if turned < x.shape[-1]:
        result = Tensor.cat([result, values[..., turned:]], axis=3)
    return result.as_type(x.dtype)


def _rows(ctx: NodeContext, cache: Tensor, index: int) -> Tensor:
    if not ctx.has(index):
        return cache
    return cache.gather(ctx.tensor(index).cast(dt.int32))
