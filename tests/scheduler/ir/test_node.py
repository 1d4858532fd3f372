"""Nodes and what they are kept in: shared, told apart, in order, and let go."""

import gc

import numpy as np

from scheduler.ir import dtype as dt
from scheduler.ir import node as nodes
from scheduler.ir.custom_kernel import read_source
from scheduler.ir.node import Interned, Node, const, toposort
from scheduler.tensor.tensor import Tensor
from tests.scheduler.support.programs import floats, program_of, x


def test_a_program_written_twice_is_one_graph() -> None:
    a, w = x(8, 16), Tensor.weight(floats(16, 4))

    def head() -> Tensor:
        return ((a @ w).relu() * 0.5).softmax()

    assert head().node is head().node
    once, twice = program_of(head().flip(0)), program_of(head().flip(0) + head())
    assert twice.launches <= once.launches + 1
    assert twice.source.count("exp(") <= 2 * once.source.count("exp(")


def test_what_differs_is_told_apart() -> None:
    a = x(3)
    assert (a + 0.0).node is not (a + -0.0).node
    assert const(1, dt.int32) is not const(True, dt.bool_)
    assert const(0.0, dt.float32) is not const(-0.0, dt.float32)
    assert const(float("nan"), dt.float32) is const(float("nan"), dt.float32)
    assert const(0.1, dt.float32).arg == float(np.float32(0.1))
    assert a.node is not x(3).node  # two inputs, though they have one name
    assert a.sum(0).node is not a.max(0).node


def test_a_million_paths_are_as_many_nodes_as_there_are_operations() -> None:
    y = x(4)
    for _ in range(40):
        y = y + y
    assert len(toposort([y.node])) == 41


def test_nodes_nobody_holds_are_let_go() -> None:
    gc.collect()
    before = len(nodes._interned)
    y = x(4)
    for i in range(100):
        y = y * float(i + 2)
    assert len(nodes._interned) >= before + 200
    del y
    gc.collect()
    assert len(nodes._interned) <= before


class Thing:
    """Something that can be held weakly."""


def test_a_structure_is_one_object_while_somebody_holds_it() -> None:
    table: Interned[Thing] = Interned()
    assert table.get(("a", 1)) is None
    held = table["a", 1] = Thing()
    table["b", 2] = Thing()
    gc.collect()
    assert table.get(("a", 1)) is held
    assert table.get(("b", 2)) is None
    assert len(table) == 1
    again = table["a", 1] = Thing()  # outlives the one before
    del held
    gc.collect()
    assert table.get(("a", 1)) is again
    del again
    gc.collect()
    assert len(table) == 0


def plain_order(roots: list[Node]) -> list[Node]:
    """Return the order by the definition: each root after what is below it, left to right."""
    order: dict[Node, None] = {}
    for root in roots:
        stack = [(root, False)]
        while stack:
            node, ready = stack.pop()
            if ready:
                order.setdefault(node)
            elif node not in order:
                stack.append((node, True))
                stack.extend((s, False) for s in reversed(node.src))
    return list(order)


def test_the_order_is_that_of_the_definition() -> None:
    y = x(4)
    for i in range(100):
        y = (y * float(i + 2)).sin() + y
    roots = [(y.cos() + y).node, (y.exp() * 2.0).node, y.node]
    for some in (roots, roots[::-1], roots[1:], roots[:1], [roots[0], roots[0]]):
        assert toposort(some) == plain_order(some)
    assert toposort([]) == []


def test_what_the_source_of_a_custom_kernel_says_of_itself() -> None:
    text = """__local float4 a[2][16]; local int b[3];
    /* __local float c[100]; */ // double, barrier
    float d[7]; __local mine e[4]; barrier(CLK_LOCAL_MEM_FENCE);"""
    source = read_source("k", text)
    assert (source.local_bytes, source.work_group) == (2 * 16 * 16 + 3 * 4, True)
    assert not source.float64
    source = read_source("k", "double2 locals = 1; out0[get_global_id(0)] = locals.x;")
    assert (source.local_bytes, source.work_group) == (0, False)
    assert source.float64
