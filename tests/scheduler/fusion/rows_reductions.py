"""Reductions: what precedes and follows them, and several in one loop nest."""

from __future__ import annotations

import math

from scheduler.tensor.tensor import Tensor
from tests.scheduler.fusion.row import Row, below


def below_diagonal(n: int) -> Tensor:
    steps = Tensor.arange(n)
    return steps.unsqueeze(0) <= steps.unsqueeze(1)


def running_sum(x: Tensor) -> Tensor:
    return below_diagonal(x.shape[-1]).where(x.unsqueeze(-2), 0.0).sum(-1)


def cosine(x: Tensor, y: Tensor) -> Tensor:
    return (x * y).sum(-1) / (x.square().sum(-1).sqrt() * y.square().sum(-1).sqrt())


def distances(a: Tensor, b: Tensor) -> Tensor:
    return (a.unsqueeze(1) - b.unsqueeze(0)).square().sum(-1)


PADS = [(1, 1), (0, 0)]


def mean_twice(x: Tensor) -> Tensor:
    mean = x.mean(0, keepdim=True)
    return mean + (x - mean).sum(0) / 2.0


def running_maximum(x: Tensor) -> Tensor:
    n = x.shape[0]
    return x.pad([(n - 1, 0)], -math.inf).window(0, n).max(1)


def thrice_scaled(a: Tensor) -> Tensor:
    for _ in range(3):
        a = a * a.sum(1, keepdim=True)
    return a


def one_hot(label: Tensor, count: int) -> Tensor:
    return Tensor.arange(count).unsqueeze(0).eq(label.unsqueeze(1)).float()


def logsumexp(x: Tensor) -> Tensor:
    largest = x.max(-1, keepdim=True)
    return ((x - largest).exp().sum(-1, keepdim=True).log() + largest).squeeze(-1)


def entropy(x: Tensor) -> Tensor:
    return -(x.softmax() * x.log_softmax()).sum(-1)


def divergence(x: Tensor, y: Tensor) -> Tensor:
    return (x.softmax() * (x.log_softmax() - y.log_softmax())).sum(-1)


def group_norm(x: Tensor) -> Tensor:
    """Two groups of (2, 6, 4, 4)."""
    return x.reshape(2, 2, 3 * 16).layernorm().reshape(2, 6, 4, 4)


def by_range(x: Tensor, axis: int | None) -> Tensor:
    low, high = x.min(axis, keepdim=True), x.max(axis, keepdim=True)
    return (x - low) / (high - low)


def cross_entropy(x: Tensor, label: Tensor) -> Tensor:
    """Mean over rows whose label is not -1."""
    valid = label.ne(-1).float()
    hot = Tensor.arange(x.shape[1]).unsqueeze(0).eq(label.unsqueeze(1)).where(-1.0, 0.0)
    return (x.log_softmax() * (hot * valid.unsqueeze(1))).sum() / valid.sum()


def normalised_row(p: Tensor) -> Tensor:
    return (p / p.sum(1, keepdim=True))[0].pad([(1, 0)]).repeat([2])


def norm_softmax_gelu(x: Tensor) -> Tensor:
    y = ((x * 2.0).layernorm().softmax() - 0.5).gelu()
    return y.sum(1) + y.max(1)


def scaled_and_largest(h: Tensor, scale: Tensor) -> list[Tensor]:
    return [(h * scale).sigmoid(), h.abs().max(keepdim=True)]


