"""The topological order of a graph: sources first, the same however often it is asked for."""

from __future__ import annotations

import gc
import weakref

from scheduler.ir.node import LONG_ORDER, RECENT_ORDERS, Node, toposort
from scheduler.tensor.tensor import Tensor


def chain(length: int, start: float = 0.0) -> Node:
    y = Tensor.input("x", (4,)) + start
    for i in range(length):
        y = (y * float(i + 2)).sin()
    return y.node


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


def test_an_order_asked_for_again_is_the_same() -> None:
    long = Tensor.of(chain(LONG_ORDER))
    roots = [(long.cos() + long).node, (long.exp() * 2.0).node, long.node, chain(3, 1.0)]
    for some in (roots, roots[::-1], roots[1:], roots[:1], [roots[0], roots[0]], roots):
        assert toposort(some) == plain_order(some)
    assert toposort([]) == []


def test_a_remembered_order_is_a_copy() -> None:
    root = chain(LONG_ORDER)
    first = toposort([root])
    first.clear()
    assert toposort([root]) == plain_order([root])


def test_no_order_keeps_a_graph_alive() -> None:
    roots = [chain(LONG_ORDER, float(i)) for i in range(2 * RECENT_ORDERS)]
    for root in roots:
        toposort([root])
    gone = [weakref.ref(root) for root in roots]
    del root, roots
    gc.collect()
    assert [r() for r in gone] == [None] * len(gone)
