"""Writes: what is assigned is stored in place if no other element of it is read."""

from __future__ import annotations

import numpy as np

from scheduler.ir import dtype as dt
from scheduler.tensor.tensor import Tensor
from tests.scheduler.fusion.row import Array, Row, positive


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


def chained(a: Tensor, b: Tensor) -> Tensor:
    return a.assign(a + 1.0).assign(a * b).assign(a - 2.0)


def swapped(a: Tensor, b: Tensor) -> list[Tensor]:
    old = a + 0.0
    return [a.assign(b * 2.0), b.assign(old * 3.0)]


ROWS = [
    Row("add-in-place", (1, 768, 0), [(8, 12)], lambda a: a.assign(a + 1.0), assigned=[0]),
    Row(
        "assign-two",
        (1, 1536, 0),
        [(8, 12), (8, 12)],
        lambda a, b: [a.assign(a + 1.0), b.assign(b * 2.0)],
        assigned=[0, 1],
    ),
    Row(
        "assign-from-each-other",
        (1, 1536, 0),
        [(8, 12), (8, 12)],
        lambda a, b: [a.assign(a + b), b.assign(b.exp())],
        assigned=[0, 1],
    ),
    Row(
        "assign-and-read",
        (2, 1184, 0),
        [(8, 12)],
        lambda a: [a.assign(a * 2.0), a.sum(1)],
        assigned=[0],
        open=(1, "elements of an assigned value are not computed again"),
    ),
    Row(
        "assign-matrix-product",
        (1, 768, 0),
        [(8, 8), (8, 8)],
        lambda a, b: b.assign(b + a @ a),
        assigned=[1],
    ),
    Row(
        "assign-normalised",
        (2, 1536, 512),
        [positive(8, 12)],
        lambda a: a.assign(a / a.sum(1, keepdim=True)),
        assigned=[0],
        owned=(1, 1536, 512),
    ),
    Row(
        "assign-reversed",
        (2, 256, 256),
        [(16,)],
        lambda a: a.assign(a.flip(0)),
        lambda a: a[::-1],
        assigned=[0],
        owned=(1, 256, 256),
    ),
    Row(
        "assign-shifted",
        (2, 1584, 512),
        [(8, 12), (1, 12)],
        lambda a, x: a.assign(Tensor.cat([a[1:], x])),
        lambda a, x: np.concatenate([a[1:], x]),
        assigned=[0],
        owned=(1, 1584, 512),
    ),
    Row(
        "assign-chained", (1, 1152, 0), [(8, 12), (8, 12)], chained, assigned=[0], owned=(1, 768, 0)
    ),
    Row("assign-swapped", (1, 1536, 0), [(8, 12), (8, 12)], swapped, assigned=[0, 1]),
    Row("momentum", (1, 1920, 0), [(8, 12), (8, 12), (8, 12)], momentum, assigned=[0, 1]),
    Row(
        "running-statistics",
        (2, 1536, 512),
        [(8, 12), (12,), positive(12)],
        running_statistics,
        np_running_statistics,
        assigned=[1, 2],
        open=(1, "epilogues that are assigned leave the loop nest"),
    ),
    Row("replaced-row", (1, 96, 0), [(8, 12), (1, 12)], replaced_row, assigned=[0]),
    Row(
        "half-precision-weights",
        (1, 1152, 0),
        [(8, 12), (8, 12)],
        lambda w, g: w.assign((w.cast(dt.float16) - g.half() * 0.5).float()),
        lambda w, g: w - g * 0.5,
        assigned=[0],
        tolerance=5e-3,
    ),
]
