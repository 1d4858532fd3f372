"""The interpreter against numpy, op by op; it is what everything else is compared with.

What Tensor has a name for is compared by tensor/test_contract.py.
"""

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.errors import SchedulerError
from scheduler.ir import dtype as dt
from scheduler.ir import interp
from scheduler.ir.node import Buffer, make
from scheduler.ir.ops import Op
from scheduler.tensor.tensor import Tensor
from tests.scheduler.support.programs import Array

FLOATS = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
INTS = np.random.default_rng(1).integers(-9, 10, (3, 4)).astype(np.int32)
BYTES = np.random.default_rng(2).integers(0, 256, (3, 4)).astype(np.uint8)
TO_ROUND = np.array([0.5, 1.5, -0.5, 2.4], np.float32)
BITS = np.random.default_rng(3).integers(0, 2, (3, 4)).astype(bool)

UNARY: list[tuple[Op, Array, Callable[[Array], Array]]] = [
    (Op.NEG, FLOATS, lambda x: -x),
    (Op.ABS, INTS, np.abs),
    (Op.SQRT, np.abs(FLOATS), np.sqrt),
    (Op.RECIP, FLOATS, lambda x: 1 / x),
    (Op.EXP, FLOATS, np.exp),
    (Op.LOG, np.abs(FLOATS), np.log),
    (Op.SIN, FLOATS, np.sin),
    (Op.COS, FLOATS, np.cos),
    (Op.TANH, FLOATS, np.tanh),
    (Op.ERF, FLOATS, lambda x: np.vectorize(math.erf)(x.astype(float)).astype(np.float32)),
    (Op.GELU, FLOATS, lambda x: x * (1 + np.vectorize(math.erf)(x.astype(float) / 2**0.5)) / 2),
    (Op.FLOOR, FLOATS, np.floor),
    (Op.CEIL, FLOATS, np.ceil),
    (Op.ROUND, TO_ROUND, lambda _: np.array([0, 2, -0.0, 2], np.float32)),
    (Op.TRUNC, FLOATS, np.trunc),
    (Op.NOT, BITS, np.logical_not),
    (Op.NOT, INTS, lambda x: -x - 1),
]
OTHER_INTS = np.where(INTS[::-1] == 0, 3, INTS[::-1]).astype(np.int32)
SHIFTS = (np.arange(12, dtype=np.int32) % 5).reshape(3, 4)
BINARY: list[tuple[Op, Array, Array, Callable[[Array, Array], Array]]] = [
    (Op.ADD, BYTES, BYTES[::-1], lambda a, b: ((a.astype(int) + b) % 256).astype(np.uint8)),
    (Op.SUB, FLOATS, FLOATS[::-1], lambda a, b: a - b),
    (Op.MUL, INTS, OTHER_INTS, lambda a, b: a * b),
    (Op.DIV, FLOATS, FLOATS[::-1], lambda a, b: a / b),
    (Op.IDIV, INTS, OTHER_INTS, lambda a, b: np.trunc(a / b).astype(np.int32)),
    (Op.MOD, INTS, OTHER_INTS, np.fmod),
    (Op.POW, np.abs(FLOATS), FLOATS[::-1], np.power),
    (Op.MAX, FLOATS, FLOATS[::-1], lambda a, b: np.where(a > b, a, b)),
    (Op.MIN, INTS, OTHER_INTS, lambda a, b: np.where(a < b, a, b)),
    (Op.LT, INTS, OTHER_INTS, lambda a, b: a < b),
    (Op.EQ, INTS, OTHER_INTS, lambda a, b: a == b),
    (Op.NE, BITS, BITS[::-1], lambda a, b: a != b),
    (Op.AND, BITS, BITS[::-1], np.logical_and),
    (Op.OR, INTS, OTHER_INTS, lambda a, b: a | b),
    (Op.XOR, BYTES, BYTES[::-1], lambda a, b: a ^ b),
    (Op.SHL, INTS, SHIFTS, lambda a, b: a * 2**b),
    (Op.SHR, INTS, SHIFTS, lambda a, b: np.floor(a / 2.0**b).astype(np.int32)),
]


@pytest.mark.parametrize(("op", "x", "expected"), UNARY, ids=lambda v: getattr(v, "name", ""))
def test_unary(op: Op, x: Array, expected: Callable[[Array], Array]) -> None:
    got = Tensor(x).unary(op).interp()
    assert got.dtype == x.dtype
    np.testing.assert_allclose(got, expected(x), rtol=2e-7)


@pytest.mark.parametrize(("op", "a", "b", "expected"), BINARY, ids=lambda v: getattr(v, "name", ""))
def test_binary(op: Op, a: Array, b: Array, expected: Callable[[Array, Array], Array]) -> None:
    got = Tensor(a).binary(op, Tensor(b)).interp()
    wanted = expected(a, b)
    assert got.dtype == wanted.dtype
    np.testing.assert_allclose(got, wanted, rtol=2e-7)


def test_every_elementwise_op_is_covered() -> None:
    covered = {row[0] for row in UNARY} | {row[0] for row in BINARY}
    assert set(interp.FUNCTIONS) - covered == {Op.WHERE, Op.DOT4}


