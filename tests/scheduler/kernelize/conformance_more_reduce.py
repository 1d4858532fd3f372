"""More programs about reductions: neighbours of the rows of the table, with limits of our own.

A limit is what a compiler reaches that keeps the reductions of one row in one loop nest, runs
independent loop nests in one launch, and computes again what is read once.
"""

from __future__ import annotations

import numpy as np

from scheduler.tensor.tensor import Tensor
from tests.scheduler.kernelize.conformance import Array, Row, np_layernorm, np_relu, np_softmax
from tests.scheduler.kernelize.conformance_elementwise import below


def np_windows(x: Array, size: int) -> Array:
    """All windows of the last axis, stride 1."""
    return np.lib.stride_tricks.sliding_window_view(x, size, axis=-1)


def below_diagonal(n: int) -> Tensor:
    ramp = Tensor.arange(n)
    return ramp.unsqueeze(0) <= ramp.unsqueeze(1)


def running_sum(x: Tensor) -> Tensor:
    return below_diagonal(x.shape[-1]).where(x.unsqueeze(-2), 0.0).sum(-1)


def one_hot(label: Tensor, count: int) -> Tensor:
    return Tensor.arange(count).unsqueeze(0).eq(label.unsqueeze(1)).float()


def logsumexp(x: Tensor) -> Tensor:
    largest = x.max(-1, keepdim=True)
    return ((x - largest).exp().sum(-1, keepdim=True).log() + largest).squeeze(-1)


def cosine(x: Tensor, y: Tensor) -> Tensor:
    return (x * y).sum(-1) / (x.square().sum(-1).sqrt() * y.square().sum(-1).sqrt())


def np_cosine(x: Array, y: Array) -> Array:
    return np.asarray((x * y).sum(-1) / np.sqrt((x * x).sum(-1) * (y * y).sum(-1)))


def entropy(x: Tensor) -> Tensor:
    return -(x.softmax() * x.log_softmax()).sum(-1)


def np_entropy(x: Array) -> Array:
    p = np_softmax(x)
    return np.asarray(-(p * np.log(p)).sum(-1))


def divergence(x: Tensor, y: Tensor) -> Tensor:
    return (x.softmax() * (x.log_softmax() - y.log_softmax())).sum(-1)


def np_divergence(x: Array, y: Array) -> Array:
    p, q = np_softmax(x), np_softmax(y)
    return np.asarray((p * np.log(p / q)).sum(-1))


def distances(a: Tensor, b: Tensor) -> Tensor:
    return (a.unsqueeze(1) - b.unsqueeze(0)).square().sum(-1)


def np_distances(a: Array, b: Array) -> Array:
    return np.asarray(((a[:, None] - b[None]) ** 2).sum(-1))


def group_norm(x: Tensor) -> Tensor:
    """Two groups of (2, 6, 4, 4)."""
    return x.reshape(2, 2, 3 * 16).layernorm().reshape(2, 6, 4, 4)


def np_group_norm(x: Array) -> Array:
    return np_layernorm(x.reshape(2, 2, 48)).reshape(2, 6, 4, 4)


def by_range(x: Tensor, axis: int | None) -> Tensor:
    low, high = x.min(axis, keepdim=True), x.max(axis, keepdim=True)
    return (x - low) / (high - low)


def np_by_range(x: Array, axis: int | None) -> Array:
    low, high = x.min(axis, keepdims=True), x.max(axis, keepdims=True)
    return np.asarray((x - low) / (high - low))


M, CUBE = (16, 24), (6, 8, 10)
PADS = [(1, 1), (0, 0)]

