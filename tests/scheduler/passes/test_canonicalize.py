"""Rules of canonicalize: tensors of one value, operands that cancel, gathers of known rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.context import context_for
from scheduler.flags import Flags
from scheduler.ir import dtype as dt
from scheduler.ir.node import Node, make, toposort
from scheduler.ir.ops import Op
from scheduler.passes.canonicalize import canonicalize
from scheduler.pipeline import run_passes
from scheduler.tensor.tensor import Tensor
from tests.fuzz.graphs import programs
from tests.fuzz.program import Program
from tests.scheduler.passes.pass_check import check, index, one, ops, sliced, text, values

X = Tensor.input("x", (4, 5))
N = Tensor.input("n", (4, 5), dt.int32)
COLUMN = Tensor.input("c", (4, 1))
OTHER = Tensor.input("d", (4, 1))


@settings(max_examples=200)
@given(programs(), st.integers(0, 2**32 - 1))
def test_programs_keep_their_values(program: Program, seed: int) -> None:
    check(canonicalize, sliced(program, seed), program.inputs)


@settings(max_examples=100)
@given(programs(states=False))
def test_all_passes_together_keep_values(program: Program) -> None:
    def apply(roots: Sequence[Node]) -> dict[Node, Node]:
        return dict(zip(roots, run_passes(roots), strict=True))

    check(apply, [t.node for t in program.outputs.values()], program.inputs)


# --- one value --------------------------------------------------------------------------------

# Made by each test: what another test realizes becomes data in every tensor that lives.
CONSTANTS = [
    ("a sum", lambda: Tensor.full((3, 4), 2.5).sum(1), 10.0),
    ("a maximum", lambda: Tensor.full((3, 4), 2.5).max(1), 2.5),
    ("sum of ones", lambda: (Tensor.ones(10) + Tensor.ones(10, 10)).sum(-1), 20.0),
    ("a chain", lambda: (Tensor.full((3, 4), 4.0).sqrt() + 1.0).cast(dt.int32) * 2, 6),
    ("bits", lambda: Tensor.full((3,), True, dt.bool_).max(0), True),
    ("movement", lambda: Tensor.full((3, 4), 1.5).flip(0)[1:].pad([(1, 0), (0, 0)], 1.5).T, 1.5),
    ("a cast", lambda: Tensor.full((3, 4), 1.5).cast(dt.int32), 1),
]


@pytest.mark.parametrize(
    ("make", "value"), [c[1:] for c in CONSTANTS], ids=[c[0] for c in CONSTANTS]
)
def test_constants_are_known(make: Callable[[], Tensor], value: float) -> None:
    found = one(canonicalize, make())
    assert set(ops(found)) <= {Op.CONST, Op.RESHAPE, Op.EXPAND}
    assert toposort([found])[0].arg == value


def test_padding_of_another_value_is_no_constant() -> None:
    padded = Tensor.full((3,), 1.0).pad([(1, 0)], 2.0)
    assert Op.PAD in ops(one(canonicalize, padded))
    signed = Tensor.full((3,), 0.0).pad([(1, 0)], -0.0)
    assert Op.PAD in ops(one(canonicalize, signed))


def reduced(op: Op, source: Tensor) -> Tensor:
    """Return a reduction of axis 1 in the type of the source."""
    return Tensor.of(make(Op.REDUCE, source.dtype, (source.node,), (op, (1,))))


POWERS = [
    (Op.MUL, Tensor.full((2, 3), 2.0), 8.0),
    (Op.MUL, Tensor.full((2, 3), -3, dt.int32), -27),
    (Op.MUL, Tensor.full((2, 40), 3, dt.int32), 689_956_897),
    (Op.ADD, Tensor.full((2, 3), 100, dt.int8), 44),
    (Op.ADD, Tensor.full((2, 3), 3e38), np.inf),
    (Op.MIN, Tensor.full((2, 3), 7, dt.uint8), 7),
]


@pytest.mark.parametrize(("op", "tensor", "value"), POWERS)
def test_reductions_of_a_constant_in_any_type(op: Op, tensor: Tensor, value: float) -> None:
    found = one(canonicalize, reduced(op, tensor))
    assert toposort([found])[0].arg == value


BEFORE_EXPAND = [
    ("unary", COLUMN.expand(4, 5).exp(), Op.EXP),
    ("one over a column", 1.0 / COLUMN.expand(4, 5), Op.DIV),
    ("cast", COLUMN.expand(4, 5).cast(dt.int32), Op.CAST),
    ("binary", COLUMN.expand(4, 5) * OTHER.expand(4, 5), Op.MUL),
    ("with a constant", COLUMN.expand(4, 5) + 3.0, Op.ADD),
    ("comparison", COLUMN.expand(4, 5) < OTHER.expand(4, 5), Op.LT),
    ("a kept axis of a reduction", COLUMN.expand(4, 5).sum(0), Op.REDUCE),
]


@pytest.mark.parametrize(
    ("tensor", "op"), [b[1:] for b in BEFORE_EXPAND], ids=[b[0] for b in BEFORE_EXPAND]
)
def test_arithmetic_comes_before_expansion(tensor: Tensor, op: Op) -> None:
    order = toposort([one(canonicalize, tensor)])
    assert max(np.prod(n.shape) for n in order if n.op is op) <= 4
    assert (
        max(np.prod(n.shape) for n in toposort([tensor.node]) if n.op is op) > 4 or op is Op.REDUCE
    )


def test_operands_that_expand_along_other_axes_stay() -> None:
    row = Tensor.input("r", (1, 5))
    y = (COLUMN.expand(4, 5) * row.expand(4, 5)).node
    assert canonicalize([y])[y] is y


REPEATED = [
    ("sum", COLUMN.expand(4, 5).sum(1), [Op.MUL]),
    ("maximum", COLUMN.expand(4, 5).max(1), []),
    ("sum of both axes", COLUMN.expand(4, 5).sum((0, 1)), [Op.REDUCE, Op.MUL]),
]


@pytest.mark.parametrize(
    ("tensor", "left"), [r[1:] for r in REPEATED], ids=[r[0] for r in REPEATED]
)
def test_reductions_of_repeated_values(tensor: Tensor, left: list[Op]) -> None:
    found = ops(one(canonicalize, tensor))
    assert [op for op in found if op in (Op.REDUCE, Op.MUL)] == left


EMPTY = Tensor.input("e", (0, 5))
GONE = [
    ("arithmetic", (EMPTY.exp() + 1.0).node),
    ("movement", EMPTY.T.node),
    ("a concat", Tensor.cat([EMPTY, X * 2.0, EMPTY]).node),
    ("a sum", (EMPTY.sum(0) + 1.0).node),
]


@pytest.mark.parametrize("node", [n for _, n in GONE], ids=[n for n, _ in GONE])
def test_what_has_no_elements_is_not_read(node: Node) -> None:
    (found,) = check(canonicalize, [node])
    assert EMPTY.node not in toposort([found])


# --- gathers, slices --------------------------------------------------------------------------

GATHERS: list[tuple[Tensor, list[Op]]] = [
    (X.gather(index(1, 2, 3), 0), [Op.SHRINK]),
    (X.gather(index(-1), 0), [Op.SHRINK]),
    (X.gather(index(0, 2, 4), 1), [Op.SHRINK]),
    (X.gather(index(-1, -2), 1), [Op.SHRINK, Op.FLIP]),
    (X.gather(index(4, 2, 0), 1), [Op.SHRINK, Op.FLIP]),
    (X.gather(index(2, 2, 2), 1), [Op.SHRINK, Op.EXPAND]),
    (X.gather(index(0, 1, 2, 3).reshape(2, 2), 1), [Op.SHRINK, Op.RESHAPE]),
    (X.gather(index(3, -1), 1), [Op.SHRINK]),
    (X.gather(index(0, -1), 1), [Op.SHRINK]),
    (X.gather(Tensor.arange(4), 0), []),
]


@pytest.mark.parametrize(("tensor", "left"), GATHERS)
def test_gathers_of_evenly_spaced_rows_are_slices(tensor: Tensor, left: list[Op]) -> None:
    found = ops(one(canonicalize, tensor))
    assert [op for op in found if op is not Op.BUFFER] == left


def test_other_gathers_stay() -> None:
    for tensor in (X.gather(index(0, 1, 3), 1), X.gather(Tensor.input("i", (2,), dt.int32), 0)):
        assert Op.GATHER in ops(one(canonicalize, tensor))
    outside = X.gather(index(4, 5), 1).node
    assert canonicalize([outside])[outside] is outside


@given(st.integers(0, 3), st.integers(-3, 3), st.integers(1, 4), st.booleans())
def test_any_run_of_rows(start: int, step: int, count: int, negative: bool) -> None:
    rows = [start + i * step for i in range(count)]
    kept = [r - (4 if negative else 0) for r in rows if 0 <= r < 4]
    found = one(canonicalize, X.gather(index(*kept), 0))
    assert Op.GATHER not in ops(found)


def test_slices() -> None:
    y = Tensor.input("y", (4, 5))
    concat = Tensor.cat([X, y])
    assert ops(one(canonicalize, concat[5:8:2])) == [Op.BUFFER, Op.SHRINK]
    assert Op.CAT in ops(one(canonicalize, concat[3:5]))
    assert ops(one(canonicalize, X[1:4][1:3, ::2])) == [Op.BUFFER, Op.SHRINK]
    assert ops(one(canonicalize, X[1::2, ::2][1:, 1::2])) == [Op.BUFFER, Op.SHRINK]
    assert ops(one(canonicalize, X.pad([(0, 3), (0, 0)], 2.0)[4:]))[0] is Op.CONST


# --- cancelling -------------------------------------------------------------------------------


def folds(tensor: Tensor, *, float_unsafe: bool = False) -> Node:
    return canonicalize([tensor.node], float_unsafe=float_unsafe)[tensor.node]


@pytest.mark.parametrize("tensor", [N * 0, 0 * N, N - N])
def test_integers_cancel_always(tensor: Tensor) -> None:
    found = one(canonicalize, tensor)
    assert toposort([found])[0].arg == 0
    assert N.node not in toposort([found])


PAD_ONLY = Tensor.input("b", (4, 5)).pad([(4, 0), (0, 0)])[:4]
UNSAFE: list[tuple[str, Callable[[], Tensor], Node | int]] = [
    ("x * 0", lambda: X * 0.0, 0),
    ("x * -0", lambda: X * -0.0, 0),
    ("x - x", lambda: X - X, 0),
    ("x / x", lambda: X / X, 1),
    ("(x * y) / y", lambda: (X * COLUMN) / COLUMN, X.node),
    ("(y * x) / y", lambda: (COLUMN * X) / COLUMN, X.node),
    ("x + 0", lambda: X + 0.0, X.node),
    ("times padding", lambda: X * PAD_ONLY, 0),
    ("plus nothing", lambda: X + COLUMN * 0.0, X.node),
]


@pytest.mark.parametrize(("build", "expected"), [u[1:] for u in UNSAFE], ids=[u[0] for u in UNSAFE])
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


def test_what_is_not_asked_for_keeps_infinities() -> None:
    bad = np.full((4, 5), np.inf, np.float32)
    (found,) = values([folds(X * 0.0)], {"x": bad})
    assert np.isnan(found).all()


def test_text_before_and_after() -> None:
    y = COLUMN.expand(4, 5).exp() + 2.0
    assert text(y.node) == (
        "%0 = buffer input c : float32[4, 1]\n"
        "%1 = expand (4, 5) (%0) : float32[4, 5]\n"
        "%2 = exp (%1) : float32[4, 5]\n"
        "%3 = const 2.0 : float32[]\n"
        "%4 = reshape (1, 1) (%3) : float32[1, 1]\n"
        "%5 = expand (4, 5) (%4) : float32[4, 5]\n"
        "%6 = add (%2, %5) : float32[4, 5]\n"
        "return %6"
    )
    assert text(one(canonicalize, y)) == (
        "%0 = buffer input c : float32[4, 1]\n"
        "%1 = exp (%0) : float32[4, 1]\n"
        "%2 = const 2.0 : float32[]\n"
        "%3 = reshape (1, 1) (%2) : float32[1, 1]\n"
        "%4 = expand (4, 1) (%3) : float32[4, 1]\n"
        "%5 = add (%1, %4) : float32[4, 1]\n"
        "%6 = expand (4, 5) (%5) : float32[4, 5]\n"
        "return %6"
    )
