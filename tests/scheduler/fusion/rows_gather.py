"""Gathers are reads at a computed place."""

from __future__ import annotations

import numpy as np

from scheduler.tensor.tensor import Tensor
from tests.scheduler.fusion.row import Row, below

INDICES = np.array([3, 1, 9, 9, 0, 2, 5, 7, 6, 4], np.int32)


ROWS = [
    Row("gather-rows", (1, 168, 0), [(10, 10), below(10, 2)], lambda x, i: x[i]),
    Row(
        "gather-of-steps",
        (1, 8, 0),
        [],
        lambda: (Tensor.arange(10) + 1)[[0]],
        lambda: np.array([1]),
        owned=(0, 8, 0),
    ),
    Row(
        "gather-of-steps-cut",
        (1, 8, 0),
        [],
        lambda: Tensor.arange(16).reshape(4, 4)[1:2, [1, 2]],
        lambda: np.array([[5, 6]]),
    ),
    Row(
        "gather-many",
        (1, 576, 0),
        [(32768, 4), below(32768, 16)],
        lambda x, i: x.gather(i),
        lambda x, i: x[i],
    ),
    Row(
        "gather-of-gather",
        (1, 280, 0),
        [(20, 6), below(20, 9), below(9, 5)],
        lambda x, i, j: x[i][j],
    ),
    Row(
        "gather-by-gathered",
        (1, 280, 0),
        [(20, 6), below(20, 9), below(9, 5)],
        lambda x, i, j: x[i[j]],
    ),
    Row(
        "gathers-added",
        (1, 720, 0),
        [(20, 6), below(20, 9), below(20, 9)],
        lambda x, i, j: x[i] + x[j],
    ),
    Row(
        "gather-computed-place", (1, 468, 0), [(20, 6), below(19, 9)], lambda x, i: x[i + 1].relu()
    ),
    Row("gather-computed-values", (1, 468, 0), [(20, 6), below(20, 9)], lambda x, i: x.exp()[i]),
    Row(
        "gather-two-axes",
        (1, 340, 0),
        [(20, 6), below(20, 9), below(6, 4)],
        lambda x, i, j: x.gather(i, 0).gather(j, 1),
        lambda x, i, j: x[i][:, j],
    ),
    Row(
        "gather-picked", (1, 144, 0), [(20, 6), below(20, 9), below(6, 9)], lambda x, i, j: x[i, j]
    ),
    Row("gather-bag", (1, 804, 0), [(20, 6), below(20, 9, 3)], lambda x, i: x[i].mean(1)),
    Row(
        "gather-layernorm",
        (1, 948, 0),
        [(20, 6), below(20, 9), (9, 6)],
        lambda x, i, p: (x[i] + p).layernorm(),
        tolerance=1e-4,
    ),
    Row("gather-product", (1, 492, 0), [(20, 6), below(20, 9), (6, 4)], lambda x, i, w: x[i] @ w),
    Row("gather-by-argmax", (1, 352, 0), [(4, 10), (10, 6)], lambda s, x: x[s.argmax(1)]),
    Row(
        "gather-masked",
        (1, 276, 0),
        [(20, 6), below(20, 9)],
        lambda x, i: (i > 9).unsqueeze(1).where(x[i], 0.0).sum(0),
        tolerance=1e-4,
    ),
    Row(
        "scatter-add",
        (1, 348, 0),
        [(9, 6), below(4, 9)],
        lambda v, i: Tensor.arange(4).unsqueeze(1).eq(i.unsqueeze(0)).float() @ v,
        lambda v, i: np.eye(4)[i].T @ v,
    ),
    Row(
        "histogram",
        (1, 180, 0),
        [below(5, 40)],
        lambda i: Tensor.arange(5).unsqueeze(1).eq(i.unsqueeze(0)).sum(1),
        lambda i: np.bincount(i, minlength=5).astype(np.int32),
    ),
    Row("gather-map-sum", (1, 480, 0), [(10, 10), INDICES], lambda a, b: a[b].cos().sum(1)),
]
