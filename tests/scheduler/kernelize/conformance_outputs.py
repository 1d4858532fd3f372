"""Rows of the kernel table with several outputs, which one kernel may store together."""

from __future__ import annotations

import numpy as np

from scheduler.tensor.tensor import Tensor
from tests.scheduler.kernelize.conformance import Array, Row
from tests.scheduler.kernelize.conformance_elementwise import positive


def two_deviations(x: Tensor, y: Tensor) -> list[Tensor]:
    shifted = [v - v.max(-1, keepdim=True) for v in (x, y)]
    mu = shifted[0].mean(-1, keepdim=True) + shifted[1].mean(-1, keepdim=True)
    return [((v - mu).square().sum(-1) / v.shape[-1]).sqrt() for v in (x, y)]


def np_two_deviations(x: Array, y: Array) -> list[Array]:
    shifted = [v - v.max(-1, keepdims=True) for v in (x, y)]
    mu = shifted[0].mean(-1, keepdims=True) + shifted[1].mean(-1, keepdims=True)
    return [np.sqrt(((v - mu) ** 2).mean(-1)) for v in (x, y)]


def powers(a: Tensor) -> list[Tensor]:
    first = a.sum().exp2()
    second = a.sum() + first
    b = a + first + second
    third = b.sum().exp2()
    return [first, second, third, b.sum() + third]


def np_powers(a: Array) -> list[Array]:
    first = np.exp2(a.sum())
    second = a.sum() + first
    b = a + first + second
    third = np.exp2(b.sum())
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


def np_middle_shrink(a: Array, c: Array) -> list[Array]:
    r = a.sum(1, keepdims=True)
    return [r, np.exp2(r), np.exp2(r)[0] + c]


def four_scalars(a: Tensor, b: Tensor) -> list[Tensor]:
    c, d = a.sum() + 2.0, a.sum() * 2.0
    e = c * d
    return [c, d, e, b.sum() - e]


def np_four_scalars(a: Array, b: Array) -> list[Array]:
    c, d = a.sum() + 2, a.sum() * 2
    return [c, d, c * d, b.sum() - c * d]


def transposed_feed(a: Tensor, b: Tensor) -> list[Tensor]:
    r = a.sum(2) + b
    d = r.T * 4.0
    return [d, r * d]


def np_transposed_feed(a: Array, b: Array) -> list[Array]:
    r = a.sum(2) + b
    return [r.T * 4, r * (r.T * 4)]


OUTPUTS = [
    Row(
        "t74",
        1,
        [(4, 4)],
        lambda a: [a.sum() + 2.0, a.sum() + 4.0, (a.sum() + 2.0) * (a.sum() + 4.0)],
        lambda a: [a.sum() + 2, a.sum() + 4, (a.sum() + 2) * (a.sum() + 4)],
    ),
    Row("t76", 2, [0.05 * positive(4, 4)], powers, np_powers, tolerance=1e-3),
    Row(
        "t78",
        4,
        [(4, 4)],
        middle_reduce,
        lambda a: [
            a.sum(),
            np.exp2(a.sum()),
            (a - np.exp2(a.sum())).max(),
            a.sum() + (a - np.exp2(a.sum())).max(),
        ],
    ),
    Row(
        "t80",
        4,
        [(4, 4), (4, 4, 4)],
        middle_expand,
        lambda a, b: [
            a.sum(),
            np.exp2(a.sum()),
            a.sum() + b[0, 0, 0] + np.exp2(a.sum()),
            b + np.exp2(a.sum()),
        ],
    ),
    Row(
        "t82",
        1,
        [(4, 4), (4,)],
        lambda a, b: [a.sum() + b[0], a.sum() + 2.0],
        lambda a, b: [a.sum() + b[0], a.sum() + 2],
    ),
    Row("t84", 3, [(4, 4), (4,)], middle_shrink, np_middle_shrink),
    Row(
        "t94",
        3,
        [(8, 8)],
        lambda a: [a + a.sum(-1, keepdim=True), (a + a.sum(-1, keepdim=True)).sum(-1)],
        lambda a: [a + a.sum(-1, keepdims=True), (a + a.sum(-1, keepdims=True)).sum(-1)],
    ),
    Row("t100", 5, [(4, 32), (4, 32)], two_deviations, np_two_deviations),
    Row(
        "t116",
        1,
        [(8, 8)],
        lambda x: [x.sum().half().float() * 2.0, x.sum().half().float() * 3.0],
        lambda x: [x.sum().astype(np.float16) * 2.0, x.sum().astype(np.float16) * 3.0],
        tolerance=2e-3,
    ),
    Row(
        "t118",
        3,
        [(4, 4, 4)],
        lambda a: [(a.sum(0) + 6.0).sum(0) * 4.0, (a.sum(0) + 6.0).sum(1) * 2.0],
        lambda a: [(a.sum(0) + 6).sum(0) * 4, (a.sum(0) + 6).sum(1) * 2],
    ),
    Row("t120", 3, [(4, 4, 4), (4, 4)], transposed_feed, np_transposed_feed),
    Row(
        "t126",
        2,
        [(4, 4), (4, 4)],
        lambda a, b: [a.sum() + 2.0, (a.sum() - b.sum()) * 4.0],
        lambda a, b: [a.sum() + 2, (a.sum() - b.sum()) * 4],
    ),
    Row("t128", 2, [(4, 4), (4, 4)], four_scalars, np_four_scalars),
    Row(
        "t164",
        1,
        [(16,)],
        lambda x: [
            (x + Tensor.arange(16)).sum() + 2.0,
            (x + Tensor.arange(16)).sum() + 3.0,
        ],
        lambda x: [(x + np.arange(16)).sum() + 2, (x + np.arange(16)).sum() + 3],
    ),
]
