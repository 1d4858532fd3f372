"""Arithmetic of elements, and values that no kernel needs to compute."""

from __future__ import annotations

import numpy as np

from scheduler.ir import dtype as dt
from scheduler.tensor.tensor import Tensor
from tests.scheduler.fusion.row import Row, positive

ODD = np.array([1.5, np.inf, -np.inf, np.nan], np.float32)


def times_padding(a: Tensor, b: Tensor) -> Tensor:
    """Multiply by a part of a padded value that is all padding."""
    return a * b.pad([(4, 0)]).shrink([(0, 4)])


def doubled(x: Tensor, times: int = 24) -> Tensor:
    for _ in range(times):
        x = x + x
    return x


ROWS = [
    Row("sum-of-four", (1, 200, 0), [(10,)] * 4, lambda a, b, c, d: a + b + c + d),
    Row("constant", (0, 0, 0), [], lambda: Tensor(3.5), lambda: np.float64(3.5), owned=(0, 4, 0)),
    Row("elu", (1, 80, 0), [(10,)], lambda a: a.elu()),
    # There is no realized tensor ahead of time: the first a+b is a kernel, the second is none.
    Row("equal-sums", (1, 120, 0), [(10,), (10,)], lambda a, b: [a + b, a + b], owned=(1, 160, 0)),
    # likewise: one kernel for the first output, one for the second
    Row(
        "equal-products-one-transposed",
        (1, 320, 0),
        [(4, 5), (4, 5)],
        lambda a, b: [(a.T * b.T).T, a * b],
    ),
    Row("product-divided", (1, 48, 0), [(4,), positive(4)], lambda a, b: (a * b) / b),
    Row("divided-twice", (1, 64, 0), [(4,), positive(4), positive(4)], lambda a, b, c: (a / b) / c),
    Row(
        "equal-ones",
        (1, 16, 0),
        [],
        lambda: [Tensor.ones(4).contiguous(), Tensor.ones(4).contiguous()],
        lambda: [np.ones(4), np.ones(4)],
        owned=(0, 48, 0),
    ),
    # `empty` is defined as zeros here.
    Row(
        "empty",
        (0, 0, 0),
        [],
        lambda: [Tensor.empty(4), Tensor.empty(4)],
        lambda: [np.zeros(4)] * 2,
        owned=(0, 64, 0),
    ),
    Row("power-zero", (0, 0, 0), [(4,)], lambda x: x ** Tensor(0), np.ones_like, owned=(0, 16, 0)),
    Row("power-of-two", (1, 32, 0), [(4,)], lambda x: 2**x),
    # A root is no power of -0.0 and of minus infinity.
    Row("power-half", (1, 32, 0), [positive(4)], lambda x: x**0.5, float_unsafe=True),
    Row("power-minus-half", (1, 32, 0), [positive(4)], lambda x: x**-0.5, float_unsafe=True),
    Row("power-two", (1, 32, 0), [(4,)], lambda x: x**2),
    Row("power-eight", (1, 32, 0), [(4,)], lambda x: x**8),
    Row("contiguous-between", (2, 192, 256), [(8,)] * 3, lambda a, b, c: (a + b).contiguous() + c),
    Row(
        "half-int-expanded",
        (1, 128, 0),
        [positive(4, 4, scale=5.0)],
        lambda a: a.half().expand(2, 4, 4).int().expand(2, 2, 4, 4),
        owned=(1, 320, 0),
    ),
    Row(
        "times-padding", (0, 0, 0), [(4,), (4,)], times_padding, float_unsafe=True, owned=(0, 16, 0)
    ),
    # What the switch is for: inf * 0 is nan, so the product cannot be left out without it.
    Row("times-padding-safe", (1, 32, 0), [ODD, (4,)], times_padding),
    Row("doubled-24-times", (1, 32, 0), [(4,)], doubled),
    Row("times-zero", (0, 0, 0), [(4,)], lambda a: a * 0, float_unsafe=True, owned=(0, 16, 0)),
    Row("times-zero-safe", (1, 32, 0), [ODD], lambda a: a * 0),
    Row(
        "plus-times-zero",
        (0, 0, 0),
        [(4,), (4,)],
        lambda a, b: b + a * 0,
        float_unsafe=True,
        owned=(0, 32, 0),
    ),
    Row("plus-times-zero-safe", (1, 48, 0), [ODD, (4,)], lambda a, b: b + a * 0),
    Row(
        "mask-of-mask",
        (1, 1152, 0),
        [(8, 12), (8, 12)],
        lambda a, b: (a > 0).where((b > 0).where(a, b), 1.0).clip(-0.5, 0.5),
    ),
    Row("sum-of-two", (1, 120, 0), [(10,), (10,)], lambda a, b: a + b),
    Row("plus-itself", (1, 80, 0), [(10,)], lambda x: x + x),
    Row(
        "two-maps", (1, 200, 0), [(10,), (10,), (10,)], lambda a, b, c: [a.cos(), b.sin() + c.sin()]
    ),
    Row("cast-to-its-own-type", (1, 80, 0), [(10,)], lambda a: a.cast(dt.float32).sin(), np.sin),
    # float16 stands for bfloat16, which there is no type for; both are two bytes.
    Row("half-again", (1, 6144, 0), [(32, 32)], lambda x: x.half().half().half().half()),
]
