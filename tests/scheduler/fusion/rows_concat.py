"""Concatenations are stores into slices of one buffer, slices are indices: no copies."""

from __future__ import annotations

import numpy as np

from scheduler.tensor.tensor import Tensor
from tests.scheduler.fusion.reference import (
    np_relu,
    np_softmax,
)
from tests.scheduler.fusion.row import Array, Row


def rotary(x: Tensor, angle: Tensor) -> Tensor:
    """Rotate pairs (i, i + 6) of the last axis."""
    turned = Tensor.cat([-x[:, 6:], x[:, :6]], 1)
    return x * angle.cos() + turned * angle.sin()


def np_rotary(x: Array, angle: Array) -> Array:
    turned = np.concatenate([-x[:, 6:], x[:, :6]], 1)
    return np.asarray(x * np.cos(angle) + turned * np.sin(angle))


def tree(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    return Tensor.cat([Tensor.cat([a, b + 1.0]), Tensor.cat([c * 2.0, d])], 1).relu()


def np_tree(a: Array, b: Array, c: Array, d: Array) -> Array:
    return np_relu(np.concatenate([np.concatenate([a, b + 1]), np.concatenate([c * 2, d])], 1))


def pieces(x: Tensor) -> Tensor:
    first, second, third = x.split([2, 3, 7], 1)
    return Tensor.cat([third.exp(), first * 2.0, -second], 1)


def np_pieces(x: Array) -> Array:
    return np.concatenate([np.exp(x[:, 5:]), x[:, :2] * 2, -x[:, 2:5]], 1)


ROWS = [
    Row(
        "roll", (1, 128, 0), [(16,)], lambda x: Tensor.cat([x[5:], x[:5]]), lambda x: np.roll(x, -5)
    ),
    Row(
        "concat-then-relu",
        (1, 1536, 0),
        [(8, 12), (8, 12)],
        lambda a, b: Tensor.cat([a + 1.0, b * 2.0]).relu(),
        lambda a, b: np_relu(np.concatenate([a + 1, b * 2])),
    ),
    Row(
        "concat-then-sum",
        (1, 800, 0),
        [(8, 12), (8, 12)],
        lambda a, b: Tensor.cat([a.exp(), b], 1).sum(1),
        lambda a, b: np.exp(a).sum(1) + b.sum(1),
    ),
    Row("concat-tree", (1, 3072, 0), [(8, 12)] * 4, tree, np_tree),
    Row("concat-pieces", (1, 768, 0), [(8, 12)], pieces, np_pieces),
    Row(
        "concat-of-sums",
        (1, 676, 0),
        [(8, 12), (5, 12)],
        lambda a, b: Tensor.cat([a.sum(1), b.max(1)]),
        lambda a, b: np.concatenate([a.sum(1), b.max(1)]),
    ),
    Row(
        "concat-cut-again",
        (1, 384, 0),
        [(8, 12), (8, 12)],
        lambda a, b: Tensor.cat([a.exp(), b.exp()])[2:6],
        lambda a, _: np.exp(a[2:6]),
    ),
    Row(
        "stack-of-sums",
        (1, 480, 0),
        [(8, 12)],
        lambda a: Tensor.stack([a.sum(1), a.max(1), a.min(1)], 1),
        lambda a: np.stack([a.sum(1), a.max(1), a.min(1)], 1),
    ),
    Row(
        "stack-of-ten",
        (1, 704, 0),
        [(16,)],
        lambda x: Tensor.stack([x * float(i) for i in range(10)]),
        lambda x: np.stack([x * i for i in range(10)]),
    ),
    Row(
        "interleave",
        (1, 256, 0),
        [(16,), (16,)],
        lambda a, b: Tensor.stack([a, b], 1).reshape(32) * 2.0,
        lambda a, b: np.stack([a, b], 1).ravel() * 2,
    ),
    Row("rotary", (1, 1152, 0), [(8, 12), (8, 12)], rotary, np_rotary),
    Row(
        "concat-softmax",
        (1, 1536, 0),
        [(8, 12), (8, 12)],
        lambda a, b: Tensor.cat([a, b], 1).softmax(),
        lambda a, b: np_softmax(np.concatenate([a, b], 1)),
    ),
    Row(
        "concat-product",
        (1, 1536, 0),
        [(8, 12), (8, 12), (24, 6)],
        lambda a, b, w: Tensor.cat([a, b], 1) @ w,
        lambda a, b, w: np.concatenate([a, b], 1) @ w,
    ),
    Row(
        "pieces-as-outputs",
        (1, 768, 0),
        [(8, 12)],
        lambda x: [y.exp() for y in x.split([3, 4, 5], 1)],
    ),
    Row(
        "concat-beside-parts",
        (2, 384, 0),
        [(16,), (16,)],
        lambda a, b: [a.exp(), Tensor.cat([a.exp(), b.sin()])],
        lambda a, b: [np.exp(a), np.concatenate([np.exp(a), np.sin(b)])],
        open=(1, "an output that is a part of a concatenation too is stored, then copied"),
    ),
    Row(
        "concat",
        (1, 160, 0),
        [(10,), (10,)],
        lambda a, b: Tensor.cat([a, b]),
        lambda a, b: np.concatenate([a, b]),
    ),
    Row(
        "concat-of-maps",
        (1, 120, 0),
        [(10,)],
        lambda a: Tensor.cat([a.cos(), a.sin()]),
        lambda a: np.concatenate([np.cos(a), np.sin(a)]),
    ),
    Row(
        "concat-of-three-plus",
        (1, 2400, 0),
        [(10, 10), (10, 10), (10, 10)],
        lambda a, b, c: Tensor.cat([a + 1.0, b + 2.0, c + 3.0]) + 10.0,
        lambda a, b, c: np.concatenate([a + 1, b + 2, c + 3]) + 10,
    ),
    Row(
        "concat-of-cube-sums-plus",
        (2, 10400, 1024),
        [(10, 10, 10), (10, 10, 10)],
        lambda a, b: Tensor.cat([a.sum(0), b.sum(0)]) + 10.0,
        lambda a, b: np.concatenate([a.sum(0), b.sum(0)]) + 10,
    ),
    # What the peer cannot fuse stands for a reader of the buffer: here, any operation.
    Row(
        "concat-of-all-slices",
        (1, 80, 0),
        [(10,)],
        lambda a: Tensor.cat([a[:0], a, a[10:]]).sin(),
        np.sin,
    ),
    Row("concat-of-one", (1, 80, 0), [(10,)], lambda a: Tensor.cat([a]).sin(), np.sin),
    Row(
        "concat-of-concat-of-one",
        (0, 0, 0),
        [(10,)],
        lambda a: Tensor.cat([Tensor.cat([a])]),
        lambda a: a,
        owned=(0, 80, 0),
    ),
]
