"""Walks the scalar graph of a loop nest, rebuilds it in other ranges, and bounds its integers.

The scalar graph is the expression that one iteration computes. Its LOADs have an index per axis,
and a leaf of an index may be a run-time value, such as the row of a gather. The node of such a
value counts as a source of the LOAD, like an operand.

    ADD(MUL(LOAD x[r0, k0], LOAD w[k0]), CONST 1)      scalar_nodes: loads and constants first
    depends_on: LOAD x on {r0, k0}, LOAD w on {k0}     rebuild with r0 -> r1: LOAD x[r1, k0], ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from scheduler.ir import dtype as dt
from scheduler.ir import index as ixs
from scheduler.ir.index import Atom, Ix
from scheduler.ir.node import Node, is_weight, make, storage_of
from scheduler.ir.ops import LOOPS, Op

# The order of nodes below a value, cached because bodies are walked many times.
_orders: WeakKeyDictionary[Node, tuple[Node, ...]] = WeakKeyDictionary()


def scalar_nodes(value: Node, *, into_reductions: bool = True) -> list[Node]:
    """Return scalar nodes, sources first; without `into_reductions`, reductions are leaves."""
    if not into_reductions:
        return _walk(value, into_reductions=False)
    below = _orders.get(value)
    if below is None:
        below = tuple(_walk(value, into_reductions=True)[:-1])
        _orders[value] = below
    return [*below, value]


def _walk(value: Node, *, into_reductions: bool) -> list[Node]:
    order: list[Node] = []
    done: set[Node] = set()
    stack: list[tuple[Node, bool]] = [(value, False)]
    while stack:
        node, ready = stack.pop()
        if node in done:
            continue
        if ready:
            done.add(node)
            order.append(node)
            continue
        stack.append((node, True))
        if into_reductions or node.op not in LOOPS:
            stack.extend((s, False) for s in scalar_sources(node) if s not in done)
    return order


def scalar_sources(node: Node) -> tuple[Node, ...]:
    """Return the sources of a scalar node: its operands and the nodes of its run-time indices."""
    own = () if node.op is Op.LOAD else node.src
    return tuple(dict.fromkeys((*own, *(a.node for a in atoms_of(node) if a.node is not None))))


def depends_on(value: Node) -> dict[Node, set[Atom]]:
    """Return, for each scalar node, the outside loops that its value depends on."""
    found: dict[Node, set[Atom]] = {}
    for node in scalar_nodes(value):
        atoms: set[Atom] = set()
        for atom in atoms_of(node):
            atoms |= {atom} if atom.node is None else found[atom.node]
        for s in node.src if node.op is not Op.LOAD else ():
            atoms |= found[s]
        found[node] = atoms - set(node.arg[1]) if node.op in LOOPS else atoms
    return found


def atoms_of(node: Node) -> list[Atom]:
    """Return the index leaves of one scalar node."""
    if node.op is Op.LOAD:
        found = [*node.arg.index, *(p[0] for p in node.arg.valid)]
    elif node.op in (Op.INDEX, Op.PICK):
        found = [node.arg]
    else:
        found = [p[0] for p in node.arg] if node.op is Op.SELECT else []
    return [a for ix in found for a in ixs.leaves(ix)]


def tuple_of(values: Sequence[Node]) -> Node:
    """Return several scalar values as one TUPLE node, or a single value unchanged."""
    if len(values) == 1:
        return values[0]
    widest = max(values, key=lambda v: v.dtype.itemsize)
    return make(Op.TUPLE, widest.dtype, tuple(values))


def rebuild(
    value: Node,
    mapping: Mapping[Atom, Ix],
    load: Callable[[Node, Mapping[Atom, Ix]], Any],
    swap: Callable[[Node], Node | None] = lambda _: None,
) -> Node:
    """Return a scalar graph with ranges replaced everywhere, run-time indices included.

    Args:
        value: the root of the graph.
        mapping: the new index of each replaced range.
        load: returns the new argument of a LOAD; its mapping includes rebuilt run-time values.
        swap: returns a replacement for a rebuilt node, or None to keep it.
    """
    full: dict[Atom, Ix] = dict(mapping)
    rebuilt: dict[Node, Node] = {}
    for node in scalar_nodes(value):
        arg, src = node.arg, tuple(rebuilt.get(s, s) for s in node.src)
        for atom in atoms_of(node):
            if atom.node is not None and atom not in full:
                renewed = ixs.value_atom(rebuilt[atom.node], atom.lo, atom.hi)
                full[atom] = ixs.of(renewed)
        if node.op is Op.LOAD:
            arg, src = load(node, full), node.src
        elif node.op in (Op.INDEX, Op.PICK):
            arg = ixs.substitute(arg, full)
        elif node.op is Op.SELECT:
            arg = ixs.substitute_predicate(arg, full)
        made = tuple_of(src) if node.op is Op.TUPLE else make(node.op, node.dtype, src, arg)
        rebuilt[node] = swap(made) or made
    return rebuilt[value]


# --- Overwriting a source ---------------------------------------------------------------------
#
# A kernel may overwrite a source if it reads each element only where it stores a result.
#
#     t[i] = f(s[i], w[i])         t can reuse the bytes of s: work-item i reads s[i] first
#     t[i] = f(s[n-1-i])           no: another work-item may still need the element
#     t[i] = sum(s[i] * w[k]; k)   no: the loop may read it again; the renderer decides on hoisting
#     t[ids[i]] = f(s[0])          no: the work-item that overwrites s[0] is known only at run time
#
# Offsets are interned, so equal offsets are one object. An equal offset in another form counts as
# different, which is safe and has not occurred in practice.


def overwrites(
    value: Node, loops: Iterable[Atom], place: Ix, source: Node, offset: Callable[[Node], Ix]
) -> bool:
    """Whether a loop nest reads each element of a source before it stores a result there.

    Args:
        value: everything that the nest computes.
        loops: the loops of the nest, without those inside reductions.
        place: the offset at which it stores a result.
        source: the node whose storage the result would take.
        offset: returns the offset of a LOAD.
    """
    nodes = scalar_nodes(value)
    loads = [n for n in nodes if n.op is Op.LOAD and storage_of(n.src[0]) is source]
    if not loads:
        return True
    repeated = {n for loop in nodes if loop.op in LOOPS for n in scalar_nodes(loop.src[0])}
    # A store outside the inner loops would run before their loads.
    return (
        repeated.isdisjoint(loads)
        and all(n.src[0] is source and offset(n) is place for n in loads)
        and frozenset(loops) <= frozenset(ixs.leaves(place))
    )


# --- Bounds of integers that are computed at run time -----------------------------------------
#
#     max(min(x, 7), 0)        0 .. 7
#     x & 31                   0 .. 31
#     cast(uint8) * 4 + 1      1 .. 1021
#     x + 1, x an int32        the range of the type: the sum may wrap around
#
# Bounds hold for every input, so they can prove that an index needs no check. Floats have none.


class Bounds(NamedTuple):
    """The least and the greatest possible value."""

    low: int
    high: int


def bounds_of(value: Node) -> Bounds:
    """Return bounds of a scalar integer node, at worst those of its type."""
    found: dict[Node, Bounds] = {}
    for node in scalar_nodes(value, into_reductions=False):
        kind = node.dtype
        if kind is dt.bool_:
            found[node] = Bounds(0, 1)
        elif kind.is_int:
            whole = Bounds(int(dt.min_value(kind)), int(dt.max_value(kind)))
            known = None if node.op in LOOPS else _bounds(node, found)
            fits = known is not None and whole.low <= known.low and known.high <= whole.high
            # otherwise it wraps around
            found[node] = known if known is not None and fits else whole
    return found[value]


def _bounds(node: Node, known: dict[Node, Bounds]) -> Bounds | None:
    """Return bounds as if the type had no limits; None if they are unknown."""
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
    """Return bounds of a bitwise AND: at most the limit of an operand that is not negative."""
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
