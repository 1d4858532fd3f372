"""Special values on the device: NaN, infinities, denormals, overflow, division by 0, casts.

Each test is one program of all its types, one element at a time and in whole vectors with a rest.
"""

from collections.abc import Callable, Sequence
from itertools import product

import numpy as np
import pytest

from scheduler.ir import dtype as dt
from scheduler.tensor.tensor import Tensor, evaluate
from tests.scheduler.render.device_check import Given, Outputs, check, run
from tests.scheduler.support.programs import Array, compute, load
from tests.support.selection import quick_cases

pytestmark = pytest.mark.opencl

SIZES = (3, 83)
INTS = (dt.int8, dt.uint8, dt.int16, dt.uint16, dt.int32, dt.uint32, dt.int64, dt.uint64)
FLOATS = (dt.float16, dt.float32, dt.float64)
_SPECIAL = np.array([np.nan, 1.5, -2.0, np.inf, -np.inf, 0.0, 3.0])


def limits(kind: dt.DType) -> tuple[int, int]:
    return int(dt.min_value(kind)), int(dt.max_value(kind))


def maximum_and_minimum(given: Given, count: int, kind: dt.DType) -> Outputs:
    """NaN in every position."""
    a, b = (x.reshape(-1) for x in np.meshgrid(_SPECIAL, _SPECIAL))
    if count < a.size:  # NaN and a number, a number and NaN, NaN twice
        a, b = np.array([np.nan, 1.5, np.nan]), np.array([1.5, np.nan, np.nan])
    x, y = (given(np.resize(v, count).astype(kind.np)) for v in (a, b))
    half = Tensor(0.5, kind)
    return {
        "max": x.maximum(y),
        "min": x.minimum(y),
        "relu": x.relu(),
        "constant first": half.maximum(x) + half.minimum(x),
        "clip": x.clip(-1.0, 2.0),
        "nan constant": x.maximum(float("nan")),
        "nan constant first": Tensor(float("nan"), kind).minimum(x),
        "integer": x.maximum((y > 0).cast(kind)),
    }


