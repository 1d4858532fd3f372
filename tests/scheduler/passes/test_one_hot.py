"""Sums over one chosen row become loads of it."""

from collections.abc import Callable, Mapping

import numpy as np
import pytest
from hypothesis import strategies as st

from scheduler.ir import dtype as dt
from scheduler.ir.node import Node, make, toposort
from scheduler.ir.ops import Op
from scheduler.ir.verify import verify
from scheduler.passes.canonicalize import canonicalize
from scheduler.passes.one_hot import one_hot
from scheduler.tensor.tensor import Tensor
from tests.fuzz.draw import Draw
from tests.scheduler.passes.pass_check import (
    EXAMPLES,
    Build,
    check_row,
    for_all,
    index,
    ops,
    row,
    rows,
    values,
    weight,
)
from tests.scheduler.support.programs import Array, program_of, values_of

N = 10
X = Tensor.input("x", (N, 4))
I = Tensor.input("i", (3,), dt.int32)  # noqa: E741  # an index
LINE, COLUMN = Tensor.arange(N).reshape(1, N), I.reshape(3, 1)
HOT = LINE.eq(COLUMN)
OUTSIDE = np.array([9, -1, 10], np.int32)
Given = Mapping[str, Array]


def table(*shape: int) -> Array:
    """Return values among which NaN and infinity, -0.0 included."""
    data = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
    flat = data.reshape(-1)
    flat[::7], flat[1::11], flat[2::13], flat[3::5] = np.nan, np.inf, -np.inf, -0.0
    return data


def loaded(tensor: Tensor, inputs: Given | None = None) -> Node:
    """Run the pass, check that every bit stays and nothing is summed up any more."""
    node = tensor.node
    new = one_hot([node])[node]
    verify([new], "one_hot")
    before, after = values([node, new], inputs or {})
    assert after.dtype == before.dtype
    assert after.tobytes() == before.tobytes(), f"{before}\n{after}"
    assert Op.REDUCE not in ops(new)
    return new


def chosen(hot: Tensor, value: Tensor = X) -> Tensor:
    return hot.unsqueeze(2).where(value, 0.0).sum(1)


ROWS_OF_X: dict[str, Callable[[], Tensor]] = {
    "a choice": lambda: chosen(HOT),
    "operands the other way": lambda: chosen(COLUMN.eq(Tensor.arange(N))),
    "not equal": lambda: COLUMN.ne(Tensor.arange(N)).unsqueeze(2).where(0.0, X).sum(1),
    "not not equal": lambda: chosen(COLUMN.ne(Tensor.arange(N)).logical_not()),
    "wide integers": lambda: chosen(LINE.cast(dt.int64).eq(COLUMN.cast(dt.int64))),
    "as floats": lambda: chosen(LINE.float().eq(COLUMN.float())),
    "a list of weights": lambda: chosen(index(*range(N)).reshape(1, N).eq(COLUMN)),
    "an affine index with steps": lambda: chosen((LINE * 3 + 1).eq(COLUMN * 3 + 1)),
    "a falling index": lambda: chosen((9 - LINE).eq(9 - COLUMN)),
    "a product of integers": lambda: HOT.int() @ X.int(),
    "a mask and the choice": lambda: chosen(HOT & (Tensor.input("m", (3, 1), dt.int32) > 0)),
    "moved": lambda: HOT.T.reshape(N, 1, 3).where(X.unsqueeze(2), 0.0).sum(0).T,
    "a converted choice": lambda: HOT.unsqueeze(2).where(X.int(), 0).cast(dt.int64).sum(1),
}


@pytest.mark.parametrize("name", ROWS_OF_X)
def test_a_choice_is_a_load(name: str) -> None:
    for at in (np.array([0, 9, 4], np.int32), OUTSIDE):
        data = table(N, 4)
        if "integer" in name or "converted" in name:
            data = np.nan_to_num(data, posinf=3.0, neginf=-5.0) * 9
        assert ops(loaded(ROWS_OF_X[name](), {"x": data, "i": at})).count(Op.GATHER) == 1


