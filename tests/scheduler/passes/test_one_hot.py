"""Sums over one chosen row become loads of it, and gathers move below arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.debug.pretty import pretty
from scheduler.ir import dtype as dt
from scheduler.ir.node import Node, make, toposort
from scheduler.ir.ops import Op
from scheduler.ir.verify import verify
from scheduler.passes.canonicalize import canonicalize
from scheduler.passes.one_hot import one_hot
from scheduler.tensor.tensor import Tensor
from tests.fuzz.draw import Draw
from tests.fuzz.graphs import programs
from tests.fuzz.program import Program
from tests.scheduler.passes.pass_check import check, index, ops, text, values, weight
from tests.scheduler.support.programs import Array, program_of, values_of

N = 10
X = Tensor.input("x", (N, 4))
I = Tensor.input("i", (3,), dt.int32)  # noqa: E741  # an index
HOT = Tensor.arange(N).reshape(1, N).eq(I.reshape(3, 1))
OUTSIDE = np.array([9, -1, 10], np.int32)


def table(*shape: int) -> Array:
    """Return values among which NaN and infinity, -0.0 included."""
    data = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
    flat = data.reshape(-1)
    flat[::7], flat[1::11], flat[2::13], flat[3::5] = np.nan, np.inf, -np.inf, -0.0
    return data


def rewritten(tensor: Tensor, inputs: Mapping[str, Array] | None = None) -> Node:
    """Run the pass, check that every bit stays, and return the new node."""
    node = tensor.node
    new = one_hot([node])[node]
    verify([new], "one_hot")
    before, after = values([node, new], inputs or {})
    assert after.dtype == before.dtype
    assert after.tobytes() == before.tobytes(), f"{before}\n{after}"
    return new


def is_load(node: Node) -> bool:
    """Whether nothing is summed up any more."""
    return Op.REDUCE not in ops(node)


# --- what is found ----------------------------------------------------------------------------


def chosen(hot: Tensor, value: Tensor) -> Tensor:
    return hot.unsqueeze(2).where(value, 0.0).sum(1)


ROWS_OF_X: dict[str, Callable[[], Tensor]] = {
    "a choice": lambda: chosen(HOT, X),
    "operands the other way": lambda: chosen(I.reshape(3, 1).eq(Tensor.arange(N)), X),
    "not equal": lambda: I.reshape(3, 1).ne(Tensor.arange(N)).unsqueeze(2).where(0.0, X).sum(1),
    "not not equal": lambda: chosen(I.reshape(3, 1).ne(Tensor.arange(N)).logical_not(), X),
    "wide integers": lambda: chosen(
        Tensor.arange(N).cast(dt.int64).reshape(1, N).eq(I.cast(dt.int64).reshape(3, 1)), X
    ),
    "as floats": lambda: chosen(
        Tensor.arange(N).float().reshape(1, N).eq(I.float().reshape(3, 1)), X
    ),
    "a list of weights": lambda: chosen(index(*range(N)).reshape(1, N).eq(I.reshape(3, 1)), X),
    "an affine index with steps": lambda: chosen(
        (Tensor.arange(N) * 3 + 1).reshape(1, N).eq(I.reshape(3, 1) * 3 + 1), X
    ),
    "a falling index": lambda: chosen(
        (9 - Tensor.arange(N)).reshape(1, N).eq(9 - I.reshape(3, 1)), X
    ),
    "a product of integers": lambda: HOT.int() @ X.int(),
    "a mask and the choice": lambda: chosen(HOT & (Tensor.input("m", (3, 1), dt.int32) > 0), X),
    "moved": lambda: HOT.T.reshape(N, 1, 3).where(X.unsqueeze(2), 0.0).sum(0).T,
    "a converted choice": lambda: HOT.unsqueeze(2).where(X.int(), 0).cast(dt.int64).sum(1),
}


@pytest.mark.parametrize("name", ROWS_OF_X)
def test_a_choice_is_a_load(name: str) -> None:
    for rows in (np.array([0, 9, 4], np.int32), OUTSIDE):
        data = table(N, 4)
        if "integer" in name or "converted" in name:
            data = np.nan_to_num(data, posinf=3.0, neginf=-5.0) * 9
        new = rewritten(ROWS_OF_X[name](), {"x": data, "i": rows})
        assert is_load(new)
        assert ops(new).count(Op.GATHER) == 1


KEPT: dict[str, Callable[[], Tensor]] = {
    "another fill": lambda: HOT.unsqueeze(2).where(X, 1.0).sum(1),
    "-0.0 as the fill": lambda: HOT.unsqueeze(2).where(X, -0.0).sum(1),
    "a maximum of numbers": lambda: HOT.unsqueeze(2).where(X, 0.0).max(1),
    "not affine": lambda: chosen(Tensor.input("k", (1, N), dt.int32).eq(I.reshape(3, 1)), X),
    "an affine index that repeats": lambda: chosen(
        index(0, 1, 2, 3, 4, 0, 1, 2, 3, 4).reshape(1, N).eq(I.reshape(3, 1)), X
    ),
    "another index for each row": lambda: chosen(
        Tensor.arange(N).reshape(1, N).eq(Tensor.input("j", (3, N), dt.int32)), X
    ),
    "less than": lambda: chosen(Tensor.arange(N).reshape(1, N) < I.reshape(3, 1), X),
    "two rows": lambda: chosen(
        Tensor.arange(2).reshape(1, 2).eq(I.reshape(3, 1)), Tensor.input("y", (2, 4))
    ),
    "an affine index that is rounded": lambda: chosen(
        (Tensor.arange(N) + 16777210).float().reshape(1, N).eq(I.float().reshape(3, 1)), X
    ),
    "an affine index that wraps around": lambda: chosen(
        (Tensor.arange(N) + 250).cast(dt.uint8).reshape(1, N).eq(I.cast(dt.uint8).reshape(3, 1)), X
    ),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_is_no_choice_of_one_row_stays(name: str) -> None:
    node = KEPT[name]().node
    assert one_hot([node])[node] is node


def test_a_float_product_stays_unless_asked_for() -> None:
    """Infinity times 0 is NaN, so rows that are not chosen count."""
    product = (HOT.float() @ X).node
    assert one_hot([product])[product] is product
    new = one_hot([product], float_unsafe=True)[product]
    assert is_load(new)
    data = np.nan_to_num(table(N, 4))
    before, after = values([product, new], {"x": data, "i": OUTSIDE})
    np.testing.assert_array_equal(before, after)


FINITE = {
    "a weight": lambda: weight(N, 4),
    "a sine of integers": lambda: Tensor.input("k", (N, 4), dt.int32).float().sin(),
}


@pytest.mark.parametrize("name", FINITE)
def test_a_product_with_what_is_finite_is_a_load(name: str) -> None:
    assert is_load(rewritten(HOT.float() @ FINITE[name](), {"i": OUTSIDE}))


def test_a_product_with_a_weight_that_is_not_finite_stays() -> None:
    product = (HOT.float() @ Tensor.weight(table(N, 4))).node
    assert one_hot([product])[product] is product


def test_rows_by_several_indices() -> None:
    j = Tensor.input("j", (3,), dt.int32).reshape(3, 1, 1)
    both = HOT.unsqueeze(2) & Tensor.arange(4).reshape(1, 1, 4).eq(j)
    given = {
        "x": table(N, 4),
        "i": np.array([0, 9, 9], np.int32),
        "j": np.array([3, 1, 4], np.int32),
    }
    new = rewritten(both.where(X, 0.0).sum((1, 2)), given)
    assert is_load(new)
    assert all(n.shape != (3, N, 1) for n in toposort([new]) if n.op not in (Op.EXPAND, Op.RESHAPE))


def test_the_index_may_depend_on_axes_of_the_data() -> None:
    y = Tensor.input("y", (3, N, 4))
    assert is_load(rewritten(chosen(HOT, y), {"y": table(3, N, 4), "i": OUTSIDE}))
    k = Tensor.input("k", (3, 1, 4), dt.int32)
    hot = Tensor.arange(N).reshape(1, N, 1).eq(k)
    rows = np.arange(-1, 11, dtype=np.int32).reshape(3, 1, 4)
    assert is_load(rewritten(hot.where(y, 0.0).sum(1), {"y": table(3, N, 4), "k": rows}))


def test_an_affine_index_gives_a_slice() -> None:
    square = Tensor.input("s", (N, N))
    eye = Tensor.arange(N).reshape(1, N).eq(Tensor.arange(N).reshape(N, 1))
    new = rewritten(chosen(eye, square), {"s": table(N, N)})
    assert Op.GATHER not in ops(canonicalize([new])[new])
    band = (Tensor.arange(N).reshape(1, N) + 3).eq(Tensor.arange(N).reshape(N, 1))
    assert is_load(rewritten(chosen(band, square), {"s": table(N, N)}))


@pytest.mark.parametrize("dtype", [dt.int8, dt.uint8, dt.uint32, dt.int64, dt.uint64])
def test_every_value_of_an_index_type(dtype: dt.DType) -> None:
    k = Tensor.input("k", (8,), dtype)
    low, high = int(dt.min_value(dtype)), int(dt.max_value(dtype))
    rows = np.array([low, high, 0, 9, 10, high // 2 + 1, high - 255 + 9, 4], dtype.np)
    hot = Tensor.arange(N).cast(dtype).reshape(1, N).eq(k.reshape(8, 1))
    assert is_load(rewritten(chosen(hot, X), {"x": table(N, 4), "k": rows}))


def test_an_index_of_floats() -> None:
    k = Tensor.input("k", (8,))
    rows = np.array([0.0, -0.0, 9.0, 4.5, np.nan, np.inf, -np.inf, 4294967297.0], np.float32)
    hot = Tensor.arange(N).float().reshape(1, N).eq(k.reshape(8, 1))
    assert is_load(rewritten(chosen(hot, X), {"x": table(N, 4), "k": rows}))


def any_of(tensor: Tensor, op: Op) -> Tensor:
    node = tensor.node
    return Tensor.of(make(Op.REDUCE, node.dtype, (node,), (op, (1,))))


@pytest.mark.parametrize("op", [Op.MAX, Op.ADD])
def test_whether_any_row_matches_is_a_test_of_bounds(op: Op) -> None:
    for tensor in (any_of(HOT, op), any_of(HOT & (X > 0.0)[:, 0].reshape(1, N), op)):
        assert is_load(rewritten(tensor, {"i": OUTSIDE, "x": table(N, 4)}))
    assert ops(rewritten(any_of(HOT, op), {"i": OUTSIDE})).count(Op.GATHER) == 0


def test_whether_no_row_matches() -> None:
    none = any_of(Tensor.arange(N).reshape(1, N).ne(I.reshape(3, 1)), Op.MIN)
    assert is_load(rewritten(none, {"i": OUTSIDE}))


def test_zeros_of_an_affine_value_keep_their_sign() -> None:
    """1 / -0.0 is minus infinity."""
    affine = -Tensor.arange(N).float().reshape(1, N)
    given = {"r": np.ones((1, N), np.float32), "i": np.array([0, 1, 9], np.int32)}
    assert is_load(rewritten(HOT.where(Tensor.input("r", (1, N)) / affine, 0.0).sum(1), given))


def test_how_many_rows_match_is_0_or_1() -> None:
    assert is_load(rewritten(HOT.float().sum(1), {"i": OUTSIDE}))
    assert is_load(rewritten(HOT.int().sum(1), {"i": OUTSIDE}))


def test_the_number_of_the_row_is_the_index() -> None:
    new = rewritten(HOT.where(Tensor.arange(N).reshape(1, N), 0).sum(1), {"i": OUTSIDE})
    assert is_load(new)


# --- random choices ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Choice:
    """A random sum over one chosen row, and its inputs."""

    tensor: Tensor
    inputs: dict[str, Array]


def choice(seed: int) -> Choice:
    """Draw axes, types, an affine index, how the choice is written and what is chosen."""
    draw = Draw(seed)
    rank = draw.integer(2, 4)
    shape = [draw.pick([2, 3, 4]) for _ in range(rank)]
    axis = draw.integer(0, rank - 1)
    shape[axis] = size = draw.integer(3, 9)
    rng = np.random.default_rng(seed)

    def part(*, full: bool) -> tuple[int, ...]:
        keep = [draw.flag() for _ in shape]
        return tuple(
            s if (full if a == axis else k) else 1
            for a, (s, k) in enumerate(zip(shape, keep, strict=True))
        )

    kind = draw.pick([dt.int32, dt.int64, dt.int8, dt.float32])
    step, start = draw.pick([1, 1, 2, -1, -3]), draw.pick([0, 0, 5, -4])
    line = [1] * rank
    line[axis] = size
    affine = (Tensor.arange(size) * step + start).reshape(line).cast(kind)
    i = Tensor.input("i", part(full=False), kind)
    rows = rng.integers(-1, size + 1, i.shape) * step + start + (rng.random(i.shape) < 0.2)
    hot = affine.eq(i) if draw.flag() else i.eq(affine)
    floating = draw.flag()
    x = Tensor.input("x", part(full=True), dt.float32 if floating else dt.int32)
    data = table(*x.shape) if floating else rng.integers(-9, 9, x.shape).astype(np.int32)
    value = draw.pick([x, x * 2 + 1, -x])
    hot, value = (t.broadcast_to(tuple(shape)) for t in (hot, value))
    if floating or draw.flag():
        picked = hot.where(value, 0) if draw.flag() else hot.logical_not().where(0, value)
    else:
        picked = hot.cast(dt.int32) * value
    if draw.flag():
        order = draw.order(rank)
        picked, axis = picked.permute(order), order.index(axis)
    return Choice(picked.sum(axis), {"i": rows.astype(kind.np), "x": data})


@settings(max_examples=300)
@given(st.integers(0, 2**32 - 1))
def test_random_choices_are_loads_and_keep_every_bit(seed: int) -> None:
    made = choice(seed)
    assert is_load(rewritten(made.tensor, made.inputs))


@pytest.mark.opencl
@settings(max_examples=12)
@given(st.integers(0, 2**32 - 1))
def test_random_choices_on_the_device(seed: int) -> None:
    made = choice(seed)
    (want,) = values([made.tensor.node], made.inputs)
    got = program_of(made.tensor)
    assert (got.launches, got.loops) == (1, [])
    np.testing.assert_array_equal(values_of(got, **made.inputs)[0], want)


@settings(max_examples=150)
@given(programs(14))
def test_other_programs_keep_their_values(program: Program) -> None:
    check(one_hot, [t.node for t in program.tensors], program.inputs)


# --- what it costs ----------------------------------------------------------------------------


@pytest.mark.opencl
def test_an_embedding_reads_the_rows_that_are_chosen() -> None:
    data = np.random.default_rng(0).standard_normal((1000, 64)).astype(np.float32)
    hot = Tensor.arange(1000).reshape(1, 1000).eq(Tensor.input("i", (16, 1), dt.int32))
    made = program_of(hot.float() @ Tensor.weight(data))
    assert (made.launches, made.loops, made.stored) == (1, [], [])
    assert made.plan.bytes_moved == 4 * (16 + 2 * 16 * 64)
    rows = np.arange(-60, 1060, 70).astype(np.int32).reshape(16, 1)
    want = np.where((rows >= 0) & (rows < 1000), data[rows[:, 0] % 1000], 0)
    np.testing.assert_array_equal(values_of(made, i=rows)[0], want)


@pytest.mark.opencl
def test_rows_that_are_not_chosen_do_not_leak() -> None:
    data = np.full((N, 4), np.nan, np.float32)
    data[4], data[9, :2] = 7.0, np.inf
    made = program_of(chosen(HOT, X))
    got = values_of(made, x=data, i=np.array([4, 10, -1], np.int32))[0]
    np.testing.assert_array_equal(got, [[7.0] * 4, [0.0] * 4, [0.0] * 4])


def test_what_is_computed_for_a_choice_is_not_stored() -> None:
    big = Tensor.input("b", (2000, 8))
    value = big.exp().tanh().sin().log() + Tensor.arange(2000).float().reshape(2000, 1)
    hot = Tensor.arange(2000).reshape(1, 2000).eq(I.reshape(3, 1))
    made = program_of(chosen(hot, value))
    assert (made.launches, made.loops, made.stored) == (1, [], [])
    assert made.plan.bytes_moved == 4 * (3 + 2 * 3 * 8)


def test_reductions_of_rows_stay_in_the_kernel_of_a_choice() -> None:
    """A loss: the chosen element less the row's maximum and the logarithm of its sum."""
    scores = Tensor.input("s", (16, 100))
    hot = Tensor.arange(100).reshape(1, 100).eq(Tensor.input("k", (16, 1), dt.int32))
    made = program_of(hot.where(scores.log_softmax(), 0.0).sum(1))
    assert (made.launches, len(made.loops)) == (1, 2)


def test_a_sum_over_what_its_kernel_reduces_stays() -> None:
    """As a load it would need the whole product stored first."""
    hot = Tensor.arange(100).reshape(1, 100).eq(Tensor.input("k", (16, 1), dt.int32))
    product = (Tensor.input("h", (16, 32)) @ weight(32, 100)).relu()
    made = program_of(hot.where(product, 0.0).sum(1))
    assert (made.launches, made.stored) == (1, [])


def test_text_before_and_after() -> None:
    y = chosen(HOT, X).node
    after = one_hot([y])[y]
    clean = canonicalize([after])[after]
    assert text(clean).count("gather 0") == 1
    assert "reduce" not in text(clean)
    assert "reduce add axes 1" in pretty([y])
