"""More programs of networks: convolutions, products, attention, normalisation between them.

Sizes are small. At them a row of a product is cheap, so a chain of a few products is one launch
where each row depends on one row before; otherwise a limit is a launch per contraction, all else
fused to a neighbour of it, and equal layers beside each other are one launch.
"""

from __future__ import annotations

import math

import numpy as np

from scheduler.tensor.tensor import Tensor
from tests.scheduler.kernelize.conformance import (
    Array,
    Row,
    np_attention,
    np_batchnorm,
    np_conv,
    np_layernorm,
    np_relu,
    np_softmax,
)
from tests.scheduler.kernelize.conformance_elementwise import positive

HEADS, TOKENS, WIDTH = 2, 8, 16
NEGATIVE = -1e9


def np_sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def np_silu(x: Array) -> Array:
    return x * np_sigmoid(x)


def np_gelu(x: Array) -> Array:
    """The form with tanh."""
    return np.asarray(x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))


def np_grouped(x: Array, w: Array, groups: int, padding: int = 0) -> Array:
    parts = zip(np.split(x, groups, 1), np.split(w, groups), strict=True)
    return np.concatenate([np_conv(a, b, padding) for a, b in parts], 1)


def np_pooled(x: Array, size: int) -> Array:
    """Windows (N, C, H/size, W/size, size, size) that do not overlap."""
    n, c, h, w = x.shape
    cut = x.reshape(n, c, h // size, size, w // size, size)
    return cut.transpose(0, 1, 2, 4, 3, 5)


# --- convolutions -----------------------------------------------------------------------------


def residual_conv(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return (x.conv2d(w, b, padding=1) + x).relu()


def separable(x: Tensor, deep: Tensor, b: Tensor, point: Tensor, c: Tensor) -> Tensor:
    y = x.conv2d(deep, b, padding=1, groups=x.shape[1]).relu()
    return y.conv2d(point, c).relu()


def np_separable(x: Array, deep: Array, b: Array, point: Array, c: Array) -> Array:
    y = np_relu(np_grouped(x, deep, x.shape[1], 1) + b[:, None, None])
    return np_relu(np_conv(y, point) + c[:, None, None])


def bottleneck(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return (x.conv2d(a).relu().conv2d(b, padding=1).relu().conv2d(c) + x).relu()


def np_bottleneck(x: Array, a: Array, b: Array, c: Array) -> Array:
    return np_relu(np_conv(np_relu(np_conv(np_relu(np_conv(x, a)), b, 1)), c) + x)


def downsampled(x: Tensor, a: Tensor, b: Tensor, side: Tensor) -> Tensor:
    """A residual block whose shortcut is a convolution too."""
    y = x.conv2d(a, stride=2, padding=1).relu().conv2d(b, padding=1)
    return (y + x.conv2d(side, stride=2)).relu()


def np_downsampled(x: Array, a: Array, b: Array, side: Array) -> Array:
    y = np_conv(np_relu(np_conv(x, a, 1)[:, :, ::2, ::2]), b, 1)
    return np_relu(y + np_conv(x, side)[:, :, ::2, ::2])


def branches(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return Tensor.cat([x.conv2d(a).relu(), x.conv2d(b, padding=1).relu(), x], 1)


def np_branches(x: Array, a: Array, b: Array) -> Array:
    return np.concatenate([np_relu(np_conv(x, a)), np_relu(np_conv(x, b, 1)), x], 1)


def squeeze_excite(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    weights = ((x.mean((2, 3)) @ a).relu() @ b).sigmoid()
    return x * weights.reshape(*weights.shape, 1, 1)


def np_squeeze_excite(x: Array, a: Array, b: Array) -> Array:
    return np.asarray(x * np_sigmoid(np_relu(x.mean((2, 3)) @ a) @ b)[:, :, None, None])


def classifier(x: Tensor, w: Tensor, head: Tensor, b: Tensor) -> Tensor:
    return x.conv2d(w, padding=1).relu().mean((2, 3)) @ head + b


def np_classifier(x: Array, w: Array, head: Array, b: Array) -> Array:
    return np.asarray(np_relu(np_conv(x, w, 1)).mean((2, 3)) @ head + b)


def normalised_conv(x: Tensor, w: Tensor, *rest: Tensor) -> Tensor:
    scale, bias, mean, variance = rest
    return x.conv2d(w, padding=1).batchnorm(scale, bias, mean, variance).silu()


def instance_norm(x: Tensor, w: Tensor) -> Tensor:
    return x.conv2d(w, padding=1).layernorm((2, 3)).relu()


def np_instance_norm(x: Array, w: Array) -> Array:
    y = np_conv(x, w, 1)
    return np_relu(np_layernorm(y.reshape(*y.shape[:2], -1)).reshape(y.shape))


IMAGE, KERNEL = (1, 4, 8, 8), (4, 4, 3, 3)
CONV = [
    Row(
        "conv-bias-residual",
        1,
        [IMAGE, KERNEL, (4,)],
        residual_conv,
        lambda x, w, b: np_relu(np_conv(x, w, 1) + b[:, None, None] + x),
    ),
    Row(
        "conv-groups",
        1,
        [IMAGE, (6, 2, 3, 3)],
        lambda x, w: x.conv2d(w, groups=2).silu(),
        lambda x, w: np_silu(np_grouped(x, w, 2)),
    ),
    Row(
        "conv-depthwise",
        1,
        [IMAGE, (4, 1, 3, 3)],
        lambda x, w: x.conv2d(w, padding=1, groups=4).clip(0.0, 0.5) + x,
        lambda x, w: np.clip(np_grouped(x, w, 4, 1), 0, 0.5) + x,
    ),
    Row(
        "conv-separable",
        2,
        [IMAGE, (4, 1, 3, 3), (4,), (6, 4, 1, 1), (6,)],
        separable,
        np_separable,
    ),
    Row(
        "conv-stride",
        1,
        [IMAGE, KERNEL],
        lambda x, w: x.conv2d(w, stride=2).tanh(),
        lambda x, w: np.tanh(np_conv(x, w)[:, :, ::2, ::2]),
    ),
    Row(
        "conv-bottleneck",
        3,
        [IMAGE, (2, 4, 1, 1), (2, 2, 3, 3), (4, 2, 1, 1)],
        bottleneck,
        np_bottleneck,
    ),
    Row(
        "conv-downsampled",
        2,
        [IMAGE, (6, 4, 3, 3), (6, 6, 3, 3), (6, 4, 1, 1)],
        downsampled,
        np_downsampled,
    ),
    Row("conv-branches", 1, [IMAGE, (3, 4, 1, 1), (5, 4, 3, 3)], branches, np_branches),
    Row(
        "conv-after-branches",
        2,
        [IMAGE, (3, 4, 1, 1), (5, 4, 3, 3), (2, 12, 1, 1)],
        lambda x, a, b, c: branches(x, a, b).conv2d(c),
        lambda x, a, b, c: np_conv(np_branches(x, a, b), c),
    ),
    Row(
        "conv-batchnorm-silu",
        1,
        [IMAGE, KERNEL, (4,), (4,), (4,), positive(4)],
        normalised_conv,
        lambda x, w, *s: np_silu(np_batchnorm(np_conv(x, w, 1), *s)),
    ),
    Row("conv-instance-norm", 1, [IMAGE, KERNEL], instance_norm, np_instance_norm, 1e-4),
    Row(
        "conv-max-pool",
        1,
        [IMAGE, KERNEL],
        lambda x, w: x.conv2d(w, padding=1).relu().max_pool2d(2),
        lambda x, w: np_pooled(np_relu(np_conv(x, w, 1)), 2).max((4, 5)),
    ),
    Row(
        "pool-both",
        1,
        [IMAGE],
        lambda x: x.max_pool2d(2) + x.avg_pool2d(2),
        lambda x: np_pooled(x, 2).max((4, 5)) + np_pooled(x, 2).mean((4, 5)),
    ),
    Row("conv-mean-linear", 2, [IMAGE, KERNEL, (4, 5), (5,)], classifier, np_classifier),
    Row("squeeze-excite", 3, [IMAGE, (4, 2), (2, 4)], squeeze_excite, np_squeeze_excite),
    Row(
        "upsampled-conv",
        1,
        [(1, 4, 4, 4), KERNEL],
        lambda x, w: (
            x.reshape(1, 4, 4, 1, 4, 1)
            .expand(1, 4, 4, 2, 4, 2)
            .reshape(IMAGE)
            .conv2d(w, padding=1)
            .relu()
        ),
        lambda x, w: np_relu(np_conv(x.repeat(2, 2).repeat(2, 3), w, 1)),
    ),
    Row(
        "two-heads",
        1,
        [IMAGE, KERNEL, KERNEL],
        lambda x, a, b: [x.conv2d(a).relu(), x.conv2d(b).sigmoid()],
        lambda x, a, b: [np_relu(np_conv(x, a)), np_sigmoid(np_conv(x, b))],
    ),
]

# --- products ---------------------------------------------------------------------------------


def gated(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return ((x @ a).silu() * (x @ b)) @ c + x


def np_gated(x: Array, a: Array, b: Array, c: Array) -> Array:
    return np.asarray((np_silu(x @ a) * (x @ b)) @ c + x)


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    scores = q @ k.transpose() * (1.0 / math.sqrt(q.shape[-1]))
    return (scores + mask).softmax() @ v


def heads(x: Tensor) -> Tensor:
    return x.reshape(x.shape[0], HEADS, x.shape[1] // HEADS).transpose(0, 1)


def np_heads(x: Array) -> Array:
    return x.reshape(x.shape[0], HEADS, -1).transpose(1, 0, 2)


def self_attention(x: Tensor, wq: Tensor, wk: Tensor, wv: Tensor, wo: Tensor) -> Tensor:
    """Tokens (T, D); several heads, causal."""
    ramp = Tensor.arange(x.shape[0])
    mask = (ramp.unsqueeze(0) <= ramp.unsqueeze(1)).where(0.0, NEGATIVE)
    mixed = attention(heads(x @ wq), heads(x @ wk), heads(x @ wv), mask)
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
PRODUCTS = [
    Row(
        "linear-relu-residual",
        1,
        [TOKEN, SQUARE, (WIDTH,)],
        lambda x, w, b: (x @ w + b).relu() + x,
        lambda x, w, b: np_relu(x @ w + b) + x,
    ),
    Row(
        "products-added",
        1,
        [SQUARE] * 4,
        lambda a, b, c, d: a @ b + c @ d,
        lambda a, b, c, d: a @ b + c @ d,
    ),
    Row(
        "products-beside",
        1,
        [SQUARE] * 3,
        lambda a, b, c: [a @ b, a @ c],
        lambda a, b, c: [a @ b, a @ c],
    ),
    Row(
        "product-of-transposed",
        1,
        [SQUARE] * 2,
        lambda a, b: (a.T @ b.T).T.exp(),
        lambda a, b: np.exp(b @ a),
    ),
    Row(
        "products-chained",
        2,
        [SQUARE] * 3,
        lambda a, b, c: (a @ b).T @ c,
        lambda a, b, c: (a @ b).T @ c,
    ),
    Row("gated-layer", 2, [TOKEN, SQUARE, SQUARE, SQUARE], gated, np_gated),
    Row(
        "linear-softmax",
        1,
        [TOKEN, SQUARE],
        lambda x, w: (x @ w).softmax(),
        lambda x, w: np_softmax(x @ w),
    ),
    Row(
        "linear-layernorm-linear",
        1,
        [TOKEN, SQUARE, SQUARE],
        lambda x, v, w: (x @ v).layernorm() @ w,
        lambda x, v, w: np_layernorm(x @ v) @ w,
        1e-4,
    ),
    Row(
        "outer-product-sum",
        1,
        [(12,), (9,)],
        lambda a, b: (a.unsqueeze(1) * b.unsqueeze(0)).exp().sum(1),
        lambda a, b: np.exp(np.outer(a, b)).sum(1),
    ),
    Row(
        "bilinear",
        1,
        [TOKEN, SQUARE, TOKEN],
        lambda x, w, y: ((x @ w) * y).sum(1),
        lambda x, w, y: ((x @ w) * y).sum(1),
    ),
    Row(
        "attention-mask",
        1,
        [QKV, QKV, QKV, (TOKENS, TOKENS)],
        attention,
        lambda q, k, v, m: np_softmax(q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1]) + m) @ v,
    ),
    Row("attention-heads", 3, [TOKEN, *[SQUARE] * 4], self_attention, np_self_attention, 1e-4),
    Row(
        "attention-cached",
        1,
        [(HEADS, 1, 8)] * 3 + [QKV] * 2,
        cached_attention,
        np_cached_attention,
    ),
    Row("block", 6, [TOKEN, *[SQUARE] * 6], block, np_block, 2e-4),
    # The same at a size at which a peer takes 14.
    Row(
        "block-wide",
        8,
        [TOKEN, *[SQUARE] * 6],
        block,
        np_block,
        2e-4,
        large=[(64, 128), *[(128, 128)] * 4, (128, 512), (512, 128)],
    ),
]
