"""Join many tensors in stages, so that no kernel needs more arguments than devices take.

cat(x0 ... x69)     ->     cat(cat(x0 ... x31), cat(x32 ... x63), cat(x64 ... x69))
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.node import Node, make
from scheduler.ops import Op
from scheduler.rewrite import Rewriter, Rule

MAX_SOURCES = 32


def _split(node: Node) -> Node | None:
    if len(node.src) <= MAX_SOURCES:
        return None
    groups = [node.src[i : i + MAX_SOURCES] for i in range(0, len(node.src), MAX_SOURCES)]
    joined = [
        g[0]
        if len(g) == 1
        else make(Op.CONTIGUOUS, node.dtype, (make(Op.CAT, node.dtype, g, node.arg),))
        for g in groups
    ]
    return make(Op.CAT, node.dtype, tuple(joined), node.arg)


RULES = (Rule("split cat", (Op.CAT,), _split),)


def split_cat(roots: Sequence[Node]) -> dict[Node, Node]:
    """Return old node -> new node with wide joins split in stages."""
    return Rewriter(RULES)(roots)
