"""Replaces sums over a one-hot selection of rows by gathers of the selected row.

sum over r of (r == i ? x[r] : 0)       ->   inside ? x[i] : 0        inside: 0 <= i < n
sum over r of (r == i ? 1 : 0) * x[r]   ->   the same: integers, and floats known to be finite
any over r of (r == i)                  ->   inside
all over r of (r != i)                  ->   not inside

r is the number of a row of x, from 0 to n - 1. The difference of the two sides of the comparison
must be affine in r with a nonzero step, so at most one r matches. If only one side is affine, the
other one must not depend on r. A gate below is such a comparison: it must match for the summed
value to differ from 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from scheduler.ir import dtype as dt
from scheduler.ir import index as ixs
from scheduler.ir.affine import depends, index_of, is_plain, ranges_of, tensor_of, value_at
from scheduler.ir.build import as_type, expanded, like, number, spread
from scheduler.ir.index import Atom, Ix
from scheduler.ir.movement import Index, source_index
from scheduler.ir.node import Node, Readers, alu, const, is_weight, toposort
from scheduler.ir.ops import Op
from scheduler.ir.rewrite import Rewriter, Rule, remake
from scheduler.ir.rounding import COMMUTING
from scheduler.passes.canonicalize import RULES
from scheduler.passes.push_gather import first, pick, varying_axes
from scheduler.passes.splat import value_of

# With fewer rows, comparing each row costs no more than computing the selected one.
MIN_ROWS = 3
# The maximum number of nodes visited between a sum and its comparisons.
MAX_STEPS = 32
# Weights with more elements than this are not checked for infinities.
MAX_FINITE = 1 << 26

_REDUCERS = frozenset({Op.ADD, Op.MAX, Op.MIN})
_FINITE_OPS = frozenset({Op.NEG, Op.ABS, Op.MIN, Op.MAX, Op.WHERE, Op.SIN, Op.COS, Op.TANH})


def one_hot(roots: Sequence[Node], *, float_unsafe: bool = False) -> dict[Node, Node]:
    """Return root -> new root with one-hot sums as gathers; see `Flags.float_unsafe`."""
    order = toposort(roots)
    if not any(n.op in (Op.EQ, Op.NE) for n in order):
        return {r: r for r in roots}
    readers = Readers.of(order, roots)

    def apply(node: Node) -> Node | None:
        return _choice(node, readers, unsafe=float_unsafe)

    return Rewriter((Rule("sum over one row", (Op.REDUCE,), apply),))(roots)


def _choice(node: Node, readers: Readers, *, unsafe: bool) -> Node | None:
    """Rewrite the axes of a reduction that select one row each; the other axes stay reduced."""
    op, axes = node.arg
    source = node.src[0]
    logical = node.dtype is dt.bool_
    # A maximum is a selection only for booleans.
    if op not in _REDUCERS or (op is not Op.ADD and not logical) or not all(source.shape):
        return None
    if op is Op.MIN:  # all(r != i)  ->  not any(r == i)
        if source.op is not Op.NE:
            return None
        op, source = Op.MAX, like(source, Op.EQ, source.src)
    left, value = list(axes), source
    # A solved axis keeps a size of 1, so that axis numbers do not change.
    for axis in axes:
        if value.shape[axis] < MIN_ROWS:
            continue
        found = _without_axis(value, axis, readers, unsafe=unsafe)
        if found is not None:
            value = found
            left.remove(axis)
    if value is source:
        return None
    if left:
        value = like(node, Op.REDUCE, (value,), (op, tuple(left)))
    if node.dtype.is_float:  # a sum of -0.0 and zeros is 0.0
        value = alu(Op.ADD, value, number(0.0, value))
    return alu(Op.NOT, value) if node.arg[0] is Op.MIN else value


def _without_axis(value: Node, axis: int, readers: Readers, *, unsafe: bool) -> Node | None:
    """Return the only element along an axis that can differ from 0; None if it is unknown."""
    ranges = ranges_of(value.shape)
    for gate in _gates(value, index_of(ranges), unsafe=unsafe):
        rows = _rows(gate, value, ranges, axis)
        if rows is None:
            continue
        chosen = pick(_assumed(gate), axis, rows.at, readers, in_range=True)
        if chosen is None:
            continue
        if rows.inside is None:
            return chosen
        inside = expanded(rows.inside, chosen.shape)
        if value.dtype is dt.bool_:
            return chosen if value_of(inside) else _simple(alu(Op.AND, inside, chosen))
        return alu(Op.WHERE, inside, chosen, number(0, chosen))
    return None


# --- Comparisons that determine whether a value is 0 ------------------------------------------


@dataclass(frozen=True)
class _Gate:
    """A comparison that must match for a value to be nonzero."""

    node: Node
    index: Index  # index of the comparison's element, as a function of the index of the value's
    # the nodes from the value down to the one above the comparison, each with the number of the
    # operand that leads to the comparison
    path: tuple[tuple[Node, int], ...]
    equal: bool  # True if the operator is EQ, False for NE


def _gates(value: Node, index: Index, *, unsafe: bool) -> Iterator[_Gate]:
    """Yield the comparisons that determine whether a value at an index is 0, outermost first."""
    stack = [_Gate(value, index, (), equal=True)]
    # The limit keeps this linear: nested products have as many paths down as factors.
    for _ in range(MAX_STEPS):
        if not stack:
            return
        gate = stack.pop()
        node = gate.node
        if node.op is (Op.EQ if gate.equal else Op.NE):
            yield gate
            continue
        inner = gate.index
        if node.op in COMMUTING:
            inner, _ = source_index(node, gate.index)
        for operand, equal in reversed(_deciding(node, equal=gate.equal, unsafe=unsafe)):
            path = (*gate.path, (node, operand))
            stack.append(_Gate(node.src[operand], inner, path, equal))


def _deciding(node: Node, *, equal: bool, unsafe: bool) -> list[tuple[int, bool]]:
    """Return the operands that can each force a node to 0, or to true if not `equal`.

    The flag tells which value of the operand does so: 0 if it is true, else true.
    """
    if node.op in COMMUTING:
        return [(0, equal)]
    if node.op is Op.NOT and node.dtype is dt.bool_:
        return [(0, not equal)]
    if not equal:
        return [(0, False), (1, False)] if node.op is Op.OR and node.dtype is dt.bool_ else []
    if node.op is Op.CAST:
        return [(0, True)]
    if node.op is Op.AND:
        return [(0, True), (1, True)]
    if node.op is Op.MUL:
        # A zero factor makes the product 0 only if the other factor is finite: 0 * inf is NaN.
        return [(i, True) for i in (0, 1) if unsafe or _vanishes(node.src[1 - i])]
    if node.op is Op.WHERE:
        _, yes, no = node.src
        if _is_zero(no):
            return [(0, True), (1, True)]
        return [(0, False), (2, True)] if _is_zero(yes) else []
    return []


def _is_zero(node: Node) -> bool:
    value = value_of(node)
    # A sum of only -0.0 would be -0.0, so a negative zero does not count as 0.
    return value is not None and value == 0 and math.copysign(1.0, value) > 0


def _vanishes(node: Node) -> bool:
    """Whether 0 times a value is 0, of either sign; a sum with other zeros drops the sign."""
    return not node.dtype.is_float or _is_finite(node)


def _is_finite(node: Node) -> bool:
    stack, seen = [node], set[Node]()
    while stack:
        current = stack.pop()
        if current in seen:
            continue
        seen.add(current)
        needed = _finite_with(current)
        if needed is None or len(seen) > MAX_STEPS:
            return False
        stack.extend(needed)
    return True


def _finite_with(node: Node) -> Sequence[Node] | None:
    """Return the operands that must be finite for a node to be finite; None if unknown."""
    if node.op is Op.CONST:
        return () if math.isfinite(node.arg) else None
    if node.op is Op.BUFFER:
        small = is_weight(node) and node.arg.data.size <= MAX_FINITE
        return () if small and np.isfinite(node.arg.data).all() else None
    if node.op is Op.CAST:
        (source,) = node.src
        # Only one-byte integers always fit in fp16.
        half = node.dtype is dt.float16
        if not source.dtype.is_float and (not half or source.dtype.itemsize == 1):
            return ()
        return None if node.dtype.itemsize < source.dtype.itemsize else (source,)
    if node.op in COMMUTING or node.op in _FINITE_OPS:
        return [s for s in node.src if s.dtype.is_float]
    return None


def _assumed(gate: _Gate) -> Node:
    """Return the value at the start of a gate's path, assuming that its comparison matches."""
    known = number(gate.equal, gate.node)
    for node, operand in reversed(gate.path):
        src = tuple(known if i == operand else s for i, s in enumerate(node.src))
        known = _simple(remake(node, src))
    return known


