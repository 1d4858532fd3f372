"""Bools, narrow integers, doubles and powers on the device, as the interpreter has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from scheduler.errors import VerifyError
from scheduler.ir import dtype as dt
from scheduler.ir.ops import Op
from scheduler.tensor.tensor import Tensor, evaluate
from tests.scheduler.support.programs import compute
from tests.scheduler.support.values import rng

pytestmark = pytest.mark.opencl
Array = NDArray[Any]
WIDE = 37  # two vectors of 16 lanes and a rest


def bits(*shape: int) -> Array:
    return rng().integers(0, 2, shape).astype(bool)


def check(y: Tensor, /, **inputs: Array) -> None:
    """Compare the device with the interpreter, byte by byte: a true bool is stored as 1."""
    (expected,) = evaluate([y], inputs)
    got = compute(y, **inputs)
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    assert got.tobytes() == expected.tobytes()


@pytest.mark.parametrize("axis", [0, 1, None])
@pytest.mark.parametrize("name", ["max", "min", "prod"])
def test_bools_are_reduced_as_logic_in_lanes_and_across_them(name: str, axis: int | None) -> None:
    values = np.zeros((5, WIDE), bool)
    values[0], values[1, 3], values[2, 1:], values[3, -1] = True, True, True, True
    x = Tensor.input("x", values.shape, dt.bool_)
    check(getattr(x, name)(axis), x=values)
    check(getattr(x, name)(axis, keepdim=True).float() + x.float(), x=values)


BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "max": lambda x, y: x.maximum(y),
    "min": lambda x, y: x.minimum(y),
    "add": lambda x, y: x + y,
    "mul": lambda x, y: x * y,
    "abs": lambda x, y: x.abs() ^ y,
}


@pytest.mark.parametrize("name", BINARY)
def test_arithmetic_of_bools_is_logic(name: str) -> None:
    x, y = (Tensor.input(n, (5, WIDE), dt.bool_) for n in "xy")
    z = BINARY[name](x, y)
    values = {"x": bits(5, WIDE), "y": bits(5, WIDE)}
    check(z, **values)
    check(z.cast(dt.int32), **values)


def test_a_private_array_of_bools_is_the_same_for_scalars_and_lanes() -> None:
    q, k = Tensor.input("q", (20, 8)), Tensor.input("k", (8, WIDE))
    mask = q.matmul(k) > 0
    y = mask.flip(1).float() * mask.float().sum(-1, keepdim=True)
    values = rng().integers(-3, 4, (20, 8)), rng().integers(-3, 4, (8, WIDE))
    check(y, q=values[0].astype(np.float32), k=values[1].astype(np.float32))


def test_negated_bools_are_refused() -> None:
    with pytest.raises(VerifyError, match="no meaning for bool"):
        compute(-Tensor.input("x", (3,), dt.bool_), x=bits(3))


def test_argmin_of_unsigned_values_does_not_negate_them() -> None:
    values = np.array([[3, 0, 7], [5, 9, 5]], np.uint8)
    y = Tensor.input("x", (2, 3), dt.uint8).argmin(1)
    assert compute(y, x=values).tolist() == [1, 0]
    assert evaluate([y], {"x": values})[0].tolist() == [1, 0]


def test_argmin_of_the_smallest_int() -> None:
    x = Tensor.input("x", (3,), dt.int32)
    assert compute(x.argmin(0), x=np.array([4, -(2**31), 0], np.int32)) == 1


def test_a_scalar_out_of_range_widens_the_type() -> None:
    values = np.arange(256, dtype=np.uint8)
    x = Tensor.input("x", (256,), dt.uint8)
    assert (x + 300).dtype is dt.int32
    assert compute(x + 300, x=values).tolist() == list(range(300, 556))
    assert compute(x < 300, x=values).all()
    assert compute(x.clip(-1, 300), x=values).tolist() == list(range(256))


def test_a_constant_wraps_around_in_a_narrow_type() -> None:
    assert Tensor(300).cast(dt.uint8).node.arg == 44
    assert Tensor(200).cast(dt.int8).node.arg == -56


def test_an_index_that_wraps_around_in_a_narrow_type_is_computed() -> None:
    ramp = Tensor.arange(200)
    index = (ramp.unsqueeze(1) + ramp.unsqueeze(0)).cast(dt.uint8)
    values = rng().standard_normal(400).astype(np.float32)
    check(Tensor.input("x", (400,)).gather(index), x=values)


@pytest.mark.parametrize("kind", [np.int8, np.int32, np.int64])
@pytest.mark.parametrize("size", [3, 20])
def test_integer_division_of_the_smallest_value_does_not_trap(kind: type, size: int) -> None:
    low = int(np.iinfo(kind).min)
    x, y = (Tensor.input(n, (4, size), dt.from_numpy(kind)) for n in "xy")
    over: Array = np.repeat(np.array([[-1], [0], [3], [-3]], kind), size, axis=1)
    values = {"x": np.full((4, size), low, kind), "y": over}
    check(x.trunc_div(y), **values)
    check(x.trunc_mod(y), **values)
    quotient = compute(x.trunc_div(y), **values)[:, 0].tolist()
    assert quotient == [low, low, -(-low // 3), -low // 3]


@pytest.mark.parametrize("name", ["exp", "tanh", "erf", "sigmoid"])
def test_functions_of_doubles_are_computed_as_doubles(name: str) -> None:
    values = rng().standard_normal((3, WIDE))
    y = getattr(Tensor.input("x", values.shape, dt.float64), name)()
    np.testing.assert_allclose(compute(y, x=values), y.interp({"x": values}), rtol=1e-14)


def test_a_power_with_an_infinite_exponent() -> None:
    values = np.array([0.5, 2.0], np.float32)
    y = Tensor.input("x", (2,)) ** float("inf")
    assert compute(y, x=values).tolist() == [0.0, np.inf]


def test_a_power_of_integers_is_refused_by_name() -> None:
    x = Tensor.input("x", (3,), dt.int32)
    with pytest.raises(VerifyError, match="POW needs a float type"):
        compute(x.binary(Op.POW, x), x=np.ones(3, np.int32))


def test_a_power_of_integers_is_exact() -> None:
    base, exponent = np.array([3, -2, 0, -1], np.int32), np.array([19, 5, 0, -3], np.int32)
    x, y = Tensor.input("x", (4,), dt.int32), Tensor.input("y", (4,), dt.int32)
    assert compute(x**y, x=base, y=exponent).tolist() == [3**19, -32, 1, -1]


@pytest.mark.parametrize("shape", [(2, 64), (20, 64), (64, 37)])
def test_lanes_do_not_run_over_the_rows_of_a_private_array(shape: tuple[int, int]) -> None:
    rows, columns = shape
    x, w = Tensor.input("x", (1, 2, columns)), Tensor.input("w", (rows, 2))
    y = w @ x * 0.125
    y = y - y.max(1, keepdim=True)
    values = rng().integers(-8, 9, (1, 2, columns)), rng().integers(-8, 9, (rows, 2))
    check(y, x=values[0].astype(np.float32), w=values[1].astype(np.float32))


def test_lanes_that_fill_a_private_array_along_its_outer_axis() -> None:
    x = Tensor.input("x", (1, 1, 1))
    w, b = (Tensor.weight(np.arange(15, dtype=np.float32).reshape(s)) for s in ((15, 1, 1), (15,)))
    y = x.conv2d(w, b, padding=((1, 1),)).layernorm((1, 2), 0.125)
    values = np.ones((1, 1, 1), np.float32)
    np.testing.assert_allclose(compute(y, x=values), y.interp({"x": values}), rtol=1e-4, atol=1e-5)
