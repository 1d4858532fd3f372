"""More programs that join, cut, gather and write: no copies where an index says the same.

Joins are stores into slices of one buffer, gathers are reads at a computed place, and what is
assigned is written in place if no other element of it is read.
"""

from __future__ import annotations

import numpy as np

from scheduler.ir import dtype as dt
from scheduler.tensor.tensor import Tensor
from tests.scheduler.kernelize.conformance import Array, Row, np_layernorm, np_relu, np_softmax
from tests.scheduler.kernelize.conformance_elementwise import below, positive

N, M = (16,), (8, 12)
IMAGE = np.arange(192, dtype=np.uint8).reshape(8, 8, 3)


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


JOINS = [
    Row("roll", 1, [N], lambda x: Tensor.cat([x[5:], x[:5]]), lambda x: np.roll(x, -5)),
    Row(
        "join-then-relu",
        1,
        [M, M],
        lambda a, b: Tensor.cat([a + 1.0, b * 2.0]).relu(),
        lambda a, b: np_relu(np.concatenate([a + 1, b * 2])),
    ),
    Row(
        "join-then-sum",
        1,
        [M, M],
        lambda a, b: Tensor.cat([a.exp(), b], 1).sum(1),
        lambda a, b: np.exp(a).sum(1) + b.sum(1),
    ),
    Row("join-tree", 1, [M] * 4, tree, np_tree),
    Row("join-pieces", 1, [M], pieces, np_pieces),
    Row(
        "join-of-sums",
        1,
        [M, (5, 12)],
        lambda a, b: Tensor.cat([a.sum(1), b.max(1)]),
        lambda a, b: np.concatenate([a.sum(1), b.max(1)]),
    ),
    Row(
        "join-cut-again",
        1,
        [M, M],
        lambda a, b: Tensor.cat([a.exp(), b.exp()])[2:6],
        lambda a, _: np.exp(a[2:6]),
    ),
    Row(
        "stack-of-sums",
        1,
        [M],
        lambda a: Tensor.stack([a.sum(1), a.max(1), a.min(1)], 1),
        lambda a: np.stack([a.sum(1), a.max(1), a.min(1)], 1),
    ),
    Row(
        "stack-of-ten",
        1,
        [N],
        lambda x: Tensor.stack([x * float(i) for i in range(10)]),
        lambda x: np.stack([x * i for i in range(10)]),
    ),
    Row(
        "interleave",
        1,
        [N, N],
        lambda a, b: Tensor.stack([a, b], 1).reshape(32) * 2.0,
        lambda a, b: np.stack([a, b], 1).ravel() * 2,
    ),
    Row("rotary", 1, [M, M], rotary, np_rotary),
    Row(
        "join-softmax",
        1,
        [M, M],
        lambda a, b: Tensor.cat([a, b], 1).softmax(),
        lambda a, b: np_softmax(np.concatenate([a, b], 1)),
    ),
    Row(
        "join-product",
        1,
        [M, M, (24, 6)],
        lambda a, b, w: Tensor.cat([a, b], 1) @ w,
        lambda a, b, w: np.concatenate([a, b], 1) @ w,
    ),
    Row(
        "pieces-as-outputs",
        1,
        [M],
        lambda x: [y.exp() for y in x.split([3, 4, 5], 1)],
        lambda x: [np.exp(x[:, :3]), np.exp(x[:, 3:7]), np.exp(x[:, 7:])],
    ),
    Row(
        "join-beside-parts",
        1,
        [N, N],
        lambda a, b: [a.exp(), Tensor.cat([a.exp(), b.sin()])],
        lambda a, b: [np.exp(a), np.concatenate([np.exp(a), np.sin(b)])],
    ),
    Row(
        "views-of-one-result",
        1,
        [M],
        lambda a: [a.exp(), a.exp().T, a.exp().reshape(4, 24)],
        lambda a: [np.exp(a), np.exp(a).T, np.exp(a).reshape(4, 24)],
    ),
    Row(
        "views-of-an-input",
        0,
        [M],
        lambda a: [a.T, a[2:5], a.reshape(96).flip(0)],
        lambda a: [a.T, a[2:5], a.ravel()[::-1]],
        owned=1,
    ),
    Row("flip-and-add", 1, [M], lambda a: a + a.flip((0, 1)), lambda a: a + a[::-1, ::-1]),
    Row(
        "repeat-and-tile",
        1,
        [M, (16, 36)],
        lambda a, b: a.repeat(2, 3) + b,
        lambda a, b: np.tile(a, (2, 3)) + b,
    ),
    Row(
        "image-to-planes",
        1,
        [IMAGE, (3,)],
        lambda x, mean: x.permute(2, 0, 1).float() * (1 / 255) - mean.reshape(3, 1, 1),
        lambda x, mean: x.transpose(2, 0, 1) / 255 - mean.reshape(3, 1, 1),
    ),
    Row(
        "blocks-to-channels",
        1,
        [(1, 2, 8, 8)],
        lambda x: x.reshape(1, 2, 4, 2, 4, 2).permute(0, 3, 5, 1, 2, 4).reshape(1, 8, 4, 4).relu(),
        lambda x: np_relu(
            x.reshape(1, 2, 4, 2, 4, 2).transpose(0, 3, 5, 1, 2, 4).reshape(1, 8, 4, 4)
        ),
    ),
    Row(
        "mask-of-mask",
        1,
        [M, M],
        lambda a, b: (a > 0).where((b > 0).where(a, b), 1.0).clip(-0.5, 0.5),
        lambda a, b: np.clip(np.where(a > 0, np.where(b > 0, a, b), 1), -0.5, 0.5),
    ),
]

