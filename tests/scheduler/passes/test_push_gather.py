"""Gathers below arithmetic, and what both passes know of affine values."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.ir import dtype as dt
from scheduler.ir import index as ixs
from scheduler.ir.affine import depends, index_of, ranges_of, tensor_of, value_at
from scheduler.ir.node import Node, toposort
from scheduler.ir.ops import Op
from scheduler.ir.verify import verify
from scheduler.passes.push_gather import push_gather
from scheduler.tensor.tensor import Tensor
from tests.fuzz.draw import Draw
from tests.fuzz.graphs import programs
from tests.fuzz.program import Program
from tests.scheduler.passes.pass_check import check, index, values, weight
from tests.scheduler.support.programs import Array, program_of

N = 10
X = Tensor.input("x", (N, 4))
I = Tensor.input("i", (3,), dt.int32)  # noqa: E741  # an index
DATA = np.random.default_rng(3).standard_normal((N, 4)).astype(np.float32)


@settings(max_examples=150)
@given(programs(14))
def test_programs_keep_their_values(program: Program) -> None:
    check(push_gather, [t.node for t in program.tensors], program.inputs)


# --- gathers below arithmetic -----------------------------------------------------------------


def pushed(tensor: Tensor, inputs: Mapping[str, Array]) -> Node:
    node = tensor.node
    new = push_gather([node])[node]
    verify([new], "push_gather")
    before, after = values([node, new], inputs)
    assert after.tobytes() == before.tobytes()
    return new


def data_of_gathers(node: Node) -> set[Op]:
    """Return what gathers read, below movement."""
    found = set[Op]()
    for n in toposort([node]):
        if n.op is Op.GATHER:
            data = n.src[0]
            while data.op in (Op.RESHAPE, Op.PERMUTE, Op.EXPAND, Op.SHRINK, Op.FLIP):
                data = data.src[0]
            found.add(data.op)
    return found


ROW = Tensor.input("r", (1, 4))
BELOW = {
    "a chain": lambda: (X.exp() * 2.0 + 1.0).gather(I),
    "several operands": lambda: (X * Tensor.input("y", (N, 4)) + ROW).gather(I),
    "moved": lambda: (X.exp() + ROW).T.reshape(2, 2, N).gather(I, 2),
    "repeated": lambda: X.exp().reshape(N, 1, 4).expand(N, 3, 4).gather(I, 1),
    "columns": lambda: X.tanh().gather(index(3, 0), 1),
    "an index of two axes": lambda: X.exp().gather(Tensor.input("k", (2, 1), dt.int64)),
}


@pytest.mark.parametrize("name", BELOW)
def test_a_gather_moves_below_arithmetic(name: str) -> None:
    given = {"x": DATA, "i": np.array([1, -1, 0], np.int32)}
    given["k"] = np.array([[-N], [3]], np.int64)
    assert data_of_gathers(pushed(BELOW[name](), given)) <= {Op.BUFFER, Op.IOTA}


def shared() -> Tensor:
    value = X.exp()
    return value.gather(I).sum() + value.sum()


STAYS: dict[str, Callable[[], Tensor]] = {
    "more picked than there is": lambda: X.exp().gather(Tensor.input("k", (11,), dt.int32)),
    "expensive and needed elsewhere": shared,
    "a reduction": lambda: (X @ weight(4, 4)).relu().gather(I),
    "what depends on weights only": lambda: Tensor.weight(DATA).exp().gather(I),
    "nothing computed": lambda: X.T.gather(index(2, 0)),
}


@pytest.mark.parametrize("name", STAYS)
def test_a_gather_stays(name: str) -> None:
    node = STAYS[name]().node
    assert push_gather([node])[node] is node


def test_a_gathered_value_is_not_stored() -> None:
    big = Tensor.input("b", (2000, 64))
    made = program_of(big.exp().sin().log().tanh().gather(I))
    assert (made.launches, made.stored) == (1, [])
    assert made.plan.bytes_moved == 4 * (3 + 2 * 3 * 64)


# --- affine values -----------------------------------------------------------------------------


@given(st.integers(0, 2**32 - 1))
def test_an_affine_expression_is_the_values_of_its_tensor(seed: int) -> None:
    draw = Draw(seed)
    shape = (draw.integer(1, 4), draw.integer(1, 5), draw.integer(1, 3))
    ranges = ranges_of(shape)
    ix = ixs.constant(draw.integer(-9, 9))
    for r in ranges:
        ix = ixs.add(ix, ixs.mul(ixs.of(r), draw.integer(-3, 3)))
    node = tensor_of(ix, ranges, shape)
    grid = np.indices(shape)
    want = np.full(shape, ix.const)
    for atom, factor in ix.terms:
        want = want + factor * grid[ranges.index(atom)]
    np.testing.assert_array_equal(values([node], {})[0], want)
    assert value_at(node, index_of(ranges)) is ix


def test_values_that_are_not_affine() -> None:
    ranges = ranges_of((4,))
    at = index_of(ranges)
    iota = Tensor.arange(4)
    for tensor in (iota * iota, index(0, 1, 3, 4), iota.float() + 0.5, Tensor.input("k", (4,))):
        assert value_at(tensor.node, at) is None
    assert value_at((iota * 0.5).node, at) is None
    assert value_at(index(7, 5, 3, 1).node, at) is ixs.add(
        ixs.constant(7), ixs.mul(ixs.of(ranges[0]), -2)
    )


def test_axes_that_values_depend_on() -> None:
    ranges = ranges_of((N, 4))
    mixed = (X.T.T + Tensor.input("c", (N, 1)).expand(N, 4)).node
    assert depends(mixed, index_of(ranges)) == set(ranges)
    column = Tensor.input("c", (N, 1)).exp().expand(N, 4).node
    assert depends(column, index_of(ranges)) == {ranges[0]}
