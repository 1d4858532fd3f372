"""Groups the factors of a sum of products so that common products are computed once.

    sum((e[p, k] * r[p]) * v[k, c]; k)        ->     sum(e[p, k] * v[k, c]; k) * r[p]
    sum((x[p, k] * gate[k]) * w[k, c]; k)     ->     sum(x[p, k] * (gate[k] * w[k, c]); k)

The first form follows a softmax. In the second, a register tile multiplies a weight vector by the
gate once for all its rows p.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from scheduler.ir import dtype as dt
from scheduler.ir.index import Atom
from scheduler.ir.node import Node, alu, const, make
from scheduler.ir.ops import Op, parts_of
from scheduler.kernelize.scalar import rebuild
from scheduler.loops.place import PlacedBody, accumulates, dependencies, place_again


def group_factors(body: PlacedBody, vector: Atom | None) -> PlacedBody:
    """Return the body with the factors of its sums grouped."""
    body = _with_factors_outside(body)
    depends = dependencies(body.value)
    rows = {r for r in body.ranges if r is not vector}
    swapped: dict[Node, Node] = {}
    for node in accumulates(body):
        term = node.src[0]
        if not _is_free(node):
            continue
        factors = _factors(term)
        shared = [f for f in factors if rows.isdisjoint(depends[f])]
        own = [f for f in factors if not rows.isdisjoint(depends[f])]
        if len(factors) > 2 and len(shared) > 1 and own:
            swapped[term] = _product([_product(own), _product(shared)])
    if not swapped:
        return body
    return replace(body, value=rebuild(body.value, {}, place_again, swapped.get))


def _with_factors_outside(body: PlacedBody) -> PlacedBody:
    """Move factors out of sums that do not run over them, if two others remain inside."""
    depends = dependencies(body.value)
    swapped: dict[Node, Node] = {}
    for node in accumulates(body):
        if not _is_free(node):
            continue
        factors, reduced = _factors(node.src[0]), set(node.arg[1])
        outside = [f for f in factors if reduced.isdisjoint(depends[f])]
        inside = [f for f in factors if not reduced.isdisjoint(depends[f])]
        if outside and len(inside) > 1:
            total = make(node.op, node.dtype, (_product(inside),), node.arg)
            swapped[node] = _product([total, *outside])
    if not swapped:
        return body
    return replace(body, value=rebuild(body.value, {}, place_again, swapped.get))


def _is_free(node: Node) -> bool:
    """Whether a reduction is a float sum in free order, so its products may be regrouped too."""
    return node.arg[0] is Op.ADD and node.dtype.is_float and not parts_of(node)


def _factors(term: Node) -> list[Node]:
    """Return the factors of a product, in order; any other node is its own single factor."""
    found: list[Node] = []
    stack = [term]
    while stack:
        node = stack.pop()
        if node.op is Op.MUL and node.dtype is term.dtype:
            stack.extend(reversed(node.src))
        else:
            found.append(node)
    return found


def _product(factors: Sequence[Node]) -> Node:
    result = factors[0]
    for factor in factors[1:]:
        result = make(Op.MUL, result.dtype, (result, factor))
    return result


# --- Skipping the conversion of a quantized value that is read back immediately ---------------
#
#     float(int(byte(clip(round(v) + z, 0, 255))) - z)     ->     clip(round(v), -z, 255 - z)
#
# The number is an integer that fits a byte. If the byte is also stored, it is converted for the
# store.

_WHOLE = (Op.ROUND, Op.FLOOR, Op.CEIL, Op.TRUNC)
_LIMITS = (Op.MIN, Op.MAX)


def keep_whole_steps(body: PlacedBody) -> PlacedBody:
    """Return the body without round trips of whole numbers to bytes and back."""
    return replace(body, value=rebuild(body.value, {}, place_again, _without_byte))


def _without_byte(node: Node) -> Node | None:
    """Return a byte minus its zero point as a float, computed without the byte."""
    if node.op is not Op.CAST or node.dtype is not dt.float32:
        return None
    whole, zero = node.src[0], 0
    if whole.op is Op.SUB and whole.src[1].op is Op.CONST and whole.dtype is dt.int32:
        whole, zero = whole.src[0], int(whole.src[1].arg)
    byte = whole.src[0] if whole.op is Op.CAST and whole.dtype is dt.int32 else whole
    if byte.op is not Op.CAST or byte.dtype not in (dt.uint8, dt.int8):
        return None
    number = byte.src[0]
    if not _is_whole(number, byte.dtype):
        return None
    return _minus(number, float(zero))


def _minus(number: Node, zero: float) -> Node:
    """Return a whole number minus a constant; a matching addition inside it cancels out."""
    if number.op in _LIMITS:
        bound = const(number.src[1].arg - zero, dt.float32)
        return alu(number.op, _minus(number.src[0], zero), bound)
    if number.op is Op.ADD and number.src[1].arg == zero:
        return number.src[0]
    return number if zero == 0 else alu(Op.SUB, number, const(zero, dt.float32))


def _is_whole(value: Node, kind: dt.DType) -> bool:
    """Whether a float is a whole number within `kind`, or NaN, whose cast is undefined anyway."""
    if value.dtype is not dt.float32:
        return False
    limits: dict[Op, list[float]] = {op: [] for op in _LIMITS}
    while value.op in _LIMITS and value.src[1].op is Op.CONST:
        limits[value.op].append(value.src[1].arg)
        value = value.src[0]
    if value.op is Op.ADD and value.src[1].op is Op.CONST and value.src[1].arg.is_integer():
        value = value.src[0]
    bounds = [bound for found in limits.values() for bound in found]
    held = all(b.is_integer() and dt.holds(kind, int(b)) for b in bounds)
    return value.op in _WHOLE and all(limits.values()) and held
