"""Rendered OpenCL against the numpy interpreter.

All small programs are compiled as one. Where sums are compared that the code generator once got
wrong, values are small whole numbers: whatever the order, their sums are exact.
"""

import re
from collections.abc import Sequence
from functools import partial
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest

from scheduler.errors import VerifyError
from scheduler.ir import dtype as dt
from scheduler.ir.ops import Op
from scheduler.loops.pack import PackedWeight
from scheduler.pipeline import schedule
from scheduler.tensor.tensor import Tensor
from tests.scheduler.render.device_check import (
    Case,
    Given,
    all_of,
    bits,
    check,
    closely,
    floats,
    run,
    whole,
)
from tests.scheduler.support.programs import Array, compute, emitted
from tests.scheduler.support.values import rng

pytestmark = pytest.mark.opencl


def contraction(n: int, given: Given) -> Sequence[Tensor]:
    x = given.floats(7, n)
    return [x @ Tensor.weight(floats(n, n + 2)), x @ given.floats(n, 5)]


def convolution(how: dict[str, Any], given: Given) -> Sequence[Tensor]:
    weight = Tensor.weight(floats(12, 6 // how.get("groups", 1), 3, 3))
    return [given.floats(2, 6, 9, 11).conv2d(weight, Tensor.weight(floats(12)), **how).relu()]


def transposed(how: dict[str, Any], given: Given) -> Sequence[Tensor]:
    weight = Tensor.weight(floats(4, 6 // how.get("groups", 1), 3, 3))
    return [given.floats(1, 4, 5, 6).conv_transpose2d(weight, **how)]


def pooling(given: Given) -> Sequence[Tensor]:
    image = given.floats(1, 3, 9, 9)
    inside = image.avg_pool2d(3, 1, 1, count_include_pad=False)
    return [image.max_pool2d(3, 2, 1), image.avg_pool2d(2), inside]


def every_set_of_axes(given: Given) -> Sequence[Tensor]:
    x, n = given.floats(3, 5, 19), given(rng().integers(-99, 99, (3, 5, 19)).astype(np.int32))
    sets = [axes for count in (1, 2, 3) for axes in combinations(range(3), count)]
    return [t for axes in sets for t in (x.sum(axes), n.max(axes))]


def reductions_in_a_row(given: Given) -> Sequence[Tensor]:
    x = given.floats(6, 40)
    return [x.softmax(), x.layernorm(), x.argmax(1), x.var(0)]


def storage(given: Given) -> Sequence[Tensor]:
    """Every type is moved, reduced, gathered and compared."""
    found: list[Tensor] = []
    for kind in (dt.float16, dt.int8, dt.uint16, dt.int64, dt.uint64, dt.float64, dt.bool_):
        x = given(rng().integers(0, 2 if kind is dt.bool_ else 100, (5, 21)).astype(kind.np))
        rows = x.gather(Tensor.weight(np.array([4, 0])), 0)
        found += [x.flip(1), x.cast(dt.int32).max(0).cast(kind), rows, x.ne(x.flip(0))]
    return found


def few_fills(given: Given) -> Sequence[Tensor]:
    """A pointer to few fill values is not used for a longer row: behind them is the weight."""
    long = given.whole(8, 600).pad(((1, 1), (0, 0)), 3)
    few = (long[:, :16] * Tensor.weight(whole(16))).sum(-1, keepdim=True)
    return [(long * 2 - few).sum(-1)]


def two_fills(given: Given) -> Sequence[Tensor]:
    """Loads that differ by their fill value only do not share a pointer."""
    x, around = given.whole(1, 6, 32), ((0, 0), (1, 1), (0, 0))
    return [x.pad(around, 0) + x.pad(around, 1) * 2]


def long_row(given: Given) -> Sequence[Tensor]:
    """A row stored above the inner loops may be long to compute: in a loop over the tile."""
    x = given.whole(10, 64)
    long = row = x.sum(-1, keepdim=True) * 0.01
    for _ in range(8):
        long = long.gelu() + long.erf()
    return [long, x * row, x - long]


def padded_lanes(given: Given) -> Sequence[Tensor]:
    """Lanes run over the padded axis, and the kernel is too long to be unrolled."""
    padded = given.whole(1, 1, 64).conv2d(Tensor.weight(whole(1, 1, 11)), None, padding=5)
    return [padded.reshape(64) + (given.whole(100, 64) * Tensor.weight(whole(100, 1))).sum(0)]


def unpacked_weight(given: Given) -> Sequence[Tensor]:
    """Windows of a weight repeat it too often to be packed; 10 results fill a vector of 16."""
    return [Tensor.weight(whole(1, 1, 5, 20)).conv2d(given.whole(8, 1, 5, 11))]


CONVOLUTIONS: list[dict[str, Any]] = [
    {"padding": 1},
    {"padding": 1, "stride": 2},
    {"dilation": 2},
    {"padding": ((0, 2), (1, 0)), "stride": (1, 3)},
    {"padding": 1, "groups": 2},
    {"padding": 1, "groups": 6},
    {"padding": 2, "dilation": (1, 2), "groups": 3, "stride": (2, 1)},
]
TRANSPOSED: list[dict[str, Any]] = [
    {},
    {"stride": 2, "padding": 1, "output_padding": 1},
    {"groups": 2, "dilation": 2},
]
PLAIN = (pooling, every_set_of_axes, reductions_in_a_row, storage, few_fills, two_fills, long_row)
CASES: dict[str, Case] = {
    "tails": lambda given: [given.floats(n) * 2.0 + Tensor.weight(floats(n)) for n in range(1, 41)],
    **{f"contraction of {n}": partial(contraction, n) for n in (1, 3, 5, 16, 17, 31, 40)},
    **{f"convolution {how}": partial(convolution, how) for how in CONVOLUTIONS},
    **{f"transposed {how}": partial(transposed, how) for how in TRANSPOSED},
    "convolution by an input": lambda given: [
        given.floats(1, 3, 8, 8).conv2d(given.floats(5, 3, 3, 3), padding=1)
    ],
    "one element of a weight": lambda _: [
        Tensor.weight(floats(5))[row].contiguous() for row in (0, -1)
    ],
    **{case.__name__: case for case in (*PLAIN, padded_lanes, unpacked_weight)},
}


def test_values_are_those_of_the_interpreter() -> None:
    given = Given()
    check(all_of(CASES, given), given, closely)


@pytest.mark.parametrize(
    ("case", "absent"), [(padded_lanes, r"lane(?!s)"), (unpacked_weight, r"M_LOAD\(float, 16, p")]
)
def test_what_the_text_does_not_hold(case: Case, absent: str) -> None:
    """The bounds of a loop do not differ by lane; narrow vectors do not read beyond a weight."""
    (tensor,) = case(Given())
    programs = emitted({"y": tensor}).manifest["programs"]
    assert not any(re.search(absent, p["source"]) for p in programs)


def test_weights_are_packed_in_the_order_they_are_read() -> None:
    image, values = Tensor.input("image", (1, 16, 8, 8)), floats(32, 16, 3, 3)
    plan = schedule({"y": image.conv2d(Tensor.weight(values), padding=1).node})
    (kernel,) = plan.lowered
    (packed,) = [a for a in kernel.arguments if isinstance(a, PackedWeight)]
    assert packed.data.size == values.size
    assert np.array_equal(np.sort(packed.data), np.sort(values.reshape(-1)))
    assert not np.array_equal(packed.data, values.reshape(-1))


def test_halves_are_rounded_to_the_nearest_even() -> None:
    values = np.arange(0, 2**32, 65_521, dtype=np.uint64).astype(np.uint32).view(np.float32)
    values = values[np.isfinite(values)]
    got = compute(Tensor.input("x", values.shape).half(), x=values)
    with np.errstate(over="ignore"):
        assert np.array_equal(got, values.astype(np.float16))


WIDE = 37  # two vectors of 16 lanes and a rest
BYTES = np.arange(256, dtype=np.uint8)
LOW = -(2**31)


def ints(*values: Any, kind: type = np.int32) -> Array:
    return np.array(values, kind)


def drawn(given: Given, low: int, high: int, *shape: int, kind: type = np.float32) -> Tensor:
    return given(rng().integers(low, high, shape).astype(kind))


def reductions_of_bools(given: Given) -> Sequence[Tensor]:
    """Logic in lanes and across them, stored, and read in the same kernel."""
    values = np.zeros((5, WIDE), bool)
    values[0], values[1, 3], values[2, 1:], values[3, -1] = True, True, True, True
    made: list[Tensor] = []
    for name, axis in product(("max", "min", "prod"), (0, 1, None)):
        x, y = given(values), given(values)
        made += [getattr(x, name)(axis), getattr(y, name)(axis, keepdim=True).float() + y.float()]
    return made


def arithmetic_of_bools(given: Given) -> Sequence[Tensor]:
    made: list[Tensor] = []
    for _ in range(2):
        x, y = (drawn(given, 0, 2, 5, WIDE, kind=bool) for _ in range(2))
        made += [x.maximum(y), x.minimum(y), x + y, x * y, x.abs() ^ y]
    return [*made[:5], *(z.cast(dt.int32) for z in made[5:])]


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


EXACT: dict[str, Case] = {
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
    check(all_of(EXACT | {n: case for n, (case, _) in KNOWN.items()}, given), given, bits)


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
