"""Rows of the kernel table without reductions of note: arithmetic, movement, constants, indices."""

from __future__ import annotations

import numpy as np

from scheduler.tensor.tensor import Tensor
from tests.scheduler.kernelize.conformance import Array, Row, np_average_pool, np_elu, np_relu

_RNG = np.random.default_rng(11)


def positive(*shape: int) -> Array:
    """Values away from zero, for logarithms, roots and divisors."""
    return _RNG.uniform(0.5, 2.0, shape).astype(np.float32)


def below(limit: int, *shape: int) -> Array:
    """Indices."""
    return _RNG.integers(0, limit, shape).astype(np.int32)


# Times zero they are 0, nan, nan and nan.
ODD = np.array([1.5, np.inf, -np.inf, np.nan], np.float32)


def zero_of(x: Array) -> Array:
    with np.errstate(invalid="ignore"):
        return np.asarray(x * 0)


def times_padding(a: Tensor, b: Tensor) -> Tensor:
    """Multiply by a part of a padded value that is all padding."""
    return a * b.pad([(4, 0)]).shrink([(0, 4)])


def doubled(x: Tensor, times: int = 24) -> Tensor:
    for _ in range(times):
        x = x + x
    return x


def image_conv(x: Tensor) -> Tensor:
    """Look like a convolution on images: a pinned permutation, then a sum over a repeated axis."""
    packed = x.permute(1, 0).contiguous().reshape(32, 16, 1).expand(32, 16, 16)
    return packed.sum(2).permute(1, 0)


def three_image_convs(x: Tensor, b1: Tensor, b2: Tensor) -> Tensor:
    base = image_conv(x) + b1.reshape(16, 1)
    return image_conv(image_conv(base) + b2.reshape(16, 1) + base)


