"""Folding of constants: what depends on weights only is not computed at run time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from scheduler.ir import dtype as dt
from scheduler.ir import interp
from scheduler.ir.node import Node, toposort
from scheduler.ir.ops import ELEMENTWISE, Op
from scheduler.ir.origin import Origins
from scheduler.passes.fold_constants import fold_constants
from scheduler.pipeline import run_passes
from scheduler.tensor.tensor import Tensor
from tests.scheduler.strategies import Program, programs

RNG = np.random.default_rng(0)


def weight(*shape: int) -> Tensor:
    return Tensor.weight(RNG.standard_normal(shape).astype(np.float32))


def folded(tensor: Tensor) -> Node:
    return fold_constants([tensor.node])[tensor.node]


def arithmetic_on_weights(root: Node) -> list[Node]:
    """Return arithmetic and reductions that read nothing of a run."""
    order = toposort([root])
    fixed: dict[Node, bool] = {}
    for node in order:
        is_weight = node.op is Op.BUFFER and node.arg.kind == "weight"
        leaf = is_weight or node.op in (Op.CONST, Op.IOTA)
        fixed[node] = leaf or (bool(node.src) and all(fixed[s] for s in node.src))
    wanted = ELEMENTWISE | {Op.REDUCE, Op.GATHER, Op.CAT}
    return [n for n in order if fixed[n] and n.op in wanted]


def network() -> Tensor:
    image = Tensor.input("image", (1, 4, 6, 6))
    y = image.conv2d(weight(8, 4, 3, 3) * 2.0, padding=1)
    y = y.batchnorm(weight(8), weight(8), weight(8), weight(8).square())
    rows = Tensor.weight(np.array([1, 7, 2]))
    table = Tensor.cat([weight(4, 8), weight(4, 8).exp()]).gather(rows, 0)
    return (y.mean((2, 3)) @ table.T).softmax()


def test_no_arithmetic_on_weights_is_left() -> None:
    before = network()
    assert len(arithmetic_on_weights(before.node)) > 5
    assert arithmetic_on_weights(folded(before)) == []
    assert arithmetic_on_weights(run_passes([before.node])[0]) == []


@settings(max_examples=200)
@given(programs(states=False))
def test_folding_keeps_every_bit_and_leaves_no_arithmetic(program: Program) -> None:
    roots = [t.node for t in program.outputs.values()]
    new = fold_constants(roots)
    given = {
        n.arg: program.inputs[n.arg.name]
        for n in toposort(roots)
        if n.op is Op.BUFFER and n.arg.kind == "input"
    }
    after = [new[r] for r in roots]
    for old, now in zip(interp.evaluate(roots, given), interp.evaluate(after, given), strict=True):
        assert (old.dtype, old.shape) == (now.dtype, now.shape)
        assert old.tobytes() == now.tobytes()
    assert [n for r in after for n in arithmetic_on_weights(r)] == []


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
    node = folded(-Tensor.full(shape, 2.0))
    assert node.shape == shape


def test_an_expansion_is_not_stored() -> None:
    wide = weight(8).exp().reshape(8, 1).broadcast_to((8, 4096))
    node = folded(Tensor.input("x", (8, 4096)) + wide)
    stored = [n for n in toposort([node]) if n.op is Op.BUFFER and n.arg.kind == "weight"]
    assert [n.shape for n in stored] == [(8,)]


def test_states_and_pins_are_not_folded() -> None:
    state = Tensor.state("q", (4,))
    assert folded(state * 2.0).op is Op.MUL
    pinned = folded(weight(4).contiguous() * 2.0)
    assert pinned.op is Op.MUL


def test_integers_and_bits_fold_too() -> None:
    node = folded(Tensor.arange(6).cast(dt.int64).gather(Tensor.weight(np.array([5, 0])), 0))
    assert node.op is Op.BUFFER
    assert node.arg.data.tolist() == [5, 0]