ALONE = [
    Row("sum-twice", 1, [M], lambda a: a.sum(0).sum(0), lambda a: a.sum()),
    Row(
        "sum-permute-max",
        1,
        [CUBE],
        lambda a: a.sum(2).permute(1, 0).max(0),
        lambda a: a.sum(2).max(1),
    ),
    Row(
        "sum-reshape-max",
        1,
        [(8, 8, 4)],
        lambda a: a.sum(2).reshape(4, 16).max(1),
        lambda a: a.sum(2).reshape(4, 16).max(1),
    ),
    Row(
        "min-max-sum",
        1,
        [CUBE],
        lambda a: a.min(2).max(1).sum(0),
        lambda a: a.min(2).max(1).sum(0),
    ),
    Row("mean-of-mean", 1, [CUBE], lambda a: a.mean(0).mean(1), lambda a: a.mean((0, 2))),
    Row(
        "pad-sum-pad-max",
        1,
        [M],
        lambda a: a.pad(PADS, 1.0).sum(1).pad([(2, 0)], -9.0).reshape(4, 5).max(1),
        lambda a: (
            np.pad(
                np.pad(a, ((1, 1), (0, 0)), constant_values=1).sum(1), (2, 0), constant_values=-9
            )
            .reshape(4, 5)
            .max(1)
        ),
    ),
    Row(
        "exp-pad-sum",
        1,
        [M],
        lambda a: a.exp().pad(PADS).sum(0),
        lambda a: np.exp(a).sum(0),
    ),
    Row(
        "expand-permute-sum",
        1,
        [(1, 16), (16, 8)],
        lambda a, b: (a.expand(8, 16).T * b).sum(0),
        lambda a, b: (a.T * b).sum(0),
    ),
    Row(
        "pool-of-pool",
        1,  # windows do not overlap: each value is computed once
        [(1, 2, 16, 16)],
        lambda x: x.avg_pool2d(2).max_pool2d(2),
        lambda x: x.reshape(1, 2, 8, 2, 8, 2).mean((3, 5)).reshape(1, 2, 4, 2, 4, 2).max((3, 5)),
    ),
    Row(
        "windows-of-windows",
        2,
        [(64,)],
        lambda x: x.window(0, 5).sum(1).window(0, 3).max(1),
        lambda x: np_windows(np_windows(x, 5).sum(1), 3).max(1),
    ),
    Row(
        "masked-mean",
        1,
        [M, M],
        lambda x, m: (m > 0).where(x, 0.0).sum(1) / (m > 0).float().sum(1),
        lambda x, m: np.where(m > 0, x, 0).sum(1) / (m > 0).sum(1),
    ),
    Row("cosine", 1, [M, M], cosine, np_cosine),
    Row(
        "products-of-moments",
        1,
        [M, M],
        lambda x, y: x.mean(1) * y.var(1),
        lambda x, y: x.mean(1) * y.var(1, ddof=1),
    ),
    Row(
        "two-axes-added",
        1,
        [(16, 16)],
        lambda x: x.max(0).exp() + x.min(1).sin(),
        lambda x: np.exp(x.max(0)) + np.sin(x.min(1)),
    ),
    Row(
        "outer-of-sums",
        2,
        [M],
        lambda x: x.sum(1, keepdim=True) * x.sum(0, keepdim=True),
        lambda x: x.sum(1, keepdims=True) * x.sum(0, keepdims=True),
    ),
    Row("distances", 1, [(10, 8), (12, 8)], distances, np_distances),
    Row(
        "nearest",
        1,
        [(10, 8), (12, 8)],
        lambda a, b: distances(a, b).argmin(1),
        lambda a, b: np_distances(a, b).argmin(1),
    ),
    Row("running-sum", 1, [(4, 32)], running_sum, lambda x: x.cumsum(-1)),
    Row(
        "running-mean",
        1,
        [(4, 32)],
        lambda x: running_sum(x) / (Tensor.arange(32) + 1).float(),
        lambda x: x.cumsum(-1) / np.arange(1, 33),
    ),
    Row(
        "running-sum-of-exp",
        1,
        [(32,)],
        lambda x: running_sum(x.exp()).log(),
        lambda x: np.log(np.exp(x).cumsum()),
    ),
]

