"""The pass gives sums and products of floats one order, and products that are summed one rounding.

    sum(x, axes)         ->   sum(x, axes in order, parts) + 0.0
    sum(a * b, axes)     ->   sum(fused a * b, axes in order, parts) + 0.0
    max(x, axes)         ->   max(x, axes) + 0.0

`scheduler.ir.ops` defines orders and parts. They follow from the graph alone, never from a
device. Adding 0.0 changes only -0.0, which would depend on whether terms known to be 0 are added,
and on which of two zeros a maximum returns.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Final

from scheduler.ir import dtype as dt
from scheduler.ir import index as ixs
from scheduler.ir.affine import depends, index_of, ranges_of
from scheduler.ir.build import as_type, like, number
from scheduler.ir.index import Atom
from scheduler.ir.movement import MOVES, Index, source_index
from scheduler.ir.node import Node, alu, is_weight, toposort
from scheduler.ir.ops import FUSED, PARTS, Op
from scheduler.ir.rewrite import unchanged, with_sources

# Axes up to this size count as those of windows.
SHORT: Final = 7
# Results along an axis of a weight, from which on lanes run over results.
LEAST_RESULTS: Final = 4
# Both factors' values: from this many products, and up to this long a sum, one is worth packing.
MANY_PRODUCTS: Final = 1 << 20
LONG_SUM: Final = 128


def canonical_sums(roots: Sequence[Node]) -> dict[Node, Node]:
    """Return old node -> new node with all sums of floats in an order."""
    order = toposort(roots)
    new = unchanged(order)
    for node in order:
        current = with_sources(node, new)
        if node.op is Op.REDUCE and node.dtype.is_float:
            current = _ordered(current)
        new[node] = current
    return new


def _ordered(node: Node) -> Node:
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
    """Whether the terms of a sum lie one after the other along its last axis, for all factors."""
    if source.op is not Op.MUL or source.src[0] is source.src[1]:
        return True
    ranges = ranges_of(source.shape)
    along = ranges[order[-1]]
    results = [r for a, r in enumerate(ranges) if a not in order and r.size >= LEAST_RESULTS]
    if prod(source.shape) >= MANY_PRODUCTS and along.size < LONG_SUM:
        moved = [depends(factor, index_of(ranges)) for factor in source.src]
        if any(r.size >= PARTS and sum(r in on for on in moved) == 1 for r in results):
            return False
    return all(_serves(factor, index_of(ranges), along, results) for factor in source.src)


def _serves(factor: Node, index: Index, along: Atom, results: Sequence[Atom]) -> bool:
    """Whether lanes along a summed axis read a factor as well as lanes over results would."""
    while factor.op in MOVES:
        index, _ = source_index(factor, index)
        factor = factor.src[0]
    leaves = {a for ix in index for a in ixs.leaves(ix)}
    if is_weight(factor.src[0] if factor.op is Op.CAST else factor):
        return leaves.isdisjoint(results)
    inner = next((ix for ix in reversed(index) if not ix.is_const), ixs.ZERO)
    return along not in leaves or ixs.coefficient(inner, along) == 1