GATHERS = [
    Row(
        "gather-of-gather",
        1,
        [(20, 6), below(20, 9), below(9, 5)],
        lambda x, i, j: x[i][j],
        lambda x, i, j: x[i][j],
    ),
    Row(
        "gather-by-gathered",
        1,
        [(20, 6), below(20, 9), below(9, 5)],
        lambda x, i, j: x[i[j]],
        lambda x, i, j: x[i[j]],
    ),
    Row(
        "gathers-added",
        1,
        [(20, 6), below(20, 9), below(20, 9)],
        lambda x, i, j: x[i] + x[j],
        lambda x, i, j: x[i] + x[j],
    ),
    Row(
        "gather-computed-place",
        1,
        [(20, 6), below(19, 9)],
        lambda x, i: x[i + 1].relu(),
        lambda x, i: np_relu(x[i + 1]),
    ),
    Row(
        "gather-computed-values",
        1,
        [(20, 6), below(20, 9)],
        lambda x, i: x.exp()[i],
        lambda x, i: np.exp(x[i]),
    ),
    Row(
        "gather-two-axes",
        1,
        [(20, 6), below(20, 9), below(6, 4)],
        lambda x, i, j: x.gather(i, 0).gather(j, 1),
        lambda x, i, j: x[i][:, j],
    ),
    Row(
        "gather-picked",
        1,
        [(20, 6), below(20, 9), below(6, 9)],
        lambda x, i, j: x[i, j],
        lambda x, i, j: x[i, j],
    ),
    Row(
        "gather-bag",
        1,
        [(20, 6), below(20, 9, 3)],
        lambda x, i: x[i].mean(1),
        lambda x, i: x[i].mean(1),
    ),
    Row(
        "gather-layernorm",
        1,
        [(20, 6), below(20, 9), (9, 6)],
        lambda x, i, p: (x[i] + p).layernorm(),
        lambda x, i, p: np_layernorm(x[i] + p),
        1e-4,
    ),
    Row(
        "gather-product",
        1,
        [(20, 6), below(20, 9), (6, 4)],
        lambda x, i, w: x[i] @ w,
        lambda x, i, w: x[i] @ w,
    ),
    Row(
        "gather-by-argmax",
        1,
        [(4, 10), (10, 6)],
        lambda s, x: x[s.argmax(1)],
        lambda s, x: x[s.argmax(1)],
    ),
    Row(
        "gather-masked",
        1,
        [(20, 6), below(20, 9)],
        lambda x, i: (i > 9).unsqueeze(1).where(x[i], 0.0).sum(0),
        lambda x, i: np.where((i > 9)[:, None], x[i], 0).sum(0),
        1e-4,
    ),
    Row(
        "scatter-add",
        1,
        [(9, 6), below(4, 9)],
        lambda v, i: Tensor.arange(4).unsqueeze(1).eq(i.unsqueeze(0)).float() @ v,
        lambda v, i: np.eye(4)[i].T @ v,
    ),
    Row(
        "histogram",
        1,
        [below(5, 40)],
        lambda i: Tensor.arange(5).unsqueeze(1).eq(i.unsqueeze(0)).sum(1),
        lambda i: np.bincount(i, minlength=5).astype(np.int32),
    ),
]


