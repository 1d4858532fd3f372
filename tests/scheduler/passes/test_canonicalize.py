"""Rules of canonicalize: tensors of one value, operands that cancel, gathers of known rows."""

from collections.abc import Callable, Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.context import context_for
from scheduler.flags import Flags
from scheduler.ir import dtype as dt
from scheduler.ir.node import Node, make, toposort
from scheduler.ir.ops import Op
from scheduler.passes.canonicalize import canonicalize
from scheduler.pipeline import run_passes
from scheduler.tensor.tensor import Tensor
from tests.scheduler.passes.pass_check import Build, check_row, index, one, ops, row, rows

X = Tensor.input("x", (4, 5))
N = Tensor.input("n", (4, 5), dt.int32)
COLUMN, OTHER = Tensor.input("c", (4, 1)), Tensor.input("d", (4, 1))
WIDE, EMPTY = COLUMN.expand(4, 5), Tensor.input("e", (0, 5))
Y = Tensor.input("y", (4, 5))


# Made by each test: what another test realizes becomes data in every tensor that lives.
def reduced(op: Op, source: Tensor) -> Tensor:
    """Return a reduction of axis 1 in the type of the source."""
    return Tensor.of(make(Op.REDUCE, source.dtype, (source.node,), (op, (1,))))


CONSTANTS: list[tuple[Callable[[], Tensor], float]] = [
    (lambda: Tensor.full((3, 4), 2.5).sum(1), 10.0),
    (lambda: Tensor.full((3, 4), 2.5).max(1), 2.5),
    (lambda: (Tensor.ones(10) + Tensor.ones(10, 10)).sum(-1), 20.0),
    (lambda: (Tensor.full((3, 4), 4.0).sqrt() + 1.0).cast(dt.int32) * 2, 6),
    (lambda: Tensor.full((3,), True, dt.bool_).max(0), True),
    (lambda: Tensor.full((3, 4), 1.5).flip(0)[1:].pad([(1, 0), (0, 0)], 1.5).T, 1.5),
    (lambda: Tensor.full((3, 4), 1.5).cast(dt.int32), 1),
    (lambda: N * 0, 0),
    (lambda: 0 * N, 0),
    (lambda: N - N, 0),
    (lambda: reduced(Op.MUL, Tensor.full((2, 3), 2.0)), 8.0),
    (lambda: reduced(Op.MUL, Tensor.full((2, 3), -3, dt.int32)), -27),
    (lambda: reduced(Op.MUL, Tensor.full((2, 40), 3, dt.int32)), 689_956_897),
    (lambda: reduced(Op.ADD, Tensor.full((2, 3), 100, dt.int8)), 44),
    (lambda: reduced(Op.ADD, Tensor.full((2, 3), 3e38)), np.inf),
    (lambda: reduced(Op.MIN, Tensor.full((2, 3), 7, dt.uint8)), 7),
]


@pytest.mark.parametrize(("build", "value"), CONSTANTS)
def test_constants_are_known_in_any_type(build: Callable[[], Tensor], value: float) -> None:
    found = one(canonicalize, build())
    assert set(ops(found)) <= {Op.CONST, Op.RESHAPE, Op.EXPAND}
    assert toposort([found])[0].arg == value


@rows(
    row("padding of another value", lambda: Tensor.full((3,), 1.0).pad([(1, 0)], 2.0), PAD=1),
    row("padding of another zero", lambda: Tensor.full((3,), 0.0).pad([(1, 0)], -0.0), PAD=1),
    row(
        "operands that expand along other axes",
        lambda: WIDE * Tensor.input("r", (1, 5)).expand(4, 5),
    ),
    row("a sum of repeated values", lambda: WIDE.sum(1), REDUCE=0, MUL=1),
    row("a maximum of repeated values", lambda: WIDE.max(1), REDUCE=0, MUL=0),
    row("a sum of both axes", lambda: WIDE.sum((0, 1)), REDUCE=1, MUL=1),
    row("arithmetic of nothing", lambda: EMPTY.exp() + 1.0, BUFFER=0),
    row("movement of nothing", lambda: EMPTY.T, BUFFER=0),
    row("a rotation", lambda: Tensor.cat([X[:, 3:], X[:, :3]], 1) * 2.0, CAT=0, BUFFER=1),
    row("a rotated part", lambda: Tensor.cat([X[3:, 1:4], X[:3, 1:4]], 0) + 1.0, CAT=0),
    row("parts that overlap", lambda: Tensor.cat([X[:, 3:], X[:, :4]], 1) * 2.0, CAT=1),
    row("every second one", lambda: Tensor.cat([X[:, 3::2], X[:, :3]], 1) * 2.0, CAT=1),
    row("rows of two tensors", lambda: Tensor.cat([X[:, 3:], Y[:, :3]], 1) * 2.0, CAT=1),
    row("rotated in another part", lambda: Tensor.cat([X[3:, 1:], X[:3, :4]], 0) + 1.0, CAT=1),
    row("a concat with nothing", lambda: Tensor.cat([EMPTY, X * 2.0, EMPTY]), CAT=0, BUFFER=1),
    row("a sum of nothing", lambda: EMPTY.sum(0) + 1.0, BUFFER=0),
    row("uneven rows", lambda: X.gather(index(0, 1, 3), 1), GATHER=1),
    row("unknown rows", lambda: X.gather(Tensor.input("i", (2,), dt.int32), 0), GATHER=1),
    row("a part of a source", lambda: Tensor.cat([X, Y])[5:8:2], CAT=0, SHRINK=1, BUFFER=1),
    row("a part of two sources", lambda: Tensor.cat([X, Y])[3:5], CAT=1),
    row("a part of a part", lambda: X[1:4][1:3, ::2], SHRINK=1),
    row("steps of steps", lambda: X[1::2, ::2][1:, 1::2], SHRINK=1),
    row("a test and what is true", lambda: (X > 0.0) & Tensor.full((4, 5), True, dt.bool_), AND=0),
    row("true or a test", lambda: Tensor.full((4, 5), True, dt.bool_) | (X > 0.0), OR=0, BUFFER=0),
    row("padding alone", lambda: X.pad([(0, 3), (0, 0)], 2.0)[4:], CONST=1, BUFFER=0),
)
def test_what_is_left(build: Build, counts: Mapping[str, int]) -> None:
    check_row(canonicalize, build, counts)


