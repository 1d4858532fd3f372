"""Bounds of integer values that are computed at run time.

    max(min(x, 7), 0)        0 .. 7
    x & 31                   0 .. 31
    cast(uint8) * 4 + 1      1 .. 1021
    x + 1, x an int32        the whole type: the sum may wrap around

They hold for every input: a bound proves that an index needs no test. Floats have none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from scheduler.ir import dtype as dt
from scheduler.ir.node import Node, is_weight
from scheduler.ir.ops import LOOPS, Op
from scheduler.kernelize.scalar import scalar_nodes


class Bounds(NamedTuple):
    """The least and the greatest value that may be."""

    low: int
    high: int


def bounds_of(value: Node) -> Bounds:
    """Return bounds of a scalar integer node; those of its type where no more is known."""
    found: dict[Node, Bounds] = {}
    for node in scalar_nodes(value, into_reductions=False):
        kind = node.dtype
        if kind is dt.bool_:
            found[node] = Bounds(0, 1)
        elif kind.is_int:
            whole = Bounds(int(dt.min_value(kind)), int(dt.max_value(kind)))
            known = None if node.op in LOOPS else _bounds(node, found)
            fits = known is not None and whole.low <= known.low and known.high <= whole.high
            found[node] = known if known is not None and fits else whole  # else it wraps around
    return found[value]


def _bounds(node: Node, known: dict[Node, Bounds]) -> Bounds | None:
    """Return bounds as if the type had no ends; None if they are not known."""
    op = node.op
    if op is Op.CONST:
        return Bounds(int(node.arg), int(node.arg))
    if op is Op.INDEX:
        return Bounds(node.arg.lo, node.arg.hi)
    if op is Op.LOAD:
        return _of_weight(node)
    if any(s not in known for s in node.src):  # floats
        return None
    sources = [known[s] for s in node.src]
    if op in (Op.WHERE, Op.SELECT):
        yes, no = sources[-2:]
        return Bounds(min(yes.low, no.low), max(yes.high, no.high))
    rule = _RULES.get(op)
    return None if rule is None else rule(*sources)


def _of_weight(load: Node) -> Bounds | None:
    if not is_weight(load.src[0]) or load.src[0].arg.data.size == 0:
        return None
    data, fill = load.src[0].arg.data, int(load.arg.fill)
    return Bounds(min(int(data.min()), fill), max(int(data.max()), fill))


def _product(a: Bounds, b: Bounds) -> Bounds:
    ends = [x * y for x in a for y in b]
    return Bounds(min(ends), max(ends))


def _masked(a: Bounds, b: Bounds) -> Bounds | None:
    """Return bounds of the bits that both have: at most those of one that is not negative."""
    highs = [x.high for x in (a, b) if x.low >= 0]
    return Bounds(0, min(highs)) if highs else None


def _shifted_right(a: Bounds, b: Bounds) -> Bounds | None:
    if b.low != b.high or not 0 <= b.low < 32:
        return None
    return Bounds(a.low >> b.low, a.high >> b.low)


_RULES: Final[dict[Op, Callable[..., Bounds | None]]] = {
    Op.CAST: lambda a: a,
    Op.NEG: lambda a: Bounds(-a.high, -a.low),
    Op.ADD: lambda a, b: Bounds(a.low + b.low, a.high + b.high),
    Op.SUB: lambda a, b: Bounds(a.low - b.high, a.high - b.low),
    Op.MUL: _product,
    Op.MAX: lambda a, b: Bounds(max(a.low, b.low), max(a.high, b.high)),
    Op.MIN: lambda a, b: Bounds(min(a.low, b.low), min(a.high, b.high)),
    Op.AND: _masked,
    Op.SHR: _shifted_right,
}
