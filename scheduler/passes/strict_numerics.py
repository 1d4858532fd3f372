"""Makes results the same bits on every processor (`--numerics strict`).

`canonical_sums` fixes the order of float sums and products. A product that is summed is fused with
the addition, which rounds once:

    sum(x, axes)         ->   sum(x, axes in order, parts) + 0.0
    sum(a * b, axes)     ->   sum(fused a * b, axes in order, parts) + 0.0
    max(x, axes)         ->   max(x, axes) + 0.0

`scheduler.ir.ops` defines the orders and the parts (partial sums). Both depend only on the graph,
never on the device. Adding 0.0 turns -0.0 into 0.0. Otherwise the sign of a zero would depend on
whether terms known to be 0 are added, and on which of two zeros a maximum returns.

`fixed_values` fixes results that the standards leave open: the bits of NaN, and casts of
out-of-range floats:

    output x, state x, bits of x     ->   x != x ? NaN : x
    cast(x, int)                     ->   cast(x != x ? 0 : min(max(x, smallest), largest), int)
"""

from __future__ import annotations

from collections.abc import Sequence
from math import nan, prod
from typing import Final

import numpy as np

from scheduler.errors import SchedulerError
from scheduler.ir import dtype as dt
from scheduler.ir import index as ixs
from scheduler.ir.affine import depends, index_of, ranges_of
from scheduler.ir.build import as_type, like, number
from scheduler.ir.dtype import DType, max_value, min_value
from scheduler.ir.index import Atom
from scheduler.ir.movement import MOVES, Index, source_index
from scheduler.ir.node import Node, alu, is_weight, make, toposort
from scheduler.ir.ops import FUSED, MOVEMENT, PARTS, Op
from scheduler.ir.rewrite import unchanged, with_sources

# Axes up to this size count as axes of a convolution's window, and are summed before longer ones.
SHORT: Final = 7
# From this many results along an axis of a weight, lanes run over results.
LEAST_RESULTS: Final = 4
# Packing a factor pays from this many products on, if the sums are shorter than LONG_SUM.
MANY_PRODUCTS: Final = 1 << 20
LONG_SUM: Final = 128
# For float64, these functions come from the device's library, and libraries differ.
LIBRARY = frozenset({Op.EXP, Op.LOG, Op.SIN, Op.COS, Op.TANH, Op.ERF, Op.GELU, Op.POW})
_KEEPS = MOVEMENT | {Op.CONTIGUOUS, Op.GATHER}


def canonical_sums(roots: Sequence[Node]) -> dict[Node, Node]:
    """Return old node -> new node with a fixed order for all float sums and products."""
    order = toposort(roots)
    new = unchanged(order)
    for node in order:
        current = with_sources(node, new)
        if node.op is Op.REDUCE and node.dtype.is_float:
            current = _ordered(current)
        new[node] = current
    return new


def _ordered(node: Node) -> Node:
    """Return a reduction with a fixed order of axes and parts."""
    op, axes = node.arg
    shape = node.src[0].shape
    moving = [a for a in axes if shape[a] > 1]
    if not moving:
        return node
    if op in (Op.ADD, Op.MUL):
        order = tuple(sorted(moving, key=lambda a: (shape[a] > SHORT, a)))
        source = node.src[0]
        parts = PARTS if shape[order[-1]] >= PARTS and _is_in_rows(source, order) else 1
        if op is Op.ADD and source.op is Op.MUL:
            source = like(source, Op.MUL, source.src, FUSED)
        node = like(node, Op.REDUCE, (source,), (op, order, parts))
    if op is Op.MUL:
        return node
    wide = as_type(node, dt.float32) if node.dtype is dt.float16 else node
    return as_type(alu(Op.ADD, wide, number(0.0, wide)), node.dtype)


