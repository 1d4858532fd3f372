"""Evaluate at compile time what depends on weights only.

    conv(x, w * scale)          ->   conv(x, w')       w' = w * scale, computed once on the host
    x + expand(reshape(b))      ->   x + expand(b')    the expansion stays an index: it is free

Refuses: results larger than their inputs (an expansion is not stored), anything reading an input or
a state.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from scheduler import interp
from scheduler.node import Buffer, Node, consumers, make, toposort
from scheduler.ops import MOVEMENT, Op
from scheduler.rewrite import remake

# A folded value may be this much larger than what it is made of.
MAX_GROWTH = 4


def _is_free(node: Node) -> bool:
    """Whether a node is worth nothing to fold by itself."""
    return node.op in (Op.BUFFER, Op.CONST, Op.IOTA) or (
        node.op in MOVEMENT and node.op is not Op.CAT
    )


def fold_constants(roots: Sequence[Node]) -> dict[Node, Node]:
    """Return old node -> new node with weight-only subgraphs replaced by weights."""
    order = toposort(roots)
    constant: dict[Node, bool] = {}
    stored: dict[Node, int] = {}  # elements of the largest weight or ramp below a node
    for node in order:
        own = prod(node.shape) if node.op in (Op.BUFFER, Op.IOTA) else 0
        stored[node] = max([own, *(stored[s] for s in node.src)])
        if node.op is Op.BUFFER:
            constant[node] = node.arg.kind == "weight"
        elif node.op in (Op.CONST, Op.IOTA):
            constant[node] = True
        else:
            constant[node] = node.op not in (Op.ASSIGN, Op.CONTIGUOUS, Op.CUSTOM) and all(
                constant[s] for s in node.src
            )
            if not _is_free(node) and prod(node.shape) > MAX_GROWTH * max(1024, stored[node]):
                constant[node] = False
    users = consumers(order)
    wanted = [
        n
        for n in order
        if constant[n] and not _is_free(n) and _is_boundary(n, users, constant, set(roots))
    ]
    values = dict(zip(wanted, interp.evaluate(wanted), strict=True))
    new: dict[Node, Node] = {}
    for node in order:
        if node in values:
            data = np.ascontiguousarray(values[node]).reshape(node.shape)  # it lifts () to (1,)
            folded = make(
                Op.BUFFER, node.dtype, (), Buffer("weight", "", data.shape, node.dtype, data)
            )
            folded.origin = node.origin
            new[node] = folded
        else:
            src = tuple(new[s] for s in node.src)
            new[node] = node if src == node.src else remake(node, src)
    return new


def _is_boundary(
    node: Node, users: dict[Node, list[Node]], constant: dict[Node, bool], roots: set[Node]
) -> bool:
    """Whether a constant node is read by something that is not folded into a larger constant."""
    if node in roots:
        return True
    stack = list(users[node])
    seen: set[Node] = set()
    while stack:
        user = stack.pop()
        if user in seen:
            continue
        seen.add(user)
        if not constant[user] or user in roots:
            return True
        if _is_free(user):
            stack.extend(users[user])
    return False
