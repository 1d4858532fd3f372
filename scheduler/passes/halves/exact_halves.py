"""The pass computes float16 arithmetic in float32; each rounding becomes a node of the graph.

x + y             ->  half(float(x) + float(y))        whatever rounds (`rounding.rounds`)
sum(x)            ->  half(sum(float(x)))              rounded once, at its end
half(double)      ->  half(odd(double))                not rounded to the nearest float first
max(x, y), x[i]   ->  the same                         of halves these are halves

Afterwards a float16 value is the same number in a register and in memory. `scheduler.ir.interp`
computes the nodes on the left the way those on the right do.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.ir import dtype as dt
from scheduler.ir.build import as_type, number
from scheduler.ir.node import Node, alu, const, make, toposort
from scheduler.ir.ops import Op
from scheduler.ir.rewrite import unchanged, with_sources
from scheduler.ir.rounding import rounds


def halves(roots: Sequence[Node]) -> dict[Node, Node]:
    """Return old node -> new node, none of which computes in halves."""
    order = toposort(roots)
    new = unchanged(order)
    if not any(node.dtype is dt.float16 for node in order):
        return new
    for node in order:
        made = with_sources(node, new)
        if made.dtype is dt.float16 and rounds(made):
            made = _rounded(made)
        elif made.dtype is dt.float16 and made.op is Op.CAST and made.src[0].dtype is dt.float64:
            made = round_double(made.src[0])
        new[node] = made
    return new


def _rounded(node: Node) -> Node:
    """Return a node of halves computed in float32 and rounded once."""
    wide = make(node.op, dt.float32, tuple(map(_widened, node.src)), node.arg)
    return make(Op.CAST, dt.float16, (wide,))


def _widened(node: Node) -> Node:
    if node.op is Op.CONST:
        return const(node.arg, dt.float32)
    return as_type(node, dt.float32)


def round_double(node: Node) -> Node:
    """Return doubles as halves, by way of floats that round to the same half.

    What is no float becomes the neighbour whose last bit is 1, which lies halfway between no two
    halves (rounding to odd: Boldo, Melquiond 2008, "Emulation of FMA and correctly rounded sums").
    """
    nearest = as_type(node, dt.float32)
    back = as_type(nearest, dt.float64)
    too_far = alu(Op.LT, alu(Op.ABS, node), alu(Op.ABS, back))
    bits = make(Op.BITCAST, dt.int32, (nearest,))
    towards_0 = alu(Op.SUB, bits, as_type(too_far, dt.int32))
    odd = alu(Op.WHERE, alu(Op.EQ, node, back), bits, alu(Op.OR, towards_0, number(1, bits)))
    return as_type(make(Op.BITCAST, dt.float32, (odd,)), dt.float16)
