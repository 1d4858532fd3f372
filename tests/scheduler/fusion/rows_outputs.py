"""Several outputs: what they share is computed and loaded once."""

from __future__ import annotations

import numpy as np

from scheduler.tensor.tensor import Tensor
from tests.scheduler.fusion.row import Row, below, positive


def largest_and_where(x: Tensor) -> list[Tensor]:
    return [x.max(-1), x.argmax(-1)]


def rows_normalised(x: Tensor) -> list[Tensor]:
    mean, deviation = x.mean(-1, keepdim=True), x.std(-1, keepdim=True)
    return [mean, deviation, (x - mean) / deviation]


def two_deviations(x: Tensor, y: Tensor) -> list[Tensor]:
    shifted = [v - v.max(-1, keepdim=True) for v in (x, y)]
    mu = shifted[0].mean(-1, keepdim=True) + shifted[1].mean(-1, keepdim=True)
    return [((v - mu).square().sum(-1) / v.shape[-1]).sqrt() for v in (x, y)]


def powers(a: Tensor) -> list[Tensor]:
    first = a.sum().exp2()
    second = a.sum() + first
    b = a + first + second
    third = b.sum().exp2()
    return [first, second, third, b.sum() + third]


def middle_reduce(a: Tensor) -> list[Tensor]:
    r = a.sum()
    power = r.exp2()
    top = (a - power).max()
    return [r, power, top, r + top]


def middle_expand(a: Tensor, b: Tensor) -> list[Tensor]:
    r = a.sum()
    e = b + r.exp2()
    return [r, r.exp2(), r + e[0, 0, 0], e]


def middle_shrink(a: Tensor, c: Tensor) -> list[Tensor]:
    r = a.sum(1, keepdim=True)
    return [r, r.exp2(), r.exp2()[0] + c]


def four_scalars(a: Tensor, b: Tensor) -> list[Tensor]:
    c, d = a.sum() + 2.0, a.sum() * 2.0
    e = c * d
    return [c, d, e, b.sum() - e]


def transposed_feed(a: Tensor, b: Tensor) -> list[Tensor]:
    r = a.sum(2) + b
    d = r.T * 4.0
    return [d, r * d]