def _simple(node: Node) -> Node:
    """Return a node simplified by the first matching rule of canonicalize."""
    for rule in reversed(RULES):  # try x * 1 -> x before rules about repeated values
        found = rule.apply(node) if node.op in rule.ops else None
        if found is not None:
            return found
    return node


# --- The matching row -------------------------------------------------------------------------


@dataclass(frozen=True)
class _Rows:
    """The matching row for each index along the other axes."""

    at: Node  # the row's number, an integer tensor with the value's rank
    inside: Node | None  # whether the row exists; None: always


def _rows(gate: _Gate, value: Node, ranges: Sequence[Atom], axis: int) -> _Rows | None:
    """Solve affine(r) == other for r, the range of an axis; None if this is not possible."""
    # An affine side needs no memory; the other side can be any value.
    a, b = (value_at(s, gate.index) for s in gate.node.src)
    if a is not None and b is not None:
        affine, other = ixs.add(a, ixs.mul(b, -1)), None
    elif a is not None:
        affine, other = a, gate.node.src[1]
    elif b is not None:
        affine, other = b, gate.node.src[0]
    else:
        return None
    step = ixs.coefficient(affine, ranges[axis])
    if not step or not is_plain(affine, ranges) or not _fits(affine):
        return None
    rest = ixs.add(affine, ixs.mul(ixs.of(ranges[axis]), -step))
    size = value.shape[axis]
    # The solution of step * r + rest == 0 with a step of 1 or -1 is -step * rest, an integer.
    if other is None:
        solution = ixs.mul(rest, -step)
        if abs(step) == 1 and solution.lo >= 0 and solution.hi < size:
            shape = _common(value.shape, ranges, rest, None)
            return _Rows(tensor_of(solution, ranges, shape), None)
        wanted = spread(const(0, dt.int32), (1,) * len(ranges))
    else:
        # If the wanted value depends on r, several rows could match.
        if ranges[axis] in depends(other, gate.index):
            return None
        wanted = _lifted(other, gate)
    shape = _common(value.shape, ranges, rest, wanted)
    wanted = expanded(first(wanted, [a for a, s in enumerate(shape) if s == 1]), shape)
    return _solved(wanted, affine, rest, (ranges, axis, size))


