"""Reductions: what precedes and follows them, and several in one loop nest."""

from __future__ import annotations

import math

import numpy as np

from scheduler.tensor.tensor import Tensor
from tests.scheduler.fusion.row import Array, Row, positive


def np_windows(x: Array, size: int) -> Array:
    """All windows of the last axis, stride 1."""
    return np.lib.stride_tricks.sliding_window_view(x, size, axis=-1)


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


ROWS = [
    Row(
        "half-sum-views",
        (1, 1152, 0),
        [(4, 4, 4, 4), (16,)],
        lambda a, b: a.sum((0, 1)).half().T.reshape(2, 2, 4).permute(2, 0, 1).reshape(16) + b,
        tolerance=2e-3,
    ),
    Row("product-sum-relu", (1, 804, 0), [(10, 10), (10, 10)], lambda a, b: (a * b).sum().relu()),
    Row("sum-plus-vector", (1, 480, 0), [(10, 10), (10,)], lambda a, b: a.sum(0) + b),
    Row(
        "sum-of-reshaped",
        (1, 1240, 0),
        [(100,), (100,), (10, 10)],
        lambda a, b, c: ((a + b).reshape(10, 10) + c).sum(0),
    ),
    Row("mean-twice", (1, 4224, 0), [(32, 32)], mean_twice),
    Row("sum-root-negated", (1, 260, 0), [positive(8, 8)], lambda y: -y.sum(keepdim=True).sqrt()),
    Row(
        "sums-of-both-axes-added", (1, 16640, 0), [(64, 64)], lambda x: (x.sum(0) + x.sum(1)).relu()
    ),
    Row(
        "activated-sums-added",
        (1, 544, 0),
        [(8, 8), (8, 8)],
        lambda x, y: x.sum(1).relu().elu() + y.sum(1).relu().elu(),
    ),
    Row(
        "sum-relu-sum",
        (1, 131200, 0),
        [(32, 32, 32)],
        lambda x: x.sum(2).relu().sum(1),
        tolerance=1e-4,
    ),
    Row("sum-cut", (1, 2176, 0), [(32, 32), (16,)], lambda x, y: x.sum(1)[:16] + y),
    Row(
        "rows-plus-their-sum-summed",
        (1, 288, 0),
        [(8, 8)],
        lambda a: (a + a.sum(-1, keepdim=True)).sum(-1),
    ),
    Row("row-sums-added", (1, 544, 0), [(8, 8), (8, 8)], lambda x, y: y.sum(-1) + x.sum(-1)),
    Row("half-sum", (1, 260, 0), [(8, 8)], lambda x: x.sum().half().float(), tolerance=2e-3),
    Row(
        "sum-cut-scaled",
        (1, 304, 0),
        [(16, 16), (16,), (4,)],
        lambda a, c, b: (a.sum(1) + c)[:4] * b,
    ),
    Row("sum-and-max-added", (1, 288, 0), [(8, 8)], lambda a: (a.sum(0) + a.max(1)) + 2.0),
    Row(
        "pad-sum",
        (1, 132, 0),
        [(4, 4), (4, 4)],
        lambda a, b: (a + b).pad([(1, 1), (1, 1)], 1.0).sum(),
    ),
    Row(
        "log-pad-sum",
        (1, 68, 0),
        [positive(4, 4)],
        lambda a: a.log2().pad([(1, 1), (1, 1)], 1.0).sum(),
    ),
    Row("sum-plus-column", (1, 96, 0), [(4, 4), (4, 1)], lambda a, b: a.sum(1, keepdim=True) + b),
    Row(
        "sum-permuted-plus",
        (1, 512, 0),
        [(4, 6, 4), (4, 4, 1)],
        lambda a, b: a.sum(1, keepdim=True).permute(2, 0, 1) + b,
    ),
    Row("minus-row-sums", (1, 8192, 0), [(32, 32)], lambda a: a - a.sum(1)),
    Row(
        "plus-a-step-summed",
        (1, 48, 0),
        [(10,)],
        lambda x: (x + Tensor.arange(10)[2]).sum(),
        lambda x: (x + 2).sum(),
    ),
    Row(
        "plus-a-later-step-summed",
        (1, 48, 0),
        [(10,)],
        lambda x: (x + (Tensor.arange(10) + 1)[2]).sum(),
        lambda x: (x + 3).sum(),
    ),
    Row("running-maximum", (1, 8176, 0), [(1022,)], running_maximum, np.maximum.accumulate),
    Row(
        "quotient-pad-sum",
        (1, 132, 0),
        [positive(4, 4), (4, 4)],
        lambda x, y: (1.0 / x * y).pad([(0, 1), (0, 1)]).sum(),
    ),
    Row("sum-twice", (1, 1540, 0), [(16, 24)], lambda a: a.sum(0).sum(0)),
    Row("sum-permute-max", (1, 1944, 0), [(6, 8, 10)], lambda a: a.sum(2).permute(1, 0).max(0)),
    Row("sum-reshape-max", (1, 1040, 0), [(8, 8, 4)], lambda a: a.sum(2).reshape(4, 16).max(1)),
    Row("min-max-sum", (1, 1924, 0), [(6, 8, 10)], lambda a: a.min(2).max(1).sum(0)),
    Row("mean-of-mean", (1, 1952, 0), [(6, 8, 10)], lambda a: a.mean(0).mean(1)),
    Row(
        "pad-sum-pad-max",
        (2, 1696, 256),
        [(16, 24)],
        lambda a: a.pad(PADS, 1.0).sum(1).pad([(2, 0)], -9.0).reshape(4, 5).max(1),
        open=(1, "each padded sum is read once, but a place with a remainder in it is stored"),
    ),
    Row("exp-pad-sum", (1, 1632, 0), [(16, 24)], lambda a: a.exp().pad(PADS).sum(0)),
    Row(
        "expand-permute-sum",
        (1, 608, 0),
        [(1, 16), (16, 8)],
        lambda a, b: (a.expand(8, 16).T * b).sum(0),
    ),
    Row(
        "windows-of-windows",
        (2, 968, 256),
        [(64,)],
        lambda x: x.window(0, 5).sum(1).window(0, 3).max(1),
        lambda x: np_windows(np_windows(x, 5).sum(1), 3).max(1),
    ),
    Row(
        "masked-mean",
        (1, 3136, 0),
        [(16, 24), (16, 24)],
        lambda x, m: (m > 0).where(x, 0.0).sum(1) / (m > 0).float().sum(1),
    ),
    Row("cosine", (1, 3136, 0), [(16, 24), (16, 24)], cosine),
    Row(
        "products-of-moments", (1, 3136, 0), [(16, 24), (16, 24)], lambda x, y: x.mean(1) * y.var(1)
    ),
    Row("two-axes-added", (1, 1088, 0), [(16, 16)], lambda x: x.max(0).exp() + x.min(1).sin()),
    Row(
        "outer-of-sums",
        (2, 4736, 256),
        [(16, 24)],
        lambda x: x.sum(1, keepdim=True) * x.sum(0, keepdim=True),
    ),
    Row("distances", (1, 1184, 0), [(10, 8), (12, 8)], distances),
    Row("nearest", (1, 744, 0), [(10, 8), (12, 8)], lambda a, b: distances(a, b).argmin(1)),
    Row("running-sum", (1, 2048, 0), [(4, 32)], running_sum, lambda x: x.cumsum(-1)),
    Row(
        "running-mean",
        (1, 2176, 0),
        [(4, 32)],
        lambda x: running_sum(x) / (Tensor.arange(32) + 1).float(),
        lambda x: x.cumsum(-1) / np.arange(1, 33),
    ),
    Row(
        "running-sum-of-exp",
        (1, 1280, 0),
        [(32,)],
        lambda x: running_sum(x.exp()).log(),
        lambda x: np.log(np.exp(x).cumsum()),
    ),
    Row("sum-first-axis", (1, 440, 0), [(10, 10)], lambda a: a.sum(0)),
    Row("sum-plus-map", (1, 480, 0), [(10, 10), (10,)], lambda a, b: a.sum(1) + b.cos()),
    Row(
        "outer-of-sum-and-map",
        (1, 840, 0),
        [(10, 10), (10,)],
        lambda a, b: a.sum(1, keepdim=True) * b.cos(),
    ),
    Row("thrice-scaled-by-its-sum", (1, 800, 0), [(10, 10)], thrice_scaled),
    Row(
        "ones-summed",
        (0, 0, 0),
        [],
        lambda: (Tensor.ones(10) + Tensor.ones(10, 10)).sum(-1),
        lambda: np.full(10, 20.0),
        owned=(0, 40, 0),
    ),
    Row(
        "distances-largest",
        (1, 680, 0),
        [(10, 1, 8), (1, 10, 8)],
        lambda a, b: (a - b).square().sum(-1).max(1),
    ),
    Row(
        "half-sum-transposed",
        (1, 1152, 0),
        [(4, 4, 4, 4), (16,)],
        lambda a, b: a.sum((0, 1)).half().float().T.reshape(16) + b,
        tolerance=2e-3,
    ),
    Row("range-of-two-kinds", (1, 1088, 0), [(16, 16)], lambda a: a.max(1) - a.min(1)),
    Row(
        "reductions-of-other-lengths",
        (1, 1088, 0),
        [(16, 16)],
        lambda a: a.sum(1) + a[:, :7].max(1) * a.reshape(16, 2, 8).sum((1, 2)),
    ),
    Row(
        "three-reductions",
        (1, 1088, 0),
        [(16, 16)],
        lambda a: a.sum(1) * a.max(1) + a.square().sum(1),
    ),
    Row(
        "sum-with-a-long-epilogue",
        (1, 2144, 0),
        [(16, 32), (16,)],
        lambda a, b: ((a.sum(1) * 0.5 + b).relu().exp() - 1.0).half(),
        tolerance=2e-3,
    ),
    Row(
        "maximum-with-a-long-prologue",
        (1, 2240, 0),
        [(16, 32), (32,)],
        lambda a, b: ((a - 1.0).square() * b).exp().T.max(0),
        tolerance=1e-4,
    ),
]