# Several reductions of one row, each of the results of those before: one loop nest per row.
OF_ROWS = [
    Row("argmax-first-axis", 1, [M], lambda x: x.argmax(0), lambda x: x.argmax(0)),
    Row("argmax-last-axis", 1, [M], lambda x: x.argmax(-1), lambda x: x.argmax(-1)),
    Row("argmin-middle", 1, [CUBE], lambda x: x.argmin(1), lambda x: x.argmin(1)),
    Row("argmax-of-all", 1, [M], lambda x: x.argmax(), lambda x: x.argmax()),
    Row(
        "argmax-of-two-axes",
        1,
        [CUBE],
        lambda x: x.argmax((1, 2)),
        lambda x: x.reshape(6, 80).argmax(1),
    ),
    Row(
        "argmax-of-softmax",
        1,
        [M],
        lambda x: x.softmax().argmax(-1),
        lambda x: x.argmax(-1),
    ),
    Row("var-first-axis", 1, [M], lambda x: x.var(0), lambda x: x.var(0, ddof=1)),
    Row("var-last-axis", 1, [M], lambda x: x.var(1), lambda x: x.var(1, ddof=1)),
    Row("std-of-two-axes", 1, [CUBE], lambda x: x.std((0, 2)), lambda x: x.std((0, 2), ddof=1)),
    Row("std-of-all", 1, [M], lambda x: x.std(), lambda x: x.std(ddof=1)),
    Row("softmax-first-axis", 1, [M], lambda x: x.softmax(0), lambda x: np_softmax(x, 0)),
    Row("softmax-middle", 1, [CUBE], lambda x: x.softmax(1), lambda x: np_softmax(x, 1)),
    Row(
        "softmax-scaled",
        1,
        [M],
        lambda x: (x * 0.5).softmax() * 2.0 + 1.0,
        lambda x: np_softmax(x / 2) * 2 + 1,
    ),
    Row("log-softmax", 1, [M], lambda x: x.log_softmax(), lambda x: np.log(np_softmax(x))),
    Row(
        "log-softmax-first-axis",
        1,
        [M],
        lambda x: x.log_softmax(0),
        lambda x: np.log(np_softmax(x, 0)),
    ),
    Row("logsumexp", 1, [M], logsumexp, lambda x: np.log(np.exp(x).sum(-1))),
    Row("layernorm-first-axis", 1, [M], lambda x: x.layernorm(0), lambda x: np_layernorm(x.T).T),
    Row(
        "layernorm-of-two-axes",
        1,
        [CUBE],
        lambda x: x.layernorm((1, 2)),
        lambda x: np_layernorm(x.reshape(6, 80)).reshape(6, 8, 10),
    ),
    Row("group-norm", 1, [(2, 6, 4, 4)], group_norm, np_group_norm, 1e-4),
    Row(
        "root-mean-square",
        1,
        [M, (24,)],
        lambda x, w: x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * w,
        lambda x, w: x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * w,
    ),
    Row(
        "residual-layernorm",
        1,
        [M, M],
        lambda x, y: (x + y.relu()).layernorm(),
        lambda x, y: np_layernorm(x + np_relu(y)),
    ),
    Row(
        "layernorm-then-mean",
        1,
        [M],
        lambda x: x.layernorm().relu().mean(-1),
        lambda x: np_relu(np_layernorm(x)).mean(-1),
    ),
    Row("entropy", 1, [M], entropy, np_entropy),
    Row("divergence", 1, [M, M], divergence, np_divergence),
    Row("range-of-rows", 1, [M], lambda x: by_range(x, 1), lambda x: np_by_range(x, 1)),
    Row("range-of-all", 1, [M], lambda x: by_range(x, None), lambda x: np_by_range(x, None)),
    Row(
        "unit-rows",
        1,
        [M],
        lambda x: x / x.square().sum(-1, keepdim=True).sqrt(),
        lambda x: x / np.sqrt((x * x).sum(-1, keepdims=True)),
    ),
    Row(
        "cross-entropy-one-hot",
        1,
        [(8, 10), below(10, 8)],
        lambda x, label: -(x.log_softmax() * one_hot(label, 10)).sum(-1).mean(),
        lambda x, label: -np.log(np_softmax(x))[np.arange(8), label].mean(),
    ),
    Row(
        "cross-entropy-smoothed",
        1,
        [(8, 10), below(10, 8)],
        lambda x, i: -(x.log_softmax() * (one_hot(i, 10) * 0.9 + 0.01)).sum(-1).mean(),
        lambda x, i: -(np.log(np_softmax(x)) * (np.eye(10)[i] * 0.9 + 0.01)).sum(-1).mean(),
    ),
]
