"""Merges two loop nests into one that stores both results.

    s[i] = sum(a[i, k]; k), c[i, j] = cos(a[i, j])   ->   for i: s[i] = ..; for j: c[i, j] = ..
    t = sum(a), u = load(t) + 2                      ->   t = sum(a); u = t + 2
    p[i, j] = a * b, s[i] = sum(load(p)[i, k]; k)    ->   for i: s[i] = sum(a * b); for j: p = ..

If the second nest reads the element that the first stores in the same iteration, it uses the value
directly. Any other element is recomputed if that is cheap. Equal reductions become one.
"""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.ir import index as ixs
from scheduler.ir.index import Atom, Ix
from scheduler.ir.movement import Index
from scheduler.ir.node import Node
from scheduler.ir.ops import COST, ELEMENTWISE, LOOPS, Op
from scheduler.kernelize.body import Access, Body, Store, moved, moved_access
from scheduler.kernelize.scalar import rebuild, scalar_nodes


class _UnfitError(Exception):
    """The second nest reads an element of the first that it cannot compute cheaply."""


@dataclass(frozen=True, slots=True)
class Merged:
    """The result of merging two loop nests."""

    body: Body  # the merged nest, with the stores of the first in front
    added: tuple[Node, ...]  # reductions of the second that the first does not have
    # loops of the nest with fewer loops; None if both have all loops
    shorter: frozenset[Atom] | None
    recomputes: bool  # whether the second recomputes elements that other iterations store


def merge(first: Body, second: Body, most: int) -> Merged | None:
    """Return both loop nests as one; None if their loops or accesses do not fit.

    `second` may read results of `first`, but not the reverse. An element that is recomputed instead
    of loaded costs at most `most` adds.
    """
    mine, other = first.loops, second.loops
    onto_first = len(mine) >= len(other)
    mapping = _align(first, second, onto_first=onto_first)
    if mapping is None:
        return None
    if not onto_first:
        first = moved(first, mapping)
        mapping = {}
    stored = {s.target: s for s in first.stores}
    known = [n for n in scalar_nodes(first.value) if n.op is Op.ACCUMULATE]
    added: dict[Node, None] = {}
    recomputes = False

    def swap(node: Node) -> Node | None:
        nonlocal recomputes
        if node.op is Op.LOAD and node.src[0] in stored:
            store, access = stored[node.src[0]], node.arg
            if access.valid == () and access.index == store.index:
                return store.value
            recomputes = True
            return _computed_at(store, access, most)
        if node.op is Op.ACCUMULATE:
            same = next((k for k in known if _is_same(node, k)), None)
            if same is None:
                added[node] = None
            return same
        return None

    try:
        second = moved(second, mapping, swap)
    except _UnfitError:
        return None
    body = Body(first.ranges if onto_first else second.ranges, (*first.stores, *second.stores))
    left = {n for n in scalar_nodes(body.value) if n.op is Op.ACCUMULATE}
    shorter = None
    if len(mine) != len(other):
        fewer = second if onto_first else first
        shorter = frozenset(a for s in fewer.stores for ix in s.index for a in ixs.leaves(ix))
    return Merged(body, tuple(n for n in added if n in left), shorter, recomputes)


def _computed_at(store: Store, access: Access, most: int) -> Node:
    """Return another element of a store's target, recomputed from the sources of the store.

    Raises:
        _UnfitError: it is masked, expensive, or not computed element by element.
    """
    nodes = scalar_nodes(store.value)
    cost = sum(COST.get(n.op, 1) for n in nodes if n.op in ELEMENTWISE)
    if access.valid != () or cost > most or any(n.op in LOOPS for n in nodes):
        raise _UnfitError
    mapping: dict[Atom, Ix] = {}
    for written, read, size in zip(store.index, access.index, store.target.shape, strict=True):
        atom = ixs.as_atom(written)
        # a loop over a part of the axis does not compute the other elements
        if atom is not None and atom.size == size:
            mapping[atom] = read
        elif written != read:
            raise _UnfitError
    return rebuild(store.value, mapping, moved_access)


def _align(first: Body, second: Body, *, onto_first: bool) -> dict[Atom, Ix] | None:
    """Return the loop of the longer nest that each loop of the shorter one becomes."""
    short, long = (second, first) if onto_first else (first, second)
    inner, outer = short.loops, long.loops
    pairs = _by_stored_element(first, second, set(inner), onto_first=onto_first)
    if pairs is None and [r.size for r in inner] == [r.size for r in outer]:
        pairs = dict(zip(inner, outer, strict=True))
    if pairs is None:
        pairs = _by_shared_load(short, long)
    if pairs is None or set(pairs) != set(inner):
        return None
    unique = len(set(pairs.values())) == len(pairs)
    fits = unique and all(a.size == b.size and b in outer for a, b in pairs.items())
    return {a: ixs.of(b) for a, b in pairs.items()} if fits else None


def _by_stored_element(
    first: Body, second: Body, inner: set[Atom], *, onto_first: bool
) -> dict[Atom, Atom] | None:
    """Align so that the second reads the element that the first stores; None if it reads none."""
    stored = {s.target: s.index for s in first.stores}
    for node in scalar_nodes(second.value):
        if node.op is Op.LOAD and node.src[0] in stored:
            written, read = stored[node.src[0]], node.arg.index
            here, there = (read, written) if onto_first else (written, read)
            pairs = _paired(here, there, inner)
            if pairs is not None and set(pairs) == inner:
                return pairs
    return None


def _by_shared_load(short: Body, long: Body) -> dict[Atom, Atom] | None:
    """Align two nests by a buffer that both read: loops over the same axis become one."""
    outer = set(long.loops)
    inner = set(short.loops)
    reads: dict[Node, list[Index]] = {}
    for node in scalar_nodes(long.value):
        if node.op is Op.LOAD:
            reads.setdefault(node.src[0], []).append(node.arg.index)
    for node in scalar_nodes(short.value):
        for index in reads.get(node.src[0], ()) if node.op is Op.LOAD else ():
            both = (node.arg.index, index)
            atoms = [(ixs.as_atom(i), ixs.as_atom(j)) for i, j in zip(*both, strict=True)]
            pairs = {
                a: b
                for a, b in atoms
                if a is not None and b is not None and a in inner and b in outer
            }
            if len(pairs) == len(inner):
                return pairs
    return None


def _paired(a: Index, b: Index, inner: set[Atom]) -> dict[Atom, Atom] | None:
    """Map ranges of one index to the ranges at the same positions of another index."""
    pairs: dict[Atom, Atom] = {}
    for i, j in zip(a, b, strict=True):
        x, y = ixs.as_atom(i), ixs.as_atom(j)
        if x is None or x not in inner:
            continue
        if y is None or pairs.setdefault(x, y) is not y:
            return None
    return pairs


def _is_same(node: Node, known: Node) -> bool:
    """Whether two reductions are equal except for the names of their ranges."""
    if node is known:
        return True
    (op, ranges, *parts), (other, theirs, *others) = node.arg, known.arg
    if op is not other or parts != others or [r.size for r in ranges] != [r.size for r in theirs]:
        return False
    renamed = {a: ixs.of(b) for a, b in zip(ranges, theirs, strict=True)}
    return rebuild(node.src[0], renamed, moved_access) is known.src[0]
