"""Reduce very long rows in two stages, so that the first has work for every core.

    sum(x (n,))     ->   sum(contiguous(sum(reshape(x, (d, n/d)), 1)))     d partial sums

Applies where one result reduces THRESHOLD elements or more. d is the largest divisor of a reduced
axis up to MAX_PARTS (and at least MIN_PARTS; without one the reduction stays whole).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from scheduler.node import Node, make
from scheduler.ops import Op
from scheduler.rewrite import Rewriter, Rule

THRESHOLD = 32768  # elements per result; as the peers use it
MAX_PARTS = 256
MIN_PARTS = 8


def _split(node: Node) -> Node | None:
    op, axes = node.arg
    source = node.src[0]
    if prod(source.shape) < THRESHOLD * max(1, prod(node.shape)):
        return None
    for axis in axes:
        size = source.shape[axis]
        parts = next(
            (d for d in range(min(MAX_PARTS, size // 2), MIN_PARTS - 1, -1) if size % d == 0), None
        )
        if parts is not None:
            break
    else:
        return None
    shape = (*source.shape[:axis], parts, size // parts, *source.shape[axis + 1 :])
    wide = make(Op.RESHAPE, node.dtype, (source,), shape)
    moved = tuple(a if a < axis else a + 1 for a in axes)
    first = make(Op.REDUCE, node.dtype, (wide,), (op, moved))
    stored = make(Op.CONTIGUOUS, node.dtype, (first,))
    second = make(Op.REDUCE, node.dtype, (stored,), (op, (axis,)))
    return make(Op.RESHAPE, node.dtype, (second,), node.shape)


RULES = (Rule("split reduction", (Op.REDUCE,), _split),)


def split_reduce(roots: Sequence[Node]) -> dict[Node, Node]:
    """Return old node -> new node with long reductions split in two stages."""
    return Rewriter(RULES)(roots)
