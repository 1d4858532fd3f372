"""Bools, narrow integers and powers on the device: every bit is the interpreter's."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest

from scheduler.errors import VerifyError
from scheduler.ir import dtype as dt
from scheduler.ir.ops import Op
from scheduler.tensor.tensor import Tensor
from tests.scheduler.render.device_check import Case, Given, all_of, bits, check, run
from tests.scheduler.support.programs import Array, compute
from tests.scheduler.support.values import rng

pytestmark = pytest.mark.opencl
WIDE = 37  # two vectors of 16 lanes and a rest
BYTES = np.arange(256, dtype=np.uint8)
LOW = -(2**31)


def ints(*values: Any, kind: type = np.int32) -> Array:
    return np.array(values, kind)


def drawn(given: Given, low: int, high: int, *shape: int, kind: type = np.float32) -> Tensor:
    return given(rng().integers(low, high, shape).astype(kind))


def reductions_of_bools(given: Given) -> Sequence[Tensor]:
    """Logic in lanes and across them."""
    values = np.zeros((5, WIDE), bool)
    values[0], values[1, 3], values[2, 1:], values[3, -1] = True, True, True, True
    x, names = given(values), ("max", "min", "prod")
    kept = [getattr(x, name)(axis, keepdim=True) for name in names for axis in (0, 1, None)]
    plain = [getattr(x, name)(axis) for name in names for axis in (0, 1, None)]
    return [*plain, *(t.float() + x.float() for t in kept)]


def arithmetic_of_bools(given: Given) -> Sequence[Tensor]:
    x, y = (drawn(given, 0, 2, 5, WIDE, kind=bool) for _ in range(2))
    made = [x.maximum(y), x.minimum(y), x + y, x * y, x.abs() ^ y]
    return [*made, *(z.cast(dt.int32) for z in made)]


def private_array_of_bools(given: Given) -> Sequence[Tensor]:
    mask = drawn(given, -3, 4, 20, 8).matmul(drawn(given, -3, 4, 8, WIDE)) > 0
    return [mask.flip(1).float() * mask.float().sum(-1, keepdim=True)]


def an_index_that_wraps_around(given: Given) -> Sequence[Tensor]:
    ramp = Tensor.arange(200)
    return [given.floats(400).gather((ramp.unsqueeze(1) + ramp.unsqueeze(0)).cast(dt.uint8))]


def private_rows(rows: int, columns: int, given: Given) -> Sequence[Tensor]:
    """Lanes do not run over the rows of a private array."""
    y = drawn(given, -8, 9, rows, 2) @ drawn(given, -8, 9, 1, 2, columns) * 0.125
    return [y - y.max(1, keepdim=True)]


CASES: dict[str, Case] = {
    "reductions of bools": reductions_of_bools,
    "arithmetic of bools": arithmetic_of_bools,
    "private array of bools": private_array_of_bools,
    "an index that wraps around": an_index_that_wraps_around,
    **{f"private rows {s}": partial(private_rows, *s) for s in ((2, 64), (20, 64), (64, 37))},
}
LARGE = ints(2**62 + 1, -(2**62) - 3, 2**53 + 1, kind=np.int64)
KNOWN: dict[str, tuple[Case, list[Any]]] = {
    "argmin of unsigned values": (
        lambda g: [g(ints([3, 0, 7], [5, 9, 5], kind=np.uint8)).argmin(1)],
        [[1, 0]],
    ),
    "argmin of the smallest int": (lambda g: [g(ints(4, LOW, 0)).argmin(0)], [1]),
    "a scalar out of range": (
        lambda g: [(x := g(BYTES)) + 300, x < 300, x.clip(-1, 300)],
        [list(range(300, 556)), [True] * 256, list(range(256))],
    ),
    "bytes that wrap around": (
        lambda g: [g(BYTES) * 3 + 200],
        [(BYTES * np.uint8(3) + np.uint8(200)).tolist()],
    ),
    "digits of large integers": (lambda g: [g(LARGE) - 1], [(LARGE - 1).tolist()]),
    "an exact power of integers": (
        lambda g: [g(ints(3, -2, 0, -1)) ** g(ints(19, 5, 0, -3))],
        [[3**19, -32, 1, -1]],
    ),
    "quotients of the smallest int": (
        lambda g: [g(ints(LOW, LOW, LOW, LOW)).trunc_div(g(ints(-1, 0, 3, -3)))],
        [[LOW, LOW, -(-LOW // 3), -LOW // 3]],
    ),
}


def test_every_bit_is_the_interpreters() -> None:
    given = Given()
    check(all_of(CASES | {n: case for n, (case, _) in KNOWN.items()}, given), given, bits)


def test_values_are_those_worked_out_by_hand() -> None:
    given = Given()
    found = run(all_of({n: case for n, (case, _) in KNOWN.items()}, given), given)
    want = {f"{n}, {i}": w for n, (_, known) in KNOWN.items() for i, w in enumerate(known)}
    assert {name: value.tolist() for name, value in found.items()} == want


def test_a_constant_out_of_range_widens_a_type_or_wraps_around() -> None:
    assert (Tensor.input("x", (256,), dt.uint8) + 300).dtype is dt.int32
    assert Tensor(300).cast(dt.uint8).node.arg == 44
    assert Tensor(200).cast(dt.int8).node.arg == -56


def test_what_has_no_meaning_for_a_type_is_refused_by_name() -> None:
    flag, x = Tensor.input("f", (3,), dt.bool_), Tensor.input("x", (3,), dt.int32)
    with pytest.raises(VerifyError, match="no meaning for bool"):
        compute(-flag, f=np.ones(3, bool))
    with pytest.raises(VerifyError, match="POW needs a float type"):
        compute(x.binary(Op.POW, x), x=np.ones(3, np.int32))


def test_rows_outside_the_table_are_clamped_not_read() -> None:
    rows = ints(-100, -4, -1, 0, 3, 4, 2**31 - 1, LOW)
    table = Tensor.weight(np.arange(4, dtype=np.float32))
    got = compute(table.gather(Tensor.input("i", rows.shape, dt.int32)), i=rows)
    assert got.tolist() == [0, 0, 3, 0, 3, 3, 3, 0]


def test_lanes_that_fill_a_private_array_along_its_outer_axis() -> None:
    x = Tensor.input("x", (1, 1, 1))
    w, b = (Tensor.weight(np.arange(15, dtype=np.float32).reshape(s)) for s in ((15, 1, 1), (15,)))
    y = x.conv2d(w, b, padding=((1, 1),)).layernorm((1, 2), 0.125)
    values = np.ones((1, 1, 1), np.float32)
    np.testing.assert_allclose(compute(y, x=values), y.interp({"x": values}), rtol=1e-4, atol=1e-5)
