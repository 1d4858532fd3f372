"""More programs with several outputs: what they share is computed and loaded once."""

from __future__ import annotations

import numpy as np

from scheduler.tensor.tensor import Tensor
from tests.scheduler.kernelize.conformance import Array, Row, np_relu, np_softmax
from tests.scheduler.kernelize.conformance_elementwise import below, positive

M, CUBE = (16, 24), (6, 8, 10)


def largest_and_where(x: Tensor) -> list[Tensor]:
    return [x.max(-1), x.argmax(-1)]


def rows_normalised(x: Tensor) -> list[Tensor]:
    mean, deviation = x.mean(-1, keepdim=True), x.std(-1, keepdim=True)
    return [mean, deviation, (x - mean) / deviation]


def np_rows_normalised(x: Array) -> list[Array]:
    mean, deviation = x.mean(-1, keepdims=True), x.std(-1, keepdims=True, ddof=1)
    return [mean, deviation, (x - mean) / deviation]


SEVERAL = [
    Row(
        "sums-of-both-axes",
        1,
        [M],
        lambda a: [a.sum(0).relu() + 1.0, a.sum(1).exp()],
        lambda a: [np_relu(a.sum(0)) + 1, np.exp(a.sum(1))],
    ),
    Row(
        "sums-of-three-axes",
        1,
        [CUBE],
        lambda a: [a.sum(0), a.sum(1), a.sum(2)],
        lambda a: [a.sum(0), a.sum(1), a.sum(2)],
    ),
    Row("largest-and-where", 1, [M], largest_and_where, lambda x: [x.max(-1), x.argmax(-1)]),
    Row(
        "moments", 1, [M], lambda x: [x.mean(1), x.std(1)], lambda x: [x.mean(1), x.std(1, ddof=1)]
    ),
    Row("moments-and-values", 1, [M], rows_normalised, np_rows_normalised),
    Row(
        "both-softmaxes",
        1,
        [M],
        lambda x: [x.softmax(), x.log_softmax()],
        lambda x: [np_softmax(x), np.log(np_softmax(x))],
    ),
    Row(
        "four-of-one-row",
        1,
        [M],
        lambda x: [x.sum(1), x.max(1), x.min(1), x.square().sum(1)],
        lambda x: [x.sum(1), x.max(1), x.min(1), (x * x).sum(1)],
    ),
    Row(
        "sum-with-epilogues",
        1,
        [M],
        lambda x: [x.sum(1), x.sum(1).exp(), x.sum(1) * 2.0 + 1.0],
        lambda x: [x.sum(1), np.exp(x.sum(1)), x.sum(1) * 2 + 1],
    ),
    Row(
        "divided-and-scaled",
        1,
        [positive(16, 24)],
        lambda x: [x / x.sum(1, keepdim=True), x * x.sum(1, keepdim=True)],
        lambda x: [x / x.sum(1, keepdims=True), x * x.sum(1, keepdims=True)],
    ),
    Row(
        "value-and-sum",
        1,
        [M, M],
        lambda a, b: [a * b, (a * b).sum(1)],
        lambda a, b: [a * b, (a * b).sum(1)],
    ),
    Row(
        "value-and-its-views",
        1,
        [M],
        lambda a: [a + 1.0, (a + 1.0).T, (a + 1.0)[2:5]],
        lambda a: [a + 1, (a + 1).T, (a + 1)[2:5]],
    ),
    Row(
        "unrelated-sums",
        1,
        [M, (8, 8)],
        lambda a, b: [a.sum(1), b.sum(0)],
        lambda a, b: [a.sum(1), b.sum(0)],
    ),
    Row(
        "sum-under-two-views",
        1,
        [(16, 16)],
        lambda a: [a.sum(0)[:8], a.sum(0)[8:] * 2.0],
        lambda a: [a.sum(0)[:8], a.sum(0)[8:] * 2],
    ),
    Row(
        "loss-and-count",
        1,
        [(8, 10), below(10, 8)],
        lambda x, i: [x.square().sum(), i.eq(3).sum()],
        lambda x, i: [(x * x).sum(), np.int32((i == 3).sum())],
    ),
]
