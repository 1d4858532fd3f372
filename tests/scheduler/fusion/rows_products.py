"""Products and attention. Sizes are small: there a chain of few products is one launch."""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from scheduler.tensor.tensor import Tensor
from tests.scheduler.fusion.reference import (
    np_attention,
    np_layernorm,
    np_relu,
    np_silu,
    np_softmax,
)
from tests.scheduler.fusion.row import Array, Row, by_interpreter, halves
from tests.scheduler.support.values import Weights


def gemm_twice(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    a = (x @ y).relu()
    return (a @ z).relu() + a


def np_gemm_twice(x: Array, y: Array, z: Array) -> Array:
    x, y, z = (v.astype(np.float64) for v in (x, y, z))
    a = np_relu(x @ y)
    return np.asarray(np_relu(a @ z) + a)


HEADS, TOKENS, WIDTH = 2, 8, 16

NEGATIVE = -1e9


def np_gelu(x: Array) -> Array:
    """The form with tanh."""
    return np.asarray(x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))


def gated(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return ((x @ a).silu() * (x @ b)) @ c + x


def np_gated(x: Array, a: Array, b: Array, c: Array) -> Array:
    return np.asarray((np_silu(x @ a) * (x @ b)) @ c + x)


def masked_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    scores = q @ k.transpose() * (1.0 / math.sqrt(q.shape[-1]))
    return (scores + mask).softmax() @ v


def heads(x: Tensor) -> Tensor:
    return x.reshape(x.shape[0], HEADS, x.shape[1] // HEADS).transpose(0, 1)


def np_heads(x: Array) -> Array:
    return x.reshape(x.shape[0], HEADS, -1).transpose(1, 0, 2)


def self_attention(x: Tensor, wq: Tensor, wk: Tensor, wv: Tensor, wo: Tensor) -> Tensor:
    """Tokens (T, D); several heads, causal."""
    steps = Tensor.arange(x.shape[0])
    mask = (steps.unsqueeze(0) <= steps.unsqueeze(1)).where(0.0, NEGATIVE)
    mixed = masked_attention(heads(x @ wq), heads(x @ wk), heads(x @ wv), mask)
    return mixed.transpose(0, 1).reshape(x.shape) @ wo


def np_self_attention(x: Array, wq: Array, wk: Array, wv: Array, wo: Array) -> Array:
    mixed = np_attention(np_heads(x @ wq), np_heads(x @ wk), np_heads(x @ wv), causal=True)
    return np.asarray(mixed.transpose(1, 0, 2).reshape(x.shape) @ wo)


def block(x: Tensor, wq: Tensor, wk: Tensor, wv: Tensor, *rest: Tensor) -> Tensor:
    """A transformer block that normalises first."""
    wo, up, down = rest
    x = x + self_attention(x.layernorm(), wq, wk, wv, wo)
    return x + (x.layernorm() @ up).gelu("tanh") @ down


def np_block(x: Array, wq: Array, wk: Array, wv: Array, *rest: Array) -> Array:
    wo, up, down = rest
    x = x + np_self_attention(np_layernorm(x), wq, wk, wv, wo)
    return np.asarray(x + np_gelu(np_layernorm(x) @ up) @ down)


def cached_attention(q: Tensor, k: Tensor, v: Tensor, old_k: Tensor, old_v: Tensor) -> Tensor:
    """One new token (H, 1, D) after others."""
    keys, values = Tensor.cat([old_k, k], 1), Tensor.cat([old_v, v], 1)
    return (q @ keys.transpose()).softmax() @ values


def np_cached_attention(q: Array, k: Array, v: Array, old_k: Array, old_v: Array) -> Array:
    keys, values = np.concatenate([old_k, k], 1), np.concatenate([old_v, v], 1)
    return np.asarray(np_softmax(q @ keys.transpose(0, 2, 1)) @ values)


SQUARE, QKV = (WIDTH, WIDTH), (HEADS, TOKENS, WIDTH // HEADS)

TOKEN = (TOKENS, WIDTH)


def attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
    scores = q @ k.transpose() * (1.0 / math.sqrt(q.shape[-1]))
    if causal:
        steps = Tensor.arange(q.shape[-2])
        scores = (steps.unsqueeze(0) <= steps.unsqueeze(1)).where(scores, -math.inf)
    return scores.softmax() @ v


def transformer(x: Tensor, count: int) -> Tensor:
    """Blocks that normalise first, with 4 heads and a feed-forward part of 4 D."""
    drawn, (length, width) = Weights(), x.shape
    for _ in range(count):
        h = x.layernorm() * drawn(width) + drawn(width)
        q, k, v = (
            (h @ drawn(width, width) + drawn(width)).reshape(length, 4, -1).permute(1, 0, 2)
            for _ in range(3)
        )
        mixed = ((q @ k.permute(0, 2, 1)) * (width // 4) ** -0.5).softmax() @ v
        mixed = mixed.permute(1, 0, 2).reshape(length, width)
        x = x + mixed @ drawn(width, width) + drawn(width)
        h = x.layernorm() * drawn(width) + drawn(width)
        up = (h @ drawn(width, 4 * width) + drawn(4 * width)).gelu()
        x = x + up @ drawn(4 * width, width) + drawn(width)
    return x


def unscaled_attention(q: Tensor, k: Tensor, v: Tensor, *mask: Tensor) -> Tensor:
    scores = q @ k.transpose()
    return (sum(mask, scores)).softmax() @ v


def np_unscaled_attention(q: Array, k: Array, v: Array, *mask: Array) -> Array:
    return np.asarray(np_softmax(sum(mask, q @ np.swapaxes(k, -1, -2))) @ v)


def product_and_sum(a: Tensor) -> Tensor:
    c = a.cos()
    return c @ c + c.sum(1)


def two_products(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return (a @ c).sum(-1) + (b @ c).sum(-1)


ROWS = [
    Row(
        "half-products-chained",
        (1, 2048, 0),
        [halves(16, 16)] * 3,
        gemm_twice,
        np_gemm_twice,
        tolerance=2e-2,
    ),
    Row(
        "attention",
        (1, 16384, 0),
        [(2, 4, 16, 8)] * 3,
        lambda q, k, v: attention(q, k, v, causal=False),
        lambda q, k, v: np_attention(q, k, v, causal=False),
    ),
    Row(
        "attention-causal",
        (1, 16640, 0),
        [(2, 4, 16, 8)] * 3,
        lambda q, k, v: attention(q, k, v, causal=True),
        lambda q, k, v: np_attention(q, k, v, causal=True),
    ),
    Row(
        "linear-relu-residual",
        (1, 2112, 0),
        [TOKEN, SQUARE, (WIDTH,)],
        lambda x, w, b: (x @ w + b).relu() + x,
    ),
    Row("products-added", (1, 5120, 0), [SQUARE] * 4, lambda a, b, c, d: a @ b + c @ d),
    Row("products-beside", (1, 5120, 0), [SQUARE] * 3, lambda a, b, c: [a @ b, a @ c]),
    Row("product-of-transposed", (1, 3072, 0), [SQUARE] * 2, lambda a, b: (a.T @ b.T).T.exp()),
    Row("products-chained", (2, 6144, 1024), [SQUARE] * 3, lambda a, b, c: (a @ b).T @ c),
    Row("gated-layer", (2, 5632, 512), [TOKEN, SQUARE, SQUARE, SQUARE], gated, np_gated),
    Row("linear-softmax", (1, 2048, 0), [TOKEN, SQUARE], lambda x, w: (x @ w).softmax()),
    Row(
        "linear-layernorm-linear",
        (1, 3072, 0),
        [TOKEN, SQUARE, SQUARE],
        lambda x, v, w: (x @ v).layernorm() @ w,
        tolerance=1e-4,
    ),
    Row(
        "outer-product-sum",
        (1, 132, 0),
        [(12,), (9,)],
        lambda a, b: (a.unsqueeze(1) * b.unsqueeze(0)).exp().sum(1),
    ),
    Row("bilinear", (1, 2080, 0), [TOKEN, SQUARE, TOKEN], lambda x, w, y: ((x @ w) * y).sum(1)),
    Row(
        "attention-mask",
        (1, 2304, 0),
        [QKV, QKV, QKV, (TOKENS, TOKENS)],
        masked_attention,
        lambda q, k, v, m: np_softmax(q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1]) + m) @ v,
    ),
    Row(
        "attention-heads",
        (3, 9472, 2048),
        [TOKEN, *[SQUARE] * 4],
        self_attention,
        np_self_attention,
        tolerance=1e-4,
    ),
    Row(
        "attention-cached",
        (1, 1280, 0),
        [(HEADS, 1, 8)] * 3 + [QKV] * 2,
        cached_attention,
        np_cached_attention,
    ),
    Row("block", (6, 15232, 2048), [TOKEN, *[SQUARE] * 6], block, np_block, tolerance=2e-4),
    # The same at a size at which a peer takes 14.
    Row(
        "block-wide",
        (8, 1624064, 163840),
        [TOKEN, *[SQUARE] * 6],
        block,
        np_block,
        large=[(64, 128), *[(128, 128)] * 4, (128, 512), (512, 128)],
        tolerance=2e-4,
    ),
    Row("product", (1, 1200, 0), [(10, 10), (10, 10)], lambda a, b: a @ b),
    Row("product-of-maps", (1, 800, 0), [(10, 10)], lambda x: x.cos() @ x.sin()),
    Row("product-and-sum", (1, 800, 0), [(10, 10)], product_and_sum),
    Row(
        "products-summed-large",
        (5, 17322606592, 4362076160),
        [(64, 16), (64, 16), (16, 64)],
        two_products,
        large=[(32768, 16), (32768, 16), (16, 32768)],
    ),
    Row(
        "linear-gelu",
        (1, 14592, 0),
        [(16, 32), (32, 64), (64,)],
        lambda x, w, b: (x @ w + b).gelu("tanh"),
        lambda x, w, b: np_gelu(x @ w + b),
    ),
    Row(
        "attention-unscaled",
        (1, 16384, 0),
        [(2, 4, 16, 8)] * 3,
        unscaled_attention,
        np_unscaled_attention,
    ),
    Row(
        "attention-unscaled-masked",
        (1, 17408, 0),
        [*[(2, 4, 16, 8)] * 3, (16, 16)],
        unscaled_attention,
        np_unscaled_attention,
    ),
    # The best peer takes 14.
    Row(
        "transformer-block",
        (7, 1645056, 196608),
        [(64, 128)],
        partial(transformer, count=1),
        by_interpreter,
        tolerance=2e-4,
    ),
    Row(
        "transformer-three-blocks",
        (21, 4935168, 196608),
        [(64, 128)],
        partial(transformer, count=3),
        by_interpreter,
        tolerance=2e-4,
    ),
]