@rows(
    row("another fill", lambda: HOT.unsqueeze(2).where(X, 1.0).sum(1)),
    row("-0.0 as the fill", lambda: HOT.unsqueeze(2).where(X, -0.0).sum(1)),
    row("a maximum of numbers", lambda: HOT.unsqueeze(2).where(X, 0.0).max(1)),
    row("not affine", lambda: chosen(Tensor.input("k", (1, N), dt.int32).eq(COLUMN))),
    row("an affine index that repeats", lambda: chosen(index(*range(5), *range(5)).eq(COLUMN))),
    row("an index for each row", lambda: chosen(LINE.eq(Tensor.input("j", (3, N), dt.int32)))),
    row("less than", lambda: chosen(LINE < COLUMN)),
    row("two rows", lambda: chosen(Tensor.arange(2).eq(COLUMN), Tensor.input("y", (2, 4)))),
    row("a rounded index", lambda: chosen((LINE + 16777210).float().eq(COLUMN.float()))),
    row(
        "an index that wraps around",
        lambda: chosen((LINE + 250).cast(dt.uint8).eq(COLUMN.cast(dt.uint8))),
    ),
    row("a product with what may be infinite", lambda: HOT.float() @ X),
    row("a product with an infinite weight", lambda: HOT.float() @ Tensor.weight(table(N, 4))),
)
def test_what_is_no_choice_of_one_row_stays(build: Build, counts: Mapping[str, int]) -> None:
    check_row(one_hot, build, counts)


def any_of(tensor: Tensor, op: Op) -> Tensor:
    node = tensor.node
    return Tensor.of(make(Op.REDUCE, node.dtype, (node,), (op, (1,))))


def by_two_indices() -> Tensor:
    j = Tensor.input("j", (3,), dt.int32).reshape(3, 1, 1)
    both = HOT.unsqueeze(2) & Tensor.arange(4).reshape(1, 1, 4).eq(j)
    return both.where(X, 0.0).sum((1, 2))


def by_axes_of_the_data() -> Tensor:
    hot = Tensor.arange(N).reshape(1, N, 1).eq(Tensor.input("k", (3, 1, 4), dt.int32))
    return hot.where(Tensor.input("y", (3, N, 4)), 0.0).sum(1)


def with_signed_zeros() -> Tensor:
    """1 / -0.0 is minus infinity: zeros of an affine value keep their sign."""
    return HOT.where(Tensor.input("r", (1, N)) / -LINE.float(), 0.0).sum(1)


SQUARE, DOWN = Tensor.input("s", (N, N)), Tensor.arange(N).reshape(N, 1)
TESTED = HOT & (X > 0.0)[:, 0].reshape(1, N)
K = np.arange(-1, 11, dtype=np.int32).reshape(3, 1, 4)
LOADS: dict[str, tuple[Callable[[], Tensor], Given]] = {
    "times a weight": (lambda: HOT.float() @ weight(N, 4), {}),
    "times what is finite": (
        lambda: HOT.float() @ Tensor.input("k", (N, 4), dt.int32).float().sin(),
        {},
    ),
    "data of three axes": (
        lambda: chosen(HOT, Tensor.input("y", (3, N, 4))),
        {"y": table(3, N, 4)},
    ),
    "an index of the data's axes": (by_axes_of_the_data, {"y": table(3, N, 4), "k": K}),
    "a band": (lambda: chosen((LINE + 3).eq(DOWN), SQUARE), {"s": table(N, N)}),
    "whether any row matches": (lambda: any_of(HOT, Op.MAX), {}),
    "whether any row matches, as a sum": (lambda: any_of(HOT, Op.ADD), {}),
    "whether any tested row matches": (lambda: any_of(TESTED, Op.MAX), {"x": table(N, 4)}),
    "the same, as a sum": (lambda: any_of(TESTED, Op.ADD), {"x": table(N, 4)}),
    "whether no row matches": (lambda: any_of(LINE.ne(COLUMN), Op.MIN), {}),
    "signed zeros": (
        with_signed_zeros,
        {"r": np.ones((1, N), np.float32), "i": np.array([0, 1, 9], np.int32)},
    ),
    "how many rows match": (lambda: HOT.float().sum(1), {}),
    "how many rows match, as an integer": (lambda: HOT.int().sum(1), {}),
    "the number of the row": (lambda: HOT.where(LINE, 0).sum(1), {}),
}


@pytest.mark.parametrize("name", LOADS)
def test_what_else_is_a_load(name: str) -> None:
    build, given = LOADS[name]
    new = loaded(build(), {"i": OUTSIDE, **given})
    if name.startswith("whether any row"):  # a test of bounds
        assert Op.GATHER not in ops(new)


def test_rows_by_several_indices() -> None:
    at = {"i": np.array([0, 9, 9], np.int32), "j": np.array([3, 1, 4], np.int32)}
    new = loaded(by_two_indices(), {"x": table(N, 4), **at})
    assert all(n.shape != (3, N, 1) for n in toposort([new]) if n.op not in (Op.EXPAND, Op.RESHAPE))