def reductions_of_nan(given: Given, count: int, kind: dt.DType) -> Outputs:
    shape = (5, 3) if count == 3 else (7, count)
    a = np.random.default_rng(3).standard_normal(shape).astype(kind.np)
    a[0, 0] = a[1, -1] = a[2, shape[1] // 2] = np.nan  # first, last and middle of a row
    a[3, 1], a[3, 2], a[4] = np.inf, np.nan, -np.inf
    x = given(a)
    return {
        f"{name} {axis}": getattr(x, name)(axis)
        for name in ("max", "min", "argmax", "argmin")
        for axis in (0, 1, None)
    }


def denormals(given: Given, count: int, kind: dt.DType) -> Outputs:
    small = [6e-8, -1e-5, 6e-5] if kind is dt.float16 else [1e-40, -1e-45, 5e-39]
    x = given(np.resize(np.array(small, kind.np), count))
    if kind is dt.float16:
        return {"sum": x + x, "wide": x.float(), "narrow": (x.float() * 0.5).half()}
    moved = {"test": x > 0, "move": x.flip(0)}
    return {"sum": x + x, "half": x * 0.5, "max": x.maximum(0), **moved}


def weights_of_halves(given: Given, count: int, kind: dt.DType) -> Outputs:
    """Denormals stay what they are, and NaN and infinities where they are."""
    ends = [np.nan, 65504, 6e-8, -np.inf, -6e-5, 1.0, np.inf, 1e-7]
    drawn = np.resize(np.array(ends), (count, 5)).astype(kind.np)
    small = np.where(np.abs(drawn.astype(np.float32)) < 1e-4, drawn, kind.np.type(3e-6))
    x, ones = (
        given(np.resize([1, -2, 0.5], count).astype(kind.np)),
        given(np.ones((2, count), kind.np)),
    )
    return {
        "each": x.reshape(count, 1) * Tensor.weight(drawn),
        "rows": ones @ Tensor.weight(small),
        "wide": (ones.float() @ Tensor.weight(small).float()) * 1e6,
        "sum": Tensor.weight(drawn).max(0) + x[0],
    }


def wrapping(given: Given, count: int, kind: dt.DType) -> Outputs:
    low, high = limits(kind)
    x = given(np.resize(np.array([low, high, high - 1], kind.np), count))
    y = given(np.resize(np.array([high, high, 3, 2], kind.np), count))
    made = {"sum": x + y, "difference": x - y, "product": x * y, "negative": -x, "abs": x.abs()}
    return {**made, "shift": x << 1, "cube": x**3}


def wrapped_and_used(given: Given, count: int, kind: dt.DType) -> Outputs:
    low, high = limits(kind)
    x = given(np.resize(np.array([low, high, high // 2 + 5], kind.np), count))
    return {
        "next": x + 1 < x,
        "previous": x < x - 1,
        "magnitude": x.abs() < 0,
        "negative": (-x < 0).eq(x > 0),
        "halved": (x * 2).trunc_div(2),
        "shifted": (x << 1) >> 1,
        "square": (x * x).cast(dt.uint64),
        "opposite": x.trunc_div(-1 if low else 1) < 0,
        "sum": x.sum() > x[0],
    }


def divisions(given: Given, count: int, kind: dt.DType) -> Outputs:
    """By zero, and of the smallest number."""
    low, high = limits(kind)
    minus = -1 if low else 1
    x = given(np.resize(np.array([low, low, 7, high, 0], kind.np), count))
    y = given(
        np.resize(
            np.array([minus, 0, 0, minus, 0, 2, low or 5, 3, -3 if low else 9], kind.np), count
        )
    )
    made = {"quotient": x.trunc_div(y), "rest": x.trunc_mod(y), "floor": x // y, "mod": x % y}
    made |= {f"by {n}": x.trunc_div(n) for n in (0, minus)}
    return made | {f"rest by {n}": x.trunc_mod(n) for n in (0, minus)}


def special_values_tested(given: Given, count: int, kind: dt.DType) -> Outputs:
    x = given(np.resize(_SPECIAL, max(count, 7)).astype(kind.np))
    made = {"nan": x.ne(x), "number": x.eq(x), "infinite": x.abs().eq(np.inf)}
    return {**made, "sign": x.sign(), "below": x < np.inf}


Make = Callable[[Given, int, dt.DType], Outputs]
CASES: dict[Make, Sequence[dt.DType]] = {
    maximum_and_minimum: FLOATS,
    reductions_of_nan: FLOATS,
    denormals: (dt.float16, dt.float32),
    weights_of_halves: (dt.float16,),
    wrapping: INTS,
    wrapped_and_used: (dt.int32, dt.int64, dt.uint16),
    divisions: INTS,
    special_values_tested: (dt.float32,),
}


@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
def test_values_are_those_of_the_interpreter(make: Make) -> None:
    given, outputs = Given(), Outputs()
    for kind, count in product(CASES[make], SIZES):
        made = make(given, count, kind)
        outputs |= {f"{name} of {count} {kind}": tensor for name, tensor in made.items()}
    check(outputs, given)


def test_pooling_and_products_of_special_values() -> None:
    given = Given()
    image = np.random.default_rng(5).standard_normal((1, 2, 9, 40)).astype(np.float32)
    image[0, 0, 2, 3], image[0, 1, 4, 5], image[0, 1, 8, 39] = np.nan, np.inf, np.nan
    wrapped = np.random.default_rng(1).integers(-(2**31), 2**31, (333, 3)).astype(np.int32)
    outputs = {
        "pool": given(image).max_pool2d(3, 2, 1),
        "products that wrapped around are widened": (given(wrapped).T * 1103515245).cast(dt.int64),
    }
    check(outputs, given)


def test_softmax_of_a_row_with_nan_is_nan_and_of_the_others_is_not() -> None:
    a = np.random.default_rng(6).standard_normal((4, 83)).astype(np.float32)
    a[1, 82], a[2] = np.nan, -np.inf
    found = compute(Tensor.input("x", a.shape).softmax(1), x=a)
    assert np.isnan(found).all(axis=1).tolist() == [False, True, True, False]


def test_a_cast_out_of_range_gives_a_value_of_the_type() -> None:
    given, outputs = Given(), Outputs()
    for count in SIZES:
        values = np.array([300.7, -5, 1e9, -40000, np.inf, np.nan, 70000], np.float32)
        x = given(np.resize(values, count))
        for kind in (dt.int8, dt.uint8, dt.int16, dt.uint16):
            outputs[f"{kind} {count}"] = x.cast(kind).cast(dt.int64)
    for name, found in run(outputs, given).items():
        range_of = np.iinfo(name.split()[0])
        assert found.min() >= range_of.min, name
        assert found.max() <= range_of.max, name


def test_shifts_inside_the_width_are_exact_and_others_do_no_harm() -> None:
    given, outputs, inside = Given(), Outputs(), dict[str, Array]()
    for kind, count in product((dt.int8, dt.uint16, dt.int32, dt.uint64), SIZES):
        width = 8 * kind.itemsize
        distances = np.array([0, width, width - 1, 1, 100, width + 1], kind.np)
        numbers = np.array([1, 77, dt.max_value(kind), dt.min_value(kind)], kind.np)
        x, y = (given(np.resize(v, count)) for v in (numbers, distances))
        outputs |= {f"left {kind} {count}": x << y, f"right {kind} {count}": x >> y}
        part = np.resize(distances, count) < width
        inside |= {f"left {kind} {count}": part, f"right {kind} {count}": part}
    expected = dict(zip(outputs, evaluate(list(outputs.values()), given.values), strict=True))
    for name, found in run(outputs, given).items():
        part = inside[name]
        np.testing.assert_array_equal(found[part], expected[name][part], err_msg=name)


def test_casts_to_integers_truncate_and_what_is_out_of_range_does_no_harm() -> None:
    given, outputs, read = Given(), Outputs(), dict[str, tuple[Array, dt.DType]]()
    for source, count in product(FLOATS, SIZES):
        with np.errstate(over="ignore"):
            values = np.array([3.9, np.nan, 100.2, np.inf, -np.inf, 1e30, 0.99, -1e30, 70000, 5e18])
            a = np.resize(values, max(count, values.size)).astype(source.np)
        x = given(a)
        for kind in (*INTS, dt.bool_):
            name = f"{source} to {kind} {count}"
            outputs[name], read[name] = x.cast(kind), (a, kind)
    for name, found in run(outputs, given).items():
        a, kind = read[name]
        if kind is dt.bool_:
            np.testing.assert_array_equal(found, a != 0, err_msg=name)  # NaN is true
        else:
            inside = (a >= 0) & (a < 127)
            want = a[inside].astype(kind.np)
            np.testing.assert_array_equal(found[inside], want, err_msg=name)


_BASES = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5)
_EXPONENTS = (*_BASES, 3.0, -3.0, 0.25, -0.25, 0.2, -1.5, 8.0, 9.0, 257.0)


@pytest.mark.parametrize("kind", quick_cases(FLOATS, dt.float32), ids=str)
def test_powers_are_those_of_c(kind: dt.DType) -> None:
    """As ISO C says, F.10.4.4; numpy's of doubles are C's."""
    made: Outputs = {}
    for count in SIZES:
        x, e = (Tensor.input(f"{n}{count}", (count,), kind) for n in "xe")
        made |= {f"{y} {count}": x**y for y in _EXPONENTS} | {f"run {count}": x**e}
    bases = np.array(_BASES, kind.np)
    with load(made) as program:
        for start in range(0, bases.size, SIZES[0]):  # all of them are in the longer one
            read = {count: np.resize(bases[start : start + count], count) for count in SIZES}
            values = {f"{n}{count}": a for count, a in read.items() for n in "xe"}
            found = program.run(values)
            ours = evaluate(list(made.values()), values)
            for name, interpreted in zip(made, ours, strict=True):
                power, of_size = name.split()
                a = read[int(of_size)].astype(np.float64)
                exponents = a if power == "run" else np.full(a.shape, float(power))
                with np.errstate(all="ignore"):
                    expected = np.power(a, exponents).astype(kind.np)
                real = ~np.isnan(expected)
                for got in (found[name], interpreted):
                    np.testing.assert_allclose(got, expected, rtol=2e-3, err_msg=name)
                    signs = np.signbit(expected)[real]
                    np.testing.assert_array_equal(np.signbit(got)[real], signs, err_msg=name)


def test_roots_of_floats_are_right_in_every_lane() -> None:
    given, outputs = Given(), Outputs()
    for count in (1, 5, 7, 13, 42, 83, 1042):
        x = np.linspace(0, 5, count, dtype=np.float32)
        y = np.random.default_rng(6).random(count, np.float32)
        outputs |= {f"{count}": given(x).sqrt(), f"{count} at random": given(y).sqrt()}
    check(outputs, given)
    for name, found in run(outputs, given).items():
        x = given.values[f"in{list(outputs).index(name)}"]
        np.testing.assert_array_equal(found, np.sqrt(x), err_msg=name)


def test_functions_of_doubles_are_computed_as_doubles_in_every_lane() -> None:
    given, outputs = Given(), Outputs()
    rng = np.random.default_rng(5)
    names = ("abs", "exp", "sin", "cos", "tanh", "erf", "gelu", "sigmoid")
    for shape in ((13,), (42,), (83,), (3, 37)):
        x = np.round(rng.normal(0, 3, shape), 3)
        a, b = given(x), given(np.abs(x) + 0.5)
        made = {name: getattr(a, name)() for name in (*names, "floor", "ceil", "round", "trunc")}
        made |= {name: getattr(b, name)() for name in ("sqrt", "log", "reciprocal")}
        made |= {"power": b**a, "known power": b**1.3, "rows": (a * b).sum(0)}
        made["product"] = b @ given(np.linspace(-1, 1, shape[-1] * 16).reshape(-1, 16))
        outputs |= {f"{name} {shape}": tensor for name, tensor in made.items()}
        if shape == (42,):
            outputs["small product"] = a.reshape(6, 7) @ b.reshape(7, 6)
            outputs["two rows"] = (a.reshape(2, 21) * b.reshape(2, 21)).sum(0)
    for name, found in run(outputs, given).items():
        strict = name.startswith(("exp", "tanh", "erf", "sigmoid"))
        rtol, atol = (1e-14, 0.0) if strict else (1e-13, 1e-13)
        exact = outputs[name].interp(given.values)
        np.testing.assert_allclose(found, exact, rtol, atol, err_msg=name)
