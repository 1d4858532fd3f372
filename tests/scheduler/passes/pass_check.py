"""What the tests of graph passes share: run a pass, and compare values before and after."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from scheduler.debug.pretty import pretty
from scheduler.ir import dtype as dt
from scheduler.ir import interp
from scheduler.ir.node import Buffer, Node, make, toposort
from scheduler.ir.ops import Op
from scheduler.ir.verify import verify
from scheduler.tensor.tensor import Tensor
from tests.fuzz.compare import Counts, difference
from tests.fuzz.draw import Draw
from tests.fuzz.judge import Judge
from tests.fuzz.program import Program
from tests.scheduler.support.programs import Array

Pass = Callable[[Sequence[Node]], Mapping[Node, Node]]


def weight(*shape: int, seed: int = 0) -> Tensor:
    """Return a weight of random values, different ones for each seed."""
    data = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return Tensor.of(
        make(Op.BUFFER, dt.float32, (), Buffer("weight", "", data.shape, dt.float32, data))
    )


def index(*rows: int) -> Tensor:
    """Return known indices."""
    data = np.array(rows, np.int32)
    return Tensor.of(
        make(Op.BUFFER, dt.int32, (), Buffer("weight", "", data.shape, dt.int32, data))
    )


def same(got: Array, expected: Array, scale: float) -> bool:
    """Whether two arrays agree: integers exactly, floats within 1e-5 of the largest magnitude."""
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return False
    if expected.dtype.kind != "f":
        return bool(np.array_equal(got, expected))
    return bool(np.allclose(got, expected, rtol=1e-5, atol=1e-5 * max(1.0, scale), equal_nan=True))


def values(roots: Sequence[Node], inputs: Mapping[str, Array]) -> list[Array]:
    """Evaluate nodes with the values of `given_to`."""
    return interp.evaluate(roots, given_to(roots, inputs))


def given_to(roots: Sequence[Node], inputs: Mapping[str, Array]) -> dict[Buffer, Array]:
    """Return values of buffers: inputs without a given value get random ones, states zeros."""
    given: dict[Buffer, Array] = {}
    for node in toposort(roots):
        if node.op is not Op.BUFFER or node.arg.data is not None:
            continue
        buffer = node.arg
        if buffer.name in inputs:
            given[buffer] = inputs[buffer.name]
        elif buffer.kind == "state":
            given[buffer] = np.zeros(buffer.shape, buffer.dtype.np)
        else:
            rng = np.random.default_rng(sum(buffer.name.encode()))
            given[buffer] = rng.integers(-8, 9, buffer.shape).astype(buffer.dtype.np)
    return given


def check(
    apply: Pass, roots: Sequence[Node], inputs: Mapping[str, Array] | None = None
) -> list[Node]:
    """Run a pass, check that values stay, and return the new roots.

    What is exact must stay exact; what is rounded may change by what rounding explains.
    """
    new = apply(roots)
    now = [new[r] for r in roots]
    verify(now, "the pass")
    given = given_to(roots, inputs or {})
    judge = Judge({buffer.name: value for buffer, value in given.items()})
    for root, found in zip(roots, interp.evaluate(now, given), strict=True):
        assert difference(found, judge.of(root), Counts()) == ""
    return now


def one(apply: Pass, tensor: Tensor) -> Node:
    """Run a pass on one tensor, check its values, and return the new node."""
    (found,) = check(apply, [tensor.node])
    return found


def text(node: Node) -> str:
    """Return a graph as text, without names: interned nodes keep those of their first maker."""
    return re.sub(r"  # .*", "", pretty([node]))


def ops(*roots: Node) -> list[Op]:
    """Return the ops of a graph, sources first."""
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
