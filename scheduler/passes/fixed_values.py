"""The pass fixes values that processors are free to choose: the bits of NaN, casts of what is none.

output x, state x, bits of x     ->   x != x ? NaN : x
cast(x, int)                     ->   cast(x != x ? 0 : min(max(x, smallest), largest), int)
"""

from __future__ import annotations

from collections.abc import Sequence
from math import nan

import numpy as np

from scheduler.errors import SchedulerError
from scheduler.ir import dtype as dt
from scheduler.ir.build import like, number
from scheduler.ir.dtype import DType, max_value, min_value
from scheduler.ir.node import Node, alu, make, toposort
from scheduler.ir.ops import MOVEMENT, Op
from scheduler.ir.rewrite import unchanged, with_sources

# Of float64 these are functions of the device's library, which differ from one to the next.
LIBRARY = frozenset({Op.EXP, Op.LOG, Op.SIN, Op.COS, Op.TANH, Op.ERF, Op.GELU, Op.POW})
_KEEPS = MOVEMENT | {Op.CONTIGUOUS, Op.GATHER}


def fixed_values(roots: Sequence[Node]) -> dict[Node, Node]:
    """Return old node -> new node, or raise SchedulerError for a library function of float64."""
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
    """Return a value with one NaN in place of all; what is moved only is what it was."""
    below = node
    while below.op in _KEEPS and below.op is not Op.CAT:
        below = below.src[0]
    if not node.dtype.is_float or below.op in (Op.BUFFER, Op.CONST):
        return node
    return alu(Op.WHERE, _is_nan(node), number(nan, node), node)


def _is_nan(node: Node) -> Node:
    return make(Op.NE, dt.bool_, (node, node))


def _inside(node: Node, target: DType) -> Node:
    """Return a float clipped to an integer type, 0 for NaN."""
    kind = node.dtype.np
    low, high = (_towards_zero(limit(target), kind) for limit in (min_value, max_value))
    clipped = alu(Op.MIN, alu(Op.MAX, node, number(low, node)), number(high, node))
    return alu(Op.WHERE, _is_nan(node), number(0.0, node), clipped)


def _towards_zero(limit: float, kind: np.dtype) -> float:
    """Return the float of a type next to an integer, towards 0; a finite one."""
    most = float(np.finfo(kind).max)
    found = kind.type(min(max(limit, -most), most))
    return float(found if abs(int(found)) <= abs(limit) else np.nextafter(found, kind.type(0)))