ROWS = [
    # Reductions: what precedes and follows them, and several in one loop nest.
    Row(
        "half-sum-views",
        1152,
        "4x4x4x4 16",
        lambda a, b: a.sum((0, 1)).half().T.reshape(2, 2, 4).permute(2, 0, 1).reshape(16) + b,
        tolerance=2e-3,
    ),
    Row("product-sum-relu", 804, "10x10 10x10", lambda a, b: (a * b).sum().relu()),
    Row("sum-plus-vector", 480, "10x10 10", lambda a, b: a.sum(0) + b),
    Row(
        "sum-of-reshaped",
        1240,
        "100 100 10x10",
        lambda a, b, c: ((a + b).reshape(10, 10) + c).sum(0),
    ),
    Row("mean-twice", 4224, "32x32", mean_twice),
    Row("sum-root-negated", 260, "+8x8", lambda y: -y.sum(keepdim=True).sqrt()),
    Row("sums-of-both-axes-added", 16640, "64x64", lambda x: (x.sum(0) + x.sum(1)).relu()),
    Row(
        "activated-sums-added",
        544,
        "8x8 8x8",
        lambda x, y: x.sum(1).relu().elu() + y.sum(1).relu().elu(),
    ),
    Row("sum-relu-sum", 131200, "32x32x32", lambda x: x.sum(2).relu().sum(1), tolerance=1e-4),
    Row("sum-cut", 2176, "32x32 16", lambda x, y: x.sum(1)[:16] + y),
    Row("rows-plus-their-sum-summed", 288, "8x8", lambda a: (a + a.sum(-1, keepdim=True)).sum(-1)),
    Row("row-sums-added", 544, "8x8 8x8", lambda x, y: y.sum(-1) + x.sum(-1)),
    Row("half-sum", 260, "8x8", lambda x: x.sum().half().float(), tolerance=2e-3),
    Row("sum-cut-scaled", 304, "16x16 16 4", lambda a, c, b: (a.sum(1) + c)[:4] * b),
    Row("sum-and-max-added", 288, "8x8", lambda a: (a.sum(0) + a.max(1)) + 2.0),
    Row("pad-sum", 132, "4x4 4x4", lambda a, b: (a + b).pad([(1, 1), (1, 1)], 1.0).sum()),
    Row("log-pad-sum", 68, "+4x4", lambda a: a.log2().pad([(1, 1), (1, 1)], 1.0).sum()),
    Row("sum-plus-column", 96, "4x4 4x1", lambda a, b: a.sum(1, keepdim=True) + b),
    Row(
        "sum-permuted-plus",
        512,
        "4x6x4 4x4x1",
        lambda a, b: a.sum(1, keepdim=True).permute(2, 0, 1) + b,
    ),
    Row("minus-row-sums", 8192, "32x32", lambda a: a - a.sum(1)),
    Row("plus-a-step-summed", 48, "10", lambda x: (x + Tensor.arange(10)[2]).sum()),
    Row("plus-a-later-step-summed", 48, "10", lambda x: (x + (Tensor.arange(10) + 1)[2]).sum()),
    Row("running-maximum", 8176, "1022", running_maximum),
    Row(
        "quotient-pad-sum", 132, "+4x4 4x4", lambda x, y: (1.0 / x * y).pad([(0, 1), (0, 1)]).sum()
    ),
    Row("sum-twice", 1540, "16x24", lambda a: a.sum(0).sum(0)),
    Row("sum-permute-max", 1944, "6x8x10", lambda a: a.sum(2).permute(1, 0).max(0)),
    Row("sum-reshape-max", 1040, "8x8x4", lambda a: a.sum(2).reshape(4, 16).max(1)),
    Row("min-max-sum", 1924, "6x8x10", lambda a: a.min(2).max(1).sum(0)),
    Row("mean-of-mean", 1952, "6x8x10", lambda a: a.mean(0).mean(1)),
    Row(
        "pad-sum-pad-max",
        (2, 1696, 256),
        "16x24",
        lambda a: a.pad(PADS, 1.0).sum(1).pad([(2, 0)], -9.0).reshape(4, 5).max(1),
        open=(1, "each padded sum is read once, but a place with a remainder in it is stored"),
    ),
    Row("exp-pad-sum", 1632, "16x24", lambda a: a.exp().pad(PADS).sum(0)),
    Row("expand-permute-sum", 608, "1x16 16x8", lambda a, b: (a.expand(8, 16).T * b).sum(0)),
    Row(
        "windows-of-windows",
        (2, 968, 256),
        "64",
        lambda x: x.window(0, 5).sum(1).window(0, 3).max(1),
    ),
    Row(
        "masked-mean",
        3136,
        "16x24 16x24",
        lambda x, m: (m > 0).where(x, 0.0).sum(1) / (m > 0).float().sum(1),
    ),
    Row("cosine", 3136, "16x24 16x24", cosine),
    Row("products-of-moments", 3136, "16x24 16x24", lambda x, y: x.mean(1) * y.var(1)),
    Row("two-axes-added", 1088, "16x16", lambda x: x.max(0).exp() + x.min(1).sin()),
    Row(
        "outer-of-sums",
        (2, 4736, 256),
        "16x24",
        lambda x: x.sum(1, keepdim=True) * x.sum(0, keepdim=True),
    ),
    Row("distances", 1184, "10x8 12x8", distances),
    Row("nearest", 744, "10x8 12x8", lambda a, b: distances(a, b).argmin(1)),
    Row("running-sum", 2048, "4x32", running_sum),
    Row("running-mean", 2176, "4x32", lambda x: running_sum(x) / (Tensor.arange(32) + 1).float()),
    Row("running-sum-of-exp", 1280, "32", lambda x: running_sum(x.exp()).log()),
    Row("sum-first-axis", 440, "10x10", lambda a: a.sum(0)),
    Row("sum-plus-map", 480, "10x10 10", lambda a, b: a.sum(1) + b.cos()),
    Row("outer-of-sum-and-map", 840, "10x10 10", lambda a, b: a.sum(1, keepdim=True) * b.cos()),
    Row("thrice-scaled-by-its-sum", 800, "10x10", thrice_scaled),
    Row(
        "ones-summed",
        0,
        "",
        lambda: (Tensor.ones(10) + Tensor.ones(10, 10)).sum(-1),
        owned=(0, 40, 0),
    ),
    Row("distances-largest", 680, "10x1x8 1x10x8", lambda a, b: (a - b).square().sum(-1).max(1)),
    Row(
        "half-sum-transposed",
        1152,
        "4x4x4x4 16",
        lambda a, b: a.sum((0, 1)).half().float().T.reshape(16) + b,
        tolerance=2e-3,
    ),
    Row("range-of-two-kinds", 1088, "16x16", lambda a: a.max(1) - a.min(1)),
    Row(
        "reductions-of-other-lengths",
        1088,
        "16x16",
        lambda a: a.sum(1) + a[:, :7].max(1) * a.reshape(16, 2, 8).sum((1, 2)),
    ),
    Row("three-reductions", 1088, "16x16", lambda a: a.sum(1) * a.max(1) + a.square().sum(1)),
    Row(
        "sum-with-a-long-epilogue",
        2144,
        "16x32 16",
        lambda a, b: ((a.sum(1) * 0.5 + b).relu().exp() - 1.0).half(),
        tolerance=2e-3,
    ),
    Row(
        "maximum-with-a-long-prologue",
        2240,
        "16x32 32",
        lambda a, b: ((a - 1.0).square() * b).exp().T.max(0),
        tolerance=1e-4,
    ),
    # Several reductions of one row, each of the results of those before: one loop nest per row.
    Row("argmin-last-axis", 528, "4x32", lambda x: x.argmin(-1)),
    Row("centred-sum", 288, "8x8", lambda x: (x - x.max(-1, keepdim=True)).sum(-1)),
    Row("softmax", 1572864, "4x12x64x64", lambda x: x.softmax()),
    Row("normalised-row", 52, "+3x3", normalised_row, owned=68),
    Row("cross-entropy-sparse", (2, 92, 512), [(2, 3), below(3, 2)], cross_entropy),
    Row("argmax-first-axis", 1632, "16x24", lambda x: x.argmax(0)),
    Row("argmax-last-axis", 1600, "16x24", lambda x: x.argmax(-1)),
    Row("argmin-middle", 2160, "6x8x10", lambda x: x.argmin(1)),
    Row("argmax-of-all", 1540, "16x24", lambda x: x.argmax()),
    Row(
        "argmax-of-two-axes",
        1944,
        "6x8x10",
        lambda x: x.argmax((1, 2)),
        lambda x: x.reshape(6, 80).argmax(1),
    ),
    Row("argmax-of-softmax", 1600, "16x24", lambda x: x.softmax().argmax(-1)),
    Row("var-first-axis", 1632, "16x24", lambda x: x.var(0)),
    Row("var-last-axis", 1600, "16x24", lambda x: x.var(1)),
    Row("std-of-two-axes", 1952, "6x8x10", lambda x: x.std((0, 2))),
    Row("std-of-all", 1540, "16x24", lambda x: x.std()),
    Row("softmax-middle", 3840, "6x8x10", lambda x: x.softmax(1)),
    Row("softmax-scaled", 3072, "16x24", lambda x: (x * 0.5).softmax() * 2.0 + 1.0),
    Row("log-softmax", 3072, "16x24", lambda x: x.log_softmax()),
    Row("log-softmax-first-axis", 3072, "16x24", lambda x: x.log_softmax(0)),
    Row("logsumexp", 1600, "16x24", logsumexp),
    Row("layernorm-first-axis", 3072, "16x24", lambda x: x.layernorm(0)),
    Row("layernorm-of-two-axes", 3840, "6x8x10", lambda x: x.layernorm((1, 2))),
    Row(
        "group-norm",
        1536,
        "2x6x4x4",
        group_norm,
        tolerance=1e-4,
        owned=(2, 2368, 512),
        open=(1, "in a program, a reshape of the result hides that rows are whole groups"),
    ),
    Row(
        "root-mean-square",
        3168,
        "16x24 24",
        lambda x, w: x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * w,
    ),
    Row("residual-layernorm", 4608, "16x24 16x24", lambda x, y: (x + y.relu()).layernorm()),
    Row("layernorm-then-mean", 1600, "16x24", lambda x: x.layernorm().relu().mean(-1)),
    Row("entropy", 1600, "16x24", entropy),
    Row("divergence", 3136, "16x24 16x24", divergence),
    Row("range-of-rows", 3072, "16x24", lambda x: by_range(x, 1)),
    Row("range-of-all", 3072, "16x24", lambda x: by_range(x, None)),
    Row("unit-rows", 3072, "16x24", lambda x: x / x.square().sum(-1, keepdim=True).sqrt()),
    Row(
        "cross-entropy-one-hot",
        356,
        [(8, 10), below(10, 8)],
        lambda x, label: -(x.log_softmax() * one_hot(label, 10)).sum(-1).mean(),
    ),
    Row(
        "cross-entropy-smoothed",
        356,
        [(8, 10), below(10, 8)],
        lambda x, i: -(x.log_softmax() * (one_hot(i, 10) * 0.9 + 0.01)).sum(-1).mean(),
    ),
    Row("layernorm-affine", 880, "10x10 10 10", lambda x, w, b: x.layernorm() * w + b),
    Row(
        "softmax-gradient-of-result",
        1200,
        "10x10 10x10",
        lambda g, y: g * y - y * (g * y).sum(-1, keepdim=True),
    ),
    Row(
        "layernorm-scaled-and-largest",
        (2, 268501000, 32768),
        "2x4x64 1",
        lambda x, s: scaled_and_largest(x.layernorm(), s),
        large="4x2048x4096 1",
    ),
    Row(
        "scaled-and-largest",
        (3, 402655240, 1024),
        "2x4x64 1",
        lambda x, s: scaled_and_largest(x * 1.1, s),
        large="4x2048x4096 1",
    ),
    Row("softmax-first-axis", 800, "10x10", lambda a: a.softmax(0)),
    Row("layernorm", 9216, "24x48", lambda x: x.layernorm()),
    Row("softmax-of-layernorm", 9216, "24x48", lambda x: x.layernorm().softmax()),
    Row("norm-softmax-gelu", 3136, "16x48", norm_softmax_gelu, tolerance=1e-4),
]
