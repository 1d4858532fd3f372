"""Quotients by a known number without a division: every dividend is rounded as the division is."""

from fractions import Fraction

import numpy as np
import pytest

from scheduler.ir import dtype as dt
from scheduler.render.quotient import nearest, reciprocal
from scheduler.tensor.tensor import Tensor
from tests.scheduler.support.programs import Array, load, plan_for

SCALES = np.random.default_rng(11).uniform(1e-4, 2.0, 60).astype(np.float32)


def test_most_divisors_have_two_parts() -> None:
    assert sum(reciprocal(float(c)) is not None for c in SCALES) >= 55


@pytest.mark.parametrize("divisor", [0.0, -0.3, 0.25, 1e-30, 1e30, float("nan"), float("inf")])
def test_divisors_that_stay(divisor: float) -> None:
    assert reciprocal(divisor) is None


@pytest.mark.parametrize("scale", SCALES[:12], ids=str)
def test_both_parts_give_the_quotient(scale: np.float32) -> None:
    parts = reciprocal(float(scale))
    if parts is None:
        return
    high, low = map(Fraction, parts)
    dividends = np.random.default_rng(3).integers(1 << 23, 1 << 24, 400).astype(np.float32)
    for x in (Fraction(float(d)) for d in dividends):
        assert nearest(x * high + nearest(x * low)) == Fraction(float(np.float32(x) / scale))


def ties(scale: np.float32) -> Array:
    """Numbers around those whose quotients are halves, and what is far away."""
    halves = (np.arange(-300, 300, dtype=np.float32) + np.float32(0.5)) * scale
    near = [halves, np.nextafter(halves, np.float32(np.inf)), np.nextafter(halves, -np.inf)]
    far = np.array([0.0, -0.0, 1e-42, 3e38, -3e38, np.inf, -np.inf], np.float32)
    return np.concatenate([*near, far]).astype(np.float32)


@pytest.mark.parametrize("scale", SCALES[:6], ids=str)
def test_the_device_rounds_to_the_same_whole_numbers(scale: np.float32) -> None:
    given = {"x": ties(scale)}
    x = Tensor.input("x", given["x"].shape, dt.float32)
    y = (x / float(scale)).round()
    with load({"y": y}) as program:
        found = program.run(given)["y"]
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(found, np.rint(given["x"] / scale))


def test_a_quotient_that_is_read_as_it_is_stays_a_division() -> None:
    x = Tensor.input("x", (64,), dt.float32)
    quotient = x / 0.3
    for y, fused in ((quotient.round(), True), (quotient.round() + quotient, False)):
        (kernel,) = plan_for(y).lowered
        assert ("m_fused" in kernel.text) is fused