def gemm_twice(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    a = (x @ y).relu()
    return (a @ z).relu() + a


def np_gemm_twice(x: Array, y: Array, z: Array) -> Array:
    x, y, z = (v.astype(np.float64) for v in (x, y, z))
    a = np_relu(x @ y)
    return np.asarray(np_relu(a @ z) + a)


ELEMENTWISE = [
    Row("t02", 1, [(10,)] * 4, lambda a, b, c, d: a + b + c + d, lambda a, b, c, d: a + b + c + d),
    Row(
        "t06",
        1,
        [(2, 5), (2, 5), (5, 2)],
        lambda a, b, c: (a + b).T + c,
        lambda a, b, c: (a + b).T + c,
    ),
    Row("t08", 0, [], lambda: Tensor(3.5), lambda: np.float64(3.5)),
    Row("t10", 1, [(10,)], lambda a: a.elu(), np_elu),
    # There is no realized tensor ahead of time: the first a+b is a kernel, the second is none.
    Row("t16", 1, [(10,), (10,)], lambda a, b: [a + b, a + b], lambda a, b: [a + b, a + b]),
    Row(
        "t18",  # likewise: one kernel for the first output, one for the second
        2,
        [(4, 5), (4, 5)],
        lambda a, b: [(a.T * b.T).T, a * b],
        lambda a, b: [a * b, a * b],
    ),
    Row("t22", 1, [(4,), positive(4)], lambda a, b: (a * b) / b, lambda a, b: a * b / b),
    Row(
        "t24",
        1,
        [(4,), positive(4), positive(4)],
        lambda a, b, c: (a / b) / c,
        lambda a, b, c: a / b / c,
    ),
    Row(
        "t26",
        1,
        [],
        lambda: [Tensor.ones(4).contiguous(), Tensor.ones(4).contiguous()],
        lambda: [np.ones(4), np.ones(4)],
    ),
    # `empty` is defined as zeros here.
    Row("t28", 0, [], lambda: [Tensor.empty(4), Tensor.empty(4)], lambda: [np.zeros(4)] * 2),
    Row(
        "t46",
        1,
        [(4, 4, 4, 4), (4, 4, 4, 4)],
        lambda a, b: (a + b).reshape(16, 16).T.contiguous(),
        lambda a, b: (a + b).reshape(16, 16).T,
    ),
    Row(
        "t50",
        1,
        [(10, 10, 1), (10, 10, 1)],
        lambda a, b: (a + b).expand(10, 10, 10) + (a + b).permute(2, 1, 0),
        lambda a, b: (a + b) + (a + b).transpose(2, 1, 0),
    ),
    Row(
        "t52",
        1,
        [(8192, 16), (1, 16)],
        lambda a, b: a + b.expand(8192, 16),
        lambda a, b: a + b,
    ),
    Row(
        "t52-transposed",
        1,
        [(16, 8192), (1, 16)],
        lambda a, b: a + b.expand(8192, 16).T,
        lambda a, b: a + b.T,
    ),
    Row(
        "t54",
        1,
        [(1, 16), (1, 16), (8192, 16)],
        lambda a, b, d: (a * b) * d,
        lambda a, b, d: a * b * d,
    ),
    Row(
        "t56",
        4,
        [(16, 32), (16,), (16,)],
        three_image_convs,
        lambda x, b, c: 16 * (16 * (16 * x + b[:, None]) + c[:, None] + (16 * x + b[:, None])),
    ),
    Row(
        "t60",
        1,
        [(1, 3, 4, 5)],
        lambda x: x.permute(0, 2, 3, 1).contiguous(),
        lambda x: x.transpose(0, 2, 3, 1),
    ),
    Row("t62", 0, [(4,)], lambda x: x ** Tensor(0), np.ones_like),
    Row("t64-exp2", 1, [(4,)], lambda x: 2**x, lambda x: 2**x),
    # A root is no power of -0.0 and of minus infinity.
    Row("t64-sqrt", 1, [positive(4)], lambda x: x**0.5, lambda x: x**0.5, float_unsafe=True),
    Row("t64-rsqrt", 1, [positive(4)], lambda x: x**-0.5, lambda x: x**-0.5, float_unsafe=True),
    Row("t64-square", 1, [(4,)], lambda x: x**2, lambda x: x**2),
    Row("t64-eighth", 1, [(4,)], lambda x: x**8, lambda x: x**8),
    Row(
        "t70",
        2,
        [(8,)] * 3,
        lambda a, b, c: (a + b).contiguous() + c,
        lambda a, b, c: a + b + c,
    ),
    Row(
        "t134",
        1,
        [np.ones(2, np.float32), np.ones(2, np.float32)],
        lambda a, b: (a + b).shrink([(0, 1)]).pad([(0, 1)]).contiguous(),
        lambda a, b: np.array([a[0] + b[0], 0.0]),
    ),
    Row(
        "t136",
        1,
        [(4, 4)],
        lambda a: a.exp2()[:-1, :-1].pad([(0, 1), (0, 1)]) * 2.0,
        lambda a: np.pad(np.exp2(a)[:-1, :-1], (0, 1)) * 2,
    ),
    Row(
        "t138",
        1,
        [5 * positive(4, 4)],
        lambda a: a.half().expand(2, 4, 4).int().expand(2, 2, 4, 4),
        lambda a: np.broadcast_to(a.astype(np.float16).astype(np.int32), (2, 2, 4, 4)),
    ),
    Row(
        "t152",
        1,
        [(10, 10), below(10, 2)],
        lambda x, i: x[i],
        lambda x, i: x[i],
    ),
    Row(
        "t154",
        1,
        [],
        lambda: (Tensor.arange(10) + 1)[[0]],
        lambda: np.array([1]),
    ),
    Row(
        "t156",
        1,
        [],
        lambda: Tensor.arange(16).reshape(4, 4)[1:2, [1, 2]],
        lambda: np.array([[5, 6]]),
    ),
    Row(
        "t166",
        1,
        [(4,)],
        lambda a: a.pad([(3, 0)]).shrink([(0, 3)]).contiguous(),
        lambda _: np.zeros(3),
    ),
    Row("t168", 0, [(4,), (4,)], times_padding, lambda a, _: 0 * a, float_unsafe=True),
    # What the switch is for: inf * 0 is nan, so the product cannot be left out without it.
    Row("t168-safe", 1, [ODD, (4,)], times_padding, lambda a, _: zero_of(a)),
    Row(
        "t170-expand",
        1,
        [(4, 1)],
        lambda a: a.expand(4, 4).contiguous(),
        lambda a: np.broadcast_to(a, (4, 4)),
    ),
    Row("t170-reshape", 0, [(4, 4)], lambda a: a.reshape(16).contiguous(), lambda a: a.ravel()),
    Row(
        "t170-double",
        1,
        [(4, 1)],
        lambda a: a.expand(4, 4).contiguous().contiguous(),
        lambda a: np.broadcast_to(a, (4, 4)),
    ),
    Row("t170-view", 0, [(4, 4)], lambda a: a.reshape(2, 8), lambda a: a.reshape(2, 8)),
    Row(
        "t182",
        1,
        [],
        lambda: Tensor.arange(25).reshape(1, 1, 5, 5).float().avg_pool2d(2, padding=1),
        lambda: np_average_pool(np.arange(25.0).reshape(5, 5), (2, 2), 1)[None, None],
    ),
    Row(
        "t184",
        1,
        [],
        lambda: Tensor.arange(25).reshape(1, 1, 5, 5).float().avg_pool2d((2, 3), padding=1),
        lambda: np_average_pool(np.arange(25.0).reshape(5, 5), (2, 3), 1)[None, None],
    ),
    Row("t186", 1, [(4,)], doubled, lambda a: a * 2.0**24),
    Row(
        "t188",
        5,
        [_RNG.uniform(-1, 1, (16, 16)).astype(np.float16) for _ in range(3)],
        gemm_twice,
        np_gemm_twice,
        tolerance=2e-2,
    ),
    Row(
        "t194",
        3,
        [(32768, 4), below(32768, 16)],
        lambda x, i: x.gather(i),
        lambda x, i: x[i],
    ),
    Row("t198-zero", 0, [(4,)], lambda a: a * 0, lambda a: a * 0, float_unsafe=True),
    Row("t198-zero-safe", 1, [ODD], lambda a: a * 0, zero_of),
    Row("t198-sum", 0, [(4,), (4,)], lambda a, b: b + a * 0, lambda _, b: b, float_unsafe=True),
    Row("t198-sum-safe", 1, [ODD, (4,)], lambda a, b: b + a * 0, lambda a, b: b + zero_of(a)),
    Row(
        "t202",
        1,
        [positive(4, 1)],
        lambda a: a.expand(4, 4).reciprocal(),
        lambda a: np.broadcast_to(1 / a, (4, 4)),
    ),
    Row(
        "t204",
        1,
        [(16,), (16,)],
        lambda a, b: (a + b).reshape(8, 2),
        lambda a, b: (a + b).reshape(8, 2),
    ),
    Row(
        "t206",
        1,
        [(4, 1)],
        lambda a: a.expand(4, 4),
        lambda a: np.broadcast_to(a, (4, 4)),
    ),
    Row(
        "t48",
        1,
        [(4, 4, 4, 4), (16,)],
        lambda a, b: a.sum((0, 1)).half().T.reshape(2, 2, 4).permute(2, 0, 1).reshape(16) + b,
        lambda a, b: (
            a.sum((0, 1)).astype(np.float16).T.reshape(2, 2, 4).transpose(2, 0, 1).reshape(16) + b
        ),
        tolerance=2e-3,
    ),
]