BEFORE_EXPAND: list[tuple[Callable[[], Tensor], Op]] = [
    (WIDE.exp, Op.EXP),
    (lambda: 1.0 / WIDE, Op.DIV),
    (lambda: WIDE.cast(dt.int32), Op.CAST),
    (lambda: WIDE * OTHER.expand(4, 5), Op.MUL),
    (lambda: WIDE + 3.0, Op.ADD),
    (lambda: COLUMN.expand(4, 5) < OTHER.expand(4, 5), Op.LT),
    (lambda: WIDE.sum(0), Op.REDUCE),
]


@pytest.mark.parametrize(("build", "op"), BEFORE_EXPAND, ids=[op.name for _, op in BEFORE_EXPAND])
def test_arithmetic_comes_before_expansion(build: Callable[[], Tensor], op: Op) -> None:
    def size(node: Node) -> int:
        return max(int(np.prod(n.shape)) for n in toposort([node]) if n.op is op)

    assert size(one(canonicalize, build())) <= 4
    assert size(build().node) > 4 or op is Op.REDUCE


GATHERS: list[tuple[Callable[[], Tensor], list[Op]]] = [
    (lambda: X.gather(index(1, 2, 3), 0), [Op.SHRINK]),
    (lambda: X.gather(index(-1), 0), [Op.SHRINK]),
    (lambda: X.gather(index(0, 2, 4), 1), [Op.SHRINK]),
    (lambda: X.gather(index(-1, -2), 1), [Op.SHRINK, Op.FLIP]),
    (lambda: X.gather(index(4, 2, 0), 1), [Op.SHRINK, Op.FLIP]),
    (lambda: X.gather(index(2, 2, 2), 1), [Op.SHRINK, Op.EXPAND]),
    (lambda: X.gather(index(0, 1, 2, 3).reshape(2, 2), 1), [Op.SHRINK, Op.RESHAPE]),
    (lambda: X.gather(index(3, -1), 1), [Op.SHRINK]),
    (lambda: X.gather(index(0, -1), 1), [Op.SHRINK]),
    (lambda: X.gather(Tensor.arange(4), 0), []),
]


@pytest.mark.parametrize(("build", "left"), GATHERS)
def test_gathers_of_evenly_spaced_rows_are_slices(
    build: Callable[[], Tensor], left: list[Op]
) -> None:
    assert [op for op in ops(one(canonicalize, build())) if op is not Op.BUFFER] == left


def test_a_gather_of_rows_that_are_not_there_stays() -> None:
    outside = X.gather(index(4, 5), 1).node
    assert canonicalize([outside])[outside] is outside


@given(st.integers(0, 3), st.integers(-3, 3), st.integers(1, 4), st.booleans())
def test_any_run_of_rows(start: int, step: int, count: int, negative: bool) -> None:
    rows = [start + i * step for i in range(count)]
    kept = [r - (4 if negative else 0) for r in rows if 0 <= r < 4]
    assert Op.GATHER not in ops(one(canonicalize, X.gather(index(*kept), 0)))


def folds(tensor: Tensor, *, float_unsafe: bool = False) -> Node:
    return canonicalize([tensor.node], float_unsafe=float_unsafe)[tensor.node]


PAD_ONLY = Tensor.input("b", (4, 5)).pad([(4, 0), (0, 0)])[:4]
UNSAFE: list[tuple[Callable[[], Tensor], Node | int]] = [
    (lambda: X * 0.0, 0),
    (lambda: X * -0.0, 0),
    (lambda: X - X, 0),
    (lambda: X / X, 1),
    (lambda: (X * COLUMN) / COLUMN, X.node),
    (lambda: (COLUMN * X) / COLUMN, X.node),
    (lambda: X + 0.0, X.node),
    (lambda: X * PAD_ONLY, 0),
    (lambda: X + COLUMN * 0.0, X.node),
]


@pytest.mark.parametrize(("build", "expected"), UNSAFE)
def test_floats_cancel_where_that_is_asked_for(
    build: Callable[[], Tensor], expected: Node | int
) -> None:
    def holds(found: Node) -> bool:
        if isinstance(expected, Node):
            return found is expected
        first = toposort([found])[0]
        return first.op is Op.CONST and first.arg == expected

    assert not holds(folds(build()))
    assert holds(folds(build(), float_unsafe=True))


def test_cancelling_of_floats_by_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not Flags.from_environment().float_unsafe
    monkeypatch.setenv("FLOAT_UNSAFE", "0")
    assert not Flags.from_environment().float_unsafe
    monkeypatch.setenv("FLOAT_UNSAFE", "1")
    assert X.node not in toposort(run_passes([(X * 0.0).node], context_for()))
    assert X.node in toposort(run_passes([(X * 0.0).node], context_for(flags=Flags())))
