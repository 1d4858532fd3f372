"""Scaled dot-product attention on tensors, softmax(Q K' + mask) V, for all attention operators.

Queries are grouped by the key head they share, so keys and values are never repeated. Masks that
follow from positions are computed from ramps, not stored.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from scheduler.errors import ModelError
from scheduler.ir import dtype as dt
from scheduler.onnx_import.context import Value, as_tensor
from scheduler.onnx_import.ops.normalize import wide
from scheduler.tensor.tensor import Tensor


@dataclass(frozen=True, slots=True)
class Mask:
    """The keys that a query may attend to, and an addend to its scores.

    Attributes:
        allowed: bool, broadcasts to (N, heads, S, T); None where all are.
        added: broadcasts to the same; None for nothing.
        may_be_empty: a query may have no key at all: it then gives zeros.
    """

    allowed: Tensor | None = None
    added: Tensor | None = None
    may_be_empty: bool = False

    def restricted(self, allowed: Tensor, *, may_be_empty: bool) -> Mask:
        """Return this mask with fewer keys allowed."""
        both = allowed if self.allowed is None else self.allowed & allowed
        return replace(self, allowed=both, may_be_empty=self.may_be_empty or may_be_empty)


@dataclass(frozen=True, slots=True)
class Scores:
    """The intermediate results of an attention, (N, heads, S, T) each.

    Attributes:
        raw: scaled products.
        capped: after softcap.
        masked: after the mask.
        weights: after softmax.
    """

    raw: Tensor
    capped: Tensor
    masked: Tensor
    weights: Tensor


def attention_mask(value: Value, keys: int) -> Mask:
    """Return the mask of an operator's input, which broadcasts to (N, heads, S, T) for T keys.

    It is bool (True: attend) or what is added to the scores. If its last axis is shorter than the
    keys, the rest is masked.
    """
    mask, known = as_tensor(value), None if isinstance(value, Tensor) else value
    missing = keys - mask.shape[-1]
    if missing < 0:
        raise ModelError(f"a mask of shape {mask.shape} does not fit {keys} keys")
    widths = [(0, 0)] * (mask.ndim - 1) + [(0, missing)]
    if mask.shape[-1] == 1 < keys:
        missing, widths = 0, [(0, 0)] * mask.ndim  # broadcasts
    if mask.dtype is dt.bool_:
        empty = known is None or not bool(np.any(known, axis=-1).all())
        return Mask(allowed=mask.pad(widths, value=False), may_be_empty=empty)
    empty = known is None or bool(np.isneginf(known).all(axis=-1).any())
    # A mask in float32: halves cannot hold all that is added to scores.
    return Mask(added=wide(mask).pad(widths, -math.inf), may_be_empty=empty)


def scaled_dot(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float, softcap: float = 0.0
) -> tuple[Tensor, Scores]:
    """Return attention and what was computed on the way.

    Args:
        q: (N, heads, S, E).
        k: (N, kv_heads, T, E); kv_heads divides heads.
        v: (N, kv_heads, T, F).
        mask: of the keys.
        scale: of the products.
        softcap: scores become softcap*tanh(scores/softcap) if it is not 0.

    Returns:
        (N, heads, S, F) in the type of q, and the scores.

    Raises:
        ModelError: the heads do not fit, or the inner sizes differ.
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
    """Return (N, heads, ...) as (N, heads/shared, shared, ...) if keys are shared."""
    if shared == 1:
        return shape
    heads = (1, 1) if shape[1] == 1 else (shape[1] // shared, shared)
    return (shape[0], *heads, *shape[2:])


def _in_groups(mask: Tensor, shared: int) -> Tensor:
    whole = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
    return whole.reshape(_grouped(whole.shape, shared))


def softmax(scores: Tensor, *, may_be_empty: bool) -> Tensor:
    """Return the softmax along the last axis; zeros where all scores are -inf, if that may be."""
    if not may_be_empty:
        return scores.softmax(-1)
    # -inf - -inf is no number; and a row with a finite score sums to 1 or more.
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