def _fits(ix: Ix) -> bool:
    return dt.holds(dt.int32, ix.lo) and dt.holds(dt.int32, ix.hi)


def _lifted(node: Node, gate: _Gate) -> Node:
    """Return a comparison's operand below the movement between it and the compared value."""
    for move, _ in reversed(gate.path):
        if move.op in COMMUTING:
            node = _simple(like(node, move.op, (node,), move.arg))
    return node


def _common(
    shape: Sequence[int], ranges: Sequence[Atom], rest: Ix, wanted: Node | None
) -> tuple[int, ...]:
    """Return the shape of the rows: size 1 along axes where neither `rest` nor `wanted` varies."""
    # Computing only the varying axes avoids repeated work; values are expanded afterwards.
    axes = {a for a, r in enumerate(ranges) if any(t is r for t, _ in rest.terms)}
    if wanted is not None:
        axes |= varying_axes(wanted)
    return tuple(s if a in axes else 1 for a, s in enumerate(shape))


def _solved(wanted: Node, affine: Ix, rest: Ix, along: tuple[Sequence[Atom], int, int]) -> _Rows:
    """Return r with affine(r) == wanted, and whether such a row exists.

    `affine` is step * r + rest and fits int32. `along` holds all ranges, the axis of r, and the
    number of rows.
    """
    ranges, axis, size = along
    step = ixs.coefficient(affine, ranges[axis])
    assert step  # checked by the caller
    # Clipping keeps the cast to int32 defined; comparing with `wanted` detects clipped values.
    found = _clipped(as_type(wanted, dt.int32), affine.lo, affine.hi)
    inside = alu(Op.EQ, as_type(found, wanted.dtype), wanted)
    if rest.terms or rest.const:
        found = alu(Op.SUB, found, tensor_of(rest, ranges, wanted.shape))
    if step == -1:
        found = alu(Op.NEG, found)
    elif step != 1:
        # IDIV is exact only for multiples of the step; the product detects all other values.
        quotient = alu(Op.IDIV, found, number(step, found))
        whole = alu(Op.EQ, alu(Op.MUL, quotient, number(step, found)), found)
        found, inside = quotient, alu(Op.AND, inside, whole)
    # With a rest, the bounds of the affine value do not bound r, so r is clipped to existing rows.
    if rest.terms:
        bounded = _clipped(found, 0, size - 1)
        found, inside = bounded, alu(Op.AND, inside, alu(Op.EQ, bounded, found))
    return _Rows(found, inside)


def _clipped(node: Node, low: int, high: int) -> Node:
    return alu(Op.MIN, alu(Op.MAX, node, number(low, node)), number(high, node))
