"""Translators of rotary position embedding (Su et al. 2021), of ONNX and as exporters write it."""

from __future__ import annotations

from scheduler.errors import ModelError
from scheduler.ir import dtype as dt
from scheduler.onnx_import.context import NodeContext, Value
from scheduler.onnx_import.ops.normalize import wide
from scheduler.onnx_import.ops.scaled_dot import join_heads, split_heads
from scheduler.tensor.tensor import Tensor


def rotary_embedding(ctx: NodeContext) -> Value:
    """Translate RotaryEmbedding: x (N, heads, S, E), or (N, S, heads*E) with num_heads.

    The caches are (positions, R/2) with position_ids (N, S), or (N, S, R/2) without.
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
    """Translate RotaryEmbedding of com.microsoft: its inputs come in another order.

    x (N, heads, S, E) or (N, S, heads*E), positions (N, S) or one number, the first position.
    """
    if ctx.integer("is_packed_batching", 0):
        raise ModelError("is_packed_batching=1 is not supported")
    x, positions = ctx.tensor(0), ctx.tensor(1)
    caches = [ctx.tensor(i) for i in (2, 3)]
    size = ctx.integer("rotary_embedding_dim", 0)
    heads = x if x.ndim == 4 else None
    if heads is None:
        # Without the number of heads, a head is what the cache turns.
        width = 2 * caches[0].shape[-1]
        heads = split_heads(x, ctx.integer("num_heads", 0) or x.shape[2] // width)
    if positions.size == 1 and positions.ndim < 2:
        positions = positions.reshape((1, 1)) + Tensor.arange(heads.shape[2]).cast(positions.dtype)
    cos, sin = (cache.gather(positions) for cache in caches)
    y = rotate(heads, cos, sin, size, interleaved=bool(ctx.integer("interleaved", 0)))
    return y if x.ndim == 4 else join_heads(y)


def rotate(x: Tensor, cos: Tensor, sin: Tensor, size: int, *, interleaved: bool) -> Tensor:
    """Turn pairs of elements of the last axis of x (N, heads, S, E), by caches (N or 1, S, R/2).

    R = `size` elements are turned (0: all), the others stay. Pairs are neighbours if `interleaved`;
    otherwise element i goes with i + R/2.
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
