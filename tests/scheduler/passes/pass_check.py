"""What the tests of graph passes share: run a pass, and compare values before and after."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np
import pytest
from _pytest.mark import ParameterSet
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.device.spec import DEFAULT
from scheduler.ir import interp
from scheduler.ir.node import Buffer, Node, toposort
from scheduler.ir.ops import Op
from scheduler.ir.verify import verify
from scheduler.passes.batch_branches import batch_branches
from scheduler.tensor.tensor import Tensor
from tests.fuzz.compare import Counts, difference
from tests.fuzz.draw import Draw
from tests.fuzz.judge import Judge
from tests.fuzz.program import Program
from tests.scheduler.support.programs import Array

T = TypeVar("T")
Pass = Callable[[Sequence[Node]], Mapping[Node, Node]]


def weight(*shape: int, seed: int = 0) -> Tensor:
    """Return a weight of random values, different ones for each seed."""
    return Tensor.weight(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def batched(roots: Sequence[Node]) -> dict[Node, Node]:
    """Batch branches by the costs of the first row."""
    return batch_branches(roots, DEFAULT.costs)


def index(*rows: int) -> Tensor:
    return Tensor.weight(np.array(rows, np.int32))


def values(roots: Sequence[Node], inputs: Mapping[str, Array]) -> list[Array]:
    """Evaluate nodes with the values of `given_to`."""
    return interp.evaluate(roots, given_to(roots, inputs))


def given_to(roots: Sequence[Node], inputs: Mapping[str, Array]) -> dict[Buffer, Array]:
    """Return values of buffers: inputs without a given value get random ones, states zeros."""
    found: dict[Buffer, Array] = {}
    for node in toposort(roots):
        if node.op is not Op.BUFFER or node.arg.data is not None:
            continue
        buffer = node.arg
        if buffer.name in inputs:
            found[buffer] = inputs[buffer.name]
        elif buffer.kind == "state":
            found[buffer] = np.zeros(buffer.shape, buffer.dtype.np)
        else:
            rng = np.random.default_rng(sum(buffer.name.encode()))
            found[buffer] = rng.integers(-8, 9, buffer.shape).astype(buffer.dtype.np)
    return found


def check(
    apply: Pass, roots: Sequence[Node], inputs: Mapping[str, Array] | None = None
) -> list[Node]:
    """Run a pass, check that values stay, and return the new roots.

    What is exact must stay exact; what is rounded may change by what rounding explains.
    """
    new = apply(roots)
    now = [new[r] for r in roots]
    verify(now, "the pass")
    fed = given_to(roots, inputs or {})
    judge = Judge({buffer.name: value for buffer, value in fed.items()})
    for root, found in zip(roots, interp.evaluate(now, fed), strict=True):
        assert difference(found, judge.of(root), Counts()) == ""
    return now


def one(apply: Pass, tensor: Tensor) -> Node:
    """Run a pass on one tensor, check its values, and return the new node."""
    (found,) = check(apply, [tensor.node])
    return found


Build = Callable[[], Tensor | Sequence[Tensor]]


def row(name: str, build: Build, **counts: int) -> ParameterSet:
    """Return a row of `rows`: a program, and how many nodes of some ops the pass leaves in it.

    Without counts the pass leaves the program alone.
    """
    return pytest.param(build, counts, id=name)


def rows(*table: ParameterSet) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("build", "counts"), table)


def check_row(apply: Pass, build: Build, counts: Mapping[str, int]) -> None:
    made = build()
    roots = [t.node for t in ([made] if isinstance(made, Tensor) else made)]
    if not counts:
        new = apply(roots)
        assert all(new[r] is r for r in roots)
        return
    found = check(apply, roots)
    assert {name: ops(*found).count(Op[name]) for name in counts} == counts


# A few examples of a random test, and many where there is time.
EXAMPLES = pytest.mark.parametrize("examples", [15, pytest.param(300, marks=pytest.mark.slow)])


def for_all(examples: int, strategy: st.SearchStrategy[T], test: Callable[[T], None]) -> None:
    settings(max_examples=examples)(given(strategy)(test))()


def ops(*roots: Node) -> list[Op]:
    return [n.op for n in toposort(roots)]


def sliced(program: Program, seed: int) -> list[Node]:
    """Return the outputs of a program, some of them cut at random, and its state writes."""
    draw = Draw(seed)
    roots: list[Node] = []
    for tensor in program.outputs.values():
        key: list[slice] = []
        for size in tensor.shape:
            start = draw.integer(0, size - 1)
            stop = draw.integer(start + 1, size)
            key.append(slice(start, stop, draw.integer(1, 2)) if draw.flag() else slice(None))
        roots.append(tensor[tuple(key)].node)
    return [*roots, *(w.node for w in program.writes.values())]
