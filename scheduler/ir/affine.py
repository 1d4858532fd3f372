"""Converts between integer tensors and index expressions, for tensors with affine values.

A tensor is affine if its values are an affine expression of its indices:

IOTA(10) * 2 + 1, as (1, 10)      at index (i, j)     ->     2*j + 1
2*j + 1                           as a tensor         ->     IOTA(10) as (1, 10), * 2 + 1
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from scheduler.ir import dtype as dt
from scheduler.ir import index as ixs
from scheduler.ir.build import expanded, iota, number, reshaped, spread
from scheduler.ir.dtype import DType
from scheduler.ir.index import Atom, Ix
from scheduler.ir.movement import MOVES, Index, source_index
from scheduler.ir.node import Buffer, Node, alu, const, make, post_order
from scheduler.ir.ops import ELEMENTWISE, Op, Shape

# Longest weight that is checked for even spacing: longer lists do not occur written out.
MAX_LIST = 65536
# An expression of more nodes does not count as affine. Both limits were chosen by hand.
MAX_AFFINE_NODES = 64
# An expression of more nodes counts as depending on all its axes.
MAX_NODES = 1024

_Key = tuple[Node, Index]
# The largest integer up to which all integers are values of the type.
_EXACT = {"float16": 1 << 11, "float32": 1 << 24, "float64": 1 << 53}


def ranges_of(shape: Shape) -> tuple[Atom, ...]:
    """Return a loop range for each axis."""
    return tuple(ixs.new_range(size, f"r{axis}") for axis, size in enumerate(shape))


def index_of(ranges: Sequence[Atom]) -> Index:
    """Return the index that consists of the ranges."""
    return tuple(ixs.of(r) for r in ranges)


def value_at(node: Node, index: Index) -> Ix | None:
    """Return a tensor's value at an index as an integer expression; None if a step is inexact."""
    done: dict[_Key, Ix] = {}
    for key in post_order((node, index), lambda k: _sources(*k) or (), done):
        needed = _sources(*key)
        found = None if needed is None else _combine(*key, [done[k] for k in needed])
        if found is None or len(done) > MAX_AFFINE_NODES:
            return None  # an affine value has affine parts only
        done[key] = found
    return done[node, index]


def _sources(node: Node, index: Index) -> list[_Key] | None:
    """Return the operands of an expression; None if the node cannot be one."""
    if node.op in (Op.IOTA, Op.CONST, Op.BUFFER):
        return []
    if node.op in (Op.ADD, Op.SUB, Op.MUL, Op.NEG, Op.CAST):
        return [(s, index) for s in node.src]
    if node.op in MOVES:
        inner, inside = source_index(node, index)
        return [(node.src[0], inner)] if inside == () else None
    return None


def _combine(node: Node, index: Index, known: Sequence[Ix]) -> Ix | None:
    """Return the value of a node at an index, given its operands; None if it is not exact."""
    found: Ix | None = None
    if node.op is Op.IOTA:
        found = index[0]
    elif node.op is Op.CONST:
        found = ixs.constant(int(node.arg)) if _is_whole(node.arg) else None
    elif node.op is Op.BUFFER:
        found = _listed(node.arg, index)
    elif node.op in (Op.ADD, Op.SUB):
        found = ixs.add(known[0], ixs.mul(known[1], 1 if node.op is Op.ADD else -1))
    elif node.op is Op.MUL:
        a, b = known
        found = ixs.mul(a, b.const) if b.is_const else ixs.mul(b, a.const) if a.is_const else None
    elif node.op is Op.NEG:
        found = ixs.mul(known[0], -1)
    else:
        found = known[0]
    return found if found is not None and _holds(node.dtype, found) else None


def _is_whole(value: float | int | bool) -> bool:
    return not isinstance(value, bool) and float(value).is_integer()


