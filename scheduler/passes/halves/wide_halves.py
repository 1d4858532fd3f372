"""The pass computes what a model calls halves in float32, and rounds only where that decides.

x + y             ->  float(x) + float(y)              halves that nobody has to see are not made
w (half)          ->  w (float32), the same numbers    stored as halves again where that costs less
input, state      ->  float(input)                     memory outside keeps its type
output            ->  half(value)                      rounded once
floor(x + y)      ->  floor(half(x + y))               what decides sees what the model says
half(x)           ->  float(half(x))                   a conversion that is asked for rounds

Values are float32 wherever kernels are cut, so cuts do not change them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scheduler.ir import dtype as dt
from scheduler.ir.build import as_type
from scheduler.ir.node import Buffer, Node, const, is_weight, make, toposort
from scheduler.ir.ops import ROUNDED, Op
from scheduler.ir.rewrite import remake, unchanged
from scheduler.ir.rounding import Effect, effect, upstream
from scheduler.passes.halves.exact_halves import round_double
from scheduler.passes.halves.keep_float import decided_by

# Memory whose type somebody else has fixed.
_FIXED = frozenset({Op.BUFFER, Op.ASSIGN, Op.RESULT, Op.BITCAST})


def wide_halves(roots: Sequence[Node]) -> dict[Node, Node]:
    """Return old node -> new node; roots keep their types, other halves become float32."""
    order = toposort(roots)
    new = unchanged(order)
    if not any(node.dtype is dt.float16 for node in order):
        return new
    pinned = upstream(order, decided_by(order), _keeps)
    for node in order:
        if any(new[s] is not s for s in node.src) or node.dtype is dt.float16:
            new[node] = _wide(node, [new[s] for s in node.src], is_pinned=node in pinned)
    return new | {root: _as_stored(new[root], root) for root in roots}


def _keeps(node: Node) -> bool:
    """Whether a change of an operand is one of the result that may decide about a whole step."""
    to_half = node.op is Op.CAST and node.dtype is dt.float16
    return to_half or effect(node) in (Effect.PASSES, Effect.SMOOTH)


def _wide(node: Node, src: list[Node], *, is_pinned: bool) -> Node:
    """Return a node over wide sources: float32 for halves, else of its own type."""
    if is_weight(node):
        return _widened_weight(node)
    if node.op is Op.CUSTOM:
        return remake(node, tuple(map(_as_stored, src, node.src)))
    if node.dtype is not dt.float16:
        stored = node.op in (Op.BITCAST, Op.ASSIGN)
        return remake(node, tuple(map(_as_stored, src, node.src)) if stored else tuple(src))
    if node.op in _FIXED:
        return as_type(remake(node, tuple(map(_as_stored, src, node.src))), dt.float32)
    if node.op is Op.CONST:
        return const(node.arg, dt.float32)
    if node.op is Op.CAST:
        if src[0].dtype is dt.float64:
            return as_type(round_double(src[0]), dt.float32)
        # Integers of one byte are halves.
        is_pinned = (is_pinned or node.arg == ROUNDED) and src[0].dtype.itemsize > 1
        made = as_type(src[0], dt.float32)
    else:
        made = make(node.op, dt.float32, tuple(src), node.arg)
    return as_type(as_type(made, dt.float16), dt.float32) if is_pinned else made


def _as_stored(wide: Node, old: Node) -> Node:
    """Return the new form of a node in the type that it had."""
    if wide.dtype is old.dtype:
        return wide
    if wide.op is Op.CAST and wide.src[0].dtype is old.dtype:
        return wide.src[0]
    return as_type(wide, old.dtype)


def _widened_weight(node: Node) -> Node:
    """Return a weight of halves as one of float32, with the same name and numbers."""
    old: Buffer = node.arg
    wide = Buffer(
        "weight", old.name, old.shape, dt.float32, np.asarray(old.data).astype(np.float32)
    )
    return make(Op.BUFFER, dt.float32, (), wide)
