"""Reductions: what precedes and follows them, and several in one loop nest."""

import math

import numpy as np

from scheduler.tensor.tensor import Tensor
from tests.scheduler.fusion.row import below, row


def below_diagonal(n: int) -> Tensor:
    steps = Tensor.arange(n)
    return steps.unsqueeze(0) <= steps.unsqueeze(1)


def running_sum(x: Tensor) -> Tensor:
    return below_diagonal(x.shape[-1]).where(x.unsqueeze(-2), 0.0).sum(-1)


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


def norm_softmax_gelu(x: Tensor) -> Tensor:
    y = ((x * 2.0).layernorm().softmax() - 0.5).gelu()
    return y.sum(1) + y.max(1)


def scaled_and_largest(h: Tensor, scale: Tensor) -> list[Tensor]:
    return [(h * scale).sigmoid(), h.abs().max(keepdim=True)]


def repeated_sums(a: Tensor, w: Tensor) -> list[Tensor]:
    """Of two values that could be stored, the one of fewer bytes is."""
    total = a.sum(1, keepdim=True).expand(64, 64)
    return [total.sum(0) + 0.0, total @ w]


def half_and_its_readers(a: Tensor, w: Tensor) -> list[Tensor]:
    """A widening conversion behind the stored value belongs to its readers."""
    narrow = a.sum(2).half()
    return [narrow.float().sum(0) * 2.0, narrow.float() @ w]


def repeated(x: Tensor) -> Tensor:
    return x.expand(4, 5, 8)


