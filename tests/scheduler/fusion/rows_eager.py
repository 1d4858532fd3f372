"""Tensors that are partly realized or pinned: only as users realize them, not as programs."""

from __future__ import annotations

import numpy as np

from scheduler.tensor.tensor import Tensor
from tests.scheduler.fusion.row import Array, Row, positive


def sum_beside_the_realized(a: Tensor, b: Tensor) -> list[Tensor]:
    return [(a + b).realize(), a + b]


def normalised_state(p: Tensor, x: Tensor) -> list[Tensor]:
    p = p.assign(x / 2)
    p.assign(p / p.sum(1))
    return [p, p[0].pad(((1, 0),)).repeat(2)]


def np_normalised_state(_: Array, x: Array) -> list[Array]:
    p = x / x.sum(1)
    return [p, np.tile(np.concatenate([[0.0], p[0]]), 2)]


def pinned_and_child(a: Tensor, b: Tensor) -> Tensor:
    c = a + b
    child = c.kernelize() + 2
    return c.kernelize() + child.kernelize()


ROWS = [
    Row(
        "sum-beside-the-same-realized", (0, 0, 0), [(4,), (4,)], sum_beside_the_realized, eager=True
    ),
    Row(
        "constant-times-one",
        (0, 0, 0),
        [],
        lambda: Tensor(3.5) * 1.0,
        lambda: np.float64(3.5),
        eager=True,
    ),
    Row(
        "constant-spread",
        (0, 0, 0),
        [],
        lambda: Tensor.full((2, 3), 4.0).T,
        lambda: np.full((3, 2), 4.0),
        eager=True,
    ),
    Row("view-turned-and-cut", (0, 0, 0), [(4, 4)], lambda a: a.T.flip(0)[1:3], eager=True),
    Row("view-itself", (0, 0, 0), [(4, 6)], lambda a: a, eager=True),
    Row("view-reshaped", (0, 0, 0), [(4, 6)], lambda a: a.reshape(24), eager=True),
    Row("view-of-rows", (0, 0, 0), [(4, 6)], lambda a: a[1:3], eager=True),
    Row("view-of-one-row", (0, 0, 0), [(4, 6)], lambda a: a[1:3][1].reshape(2, 3), eager=True),
    Row(
        "normalised-state",
        (2, 168, 0),
        [(4, 4), positive(4, 4)],
        normalised_state,
        np_normalised_state,
        eager=True,
    ),
    Row(
        "pinned-then-plus",
        (2, 80, 0),
        [(4,), (4,)],
        lambda a, b: (a + b).kernelize() + 2,
        eager=True,
    ),
    Row("pinned-and-its-child", (3, 128, 0), [(4,), (4,)], pinned_and_child, eager=True),
    Row(
        "moved-to-its-own-device",
        (0, 0, 0),
        [(4,)],
        lambda a: a.to("auto"),
        lambda a: a,
        eager=True,
    ),
    Row(
        "variable",
        (0, 0, 0),
        [],
        lambda: Tensor.variable("n", 0, 9, 4),
        lambda: np.int32(4),
        eager=True,
    ),
    Row(
        "variable-plus",
        (1, 8, 0),
        [],
        lambda: Tensor.variable("n", 0, 9, 4) + 2,
        lambda: np.int32(6),
        eager=True,
    ),
    Row(
        "constants-of-two-shapes",
        (1, 32, 0),
        [(4,)],
        lambda a: [a * 0 + 1, Tensor.ones(3) * 1],
        lambda a: [a * 0 + 1, np.ones(3)],
        eager=True,
    ),
]