def _is_in_rows(source: Node, order: Sequence[int]) -> bool:
    """Whether all factors of a sum can be read consecutively along its last summed axis.

    Lanes then run along that axis and hold partial sums. Otherwise they run over results.
    """
    if source.op is not Op.MUL or source.src[0] is source.src[1]:
        return True
    ranges = ranges_of(source.shape)
    along = ranges[order[-1]]
    results = [r for a, r in enumerate(ranges) if a not in order and r.size >= LEAST_RESULTS]
    if prod(source.shape) >= MANY_PRODUCTS and along.size < LONG_SUM:
        # Lanes over results of one factor are better if many short sums share its packed copy.
        moved = [depends(factor, index_of(ranges)) for factor in source.src]
        if any(r.size >= PARTS and sum(r in on for on in moved) == 1 for r in results):
            return False
    return all(_serves(factor, index_of(ranges), along, results) for factor in source.src)


def _serves(factor: Node, index: Index, along: Atom, results: Sequence[Atom]) -> bool:
    """Whether lanes along a summed axis read a factor as well as lanes over results would.

    A weight must not depend on the results' ranges, because it could be packed for them. Any other
    factor must be constant or consecutive along the summed axis.
    """
    while factor.op in MOVES:
        index, _ = source_index(factor, index)
        factor = factor.src[0]
    leaves = {a for ix in index for a in ixs.leaves(ix)}
    if is_weight(factor.src[0] if factor.op is Op.CAST else factor):
        return leaves.isdisjoint(results)
    inner = next((ix for ix in reversed(index) if not ix.is_const), ixs.ZERO)
    return along not in leaves or ixs.coefficient(inner, along) == 1


def fixed_values(roots: Sequence[Node]) -> dict[Node, Node]:
    """Return old node -> new node, or raise SchedulerError for a float64 library function."""
    order = toposort(roots)
    new = unchanged(order)
    for node in order:
        if node.op in LIBRARY and node.dtype is dt.float64:
            raise SchedulerError(
                f"{node.op.name} of float64 is not the same on all processors: compute it in "
                "float32, or compile with --numerics fast"
            )
        current = with_sources(node, new)
        if node.op is Op.ASSIGN:
            buffer, value, *index = current.src
            current = like(node, Op.ASSIGN, (buffer, _one_nan(value), *index), node.arg)
        elif node.op is Op.BITCAST:
            current = like(node, Op.BITCAST, (_one_nan(current.src[0]),), node.arg)
        elif node.op is Op.CAST and node.dtype.is_int and node.src[0].dtype.is_float:
            current = like(node, Op.CAST, (_inside(current.src[0], node.dtype),), node.arg)
        new[node] = current
    return new | {root: _one_nan(new[root]) for root in roots if root.op is not Op.ASSIGN}


def _one_nan(node: Node) -> Node:
    """Return a value with all NaNs replaced by one NaN, unless it is merely moved memory."""
    below = node
    while below.op in _KEEPS and below.op is not Op.CAT:
        below = below.src[0]
    if not node.dtype.is_float or below.op in (Op.BUFFER, Op.CONST):
        return node
    return alu(Op.WHERE, _is_nan(node), number(nan, node), node)


def _is_nan(node: Node) -> Node:
    return make(Op.NE, dt.bool_, (node, node))


def _inside(node: Node, target: DType) -> Node:
    """Return a float clipped to the range of an integer type, with NaN as 0."""
    kind = node.dtype.np
    low, high = (_towards_zero(limit(target), kind) for limit in (min_value, max_value))
    clipped = alu(Op.MIN, alu(Op.MAX, node, number(low, node)), number(high, node))
    return alu(Op.WHERE, _is_nan(node), number(0.0, node), clipped)


def _towards_zero(limit: float, kind: np.dtype) -> float:
    """Return the finite float nearest to an integer limit that does not exceed its magnitude."""
    most = float(np.finfo(kind).max)
    found = kind.type(min(max(limit, -most), most))
    return float(found if abs(int(found)) <= abs(limit) else np.nextafter(found, kind.type(0)))
