"""Several reductions of one row, each of the results of those before: one loop nest per row."""

from __future__ import annotations

import numpy as np

from scheduler.tensor.tensor import Tensor
from tests.scheduler.fusion.reference import (
    np_layernorm,
    np_softmax,
)
from tests.scheduler.fusion.row import Array, Row, below, by_interpreter, positive


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


def np_cross_entropy(x: Array, label: Array) -> Array:
    return np.asarray(-np.log(np_softmax(x))[np.arange(len(label)), label].mean())


def normalised_row(p: Tensor) -> Tensor:
    return (p / p.sum(1, keepdim=True))[0].pad([(1, 0)]).repeat([2])


def norm_softmax_gelu(x: Tensor) -> Tensor:
    y = ((x * 2.0).layernorm().softmax() - 0.5).gelu()
    return y.sum(1) + y.max(1)


LARGE = (4, 2048, 4096)


def scaled_and_largest(h: Tensor, scale: Tensor) -> list[Tensor]:
    return [(h * scale).sigmoid(), h.abs().max(keepdim=True)]


ROWS = [
    Row("argmin-last-axis", (1, 528, 0), [(4, 32)], lambda x: x.argmin(-1)),
    Row("centred-sum", (1, 288, 0), [(8, 8)], lambda x: (x - x.max(-1, keepdim=True)).sum(-1)),
    Row("softmax", (1, 1572864, 0), [(4, 12, 64, 64)], lambda x: x.softmax()),
    Row(
        "normalised-row",
        (1, 52, 0),
        [positive(3, 3)],
        normalised_row,
        lambda p: np.tile(np.concatenate([[0.0], p[0] / p[0].sum()]), 2),
        owned=(1, 68, 0),
    ),
    Row(
        "cross-entropy-sparse", (2, 92, 512), [(2, 3), below(3, 2)], cross_entropy, np_cross_entropy
    ),
    Row("argmax-first-axis", (1, 1632, 0), [(16, 24)], lambda x: x.argmax(0)),
    Row("argmax-last-axis", (1, 1600, 0), [(16, 24)], lambda x: x.argmax(-1)),
    Row("argmin-middle", (1, 2160, 0), [(6, 8, 10)], lambda x: x.argmin(1)),
    Row("argmax-of-all", (1, 1540, 0), [(16, 24)], lambda x: x.argmax()),
    Row(
        "argmax-of-two-axes",
        (1, 1944, 0),
        [(6, 8, 10)],
        lambda x: x.argmax((1, 2)),
        lambda x: x.reshape(6, 80).argmax(1),
    ),
    Row("argmax-of-softmax", (1, 1600, 0), [(16, 24)], lambda x: x.softmax().argmax(-1)),
    Row("var-first-axis", (1, 1632, 0), [(16, 24)], lambda x: x.var(0)),
    Row("var-last-axis", (1, 1600, 0), [(16, 24)], lambda x: x.var(1)),
    Row("std-of-two-axes", (1, 1952, 0), [(6, 8, 10)], lambda x: x.std((0, 2))),
    Row("std-of-all", (1, 1540, 0), [(16, 24)], lambda x: x.std()),
    Row("softmax-middle", (1, 3840, 0), [(6, 8, 10)], lambda x: x.softmax(1)),
    Row("softmax-scaled", (1, 3072, 0), [(16, 24)], lambda x: (x * 0.5).softmax() * 2.0 + 1.0),
    Row("log-softmax", (1, 3072, 0), [(16, 24)], lambda x: x.log_softmax()),
    Row("log-softmax-first-axis", (1, 3072, 0), [(16, 24)], lambda x: x.log_softmax(0)),
    Row("logsumexp", (1, 1600, 0), [(16, 24)], logsumexp),
    Row(
        "layernorm-first-axis",
        (1, 3072, 0),
        [(16, 24)],
        lambda x: x.layernorm(0),
        lambda x: np_layernorm(x.T).T,
    ),
    Row(
        "layernorm-of-two-axes",
        (1, 3840, 0),
        [(6, 8, 10)],
        lambda x: x.layernorm((1, 2)),
        lambda x: np_layernorm(x.reshape(6, 80)).reshape(6, 8, 10),
    ),
    Row(
        "group-norm",
        (1, 1536, 0),
        [(2, 6, 4, 4)],
        group_norm,
        tolerance=1e-4,
        owned=(2, 2368, 512),
        open=(1, "in a program, a reshape of the result hides that rows are whole groups"),
    ),
    Row(
        "root-mean-square",
        (1, 3168, 0),
        [(16, 24), (24,)],
        lambda x, w: x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * w,
    ),
    Row(
        "residual-layernorm",
        (1, 4608, 0),
        [(16, 24), (16, 24)],
        lambda x, y: (x + y.relu()).layernorm(),
    ),
    Row("layernorm-then-mean", (1, 1600, 0), [(16, 24)], lambda x: x.layernorm().relu().mean(-1)),
    Row("entropy", (1, 1600, 0), [(16, 24)], entropy),
    Row("divergence", (1, 3136, 0), [(16, 24), (16, 24)], divergence),
    Row("range-of-rows", (1, 3072, 0), [(16, 24)], lambda x: by_range(x, 1)),
    Row("range-of-all", (1, 3072, 0), [(16, 24)], lambda x: by_range(x, None)),
    Row(
        "unit-rows", (1, 3072, 0), [(16, 24)], lambda x: x / x.square().sum(-1, keepdim=True).sqrt()
    ),
    Row(
        "cross-entropy-one-hot",
        (1, 356, 0),
        [(8, 10), below(10, 8)],
        lambda x, label: -(x.log_softmax() * one_hot(label, 10)).sum(-1).mean(),
        lambda x, label: -np.log(np_softmax(x))[np.arange(8), label].mean(),
    ),
    Row(
        "cross-entropy-smoothed",
        (1, 356, 0),
        [(8, 10), below(10, 8)],
        lambda x, i: -(x.log_softmax() * (one_hot(i, 10) * 0.9 + 0.01)).sum(-1).mean(),
        lambda x, i: -(np.log(np_softmax(x)) * (np.eye(10)[i] * 0.9 + 0.01)).sum(-1).mean(),
    ),
    Row(
        "layernorm-affine",
        (1, 880, 0),
        [(10, 10), (10,), (10,)],
        lambda x, w, b: x.layernorm() * w + b,
    ),
    Row(
        "softmax-gradient-of-result",
        (1, 1200, 0),
        [(10, 10), (10, 10)],
        lambda g, y: g * y - y * (g * y).sum(-1, keepdim=True),
    ),
    Row(
        "layernorm-scaled-and-largest",
        (2, 268501000, 32768),
        [(2, 4, 64), (1,)],
        lambda x, s: scaled_and_largest(x.layernorm(), s),
        large=[LARGE, (1,)],
    ),
    Row(
        "scaled-and-largest",
        (3, 402655240, 1024),
        [(2, 4, 64), (1,)],
        lambda x, s: scaled_and_largest(x * 1.1, s),
        large=[LARGE, (1,)],
    ),
    Row("softmax-first-axis", (1, 800, 0), [(10, 10)], lambda a: a.softmax(0)),
    Row("layernorm", (1, 9216, 0), [(24, 48)], lambda x: x.layernorm()),
    Row("softmax-of-layernorm", (1, 9216, 0), [(24, 48)], lambda x: x.layernorm().softmax()),
    Row(
        "norm-softmax-gelu",
        (1, 3136, 0),
        [(16, 48)],
        norm_softmax_gelu,
        by_interpreter,
        tolerance=1e-4,
    ),
]
