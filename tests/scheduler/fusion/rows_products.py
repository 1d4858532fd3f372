"""Products and attention. Sizes are small: there a chain of few products is one launch."""

import math

import numpy as np

from scheduler.tensor.tensor import Tensor
from tests.scheduler.fusion.row import Array, halves, row
from tests.scheduler.support.values import Weights


def gemm_twice(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    a = (x @ y).relu()
    return (a @ z).relu() + a


def np_gemm_twice(x: Array, y: Array, z: Array) -> Array:
    x, y, z = (v.astype(np.float64) for v in (x, y, z))
    a = np.maximum(x @ y, 0)
    return np.maximum(a @ z, 0) + a


HEADS, NEGATIVE = 2, -1e9


def gated(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return ((x @ a).silu() * (x @ b)) @ c + x


def masked_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    scores = q @ k.transpose() * (1.0 / math.sqrt(q.shape[-1]))
    return (scores + mask).softmax() @ v


def heads(x: Tensor) -> Tensor:
    return x.reshape(x.shape[0], HEADS, x.shape[1] // HEADS).transpose(0, 1)


def self_attention(x: Tensor, wq: Tensor, wk: Tensor, wv: Tensor, wo: Tensor) -> Tensor:
    """Tokens (T, D); several heads, causal."""
    steps = Tensor.arange(x.shape[0])
    mask = (steps.unsqueeze(0) <= steps.unsqueeze(1)).where(0.0, NEGATIVE)
    mixed = masked_attention(heads(x @ wq), heads(x @ wk), heads(x @ wv), mask)
    return mixed.transpose(0, 1).reshape(x.shape) @ wo


def block(x: Tensor, wq: Tensor, wk: Tensor, wv: Tensor, *rest: Tensor) -> Tensor:
    """A transformer block that normalises first."""
    wo, up, down = rest
    x = x + self_attention(x.layernorm(), wq, wk, wv, wo)
    return x + (x.layernorm() @ up).gelu("tanh") @ down


def cached_attention(q: Tensor, k: Tensor, v: Tensor, old_k: Tensor, old_v: Tensor) -> Tensor:
    """One new token (H, 1, D) after others."""
    keys, values = Tensor.cat([old_k, k], 1), Tensor.cat([old_v, v], 1)
    return (q @ keys.transpose()).softmax() @ values


def attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
    scores = q @ k.transpose() * (1.0 / math.sqrt(q.shape[-1]))
    if causal:
        steps = Tensor.arange(q.shape[-2])
        scores = (steps.unsqueeze(0) <= steps.unsqueeze(1)).where(scores, -math.inf)
    return scores.softmax() @ v


def transformer(x: Tensor) -> Tensor:
    """Three blocks that normalise first, with 4 heads and a feed-forward part of 4 D."""
    drawn, (length, width) = Weights(), x.shape
    for _ in range(3):
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


ROWS = [
    row("half-products-chained", 2048, [halves(16, 16)] * 3, tolerance=2e-2)(
        gemm_twice, np_gemm_twice
    ),
    row("attention", 16384, "2x4x16x8 2x4x16x8 2x4x16x8")(
        lambda q, k, v: attention(q, k, v, causal=False)
    ),
    row("attention-causal", 16640, "2x4x16x8 2x4x16x8 2x4x16x8")(
        lambda q, k, v: attention(q, k, v, causal=True)
    ),
    row("products-added", 5120, "16x16 16x16 16x16 16x16")(lambda a, b, c, d: a @ b + c @ d),
    row("products-beside", 5120, "16x16 16x16 16x16")(lambda a, b, c: [a @ b, a @ c]),
    row("product-of-transposed", 3072, "16x16 16x16")(lambda a, b: (a.T @ b.T).T.exp()),
    row("products-chained", (2, 6144, 1024), "16x16 16x16 16x16")(lambda a, b, c: (a @ b).T @ c),
    row("gated-layer", (2, 5632, 512), "8x16 16x16 16x16 16x16")(gated),
    row("outer-product-sum", 132, "12 9")(
        lambda a, b: (a.unsqueeze(1) * b.unsqueeze(0)).exp().sum(1)
    ),
    row("bilinear", 2080, "8x16 16x16 8x16")(lambda x, w, y: ((x @ w) * y).sum(1)),
    row("attention-mask", 2304, "2x8x8 2x8x8 2x8x8 8x8")(masked_attention),
    row("attention-heads", (3, 9472, 2048), "8x16 16x16 16x16 16x16 16x16", tolerance=1e-4)(
        self_attention
    ),
    row("attention-cached", 1280, "2x1x8 2x1x8 2x1x8 2x8x8 2x8x8")(cached_attention),
    row("block", (6, 15232, 2048), "8x16 16x16 16x16 16x16 16x16 16x16 16x16", tolerance=2e-4)(
        block
    ),
    # The same at a size at which a peer takes 14.
    row(
        "block-wide",
        (8, 1624064, 163840),
        "8x16 16x16 16x16 16x16 16x16 16x16 16x16",
        large="64x128 128x128 128x128 128x128 128x128 128x512 512x128",
        tolerance=2e-4,
    )(block),
    row("product", 1200, "10x10 10x10")(lambda a, b: a @ b),
    row(
        "products-summed-large",
        (5, 17322606592, 4362076160),
        "64x16 64x16 16x64",
        large="32768x16 32768x16 16x32768",
    )(lambda a, b, c: (a @ c).sum(-1) + (b @ c).sum(-1)),
    row("linear-gelu", 14592, "16x32 32x64 64")(lambda x, w, b: (x @ w + b).gelu("tanh")),
    # The best peer takes 14 for a block.
    row("transformer-three-blocks", (21, 4935168, 196608), "64x128", tolerance=2e-4)(transformer),
]