ROWS = [
    Row(
        "epilogues-and-their-product",
        (1, 76, 0),
        [(4, 4)],
        lambda a: [a.sum() + 2.0, a.sum() + 4.0, (a.sum() + 2.0) * (a.sum() + 4.0)],
    ),
    Row("chained-scalars", (1, 80, 0), [positive(4, 4, scale=0.05)], powers, tolerance=1e-3),
    Row("scalar-feeds-a-reduction", (1, 80, 0), [(4, 4)], middle_reduce),
    Row("scalar-feeds-a-cube", (1, 588, 0), [(4, 4), (4, 4, 4)], middle_expand),
    Row(
        "epilogues-of-one-sum",
        (1, 76, 0),
        [(4, 4), (4,)],
        lambda a, b: [a.sum() + b[0], a.sum() + 2.0],
    ),
    Row("row-sums-and-one-row", (2, 132, 0), [(4, 4), (4,)], middle_shrink),
    Row(
        "rows-plus-their-sum-and-its-sum",
        (2, 800, 0),
        [(8, 8)],
        lambda a: [a + a.sum(-1, keepdim=True), (a + a.sum(-1, keepdim=True)).sum(-1)],
    ),
    Row("two-deviations", (1, 1056, 0), [(4, 32), (4, 32)], two_deviations),
    Row(
        "half-sum-scaled-twice",
        (1, 264, 0),
        [(8, 8)],
        lambda x: [x.sum().half().float() * 2.0, x.sum().half().float() * 3.0],
        lambda x: [x.sum().astype(np.float16) * 2.0, x.sum().astype(np.float16) * 3.0],
        tolerance=2e-3,
    ),
    Row(
        "sums-of-a-sum",
        (2, 416, 256),
        [(4, 4, 4)],
        lambda a: [(a.sum(0) + 6.0).sum(0) * 4.0, (a.sum(0) + 6.0).sum(1) * 2.0],
    ),
    Row("transposed-feed", (2, 576, 256), [(4, 4, 4), (4, 4)], transposed_feed),
    Row(
        "shared-sum",
        (1, 136, 0),
        [(4, 4), (4, 4)],
        lambda a, b: [a.sum() + 2.0, (a.sum() - b.sum()) * 4.0],
    ),
    Row("four-scalars", (1, 144, 0), [(4, 4), (4, 4)], four_scalars),
    Row(
        "epilogues-of-a-sum-with-steps",
        (1, 136, 0),
        [(16,)],
        lambda x: [
            (x + Tensor.arange(16)).sum() + 2.0,
            (x + Tensor.arange(16)).sum() + 3.0,
        ],
        lambda x: [(x + np.arange(16)).sum() + 2, (x + np.arange(16)).sum() + 3],
    ),
    Row(
        "sums-of-both-axes",
        (1, 1696, 0),
        [(16, 24)],
        lambda a: [a.sum(0).relu() + 1.0, a.sum(1).exp()],
    ),
    Row("sums-of-three-axes", (1, 2672, 0), [(6, 8, 10)], lambda a: [a.sum(0), a.sum(1), a.sum(2)]),
    Row("largest-and-where", (1, 1664, 0), [(16, 24)], largest_and_where),
    Row("moments", (1, 1664, 0), [(16, 24)], lambda x: [x.mean(1), x.std(1)]),
    Row("moments-and-values", (1, 3200, 0), [(16, 24)], rows_normalised),
    Row("both-softmaxes", (1, 4608, 0), [(16, 24)], lambda x: [x.softmax(), x.log_softmax()]),
    Row(
        "four-of-one-row",
        (1, 1792, 0),
        [(16, 24)],
        lambda x: [x.sum(1), x.max(1), x.min(1), x.square().sum(1)],
    ),
    Row(
        "sum-with-epilogues",
        (1, 1728, 0),
        [(16, 24)],
        lambda x: [x.sum(1), x.sum(1).exp(), x.sum(1) * 2.0 + 1.0],
    ),
    Row(
        "divided-and-scaled",
        (1, 4608, 0),
        [positive(16, 24)],
        lambda x: [x / x.sum(1, keepdim=True), x * x.sum(1, keepdim=True)],
    ),
    Row("value-and-sum", (1, 4672, 0), [(16, 24), (16, 24)], lambda a, b: [a * b, (a * b).sum(1)]),
    Row("unrelated-sums", (1, 1888, 0), [(16, 24), (8, 8)], lambda a, b: [a.sum(1), b.sum(0)]),
    Row(
        "sum-under-two-views",
        (2, 1216, 256),
        [(16, 16)],
        lambda a: [a.sum(0)[:8], a.sum(0)[8:] * 2.0],
        open=(1, "two outputs hold separate parts of one sum: it is stored, then cut"),
    ),
    Row(
        "loss-and-count",
        (1, 360, 0),
        [(8, 10), below(10, 8)],
        lambda x, i: [x.square().sum(), i.eq(3).sum()],
    ),
    Row("sum-and-map", (1, 840, 0), [(10, 10)], lambda a: [a.sum(1), a.cos()]),
    Row(
        "scalar-sum-and-exp",
        (1, 56, 0),
        [(4,), (4,)],
        lambda a, b: [a.sum(keepdim=True), a.sum().exp2(), a.sum().exp2() + b],
    ),
    Row("argmin-and-argmax-of-all", (1, 520, 0), [(4, 32)], lambda x: [x.argmin(), x.argmax()]),
    Row(
        "sum-with-two-epilogues",
        (1, 584, 0),
        [(12, 12)],
        lambda a: [a.sum() + 2.0, a.sum() * 4.0],
        tolerance=1e-4,
    ),
    Row("sum-and-range", (1, 672, 0), [(12, 12)], lambda a: [a.sum(1), a.max(1) - a.min(1)]),
    Row(
        "value-and-its-exponential", (1, 1728, 0), [(12, 12)], lambda a: [a * 2.0, (a * 2.0).exp()]
    ),
]
