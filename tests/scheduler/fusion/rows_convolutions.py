"""Convolutions and pooling, with all that is elementwise around them."""

from __future__ import annotations

from scheduler.tensor.tensor import Tensor
from tests.scheduler.fusion.row import row
from tests.scheduler.support.values import Weights


def image_conv(x: Tensor) -> Tensor:
    """Look like a convolution on images: a pinned permutation, then a sum over a repeated axis."""
    packed = x.permute(1, 0).contiguous().reshape(32, 16, 1).expand(32, 16, 16)
    return packed.sum(2).permute(1, 0)


def three_image_convs(x: Tensor, b1: Tensor, b2: Tensor) -> Tensor:
    base = image_conv(x) + b1.reshape(16, 1)
    return image_conv(image_conv(base) + b2.reshape(16, 1) + base)


def separable(x: Tensor, deep: Tensor, b: Tensor, point: Tensor, c: Tensor) -> Tensor:
    y = x.conv2d(deep, b, padding=1, groups=x.shape[1]).relu()
    return y.conv2d(point, c).relu()


def bottleneck(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return (x.conv2d(a).relu().conv2d(b, padding=1).relu().conv2d(c) + x).relu()


def downsampled(x: Tensor, a: Tensor, b: Tensor, side: Tensor) -> Tensor:
    """A residual block whose shortcut is a convolution too."""
    y = x.conv2d(a, stride=2, padding=1).relu().conv2d(b, padding=1)
    return (y + x.conv2d(side, stride=2)).relu()


def branches(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return Tensor.cat([x.conv2d(a).relu(), x.conv2d(b, padding=1).relu(), x], 1)


def squeeze_excite(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    weights = ((x.mean((2, 3)) @ a).relu() @ b).sigmoid()
    return x * weights.reshape(*weights.shape, 1, 1)


def batch_statistics(x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    mean = x.mean((0, 2, 3))
    variance = x.var((0, 2, 3), correction=0)
    return x.batchnorm(scale, bias, mean, variance)


def residual_block(x: Tensor, *weights: Tensor) -> Tensor:
    """Two convolutions, each with a batch normalisation of given statistics."""
    first, s1, b1, m1, v1, second, s2, b2, m2, v2 = weights
    y = x.conv2d(first, padding=1).batchnorm(s1, b1, m1, v1).relu()
    return (y.conv2d(second, padding=1).batchnorm(s2, b2, m2, v2) + x).relu()


def conv_norm(x: Tensor, drawn: Weights) -> Tensor:
    c = x.shape[1]
    y = x.conv2d(drawn(c, c, 3, 3), padding=1)
    return y.batchnorm(drawn(c), drawn(c), drawn(c), drawn(c).square() + 1.0)


def residual_norms(x: Tensor) -> Tensor:
    """Two convolutions with batch normalisation, all of it weights."""
    drawn = Weights()
    return (conv_norm(conv_norm(x, drawn).relu(), drawn) + x).relu()


def residual_convs(x: Tensor) -> Tensor:
    drawn, c = Weights(), x.shape[1]
    for _ in range(4):
        h = (x.conv2d(drawn(c, c, 3, 3), padding=1) + drawn(c, 1, 1)).relu()
        x = (h.conv2d(drawn(c, c, 3, 3), padding=1) + drawn(c, 1, 1) + x).relu()
    return x


def upsampled_norm(x: Tensor, deep: Tensor, side: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    """Nearest up-sampling, a residual convolution, normalisation of four groups, and SiLU."""
    _, c, h, w = x.shape
    wide = x.reshape(1, c, h, 1, w, 1).expand(1, c, h, 2, w, 2).reshape(1, c, 2 * h, 2 * w)
    y = wide.conv2d(deep, padding=1) + wide.conv2d(side)
    normed = y.reshape(1, 4, -1).layernorm().reshape(*y.shape)
    normed = normed * scale.reshape(c, 1, 1) + bias.reshape(c, 1, 1)
    return normed * normed.sigmoid()


# Multiply-adds of both filters, and less than a hundred operations for a result.
UPSAMPLED = 2 * 16 * 32 * 32 * 16 * (9 + 1) + 16 * 32 * 32 * 100 - 1
# Multiply-adds of a filter of 3 by 3, and less than a hundred operations for a pixel.
EXPENSIVE = 2 * 16 * 32 * 32 * 16 * 9 + 16 * 32 * 32 * 100 - 1
ROWS = [
    row("convs-on-packed-images", (4, 18624, 4096), "16x32 16 16")(three_image_convs),
    row("average-pool-of-steps", 72, "", owned=(0, 72, 0))(
        lambda: Tensor.arange(25).reshape(1, 1, 5, 5).float().avg_pool2d(2, padding=1)
    ),
    row("batch-statistics", 4352, "1x32x4x4 32 32")(batch_statistics),
    row("conv-batch-statistics-relu", 1808, "1x3x8x8 4x3x3x3 4 4")(
        lambda x, w, s, b: batch_statistics(x.conv2d(w), s, b).relu()
    ),
    row(
        "residual-block",
        (2, 1607680, 262144),
        "1x64x32x32 64x64x3x3 64 64 64 +64 64x64x3x3 64 64 64 +64",
        tolerance=1e-4,
    )(residual_block),
    row("conv-bias-residual", 2640, "1x4x8x8 4x4x3x3 4")(
        lambda x, w, b: (x.conv2d(w, b, padding=1) + x).relu()
    ),
    row("conv-groups", 2320, "1x4x8x8 6x2x3x3")(lambda x, w: x.conv2d(w, groups=2).silu()),
    row("conv-depthwise", 2192, "1x4x8x8 4x1x3x3")(
        lambda x, w: x.conv2d(w, padding=1, groups=4).clip(0.0, 0.5) + x
    ),
    row("conv-separable", (2, 4888, 1024), "1x4x8x8 4x1x3x3 4 6x4x1x1 6")(separable),
    row("conv-bottleneck", (3, 5328, 1024), "1x4x8x8 2x4x1x1 2x2x3x3 4x2x1x1")(bottleneck),
    row("conv-downsampled", (2, 4688, 512), "1x4x8x8 6x4x3x3 6x6x3x3 6x4x1x1")(downsampled),
    row("conv-branches", 4864, "1x4x8x8 3x4x1x1 5x4x3x3")(branches),
    row("conv-after-branches", (2, 7520, 2048), "1x4x8x8 3x4x1x1 5x4x3x3 2x12x1x1")(
        lambda x, a, b, c: branches(x, a, b).conv2d(c)
    ),
    row("conv-instance-norm", 2624, "1x4x8x8 4x4x3x3", tolerance=1e-4)(
        lambda x, w: x.conv2d(w, padding=1).layernorm((2, 3)).relu()
    ),
    row("pool-both", 1280, "1x4x8x8")(lambda x: x.max_pool2d(2) + x.avg_pool2d(2)),
    row("squeeze-excite", (3, 3184, 512), "1x4x8x8 4x2 2x4")(squeeze_excite),
    row("two-heads", 3328, "1x4x8x8 4x4x3x3 4x4x3x3")(
        lambda x, a, b: [x.conv2d(a).relu(), x.conv2d(b).sigmoid()]
    ),
    row("average-pool-padded", 244, "1x1x5x5")(lambda x: x.avg_pool2d(2, 1, 1)),
    row(
        "residual-block-of-weights",
        (2, 1606656, 262144),
        "1x8x6x6",
        tolerance=1e-4,
        large="1x64x32x32",
    )(residual_norms),
    row(
        "residual-convs-four-blocks",
        (8, 7112704, 786432),
        "1x8x6x6",
        tolerance=2e-4,
        large="1x64x32x32",
    )(residual_convs),
    # Neither what is up-sampled nor what is normalised is computed again to save a launch.
    row(
        "upsampled-residual-norm",
        (6, 1681600, 655360),
        "1x16x16x16 16x16x3x3 16x16x1x1 16 16",
        flops=UPSAMPLED,
        tolerance=1e-3,
    )(upsampled_norm),
    # The exponential of an image is computed once per pixel, not once per tap of a filter.
    row(
        "conv-of-expensive-values",
        (2, 271360, 65536),
        "1x16x32x32 16x16x3x3",
        flops=EXPENSIVE,
        tolerance=1e-3,
    )(lambda x, w: x.exp().tanh().erf().conv2d(w, padding=1)),
]
