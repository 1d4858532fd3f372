"""Convolutions and pooling, with all that is elementwise around them."""

from __future__ import annotations

from functools import partial

import numpy as np

from scheduler.tensor.tensor import Tensor
from tests.scheduler.fusion.reference import (
    np_batchnorm,
    np_conv,
    np_elu,
    np_layernorm,
    np_relu,
    np_sigmoid,
    np_silu,
)
from tests.scheduler.fusion.row import Array, Row, by_interpreter, positive
from tests.scheduler.support.values import Weights


def np_average_pool(x: Array, kernel: tuple[int, int], padding: int) -> Array:
    """Average windows of (H, W) that do not overlap; padding counts as zeros."""
    p = np.pad(x, padding)
    seen = np.lib.stride_tricks.sliding_window_view(p, kernel)
    return np.asarray(seen[:: kernel[0], :: kernel[1]].mean((2, 3)))


def image_conv(x: Tensor) -> Tensor:
    """Look like a convolution on images: a pinned permutation, then a sum over a repeated axis."""
    packed = x.permute(1, 0).contiguous().reshape(32, 16, 1).expand(32, 16, 16)
    return packed.sum(2).permute(1, 0)


def three_image_convs(x: Tensor, b1: Tensor, b2: Tensor) -> Tensor:
    base = image_conv(x) + b1.reshape(16, 1)
    return image_conv(image_conv(base) + b2.reshape(16, 1) + base)


def np_grouped(x: Array, w: Array, groups: int, padding: int = 0) -> Array:
    parts = zip(np.split(x, groups, 1), np.split(w, groups), strict=True)
    return np.concatenate([np_conv(a, b, padding) for a, b in parts], 1)