def test_an_affine_index_gives_a_slice() -> None:
    new = loaded(chosen(LINE.eq(DOWN), SQUARE), {"s": table(N, N)})
    assert Op.GATHER not in ops(canonicalize([new])[new])


@pytest.mark.parametrize("dtype", [dt.int8, dt.uint8, dt.uint32, dt.int64, dt.uint64, dt.float32])
def test_every_value_of_an_index_type(dtype: dt.DType) -> None:
    if dtype is dt.float32:
        at = np.array([0.0, -0.0, 9.0, 4.5, np.nan, np.inf, -np.inf, 4294967297.0], np.float32)
    else:
        low, high = int(dt.min_value(dtype)), int(dt.max_value(dtype))
        at = np.array([low, high, 0, 9, 10, high // 2 + 1, high - 255 + 9, 4], dtype.np)
    hot = LINE.cast(dtype).eq(Tensor.input("k", (8,), dtype).reshape(8, 1))
    loaded(chosen(hot), {"x": table(N, 4), "k": at})


def choice(seed: int) -> tuple[Tensor, dict[str, Array]]:
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
    line = [size if a == axis else 1 for a in range(rank)]
    affine = (Tensor.arange(size) * step + start).reshape(line).cast(kind)
    i = Tensor.input("i", part(full=False), kind)
    at = rng.integers(-1, size + 1, i.shape) * step + start + (rng.random(i.shape) < 0.2)
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
    return picked.sum(axis), {"i": at.astype(kind.np), "x": data}


@EXAMPLES
def test_random_choices_are_loads_and_keep_every_bit(examples: int) -> None:
    def keeps(seed: int) -> None:
        loaded(*choice(seed))

    for_all(examples, st.integers(0, 2**32 - 1), keeps)


@pytest.mark.opencl
@pytest.mark.parametrize("examples", [2, pytest.param(12, marks=pytest.mark.slow)])
def test_random_choices_on_the_device(examples: int) -> None:
    def keeps(seed: int) -> None:
        tensor, inputs = choice(seed)
        (want,) = values([tensor.node], inputs)
        got = program_of(tensor)
        assert (got.launches, got.loops) == (1, [])
        np.testing.assert_array_equal(values_of(got, **inputs)[0], want)

    for_all(examples, st.integers(0, 2**32 - 1), keeps)


def one_of(count: int, at: str = "k", rows: int = 16) -> Tensor:
    """Return which of `count` columns is chosen in each of `rows`."""
    return Tensor.arange(count).reshape(1, count).eq(Tensor.input(at, (rows, 1), dt.int32))


@pytest.mark.opencl
def test_an_embedding_reads_the_rows_that_are_chosen() -> None:
    data = np.random.default_rng(0).standard_normal((1000, 64)).astype(np.float32)
    made = program_of(one_of(1000).float() @ Tensor.weight(data))
    assert (made.launches, made.loops, made.stored) == (1, [], [])
    assert made.plan.bytes_moved == 4 * (16 + 2 * 16 * 64)
    at = np.arange(-60, 1060, 70).astype(np.int32).reshape(16, 1)
    want = np.where((at >= 0) & (at < 1000), data[at[:, 0] % 1000], 0)
    np.testing.assert_array_equal(values_of(made, k=at)[0], want)


def test_what_is_stored_and_summed_for_a_choice() -> None:
    big = Tensor.input("b", (2000, 8))
    value = big.exp().tanh().sin().log() + Tensor.arange(2000).float().reshape(2000, 1)
    made = program_of(chosen(one_of(2000, rows=3), value))  # what is computed is not stored
    assert (made.launches, made.loops, made.stored) == (1, [], [])
    assert made.plan.bytes_moved == 4 * (3 + 2 * 3 * 8)
    # A loss: the chosen element less the row's maximum and the logarithm of its sum.
    scores = Tensor.input("s", (16, 100))
    made = program_of(one_of(100).where(scores.log_softmax(), 0.0).sum(1))
    assert (made.launches, len(made.loops)) == (1, 2)
    # A sum over what its kernel reduces stays: as a load it would need the product stored first.
    product = (Tensor.input("h", (16, 32)) @ weight(32, 100)).relu()
    made = program_of(one_of(100).where(product, 0.0).sum(1))
    assert (made.launches, made.stored) == (1, [])