def _holds(dtype: DType, ix: Ix) -> bool:
    """Whether all values of an expression are exact in a type, and fit into an index."""
    if not (dt.holds(dt.int32, ix.lo) and dt.holds(dt.int32, ix.hi)):
        return False
    if dtype.is_float:
        return max(-ix.lo, ix.hi) <= _EXACT[dtype.name]
    return dtype.is_int and dt.holds(dtype, ix.lo) and dt.holds(dtype, ix.hi)


def _listed(buffer: Buffer, index: Index) -> Ix | None:
    """Return evenly spaced weights along one axis as an expression."""
    axes = [a for a, s in enumerate(buffer.shape) if s > 1]
    small = len(axes) < 2 and 0 < prod(buffer.shape) <= MAX_LIST
    if buffer.kind != "weight" or buffer.data is None or not small:
        return None
    data = buffer.data.reshape(-1)
    if not np.isfinite(data).all() or np.abs(data.astype(np.float64)).max() > dt.max_value(
        dt.int32
    ):
        return None
    whole = data.astype(np.int64)
    steps = np.unique(np.diff(whole))
    if not np.array_equal(whole, data) or steps.size > 1:
        return None
    start = ixs.constant(int(whole[0]))
    return ixs.add(start, ixs.mul(index[axes[0]], int(steps[0]))) if axes else start


def is_plain(ix: Ix, ranges: Sequence[Atom]) -> bool:
    """Whether an expression is a sum of multiples of these ranges, without divisions."""
    return all(any(atom is r for r in ranges) for atom, _ in ix.terms)


def tensor_of(ix: Ix, ranges: Sequence[Atom], shape: Shape) -> Node:
    """Return the int32 tensor of an expression without divisions, whose values all fit in int32.

    Axes whose range is not in the expression may have any size.
    """
    if not ix.terms:
        return spread(const(ix.const, dt.int32), shape)
    total: Node | None = None
    single = len(ix.terms) == 1 and ix.lo >= 0
    for atom, factor in ix.terms:
        axis = next(a for a, r in enumerate(ranges) if r is atom)
        start = ix.lo if single else 0
        part = _progression(start, abs(factor), shape[axis], down=factor < 0 and single)
        line = (1,) * axis + (shape[axis],) + (1,) * (len(shape) - axis - 1)
        part = expanded(reshaped(part, line), shape)
        if factor < 0 and not single:
            part = alu(Op.NEG, part)
        total = part if total is None else alu(Op.ADD, total, part)
    assert total is not None  # there are terms
    return total if single or not ix.const else alu(Op.ADD, total, number(ix.const, total))


def _progression(start: int, step: int, count: int, *, down: bool) -> Node:
    """Return start, start + step, ... as a slice of an iota, possibly flipped: no arithmetic."""
    stop = start + (count - 1) * step + 1
    bounds = ((start, stop, step),)
    line = iota(stop)
    if bounds != ((0, stop, 1),):
        line = make(Op.SHRINK, dt.int32, (line,), bounds)
    return make(Op.FLIP, dt.int32, (line,), (0,)) if down else line


def depends(node: Node, index: Index) -> frozenset[Atom]:
    """Return the ranges of an index on which the value there depends.

    Arithmetic and movement are looked through; any other node depends on all of its index.
    """
    found: set[Atom] = set()
    done: set[_Key] = set()
    stack: list[_Key] = [(node, index)]
    while stack:
        key = stack.pop()
        if key in done:
            continue
        done.add(key)
        if len(done) > MAX_NODES:
            return frozenset(a for ix in index for a in ixs.leaves(ix))
        current, at = key
        if current.op in ELEMENTWISE:
            stack.extend((s, at) for s in current.src)
        elif current.op in MOVES:
            inner, inside = source_index(current, at)
            found.update(a for ix, _, _ in inside for a in ixs.leaves(ix))
            if inside != ixs.NEVER:
                stack.append((current.src[0], inner))
        else:
            found.update(a for ix in at for a in ixs.leaves(ix))
    return frozenset(found)
