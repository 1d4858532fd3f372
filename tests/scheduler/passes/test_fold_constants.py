"""Folding of constants: what depends on weights only is not computed at run time."""

from math import prod

import numpy as np
import pytest

from scheduler.ir import dtype as dt
from scheduler.ir.node import Node, toposort
from scheduler.ir.ops import ELEMENTWISE, MOVEMENT, Op
from scheduler.ir.origin import Origins
from scheduler.passes.fold_constants import MAX_GROWTH, fold_constants
from scheduler.pipeline import run_passes
from scheduler.tensor.tensor import Tensor
from tests.fuzz.graphs import programs
from tests.fuzz.program import Program
from tests.scheduler.passes.pass_check import EXAMPLES, check, for_all, weight


def folded(tensor: Tensor) -> Node:
    return fold_constants([tensor.node])[tensor.node]


def arithmetic_on_weights(root: Node) -> list[Node]:
    """Return arithmetic and reductions that read nothing of a run and do not grow too large.

    Halves are widened where they are read.
    """
    order = toposort([root])
    stored: dict[Node, int] = {}  # elements of the largest weight below
    for node in order:
        if node.op is Op.IOTA or (node.op is Op.BUFFER and node.arg.kind == "weight"):
            stored[node] = prod(node.shape)
        elif node.op is Op.CONST:
            stored[node] = 0
        elif node.op is not Op.CONTIGUOUS and node.src and all(s in stored for s in node.src):
            most = max(stored[s] for s in node.src)
            if node.op in MOVEMENT or prod(node.shape) <= MAX_GROWTH * max(1024, most):
                stored[node] = most
    found = [n for n in stored if n.op in ELEMENTWISE | {Op.REDUCE, Op.GATHER, Op.CAT}]
    return [
        n
        for n in found
        if not (n.op is Op.CAST and n.src[0].dtype is dt.float16 and n.dtype.is_float)
    ]


def network() -> Tensor:
    image = Tensor.input("image", (1, 4, 6, 6))
    y = image.conv2d(weight(8, 4, 3, 3) * 2.0, padding=1)
    y = y.batchnorm(weight(8), weight(8, seed=1), weight(8, seed=2), weight(8, seed=3).square())
    rows = Tensor.weight(np.array([1, 7, 2]))
    table = Tensor.cat([weight(4, 8), weight(4, 8, seed=1).exp()]).gather(rows, 0)
    return (y.mean((2, 3)) @ table.T).softmax()


def test_no_arithmetic_on_weights_is_left() -> None:
    before = network()
    assert len(arithmetic_on_weights(before.node)) > 5
    assert arithmetic_on_weights(folded(before)) == []
    assert arithmetic_on_weights(run_passes([before.node])[0]) == []


@EXAMPLES
def test_folding_keeps_values_and_leaves_no_arithmetic(examples: int) -> None:
    def keeps(program: Program) -> None:
        after = check(fold_constants, [t.node for t in program.tensors], program.inputs)
        assert [n for r in after for n in arithmetic_on_weights(r)] == []

    for_all(examples, programs(states=False), keeps)


def test_values_and_names_are_kept() -> None:
    scaled, origins = weight(4) * 3.0, Origins()
    origins.name([scaled.node], ("/bn/Mul",))
    root = (Tensor.input("x", (4,)) + scaled).node
    new = fold_constants([root])
    origins.follow(new)
    constant = new[root].src[1]
    assert constant.op is Op.BUFFER
    assert origins.of(constant) == ("/bn/Mul",)
    assert np.array_equal(constant.arg.data, scaled.interp())


@pytest.mark.parametrize("shape", [(), (1,), (2, 3)])
def test_the_shape_of_a_folded_value_is_its_own(shape: tuple[int, ...]) -> None:
    assert folded(-Tensor.full(shape, 2.0)).shape == shape


def test_an_expansion_is_not_stored() -> None:
    wide = weight(8).exp().reshape(8, 1).broadcast_to((8, 4096))
    node = folded(Tensor.input("x", (8, 4096)) + wide)
    stored = [n for n in toposort([node]) if n.op is Op.BUFFER and n.arg.kind == "weight"]
    assert [n.shape for n in stored] == [(8,)]


def test_states_and_pins_are_not_folded_integers_are() -> None:
    assert folded(Tensor.state("q", (4,)) * 2.0).op is Op.MUL
    assert folded(weight(4).contiguous() * 2.0).op is Op.MUL
    node = folded(Tensor.arange(6).cast(dt.int64).gather(Tensor.weight(np.array([5, 0])), 0))
    assert node.op is Op.BUFFER
    assert node.arg.data.tolist() == [5, 0]
