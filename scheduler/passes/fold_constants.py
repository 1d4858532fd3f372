"""Evaluates subgraphs of weights at compile time (constant folding).

conv(x, w * scale)          ->   conv(x, w')       w' = w * scale, computed once on the host
x + expand(reshape(b))      ->   x + expand(b')    the expansion costs nothing as an index
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from math import prod

import numpy as np

from scheduler.ir import dtype as dt
from scheduler.ir import interp
from scheduler.ir.build import new_weight
from scheduler.ir.node import Node, Readers, is_weight, toposort
from scheduler.ir.ops import MOVEMENT, Op
from scheduler.ir.rewrite import unchanged, with_sources

# The largest allowed ratio of a folded value's elements to those of its inputs.
MAX_GROWTH = 4
_NEVER = frozenset({Op.BUFFER, Op.ASSIGN, Op.CONTIGUOUS, Op.CUSTOM})


def _is_free(node: Node) -> bool:
    """Whether folding this node gains nothing; a widened fp16 weight would double its memory."""
    widens = node.op is Op.CAST and node.src[0].dtype is dt.float16 and node.dtype.is_float
    return (
        widens
        or node.op in (Op.BUFFER, Op.CONST, Op.IOTA)
        or (node.op in MOVEMENT and node.op is not Op.CAT)
    )


def fold_constants(roots: Sequence[Node]) -> dict[Node, Node]:
    """Return old node -> new node, with subgraphs of weights only replaced by weights."""
    order = toposort(roots)
    constant = _constants(order)
    candidates = [n for n in order if n in constant and not _is_free(n)]
    if not candidates:
        return unchanged(order)
    readers = Readers.of(order, roots)
    wanted = [n for n in candidates if _is_boundary(n, readers, constant)]
    values = dict(zip(wanted, interp.evaluate(wanted), strict=True))
    new: dict[Node, Node] = {}
    for node in order:
        if node in values:
            data = np.asarray(values[node], order="C")
            new[node] = new_weight(data, node.dtype)
        else:
            new[node] = with_sources(node, new)
    return new


def _constants(order: Sequence[Node]) -> dict[Node, int]:
    """Return the foldable nodes, each with the elements of the largest weight or iota below it."""
    found: dict[Node, int] = {}
    for node in order:
        if node.op is Op.CONST:
            found[node] = 0
        elif node.op is Op.IOTA or is_weight(node):
            found[node] = prod(node.shape)
        elif node.op not in _NEVER and all(map(found.__contains__, node.src)):
            stored = max((found[s] for s in node.src), default=0)
            if _is_free(node) or prod(node.shape) <= MAX_GROWTH * max(1024, stored):
                found[node] = stored
    return found


def _is_boundary(node: Node, readers: Readers, constant: Container[Node]) -> bool:
    """Whether a constant node has a reader that is not folded into a larger constant."""
    if node in readers.roots:
        return True
    stack = list(readers.users[node])
    seen: set[Node] = set()
    while stack:
        user = stack.pop()
        if user in seen:
            continue
        seen.add(user)
        if user not in constant or user in readers.roots:
            return True
        if _is_free(user):
            stack.extend(readers.users[user])
    return False