def test_dot4_adds_the_products_of_unsigned_and_signed_bytes() -> None:
    a = Tensor(np.array([0x00000001, 0x04030201, 0xFFFFFFFF], np.uint32)).node
    b = Tensor(np.array([-1, 0x7F80FF02, -0x7F7F7F80], np.int32)).node  # 0x80808080
    # 1 * -1; 1 * 2 - 2 * 1 - 3 * 128 + 4 * 127; 4 * 255 * -128
    want = [-1, 124, -130560]
    assert Tensor.of(make(Op.DOT4, dt.int32, (a, b))).interp().tolist() == want
    total = make(Op.REDUCE, dt.int32, (make(Op.DOT4, dt.int32, (a, b)),), (Op.ADD, (0,)))
    assert Tensor.of(total).interp().tolist() == [sum(want)]


TIES = np.array([[3, 9, 9], [5, 5, 1]], np.int32)
NOTHING = np.zeros((2, 0), np.float32)
CUBE = np.arange(24).reshape(2, 3, 4).astype(np.int32)
# What the contract of Tensor (tensor/test_contract.py) does not compare with numpy.
OTHER: dict[str, tuple[Callable[[], Tensor], object]] = {
    "steps": (lambda: Tensor(CUBE)[:, ::-2, 1:4:2], CUBE[:, ::-2, 1:4:2]),
    "window": (
        lambda: Tensor(CUBE).window(2, 2, 1, 2),
        np.stack([CUBE[..., :2], CUBE[..., 2:]], -1),
    ),
    "gather from the end": (
        lambda: Tensor(FLOATS).gather(Tensor(np.array([[0, -1], [2, -3]])), 0),
        FLOATS[[[0, 2], [2, 0]]],
    ),
    "arange down": (lambda: Tensor.arange(7, 1, -2), [7, 5, 3]),
    "argmax of ties": (lambda: Tensor(TIES).argmax(1), [1, 0]),
    "argmin of ties": (lambda: Tensor(TIES).argmin(1), [0, 2]),
    "a place of a row with NaN": (lambda: Tensor(FLOATS * np.nan).argmax(0), [2] * 4),
    "product over nothing": (lambda: Tensor(NOTHING) @ Tensor(NOTHING.T), np.zeros((2, 2))),
}


@pytest.mark.parametrize("name", OTHER)
def test_other_operations(name: str) -> None:
    made, expected = OTHER[name]
    assert np.array_equal(made().interp(), np.asarray(expected))


@pytest.mark.parametrize(
    ("op", "kind", "expected"),
    [
        (Op.ADD, dt.float32, 0),
        (Op.MUL, dt.float32, 1),
        (Op.MAX, dt.float32, -math.inf),
        (Op.MIN, dt.float32, math.inf),
        (Op.MAX, dt.int32, -(2**31)),
        (Op.MIN, dt.uint8, 255),
        (Op.MIN, dt.bool_, True),
    ],
)
def test_reduction_of_nothing_is_the_neutral_element(
    op: Op, kind: dt.DType, expected: float
) -> None:
    empty = Tensor(np.zeros((2, 0), kind.np))
    got = interp.evaluate([make(Op.REDUCE, kind, (empty.node,), (op, (1,)))])[0]
    assert got.dtype == kind.np
    assert got.tolist() == [[expected]] * 2


letters = st.sampled_from(["both", "left", "right", "neither"])


@settings(max_examples=150)
@given(st.lists(st.tuples(letters, st.booleans(), st.integers(1, 4)), min_size=1, max_size=4))
def test_contraction_is_the_plain_sum_of_products(axes: list[tuple[str, bool, int]]) -> None:
    """An axis is in both factors, in one, or broadcast in both; it is kept or summed."""
    rng = np.random.default_rng(len(axes))
    sizes = [n for _, _, n in axes]
    shape_a = [n if where in ("both", "left") else 1 for where, _, n in axes]
    shape_b = [n if where in ("both", "right") else 1 for where, _, n in axes]
    a, b = rng.standard_normal(shape_a), rng.standard_normal(shape_b)
    summed = tuple(i for i, (_, gone, _) in enumerate(axes) if gone)
    spread = [Tensor(x).broadcast_to(tuple(sizes)) for x in (a, b)]
    product = spread[0] * spread[1]
    got = product.sum(summed, keepdim=True).interp()
    plain = np.broadcast_to(a, sizes) * np.broadcast_to(b, sizes)
    np.testing.assert_allclose(got, plain.sum(summed, keepdims=True), rtol=1e-12, atol=1e-12)


def test_a_product_that_is_also_an_output_is_still_given() -> None:
    product = Tensor(FLOATS) * Tensor(FLOATS[::-1].copy())
    total, whole = interp.evaluate([product.sum(1).node, product.node])
    assert np.array_equal(whole, FLOATS * FLOATS[::-1])
    np.testing.assert_allclose(total, whole.sum(1), rtol=1e-6)


def test_a_missing_input_is_named() -> None:
    buffer = Buffer("input", "speed", (2,), dt.float32)
    with pytest.raises(SchedulerError, match="speed"):
        interp.evaluate([make(Op.BUFFER, dt.float32, (), buffer)])


def test_assign_gives_the_new_value_and_leaves_the_old_one_readable() -> None:
    state = Tensor.state("q", (2,))
    after = state.assign(state + 1.0)
    old, new = interp.evaluate(
        [state.node, after.node], {state.node.arg: np.array([1, 2], np.float32)}
    )
    assert old.tolist() == [1, 2]
    assert new.tolist() == [2, 3]
