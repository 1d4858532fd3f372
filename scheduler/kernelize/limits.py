"""Keep kernels within what devices and compilers take: what is too large is split, not refused.

    s = a0 + a1 + ... + a511, at most 64 buffers     ->     partial sums of 63 terms are stored

Two limits: distinct buffers (each is a kernel argument, the output included) and fused operations
(compile time grows faster than they do).
"""

from __future__ import annotations

from collections.abc import Mapping

from scheduler.kernelize.uses import Region
from scheduler.node import Node
from scheduler.ops import ELEMENTWISE, MOVEMENT, Op

# PoCL passes 1024 bytes of parameters, 128 pointers; GPUs take at least as many.
MAX_BUFFERS = 64
# Fused operations per kernel; the largest of the example models has about 60.
MAX_OPERATIONS = 512


def nodes_to_store(regions: Mapping[Node, Region]) -> set[Node]:
    """Return nodes that must be stored so that every kernel is within limits; empty if all are.

    Args:
        regions: what is stored now.
    """
    found: set[Node] = set()
    for root in regions:
        fused = [n for n in _fused(root, regions) if n not in regions or n is root]
        found |= _split_buffers(root, fused, regions)
        operations = [n for n in fused if n.op in ELEMENTWISE and n is not root]
        if len(operations) > MAX_OPERATIONS:
            found.update(operations[MAX_OPERATIONS - 1 :: MAX_OPERATIONS])
    return found


def _fused(root: Node, regions: Mapping[Node, Region]) -> list[Node]:
    """Return what a kernel computes and reads, sources first."""
    order: list[Node] = []
    seen: set[Node] = set()
    stack: list[tuple[Node, bool]] = [(root, False)]
    while stack:
        node, ready = stack.pop()
        if ready:
            order.append(node)
            continue
        if node in seen:
            continue
        seen.add(node)
        stack.append((node, True))
        if node is root or node not in regions:
            stack.extend((s, False) for s in reversed(node.src))
    return order


def _split_buffers(root: Node, fused: list[Node], regions: Mapping[Node, Region]) -> set[Node]:
    """Return nodes of one kernel to store so that no value needs more than MAX_BUFFERS - 1."""
    reads: dict[Node, frozenset[Node]] = {}
    cut: set[Node] = set()
    for node in fused:
        if node.op is Op.BUFFER:
            reads[node] = frozenset({node})
            continue
        sources = [s for s in node.src if node.op is not Op.ASSIGN or s is not node.src[0]]
        needed = {s: reads.get(s, frozenset({s} if s in regions else ())) for s in sources}
        while len(frozenset().union(*needed.values())) > MAX_BUFFERS - 1:
            largest = max(needed, key=lambda s: len(needed[s]))
            if len(needed[largest]) <= 1:
                break  # a single operation over this many buffers: nothing below it to store
            below = _under_movement(largest)
            cut.add(below)
            needed[largest] = frozenset({below})
        reads[node] = frozenset().union(*needed.values())
    return cut - {root}


def _under_movement(node: Node) -> Node:
    while node.op in MOVEMENT and node.op is not Op.CAT:
        node = node.src[0]
    return node