PICKED = np.array([9, -1, 4], np.int32)
OUTSIDE = np.array([[9], [0], [12]], np.int32)  # row 12 is outside
ROWS = [
    # Reductions: what precedes and follows them, and several in one loop nest.
    row("half-sum-views", 1152, "4x4x4x4 16", tolerance=2e-3)(
        lambda a, b: a.sum((0, 1)).half().T.reshape(2, 2, 4).permute(2, 0, 1).reshape(16) + b
    ),
    row("product-sum-relu", 804, "10x10 10x10")(lambda a, b: (a * b).sum().relu()),
    row("sum-plus-vector", 480, "10x10 10")(lambda a, b: a.sum(0) + b),
    row("sum-of-reshaped", 1240, "100 100 10x10")(
        lambda a, b, c: ((a + b).reshape(10, 10) + c).sum(0)
    ),
    row("mean-twice", 4224, "32x32")(mean_twice),
    row("sum-root-negated", 260, "+8x8")(lambda y: -y.sum(keepdim=True).sqrt()),
    row("sums-of-both-axes-added", 16640, "64x64")(lambda x: (x.sum(0) + x.sum(1)).relu()),
    row("sum-cut-scaled", 304, "16x16 16 4")(lambda a, c, b: (a.sum(1) + c)[:4] * b),
    row("pad-sum", 132, "4x4 4x4")(lambda a, b: (a + b).pad([(1, 1), (1, 1)], 1.0).sum()),
    row("log-pad-sum", 68, "+4x4")(lambda a: a.log2().pad([(1, 1), (1, 1)], 1.0).sum()),
    row("sum-plus-column", 96, "4x4 4x1")(lambda a, b: a.sum(1, keepdim=True) + b),
    row("sum-permuted-plus", 512, "4x6x4 4x4x1")(
        lambda a, b: a.sum(1, keepdim=True).permute(2, 0, 1) + b
    ),
    row("plus-a-later-step-summed", 48, "10")(lambda x: (x + (Tensor.arange(10) + 1)[2]).sum()),
    row("running-maximum", 8176, "1022")(running_maximum),
    row("quotient-pad-sum", 132, "+4x4 4x4")(
        lambda x, y: (1.0 / x * y).pad([(0, 1), (0, 1)]).sum()
    ),
    row("sum-twice", 1540, "16x24")(lambda a: a.sum(0).sum(0)),
    row("sum-permute-max", 1944, "6x8x10")(lambda a: a.sum(2).permute(1, 0).max(0)),
    row("sum-reshape-max", 1040, "8x8x4")(lambda a: a.sum(2).reshape(4, 16).max(1)),
    row("mean-of-mean", 1952, "6x8x10")(lambda a: a.mean(0).mean(1)),
    row(
        "pad-sum-pad-max",
        (2, 1696, 256),
        "16x24",
        # Open: each padded sum is read once, but a place with a remainder in it is stored.
    )(lambda a: a.pad(PADS, 1.0).sum(1).pad([(2, 0)], -9.0).reshape(4, 5).max(1)),
    row("exp-pad-sum", 1632, "16x24")(lambda a: a.exp().pad(PADS).sum(0)),
    row("expand-permute-sum", 608, "1x16 16x8")(lambda a, b: (a.expand(8, 16).T * b).sum(0)),
    row("outer-of-sums", (2, 4736, 256), "16x24")(
        lambda x: x.sum(1, keepdim=True) * x.sum(0, keepdim=True)
    ),
    row("distances", 1184, "10x8 12x8")(distances),
    row("nearest", 744, "10x8 12x8")(lambda a, b: distances(a, b).argmin(1)),
    row("running-sum", 2048, "4x32")(running_sum),
    row("thrice-scaled-by-its-sum", 800, "10x10")(thrice_scaled),
    row("reductions-of-nothing", 48, "3x4 3")(
        lambda x, b: [x[:, :0].sum(1) + b, x[:, :0].prod(1) + b, x[:, :0].max(1).maximum(b)],
        lambda _, b: [b, b + 1, b],
    ),
    row("repeated-axis-sum", 256, "4x1x8", loops=0)(lambda x: repeated(x).sum(1)),
    row("repeated-axes-maximum", 144, "4x1x8", loops=1)(lambda x: repeated(x).max((1, 2))),
    row("repeated-axis-product", 32, "4x1")(lambda x: x.expand(4, 3).prod(1)),
    row("ones-summed", 0, "", owned=(0, 40, 0))(
        lambda: (Tensor.ones(10) + Tensor.ones(10, 10)).sum(-1)
    ),
    row("distances-largest", 680, "10x1x8 1x10x8")(lambda a, b: (a - b).square().sum(-1).max(1)),
    row("range-of-two-kinds", 1088, "16x16")(lambda a: a.max(1) - a.min(1)),
    row("reductions-of-other-lengths", 1088, "16x16")(
        lambda a: a.sum(1) + a[:, :7].max(1) * a.reshape(16, 2, 8).sum((1, 2))
    ),
    row("three-reductions", 1088, "16x16")(lambda a: a.sum(1) * a.max(1) + a.square().sum(1)),
    row("sum-with-a-long-epilogue", 2144, "16x32 16", tolerance=2e-3)(
        lambda a, b: ((a.sum(1) * 0.5 + b).relu().exp() - 1.0).half()
    ),
    row("maximum-with-a-long-prologue", 2240, "16x32 32", tolerance=1e-4)(
        lambda a, b: ((a - 1.0).square() * b).exp().T.max(0)
    ),
    # Several reductions of one row, each of the results of those before: one loop nest per row.
    row("centred-sum", 288, "8x8")(lambda x: (x - x.max(-1, keepdim=True)).sum(-1)),
    row("softmax", 1572864, "4x12x64x64")(lambda x: x.softmax()),
    row("normalised-row", 52, "+3x3", owned=68)(
        lambda p: (p / p.sum(1, keepdim=True))[0].pad([(1, 0)]).repeat([2])
    ),
    row("cross-entropy-sparse", (2, 92, 512), [(2, 3), below(3, 2)])(cross_entropy),
    row("argmax-last-axis", 1600, "16x24")(lambda x: x.argmax(-1)),
    row("argmax-of-all", 1540, "16x24")(lambda x: x.argmax()),
    row("var-first-axis", 1632, "16x24")(lambda x: x.var(0)),
    row("softmax-middle", 3840, "6x8x10")(lambda x: x.softmax(1)),
    row("log-softmax", 3072, "16x24")(lambda x: x.log_softmax()),
    row("log-softmax-first-axis", 3072, "16x24")(lambda x: x.log_softmax(0)),
    row("logsumexp", 1600, "16x24")(logsumexp),
    row("layernorm-first-axis", 3072, "16x24")(lambda x: x.layernorm(0)),
    row("layernorm-of-two-axes", 3840, "6x8x10")(lambda x: x.layernorm((1, 2))),
    row(
        "group-norm",
        1536,
        "2x6x4x4",
        tolerance=1e-4,
        owned=(2, 2368, 512),
        # Open: in a program, a reshape of the result hides that rows are whole groups.
    )(group_norm),
    row("entropy", 1600, "16x24")(entropy),
    row("range-of-rows", 3072, "16x24")(lambda x: by_range(x, 1)),
    row("range-of-all", 3072, "16x24")(lambda x: by_range(x, None)),
    row("unit-rows", 3072, "16x24")(lambda x: x / x.square().sum(-1, keepdim=True).sqrt()),
    row("cross-entropy-one-hot", 356, [(8, 10), below(10, 8)])(
        lambda x, label: -(x.log_softmax() * one_hot(label, 10)).sum(-1).mean()
    ),
    row("softmax-gradient-of-result", 1200, "10x10 10x10")(
        lambda g, y: g * y - y * (g * y).sum(-1, keepdim=True)
    ),
    row("layernorm-scaled-and-largest", (2, 268501000, 32768), "2x4x64 1", large="4x2048x4096 1")(
        lambda x, s: scaled_and_largest(x.layernorm(), s)
    ),
    row("scaled-and-largest", (3, 402655240, 1024), "2x4x64 1", large="4x2048x4096 1")(
        lambda x, s: scaled_and_largest(x * 1.1, s)
    ),
    row("layernorm", 9216, "24x48")(lambda x: x.layernorm()),
    row("softmax-of-layernorm", 9216, "24x48")(lambda x: x.layernorm().softmax()),
    row("norm-softmax-gelu", 3136, "16x48", tolerance=1e-4)(norm_softmax_gelu),
    # Sums that become indexed loads, and reductions that are merged.
    row("row-beyond-the-budget", (2, 240064, 512), "4x5000")(lambda x: x.softmax()),
    row("gather-between", 108, [(10, 4), PICKED], loops=0)(lambda x, i: (x * 2.0)[i] + 1.0),
    row("gather-of-more-steps", 36, [PICKED], loops=0, stored=[])(
        lambda i: (Tensor.arange(10) + 1)[i]
    ),
    row("one-hot-choice", 108, [(10, 4), OUTSIDE], loops=0)(
        lambda x, i: Tensor.arange(10).reshape(1, 10).eq(i).unsqueeze(2).where(x, 0.0).sum(1)
    ),
    row("one-hot-choice-turned", 108, [(10, 4), OUTSIDE], loops=0)(
        lambda x, i: i.eq(Tensor.arange(10).reshape(1, 10)).unsqueeze(2).where(x, 0.0).sum(1)
    ),
    # Infinities of other rows would be NaN, hence only with the switch.
    row("one-hot-product", 108, [(10, 4), OUTSIDE], float_unsafe=True, loops=0)(
        lambda x, i: Tensor.arange(10).reshape(1, 10).eq(i).float() @ x
    ),
    row("sum-of-sums", 496, "4x5x6", loops=1, tolerance=1e-4)(lambda a: a.sum(2).sum(1)),
    row("maximum-of-maxima", 500, "4x5x6", loops=1)(lambda a: a.max(2).max(0)),
    row("sum-through-a-reshape", 484, "4x5x6", loops=1, tolerance=1e-4)(
        lambda a: a.sum(2).reshape(20).sum(0)
    ),
    row("minimum-through-a-permute", 500, "4x5x6", loops=1)(lambda a: a.min(0).T.min(0)),
    row("maximum-of-sums", 496, "4x5x6")(lambda a: a.sum(2).max(1)),
    # What is stored of a reduction, and what is computed once.
    row("reduction-before-a-broadcast", 20480, "32x64 32x48", flops=32 * 64 + 32 * 48)(
        lambda a, b: a.sum(1, keepdim=True).expand(32, 48) * b
    ),
    row("dropped-before-it-is-stored", (2, 19200, 256), "64x64 64x4", tolerance=1e-4)(
        repeated_sums
    ),
    row(
        "half-stored-for-float-readers",
        (2, 149248, 8192),
        "64x64x8 64x3",
        stored=[("float16", (64, 64))],
        tolerance=1e-2,
    )(half_and_its_readers),
    row("producer-that-is-cut-away", 0, "8x8 8x8", owned=(0, 128, 0), flops=4 * 8, stored=[])(
        lambda a, w: (a @ w).exp().pad([(4, 0), (0, 0)], 2.0)[:4] * 3.0
    ),
]