def np_pooled(x: Array, size: int) -> Array:
    """Windows (N, C, H/size, W/size, size, size) that do not overlap."""
    n, c, h, w = x.shape
    cut = x.reshape(n, c, h // size, size, w // size, size)
    return cut.transpose(0, 1, 2, 4, 3, 5)


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


def batch_statistics(x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    mean = x.mean((0, 2, 3))
    variance = x.var((0, 2, 3), correction=0)
    return x.batchnorm(scale, bias, mean, variance)


def np_batch_statistics(x: Array, scale: Array, bias: Array) -> Array:
    return np_batchnorm(x, scale, bias, x.mean((0, 2, 3)), x.var((0, 2, 3)))


def residual_block(x: Tensor, *weights: Tensor) -> Tensor:
    """Two convolutions, each with a batch normalisation of given statistics."""
    first, s1, b1, m1, v1, second, s2, b2, m2, v2 = weights
    y = x.conv2d(first, padding=1).batchnorm(s1, b1, m1, v1).relu()
    return (y.conv2d(second, padding=1).batchnorm(s2, b2, m2, v2) + x).relu()


def np_residual_block(x: Array, *weights: Array) -> Array:
    y = np_relu(np_batchnorm(np_conv(x, weights[0], 1), *weights[1:5]))
    return np_relu(np_batchnorm(np_conv(y, weights[5], 1), *weights[6:10]) + x)


def conv_norm(x: Tensor, drawn: Weights) -> Tensor:
    c = x.shape[1]
    y = x.conv2d(drawn(c, c, 3, 3), padding=1)
    return y.batchnorm(drawn(c), drawn(c), drawn(c), drawn(c).square() + 1.0)


def residual_norms(x: Tensor) -> Tensor:
    """Two convolutions with batch normalisation, all of it weights."""
    drawn = Weights()
    return (conv_norm(conv_norm(x, drawn).relu(), drawn) + x).relu()


def residual_convs(x: Tensor, count: int) -> Tensor:
    drawn, c = Weights(), x.shape[1]
    for _ in range(count):
        h = (x.conv2d(drawn(c, c, 3, 3), padding=1) + drawn(c, 1, 1)).relu()
        x = (h.conv2d(drawn(c, c, 3, 3), padding=1) + drawn(c, 1, 1) + x).relu()
    return x


ROWS = [
    Row("convs-on-packed-images", (4, 18624, 4096), [(16, 32), (16,), (16,)], three_image_convs),
    Row(
        "average-pool-of-steps",
        (1, 72, 0),
        [],
        lambda: Tensor.arange(25).reshape(1, 1, 5, 5).float().avg_pool2d(2, padding=1),
        lambda: np_average_pool(np.arange(25.0).reshape(5, 5), (2, 2), 1)[None, None],
        owned=(0, 72, 0),
    ),
    Row(
        "average-pool-of-steps-oblong",
        (1, 48, 0),
        [],
        lambda: Tensor.arange(25).reshape(1, 1, 5, 5).float().avg_pool2d((2, 3), padding=1),
        lambda: np_average_pool(np.arange(25.0).reshape(5, 5), (2, 3), 1)[None, None],
        owned=(0, 48, 0),
    ),
    Row(
        "batch-statistics",
        (1, 4352, 0),
        [(1, 32, 4, 4), (32,), (32,)],
        batch_statistics,
        np_batch_statistics,
    ),
    Row(
        "conv-batch-statistics-relu",
        (1, 1808, 0),
        [(1, 3, 8, 8), (4, 3, 3, 3), (4,), (4,)],
        lambda x, w, s, b: batch_statistics(x.conv2d(w), s, b).relu(),
        lambda x, w, s, b: np_relu(np_batch_statistics(np_conv(x, w), s, b)),
    ),
    Row(
        "conv-relu-twice",
        (2, 4832, 1024),
        [(1, 3, 10, 10), (4, 3, 3, 3), (4, 4, 3, 3)],
        lambda x, v, w: x.conv2d(v).relu().conv2d(w).relu(),
        lambda x, v, w: np_relu(np_conv(np_relu(np_conv(x, v)), w)),
    ),
    Row(
        "conv-elu",
        (1, 2656, 0),
        [(1, 3, 10, 10), (4, 3, 3, 3)],
        lambda x, w: x.conv2d(w).elu(),
        lambda x, w: np_elu(np_conv(x, w)),
    ),
    Row(
        "residual-block",
        (2, 1607680, 262144),
        [
            (1, 64, 32, 32),
            *((64, 64, 3, 3), (64,), (64,), (64,), positive(64)) * 2,
        ],
        residual_block,
        np_residual_block,
        tolerance=1e-4,
    ),
    # windows do not overlap: each value is computed once
    Row(
        "pool-of-pool",
        (1, 2176, 0),
        [(1, 2, 16, 16)],
        lambda x: x.avg_pool2d(2).max_pool2d(2),
        lambda x: x.reshape(1, 2, 8, 2, 8, 2).mean((3, 5)).reshape(1, 2, 4, 2, 4, 2).max((3, 5)),
    ),
    Row(
        "conv-bias-residual",
        (1, 2640, 0),
        [IMAGE, KERNEL, (4,)],
        residual_conv,
        lambda x, w, b: np_relu(np_conv(x, w, 1) + b[:, None, None] + x),
    ),
    Row(
        "conv-groups",
        (1, 2320, 0),
        [IMAGE, (6, 2, 3, 3)],
        lambda x, w: x.conv2d(w, groups=2).silu(),
        lambda x, w: np_silu(np_grouped(x, w, 2)),
    ),
    Row(
        "conv-depthwise",
        (1, 2192, 0),
        [IMAGE, (4, 1, 3, 3)],
        lambda x, w: x.conv2d(w, padding=1, groups=4).clip(0.0, 0.5) + x,
        lambda x, w: np.clip(np_grouped(x, w, 4, 1), 0, 0.5) + x,
    ),
    Row(
        "conv-separable",
        (2, 4888, 1024),
        [IMAGE, (4, 1, 3, 3), (4,), (6, 4, 1, 1), (6,)],
        separable,
        np_separable,
    ),
    Row(
        "conv-stride",
        (1, 1744, 0),
        [IMAGE, KERNEL],
        lambda x, w: x.conv2d(w, stride=2).tanh(),
        lambda x, w: np.tanh(np_conv(x, w)[:, :, ::2, ::2]),
    ),
    Row(
        "conv-bottleneck",
        (3, 5328, 1024),
        [IMAGE, (2, 4, 1, 1), (2, 2, 3, 3), (4, 2, 1, 1)],
        bottleneck,
        np_bottleneck,
    ),
    Row(
        "conv-downsampled",
        (2, 4688, 512),
        [IMAGE, (6, 4, 3, 3), (6, 6, 3, 3), (6, 4, 1, 1)],
        downsampled,
        np_downsampled,
    ),
    Row("conv-branches", (1, 4864, 0), [IMAGE, (3, 4, 1, 1), (5, 4, 3, 3)], branches, np_branches),
    Row(
        "conv-after-branches",
        (2, 7520, 2048),
        [IMAGE, (3, 4, 1, 1), (5, 4, 3, 3), (2, 12, 1, 1)],
        lambda x, a, b, c: branches(x, a, b).conv2d(c),
        lambda x, a, b, c: np_conv(np_branches(x, a, b), c),
    ),
    Row(
        "conv-batchnorm-silu",
        (1, 2688, 0),
        [IMAGE, KERNEL, (4,), (4,), (4,), positive(4)],
        normalised_conv,
        lambda x, w, *s: np_silu(np_batchnorm(np_conv(x, w, 1), *s)),
    ),
    Row(
        "conv-instance-norm",
        (1, 2624, 0),
        [IMAGE, KERNEL],
        instance_norm,
        np_instance_norm,
        tolerance=1e-4,
    ),
    Row(
        "conv-max-pool",
        (1, 1856, 0),
        [IMAGE, KERNEL],
        lambda x, w: x.conv2d(w, padding=1).relu().max_pool2d(2),
        lambda x, w: np_pooled(np_relu(np_conv(x, w, 1)), 2).max((4, 5)),
    ),
    Row(
        "pool-both",
        (1, 1280, 0),
        [IMAGE],
        lambda x: x.max_pool2d(2) + x.avg_pool2d(2),
        lambda x: np_pooled(x, 2).max((4, 5)) + np_pooled(x, 2).mean((4, 5)),
    ),
    Row(
        "conv-mean-linear", (2, 1752, 256), [IMAGE, KERNEL, (4, 5), (5,)], classifier, np_classifier
    ),
    Row("squeeze-excite", (3, 3184, 512), [IMAGE, (4, 2), (2, 4)], squeeze_excite),
    Row(
        "upsampled-conv",
        (1, 1856, 0),
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
        (1, 3328, 0),
        [IMAGE, KERNEL, KERNEL],
        lambda x, a, b: [x.conv2d(a).relu(), x.conv2d(b).sigmoid()],
        lambda x, a, b: [np_relu(np_conv(x, a)), np_sigmoid(np_conv(x, b))],
    ),
    Row(
        "batch-statistics-unscaled",
        (1, 4096, 0),
        [(1, 32, 4, 4)],
        lambda x: batch_statistics(x, Tensor.ones(32), Tensor.zeros(32)),
        lambda x: np_batch_statistics(x, np.ones(32), np.zeros(32)),
    ),
    Row(
        "average-pool-padded",
        (1, 244, 0),
        [(1, 1, 5, 5)],
        lambda x: x.avg_pool2d(2, 1, 1),
        lambda x: np.lib.stride_tricks.sliding_window_view(np.pad(x[0, 0], 1), (2, 2)).mean((2, 3))[
            None, None
        ],
    ),
    Row(
        "residual-block-of-weights",
        (2, 1606656, 262144),
        [(1, 8, 6, 6)],
        residual_norms,
        by_interpreter,
        tolerance=1e-4,
        large=[(1, 64, 32, 32)],
    ),
    Row(
        "residual-convs",
        (2, 1606144, 262144),
        [(1, 8, 6, 6)],
        partial(residual_convs, count=1),
        by_interpreter,
        tolerance=2e-4,
        large=[(1, 64, 32, 32)],
    ),
    Row(
        "residual-convs-four-blocks",
        (8, 7112704, 786432),
        [(1, 8, 6, 6)],
        partial(residual_convs, count=4),
        by_interpreter,
        tolerance=2e-4,
        large=[(1, 64, 32, 32)],
    ),
]
