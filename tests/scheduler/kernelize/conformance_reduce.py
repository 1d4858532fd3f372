"""Rows of the kernel table about reductions and networks with one output."""

from __future__ import annotations

import math

import numpy as np

from scheduler.tensor.tensor import Tensor
from tests.scheduler.kernelize.conformance import (
    Array,
    Row,
    np_attention,
    np_batchnorm,
    np_conv,
    np_elu,
    np_relu,
    np_softmax,
)
from tests.scheduler.kernelize.conformance_elementwise import below, positive


def batch_statistics(x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    mean = x.mean((0, 2, 3))
    variance = x.var((0, 2, 3), correction=0)
    return x.batchnorm(scale, bias, mean, variance)


def np_batch_statistics(x: Array, scale: Array, bias: Array) -> Array:
    return np_batchnorm(x, scale, bias, x.mean((0, 2, 3)), x.var((0, 2, 3)))


def mean_twice(x: Tensor) -> Tensor:
    mean = x.mean(0, keepdim=True)
    return mean + (x - mean).sum(0) / 2.0


def np_mean_twice(x: Array) -> Array:
    mean = x.mean(0, keepdims=True)
    return np.asarray(mean + (x - mean).sum(0) / 2)


def residual_block(x: Tensor, *weights: Tensor) -> Tensor:
    """Two convolutions, each with a batch normalisation of given statistics."""
    first, s1, b1, m1, v1, second, s2, b2, m2, v2 = weights
    y = x.conv2d(first, padding=1).batchnorm(s1, b1, m1, v1).relu()
    return (y.conv2d(second, padding=1).batchnorm(s2, b2, m2, v2) + x).relu()


def np_residual_block(x: Array, *weights: Array) -> Array:
    y = np_relu(np_batchnorm(np_conv(x, weights[0], 1), *weights[1:5]))
    return np_relu(np_batchnorm(np_conv(y, weights[5], 1), *weights[6:10]) + x)


def attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
    scores = q @ k.transpose() * (1.0 / math.sqrt(q.shape[-1]))
    if causal:
        ramp = Tensor.arange(q.shape[-2])
        scores = (ramp.unsqueeze(0) <= ramp.unsqueeze(1)).where(scores, -math.inf)
    return scores.softmax() @ v


def cross_entropy(x: Tensor, label: Tensor) -> Tensor:
    """Mean over rows whose label is not -1."""
    valid = label.ne(-1).float()
    hot = Tensor.arange(x.shape[1]).unsqueeze(0).eq(label.unsqueeze(1)).where(-1.0, 0.0)
    return (x.log_softmax() * (hot * valid.unsqueeze(1))).sum() / valid.sum()


def np_cross_entropy(x: Array, label: Array) -> Array:
    return np.asarray(-np.log(np_softmax(x))[np.arange(len(label)), label].mean())


def normalised_row(p: Tensor) -> Tensor:
    return (p / p.sum(1, keepdim=True))[0].pad([(1, 0)]).repeat([2])


def running_maximum(x: Tensor) -> Tensor:
    n = x.shape[0]
    return x.pad([(n - 1, 0)], -math.inf).window(0, n).max(1)


REDUCE = [
    Row(
        "t04",
        1,
        [(10, 10), (10, 10)],
        lambda a, b: (a * b).sum().relu(),
        lambda a, b: np_relu((a * b).sum()),
    ),
    Row("t12", 1, [(10, 10), (10,)], lambda a, b: a.sum(0) + b, lambda a, b: a.sum(0) + b),
    Row(
        "t14",
        1,
        [(100,), (100,), (10, 10)],
        lambda a, b, c: ((a + b).reshape(10, 10) + c).sum(0),
        lambda a, b, c: ((a + b).reshape(10, 10) + c).sum(0),
    ),
    Row("t20", 2, [(32, 32)], mean_twice, np_mean_twice),
    Row(
        "t30",
        1,
        [positive(8, 8)],
        lambda y: -y.sum(keepdim=True).sqrt(),
        lambda y: -np.sqrt(y.sum(keepdims=True)),
    ),
    Row("t32", 3, [(1, 32, 4, 4), (32,), (32,)], batch_statistics, np_batch_statistics),
    Row(
        "t34",
        4,
        [(1, 3, 8, 8), (4, 3, 3, 3), (4,), (4,)],
        lambda x, w, s, b: batch_statistics(x.conv2d(w), s, b).relu(),
        lambda x, w, s, b: np_relu(np_batch_statistics(np_conv(x, w), s, b)),
    ),
    Row(
        "t40",
        2,
        [(1, 3, 10, 10), (4, 3, 3, 3), (4, 4, 3, 3)],
        lambda x, v, w: x.conv2d(v).relu().conv2d(w).relu(),
        lambda x, v, w: np_relu(np_conv(np_relu(np_conv(x, v)), w)),
    ),
    Row(
        "t42",
        1,
        [(1, 3, 10, 10), (4, 3, 3, 3)],
        lambda x, w: x.conv2d(w).elu(),
        lambda x, w: np_elu(np_conv(x, w)),
    ),
    Row(
        "t44",
        1,
        [(64, 64)],
        lambda x: (x.sum(0) + x.sum(1)).relu(),
        lambda x: np_relu(x.sum(0) + x.sum(1)),
    ),
    Row(
        "t58",
        2,
        [
            (1, 64, 32, 32),
            *((64, 64, 3, 3), (64,), (64,), (64,), positive(64)) * 2,
        ],
        residual_block,
        np_residual_block,
        tolerance=1e-4,
    ),
    Row(
        "t66",
        1,
        [(8, 8), (8, 8)],
        lambda x, y: x.sum(1).relu().elu() + y.sum(1).relu().elu(),
        lambda x, y: np_elu(np_relu(x.sum(1))) + np_elu(np_relu(y.sum(1))),
    ),
    Row(
        "t68",
        1,
        [(32, 32, 32)],
        lambda x: x.sum(2).relu().sum(1),
        lambda x: np_relu(x.sum(2)).sum(1),
        tolerance=1e-4,
    ),
    Row(
        "t72",
        1,
        [(32, 32), (16,)],
        lambda x, y: x.sum(1)[:16] + y,
        lambda x, y: x.sum(1)[:16] + y,
    ),
    Row("t86-argmin", 2, [(4, 32)], lambda x: x.argmin(-1), lambda x: x.argmin(-1)),
    Row("t86-argmax", 2, [(4, 32)], lambda x: x.argmax(-1), lambda x: x.argmax(-1)),
    Row(
        "t88",
        4,
        [(2, 4, 16, 8)] * 3,
        lambda q, k, v: attention(q, k, v, causal=False),
        lambda q, k, v: np_attention(q, k, v, causal=False),
    ),
    Row(
        "t90",
        4,
        [(2, 4, 16, 8)] * 3,
        lambda q, k, v: attention(q, k, v, causal=True),
        lambda q, k, v: np_attention(q, k, v, causal=True),
    ),
    Row(
        "t92",
        2,
        [(8, 8)],
        lambda a: (a + a.sum(-1, keepdim=True)).sum(-1),
        lambda a: (a + a.sum(-1, keepdims=True)).sum(-1),
    ),
    Row(
        "t96",
        1,
        [(8, 8), (8, 8)],
        lambda x, y: y.sum(-1) + x.sum(-1),
        lambda x, y: y.sum(-1) + x.sum(-1),
    ),
    Row(
        "t98",
        2,
        [(8, 8)],
        lambda x: (x - x.max(-1, keepdim=True)).sum(-1),
        lambda x: (x - x.max(-1, keepdims=True)).sum(-1),
    ),
    Row("t102", 3, [(4, 12, 64, 64)], lambda x: x.softmax(), np_softmax),
    Row(
        "t114",
        1,
        [(8, 8)],
        lambda x: x.sum().half().float(),
        lambda x: x.sum().astype(np.float16).astype(np.float64),
        tolerance=2e-3,
    ),
    Row(
        "t122",
        1,
        [(16, 16), (16,), (4,)],
        lambda a, c, b: (a.sum(1) + c)[:4] * b,
        lambda a, c, b: (a.sum(1) + c)[:4] * b,
    ),
    Row(
        "t124",
        1,
        [(8, 8)],
        lambda a: (a.sum(0) + a.max(1)) + 2.0,
        lambda a: a.sum(0) + a.max(1) + 2,
    ),
    Row(
        "t130",
        1,
        [(4, 4), (4, 4)],
        lambda a, b: (a + b).pad([(1, 1), (1, 1)], 1.0).sum(),
        lambda a, b: np.pad(a + b, 1, constant_values=1.0).sum(),
    ),
    Row(
        "t132",
        1,
        [positive(4, 4)],
        lambda a: a.log2().pad([(1, 1), (1, 1)], 1.0).sum(),
        lambda a: np.pad(np.log2(a), 1, constant_values=1.0).sum(),
    ),
    Row(
        "t140",
        3,
        [positive(3, 3)],
        normalised_row,
        lambda p: np.tile(np.concatenate([[0.0], p[0] / p[0].sum()]), 2),
    ),
    Row("t142", 2, [(10, 20)], lambda x: x.argmax(1), lambda x: x.argmax(1)),
    # The peers' knob for convolutions' backward has no counterpart: the program is the same.
    Row("t144", 5, [(10, 20)], lambda x: x.argmax(1), lambda x: x.argmax(1)),
    Row(
        "t146",
        1,
        [(4, 4), (4, 1)],
        lambda a, b: a.sum(1, keepdim=True) + b,
        lambda a, b: a.sum(1, keepdims=True) + b,
    ),
    Row(
        "t148",
        1,
        [(4, 6, 4), (4, 4, 1)],
        lambda a, b: a.sum(1, keepdim=True).permute(2, 0, 1) + b,
        lambda a, b: a.sum(1, keepdims=True).transpose(2, 0, 1) + b,
    ),
    Row("t150", 2, [(32, 32)], lambda a: a - a.sum(1), lambda a: a - a.sum(1)),
    Row(
        "t158",
        1,
        [(10,)],
        lambda x: (x + Tensor.arange(10)[2]).sum(),
        lambda x: (x + 2).sum(),
    ),
    Row(
        "t160",
        1,
        [(10,)],
        lambda x: (x + (Tensor.arange(10) + 1)[2]).sum(),
        lambda x: (x + 3).sum(),
    ),
    Row("t162", 3, [(2, 3), below(3, 2)], cross_entropy, np_cross_entropy),
    Row("t178", 3, [(1022,)], running_maximum, np.maximum.accumulate),
    Row(
        "t180",
        1,
        [positive(4, 4), (4, 4)],
        lambda x, y: (1.0 / x * y).pad([(0, 1), (0, 1)]).sum(),
        lambda x, y: (1 / x * y).sum(),
    ),
]