def momentum(p: Tensor, kept: Tensor, g: Tensor) -> list[Tensor]:
    kept = kept.assign(kept * 0.9 + g)
    return [kept, p.assign(p - kept * 0.1)]


def running_statistics(x: Tensor, mean: Tensor, variance: Tensor) -> list[Tensor]:
    """Normalise (8, 12) per column and update what is kept of the statistics."""
    m, v = x.mean(0), x.var(0, correction=0)
    y = (x - m) * (v + 1e-5).rsqrt()
    return [y, mean.assign(mean * 0.9 + m * 0.1), variance.assign(variance * 0.9 + v * 0.1)]


def np_running_statistics(x: Array, mean: Array, variance: Array) -> list[Array]:
    m, v = x.mean(0), x.var(0)
    return [(x - m) / np.sqrt(v + 1e-5), mean * 0.9 + m * 0.1, variance * 0.9 + v * 0.1]


def replaced_row(cache: Tensor, row: Tensor) -> Tensor:
    cache[3:4] = row * 2.0
    return cache


def np_replaced_row(cache: Array, row: Array) -> Array:
    return np.concatenate([cache[:3], row * 2, cache[4:]])


def chained(a: Tensor, b: Tensor) -> Tensor:
    return a.assign(a + 1.0).assign(a * b).assign(a - 2.0)


def swapped(a: Tensor, b: Tensor) -> list[Tensor]:
    old = a + 0.0
    return [a.assign(b * 2.0), b.assign(old * 3.0)]


WRITES = [
    Row("add-in-place", 1, [M], lambda a: a.assign(a + 1.0), lambda a: a + 1, assigned=[0]),
    Row(
        "assign-two",
        1,
        [M, M],
        lambda a, b: [a.assign(a + 1.0), b.assign(b * 2.0)],
        lambda a, b: [a + 1, b * 2],
        assigned=[0, 1],
    ),
    Row(
        "assign-from-each-other",
        1,
        [M, M],
        lambda a, b: [a.assign(a + b), b.assign(b.exp())],
        lambda a, b: [a + b, np.exp(b)],
        assigned=[0, 1],
    ),
    Row(
        "assign-and-read",
        1,
        [M],
        lambda a: [a.assign(a * 2.0), a.sum(1)],
        lambda a: [a * 2, a.sum(1) * 2],
        assigned=[0],
    ),
    Row(
        "assign-matrix-product",
        1,
        [(8, 8), (8, 8)],
        lambda a, b: b.assign(b + a @ a),
        lambda a, b: b + a @ a,
        assigned=[1],
    ),
    Row(
        "assign-normalised",
        2,
        [positive(8, 12)],
        lambda a: a.assign(a / a.sum(1, keepdim=True)),
        lambda a: a / a.sum(1, keepdims=True),
        assigned=[0],
    ),
    Row("assign-reversed", 2, [N], lambda a: a.assign(a.flip(0)), lambda a: a[::-1], assigned=[0]),
    Row(
        "assign-shifted",
        2,
        [(8, 12), (1, 12)],
        lambda a, x: a.assign(Tensor.cat([a[1:], x])),
        lambda a, x: np.concatenate([a[1:], x]),
        assigned=[0],
    ),
    Row("assign-chained", 1, [M, M], chained, lambda a, b: (a + 1) * b - 2, assigned=[0]),
    Row("assign-swapped", 1, [M, M], swapped, lambda a, b: [b * 2, a * 3], assigned=[0, 1]),
    Row(
        "momentum",
        1,
        [M, M, M],
        momentum,
        lambda p, k, g: [k * 0.9 + g, p - 0.1 * (k * 0.9 + g)],
        assigned=[0, 1],
    ),
    Row(
        "running-statistics",
        1,
        [(8, 12), (12,), positive(12)],
        running_statistics,
        np_running_statistics,
        assigned=[1, 2],
    ),
    Row("replaced-row", 1, [(8, 12), (1, 12)], replaced_row, np_replaced_row, assigned=[0]),
    Row(
        "half-precision-weights",
        1,
        [M, M],
        lambda w, g: w.assign((w.cast(dt.float16) - g.half() * 0.5).float()),
        lambda w, g: w - g * 0.5,
        5e-3,
        assigned=[0],
    ),
]
