"""The topological order of a graph: sources first, from left to right."""

from __future__ import annotations

from scheduler.ir.node import Node, toposort
from scheduler.tensor.tensor import Tensor


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
    y = Tensor.input("x", (4,))
    for i in range(100):
        y = (y * float(i + 2)).sin() + y
    roots = [(y.cos() + y).node, (y.exp() * 2.0).node, y.node]
    for some in (roots, roots[::-1], roots[1:], roots[:1], [roots[0], roots[0]]):
        assert toposort(some) == plain_order(some)
    assert toposort([]) == []
