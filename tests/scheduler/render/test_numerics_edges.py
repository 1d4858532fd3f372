"""Special values on the device: NaN, infinities, denormals, overflow, division by 0, casts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from scheduler.ir import dtype as dt
from scheduler.tensor.tensor import Tensor, evaluate
from tests.scheduler.support.programs import load

pytestmark = pytest.mark.opencl

Array = NDArray[Any]
# One element at a time, and whole vectors with a rest.
SIZES = (3, 83)
INTS = (dt.int8, dt.uint8, dt.int16, dt.uint16, dt.int32, dt.uint32, dt.int64, dt.uint64)
FLOATS = (dt.float16, dt.float32, dt.float64)
_SPECIAL = np.array([np.nan, 1.5, -2.0, np.inf, -np.inf, 0.0, 3.0])


def check(outputs: dict[str, Tensor], **inputs: Array) -> None:
    """Assert that the device gives what the interpreter gives, bit for bit but for NaN and zeros.

    Args:
        outputs: values by name.
        inputs: of the program.
    """
    expected = evaluate(list(outputs.values()), inputs)
    with load(outputs) as program:
        found = program.run(inputs)
        for name, want in zip(outputs, expected, strict=True):
            got = found[name]
            assert got.dtype == want.dtype, name
            np.testing.assert_array_equal(got, want, err_msg=name)


@pytest.mark.parametrize("kind", FLOATS, ids=str)
@pytest.mark.parametrize("count", SIZES)
def test_maximum_and_minimum_keep_nan_in_every_position(count: int, kind: dt.DType) -> None:
    a, b = (x.reshape(-1) for x in np.meshgrid(_SPECIAL, _SPECIAL))
    if count < a.size:  # NaN and a number, a number and NaN, NaN twice
        a, b = np.array([np.nan, 1.5, np.nan]), np.array([1.5, np.nan, np.nan])
    a, b = (np.resize(x, count).astype(kind.np) for x in (a, b))
    x, y = Tensor.input("x", a.shape, kind), Tensor.input("y", b.shape, kind)
    half = Tensor(0.5, kind)
    check(
        {
            "max": x.maximum(y),
            "min": x.minimum(y),
            "relu": x.relu(),
            "constant first": half.maximum(x) + half.minimum(x),
            "clip": x.clip(-1.0, 2.0),
            "nan constant": x.maximum(float("nan")),
            "nan constant first": Tensor(float("nan"), kind).minimum(x),
            "integer": x.maximum((y > 0).cast(kind)),
        },
        x=a,
        y=b,
    )


@pytest.mark.parametrize("kind", FLOATS, ids=str)
@pytest.mark.parametrize("shape", [(5, 3), (7, 83)])
def test_reductions_keep_nan(shape: tuple[int, int], kind: dt.DType) -> None:
    rng = np.random.default_rng(3)
    a = rng.standard_normal(shape).astype(kind.np)
    a[0, 0] = a[1, -1] = a[2, shape[1] // 2] = np.nan  # first, last and middle of a row
    a[3, 1], a[3, 2], a[4] = np.inf, np.nan, -np.inf
    x = Tensor.input("x", shape, kind)
    check(
        {
            f"{name} {axis}": getattr(x, name)(axis)
            for name in ("max", "min")
            for axis in (0, 1, None)
        },
        x=a,
    )


def test_pooling_keeps_nan_and_infinities() -> None:
    a = np.random.default_rng(5).standard_normal((1, 2, 9, 40)).astype(np.float32)
    a[0, 0, 2, 3], a[0, 1, 4, 5], a[0, 1, 8, 39] = np.nan, np.inf, np.nan
    x = Tensor.input("x", a.shape)
    check({"pool": x.max_pool2d(3, 2, 1)}, x=a)


def test_softmax_of_a_row_with_nan_is_nan_and_of_the_others_is_not() -> None:
    a = np.random.default_rng(6).standard_normal((4, 83)).astype(np.float32)
    a[1, 82], a[2] = np.nan, -np.inf
    x = Tensor.input("x", a.shape)
    with load({"y": x.softmax(1)}) as program:
        found = np.isnan(program.run({"x": a})["y"]).all(axis=1)
    assert found.tolist() == [False, True, True, False]


@pytest.mark.parametrize("count", SIZES)
def test_denormals_stay_in_arithmetic(count: int) -> None:
    a = np.resize(np.array([1e-40, -1e-45, 5e-39], np.float32), count)
    x = Tensor.input("x", a.shape)
    check(
        {"sum": x + x, "half": x * 0.5, "max": x.maximum(0), "test": x > 0, "move": x.flip(0)}, x=a
    )
    h = np.resize(np.array([6e-8, -1e-5, 6e-5], np.float16), count)
    y = Tensor.input("h", h.shape, dt.float16)
    check({"sum": y + y, "wide": y.float(), "narrow": (y.float() * 0.5).half()}, h=h)


@pytest.mark.parametrize("kind", INTS, ids=str)
@pytest.mark.parametrize("count", SIZES)
def test_integers_wrap_around(count: int, kind: dt.DType) -> None:
    low, high = int(dt.min_value(kind)), int(dt.max_value(kind))
    a = np.resize(np.array([low, high, high - 1], kind.np), count)
    b = np.resize(np.array([high, high, 3, 2], kind.np), count)
    x, y = Tensor.input("x", a.shape, kind), Tensor.input("y", b.shape, kind)
    outputs = {"sum": x + y, "difference": x - y, "product": x * y, "negative": -x, "abs": x.abs()}
    check(outputs | {"shift": x << 1, "cube": x**3}, x=a, y=b)


@pytest.mark.parametrize("kind", [dt.int32, dt.int64, dt.uint16], ids=str)
@pytest.mark.parametrize("count", SIZES)
def test_what_wrapped_around_is_what_is_compared_and_converted(count: int, kind: dt.DType) -> None:
    low, high = int(dt.min_value(kind)), int(dt.max_value(kind))
    a = np.resize(np.array([low, high, high // 2 + 5], kind.np), count)
    x = Tensor.input("x", a.shape, kind)
    check(
        {
            "next": x + 1 < x,
            "previous": x < x - 1,
            "magnitude": x.abs() < 0,
            "negative": (-x < 0).eq(x > 0),
            "halved": (x * 2).trunc_div(2),
            "shifted": (x << 1) >> 1,
            "square": (x * x).cast(dt.uint64),
            "opposite": x.trunc_div(-1 if low else 1) < 0,
            "sum": x.sum() > x[0],
        },
        x=a,
    )


def test_products_that_wrapped_around_are_widened() -> None:
    a = np.random.default_rng(1).integers(-(2**31), 2**31, (333, 3)).astype(np.int32)
    x = Tensor.input("x", a.shape, dt.int32)
    check({"y": (x.T * 1103515245).cast(dt.int64)}, x=a)


@pytest.mark.parametrize("count", SIZES)
def test_a_cast_out_of_range_gives_a_value_of_the_type(count: int) -> None:
    a = np.resize(np.array([300.7, -5, 1e9, -40000, np.inf, np.nan, 70000], np.float32), count)
    x = Tensor.input("x", a.shape)
    narrow = (dt.int8, dt.uint8, dt.int16, dt.uint16)
    with load({str(kind): x.cast(kind).cast(dt.int64) for kind in narrow}) as program:
        for name, found in program.run({"x": a}).items():
            assert found.min() >= np.iinfo(name).min, name
            assert found.max() <= np.iinfo(name).max, name


@pytest.mark.parametrize("kind", INTS, ids=str)
@pytest.mark.parametrize("count", SIZES)
def test_integer_division_by_zero_and_of_the_smallest_number(count: int, kind: dt.DType) -> None:
    low, high = int(dt.min_value(kind)), int(dt.max_value(kind))
    minus = -1 if low else 1
    a = np.resize(np.array([low, low, 7, high, 0], kind.np), count)
    b = np.resize(np.array([minus, 0, 0, minus, 0, 2, low or 5], kind.np), count)
    x, y = Tensor.input("x", a.shape, kind), Tensor.input("y", b.shape, kind)
    outputs = {"quotient": x.trunc_div(y), "rest": x.trunc_mod(y), "floor": x // y, "mod": x % y}
    outputs |= {f"by {n}": x.trunc_div(n) for n in (0, minus)}
    check(outputs | {f"rest by {n}": x.trunc_mod(n) for n in (0, minus)}, x=a, y=b)


@pytest.mark.parametrize("kind", [dt.int8, dt.uint16, dt.int32, dt.uint64], ids=str)
@pytest.mark.parametrize("count", SIZES)
def test_shifts_inside_the_width_are_exact_and_others_do_no_harm(
    count: int, kind: dt.DType
) -> None:
    width = 8 * kind.itemsize
    distances = np.resize(np.array([0, width, width - 1, 1, 100, width + 1], kind.np), count)
    a = np.resize(np.array([1, 77, dt.max_value(kind), dt.min_value(kind)], kind.np), count)
    x, y = Tensor.input("x", a.shape, kind), Tensor.input("y", a.shape, kind)
    outputs = {"left": x << y, "right": x >> y}
    expected = evaluate(list(outputs.values()), {"x": a, "y": distances})
    inside = distances < width
    with load(outputs) as program:
        found = program.run({"x": a, "y": distances})
        for name, want in zip(outputs, expected, strict=True):
            np.testing.assert_array_equal(found[name][inside], want[inside], err_msg=name)


@pytest.mark.parametrize("source", FLOATS, ids=str)
@pytest.mark.parametrize("count", SIZES)
def test_casts_to_integers_truncate_and_what_is_out_of_range_does_no_harm(
    count: int, source: dt.DType
) -> None:
    with np.errstate(over="ignore"):
        values = np.array([3.9, np.nan, 100.2, np.inf, -np.inf, 1e30, 0.99, -1e30, 70000, 5e18])
        a = np.resize(values, max(count, values.size)).astype(source.np)
    x = Tensor.input("x", a.shape, source)
    outputs = {str(kind): x.cast(kind) for kind in INTS}
    outputs["bool"] = x.bool()
    inside = (a >= 0) & (a < 127)
    with load(outputs) as program:
        found = program.run({"x": a})
        for kind in INTS:
            want = a[inside].astype(kind.np)
            np.testing.assert_array_equal(found[str(kind)][inside], want, err_msg=str(kind))
        np.testing.assert_array_equal(found["bool"], a != 0)  # NaN is true


@pytest.mark.parametrize("count", SIZES)
def test_tests_of_nan_and_infinity(count: int) -> None:
    a = np.resize(_SPECIAL, max(count, 7)).astype(np.float32)
    x = Tensor.input("x", a.shape)
    outputs = {"nan": x.ne(x), "number": x.eq(x), "infinite": x.abs().eq(np.inf)}
    check(outputs | {"sign": x.sign(), "below": x < np.inf}, x=a)


def _c_pow(x: float, y: float) -> float:
    """Return C's pow (ISO C, F.10.4.4); Python's raises where that gives an infinity or NaN."""
    try:
        return math.pow(x, y)
    except OverflowError:
        return math.inf if x > 0 or y % 2 == 0 else -math.inf
    except ValueError:
        if x != 0:
            return math.nan
        return math.copysign(math.inf, x) if y % 2 == 1 else math.inf


_BASES = (math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5)
_EXPONENTS = (*_BASES, 3.0, -3.0, 0.25, -0.25, 0.2, -1.5, 8.0, 9.0, 257.0)


@pytest.mark.parametrize("kind", FLOATS, ids=str)
@pytest.mark.parametrize("count", SIZES)
def test_powers_are_those_of_c(count: int, kind: dt.DType) -> None:
    bases = np.array(_BASES, kind.np)
    for start in range(0, bases.size, count):
        a = np.resize(bases[start : start + count], count)
        x, e = Tensor.input("x", a.shape, kind), Tensor.input("e", a.shape, kind)
        known = {str(y): x**y for y in _EXPONENTS} | {"run": x**e}
        ours = evaluate(list(known.values()), {"x": a, "e": a})
        with load(known) as program:
            found = program.run({"x": a, "e": a})
            for name, interpreted in zip(known, ours, strict=True):
                exponents = a if name == "run" else np.full(a.shape, float(name), kind.np)
                want = [_c_pow(x, y) for x, y in zip(a.tolist(), exponents.tolist(), strict=True)]
                with np.errstate(over="ignore"):
                    expected = np.array(want).astype(kind.np)
                for got in (found[name], interpreted):
                    np.testing.assert_allclose(got, expected, rtol=2e-3, err_msg=name)
                    real = ~np.isnan(expected)
                    signs = np.signbit(expected)[real]
                    np.testing.assert_array_equal(np.signbit(got)[real], signs, err_msg=name)


@pytest.mark.parametrize("count", [13, 83])
def test_functions_of_doubles_are_computed_in_lanes(count: int) -> None:
    a = np.linspace(0.1, 9, count)
    x, w = Tensor.input("x", a.shape, dt.float64), Tensor.input("w", (count, 16), dt.float64)
    names = ("sqrt", "exp", "log", "sin", "cos", "tanh", "erf", "gelu", "floor", "round", "abs")
    outputs = {name: getattr(x, name)() for name in names} | {"power": x**1.3, "product": x @ w}
    inputs = {"x": a, "w": np.linspace(-1, 1, count * 16).reshape(count, 16)}
    expected = evaluate(list(outputs.values()), inputs)
    with load(outputs) as program:
        found = program.run(inputs)
        for name, want in zip(outputs, expected, strict=True):
            np.testing.assert_allclose(found[name], want, rtol=1e-12, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("count", [5, 13, 83])
def test_roots_of_floats_are_computed_in_lanes(count: int) -> None:
    x = Tensor.input("x", (count,))
    check({"root": x.sqrt()}, x=np.linspace(0, 5, count, dtype=np.float32))
