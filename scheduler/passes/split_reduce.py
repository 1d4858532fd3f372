"""The pass splits long reductions into two stages; the first has work for every core.

    sum(x (n,))                      ->   sum(contiguous(sum(reshape(x, (d, n/d)), 1)))
    max(x (r, c) / sum(x, 1), all)   ->   max(contiguous(max(x / sum(x, 1), 1)), 0)

If the reduced value depends on reductions of rows, the first stage reduces the same rows, and one
kernel does both. Otherwise d is the largest divisor of a reduced axis from MIN_PARTS to MAX_PARTS.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from scheduler.ir.node import Node, make
from scheduler.ir.ops import ELEMENTWISE, Op
from scheduler.ir.rewrite import Rewriter, Rule

THRESHOLD = 32768  # elements per result; tinygrad splits from the same number on
# By hand: enough for a CPU's cores or a GPU's groups, few enough for a cheap second stage.
MAX_PARTS = 256
MIN_PARTS = 8
# Nodes looked at below a long reduction.
MAX_WALK = 64


def _split(node: Node) -> Node | None:
    op, axes = node.arg
    source = node.src[0]
    if prod(source.shape) < THRESHOLD * max(1, prod(node.shape)):
        return None
    rows = _row_axes(node)
    if rows:
        first = make(Op.REDUCE, node.dtype, (source,), (op, rows))
        stored = make(Op.CONTIGUOUS, node.dtype, (first,))
        return make(Op.REDUCE, node.dtype, (stored,), (op, tuple(a for a in axes if a not in rows)))
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


def _row_axes(node: Node) -> tuple[int, ...]:
    """Return the axes that an inner reduction shares with the outer one, if many rows are left."""
    axes: tuple[int, ...] = node.arg[1]
    shape = node.src[0].shape
    stack, seen = [node.src[0]], set[Node]()
    while stack and len(seen) < MAX_WALK:
        inner = stack.pop()
        if inner in seen:
            continue
        seen.add(inner)
        if inner.op is Op.REDUCE and inner.src[0].shape == shape:
            rows = tuple(a for a in inner.arg[1] if shape[a] > 1)
            parts = prod(shape) // max(1, prod(shape[a] for a in rows))
            if set(rows) < set(axes) and MIN_PARTS <= parts <= THRESHOLD:
                return rows
        elif inner.op in ELEMENTWISE or inner.op is Op.EXPAND:
            stack.extend(reversed(inner.src))
    return ()


RULES = (Rule("split reduction", (Op.REDUCE,), _split),)


def split_reduce(roots: Sequence[Node]) -> dict[Node, Node]:
    """Return old node -> new node with long reductions split in two stages."""
    return Rewriter(RULES)(roots)
