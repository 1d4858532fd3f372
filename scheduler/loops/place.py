"""Places a body in memory: logical indices become offsets, and loops are merged or split.

LOAD x[h, w, c] with x stored as (h, w, c)     ->  LOAD x[h*W*C + w*C + c]
ranges h, w used only as h*W + w               ->  one range hw

A body is the scalar expression of one iteration of a loop nest.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod

from scheduler.ir import index as ixs
from scheduler.ir.index import Atom, Ix, Predicate
from scheduler.ir.node import Node, is_weight, make
from scheduler.ir.ops import LOOPS, Op, parts_of
from scheduler.kernelize.body import Body, moved_access
from scheduler.kernelize.scalar import depends_on, rebuild, scalar_nodes

# With more loops than this, loops cost more than the divisions they replace.
MAX_RANGES = 8


@dataclass(frozen=True, slots=True)
class Layout:
    """Order of the axes of a stored tensor in memory, outermost first."""

    order: tuple[int, ...]

    def offset(self, index: tuple[Ix, ...], shape: tuple[int, ...]) -> Ix:
        """Return the element offset of a logical index."""
        return ixs.flatten([index[a] for a in self.order], [shape[a] for a in self.order])


def row_major(rank: int) -> Layout:
    """Return the row-major layout, which inputs, outputs and states have."""
    return Layout(tuple(range(rank)))


@dataclass(frozen=True, slots=True)
class Place:
    """Argument of a placed LOAD."""

    index: tuple[Ix, ...]
    valid: Predicate
    fill: float | int | bool
    offset: Ix  # element offset in storage; row-major for a weight, until it is packed


@dataclass(frozen=True, slots=True)
class PlacedStore:
    """One result of a placed body."""

    target: Node
    index: tuple[Ix, ...]
    offset: Ix  # element offset of the store, without the row
    # For a run-time row: the position of its value in `PlacedBody.values`, the rows of the axis,
    # and the elements from one row to the next. None without a row.
    row: tuple[int, int, int] | None = None


@dataclass(frozen=True, slots=True)
class PlacedBody:
    """A body with offsets."""

    ranges: tuple[Atom, ...]
    value: Node  # scalar node, a TUPLE if there are several stores; LOADs have a Place
    stores: tuple[PlacedStore, ...]

    @property
    def values(self) -> tuple[Node, ...]:
        """The stored values, then the rows."""
        return self.value.src if self.value.op is Op.TUPLE else (self.value,)

    def loops_around(self, store: PlacedStore) -> frozenset[Atom]:
        """Return the loops around a store; deeper loops do not repeat it."""
        atoms = frozenset(ixs.leaves(store.offset))
        if store.row is None:
            return atoms
        return atoms | frozenset(dependencies(self.value)[self.values[store.row[0]]])


def place(body: Body, layouts: Mapping[Node, Layout]) -> PlacedBody:
    """Return the body with offsets into storage; nodes without a layout are row-major."""
    ranges = tuple(r for r in body.ranges if r is not None)

    def put(load: Node, mapping: Mapping[Atom, Ix]) -> Place:
        access = moved_access(load, mapping)
        shape = load.src[0].shape
        layout = layouts.get(load.src[0]) or row_major(len(shape))
        offset = layout.offset(access.index, shape)
        return Place(access.index, access.valid, access.fill, offset)

    value = rebuild(body.value, {}, put)
    stores, rows = [], len(body.stores)
    for s in body.stores:
        row = None
        if s.row is not None:
            shape = s.target.shape
            # Values of rows follow those of the stores.
            row = (rows, shape[s.row.axis], prod(shape[s.row.axis + 1 :]))
            rows += 1
        stores.append(PlacedStore(s.target, s.index, ixs.ZERO, row))
    return store_as(PlacedBody(ranges, value, tuple(stores)), layouts)


def store_as(body: PlacedBody, layouts: Mapping[Node, Layout]) -> PlacedBody:
    """Return the body with its results in the given layouts, row-major by default."""
    stores = []
    for store in body.stores:
        shape = store.target.shape
        layout = layouts.get(store.target) or row_major(len(shape))
        stores.append(replace(store, offset=layout.offset(store.index, shape)))
    return replace(body, stores=tuple(stores))


def expressions(body: PlacedBody) -> tuple[list[Ix], list[Ix]]:
    """Return the offsets and predicates of a body, and the row-major offsets of its weights."""
    found: list[Ix] = [s.offset for s in body.stores]
    weights: list[Ix] = []
    for node in scalar_nodes(body.value):
        if node.op is Op.LOAD:
            (weights if is_weight(node.src[0]) else found).append(node.arg.offset)
            found.extend(ix for ix, _, _ in node.arg.valid)
        elif node.op in (Op.INDEX, Op.PICK):
            found.append(node.arg)
        elif node.op is Op.SELECT:
            found.extend(ix for ix, _, _ in node.arg)
    return found, weights


def dependencies(value: Node) -> dict[Node, tuple[Atom, ...]]:
    """Return, for each scalar node, the ranges that its value depends on, oldest first."""
    found = depends_on(value)
    return {n: tuple(sorted(atoms, key=lambda a: a.serial)) for n, atoms in found.items()}


def accumulates(body: PlacedBody) -> list[Node]:
    """Return the reductions of a body, inner ones first."""
    return [n for n in scalar_nodes(body.value) if n.op is Op.ACCUMULATE]


def looped(body: PlacedBody) -> list[Node]:
    """Return the reductions and private arrays of a body, inner ones first."""
    return [n for n in scalar_nodes(body.value) if n.op in LOOPS]


def merge_ranges(
    body: PlacedBody, vector: Atom | None, outside: Collection[Atom] = ()
) -> tuple[PlacedBody, Atom | None]:
    """Merge ranges that only occur together; return the body and the range that replaced `vector`.

    Ranges in `outside` merge only with each other.
    """
    again = True
    while again:
        again = False
        exprs, weights = expressions(body)
        groups = [body.ranges, *(_mergeable(n) for n in accumulates(body))]
        for group in groups:
            pairs = [p for p in pairwise(group) if (p[0] in outside) == (p[1] in outside)]
            pair = next((p for p in pairs if _move_together(*p, exprs, weights)), None)
            if pair is not None:
                body, fused = _fuse(body, *pair)
                vector = fused if vector in pair else vector
                outside = {*outside, fused} if pair[0] in outside else outside
                again = True
                break
    return body, vector


def _mergeable(node: Node) -> tuple[Atom, ...]:
    """Return the ranges of a reduction that may merge; partial sums keep the last one separate."""
    ranges: tuple[Atom, ...] = node.arg[1]
    return ranges[:-1] if ranges[-1].size % max(1, parts_of(node)) else ranges


def split_ranges(body: PlacedBody, whole_ranges: Collection[Atom] = ()) -> PlacedBody:
    """Split output ranges that are used as quotient and remainder of a constant.

    x[c/2] * w[c]  over c = 0..127     ->     x[g] * w[g*2 + j]  over g = 0..63, j = 0..1

    Ranges in `whole_ranges` are not split.
    """
    again = True
    while again and len(body.ranges) < MAX_RANGES:
        again = False
        exprs, _ = expressions(body)
        for r in body.ranges:
            by = 0 if r in whole_ranges else _divisor(r, exprs)
            if by:
                quotient, rest, whole = _quotient_and_rest(r, by)
                ranges = tuple(
                    n for o in body.ranges for n in ((quotient, rest) if o is r else (o,))
                )
                body = _replace_ranges(body, {r: whole}, ranges)
                again = True
                break
    return body


def split_reductions(body: PlacedBody) -> PlacedBody:
    """Split ranges of reductions that are used as quotient and remainder of a constant.

    sum(x[k % 17 * 8 + k / 17]; k = 0..135)     ->     sum(x[j * 8 + i]; i = 0..7, j = 0..16)

    The order of the sum is unchanged. Sums whose order is fixed in parts are not split.
    """
    again = True
    while again:
        again = False
        exprs, _ = expressions(body)
        for node in accumulates(body):
            ranges: tuple[Atom, ...] = () if parts_of(node) else node.arg[1]
            r = next((r for r in ranges if len(ranges) < MAX_RANGES and _divisor(r, exprs)), None)
            if r is None:
                continue
            quotient, rest, whole = _quotient_and_rest(r, _divisor(r, exprs))
            parts = tuple(n for o in ranges for n in ((quotient, rest) if o is r else (o,)))
            body = _with_reduction(body, {r: whole}, node, parts)
            again = True
            break
    return body


def _with_reduction(
    body: PlacedBody, mapping: Mapping[Atom, Ix], reduction: Node, ranges: tuple[Atom, ...]
) -> PlacedBody:
    """Return the body with new ranges for one reduction."""

    def swap(node: Node) -> Node | None:
        if node.op is not Op.ACCUMULATE or node.arg[1] != reduction.arg[1]:
            return None
        return make(node.op, node.dtype, node.src, (node.arg[0], ranges, *node.arg[2:]))

    return replace(body, value=rebuild(body.value, mapping, place_again, swap))


def _divisor(r: Atom, exprs: list[Ix]) -> int:
    """Return the smallest divisor to split a range by, 0 for none; larger ones follow later."""
    by = min(divisors_of(r, exprs), default=0)
    return by if by and r.size % by == 0 and by < r.size else 0


def _quotient_and_rest(r: Atom, by: int) -> tuple[Atom, Atom, Ix]:
    """Return the ranges of quotient and remainder, and the index that replaces the split range."""
    quotient = ixs.new_range(r.size // by, f"{r.name}q")
    rest = ixs.new_range(by, f"{r.name}m")
    return quotient, rest, ixs.add(ixs.mul(ixs.of(quotient), by), ixs.of(rest))


def divisors_of(r: Atom, exprs: Iterable[Ix]) -> set[int]:
    """Return the constants by which a range itself is divided."""
    found: set[int] = set()
    stack = list(exprs)
    while stack:
        for atom, _ in stack.pop().terms:
            if atom.inner is not None:
                if atom.inner is ixs.of(r):
                    found.add(atom.by)
                stack.append(atom.inner)
    return found


def _replace_ranges(
    body: PlacedBody, mapping: Mapping[Atom, Ix], ranges: tuple[Atom, ...]
) -> PlacedBody:
    value = rebuild(body.value, mapping, place_again)
    return PlacedBody(ranges, value, tuple(_moved(s, mapping) for s in body.stores))


def _moved(store: PlacedStore, mapping: Mapping[Atom, Ix]) -> PlacedStore:
    index = tuple(ixs.substitute(i, mapping) for i in store.index)
    return replace(store, index=index, offset=ixs.substitute(store.offset, mapping))


def _move_together(outer: Atom, inner: Atom, exprs: list[Ix], weights: list[Ix]) -> bool:
    for ix in exprs:
        a, b = ixs.coefficient(ix, outer), ixs.coefficient(ix, inner)
        # One loop can run both if, in each index, a step of the outer one equals all steps of the
        # inner one.
        if a is None or b is None or a != b * inner.size:
            return False
    for ix in weights:  # packed in loop order: a weight must depend on both ranges or on neither
        present = set(ixs.leaves(ix))
        if (outer in present) != (inner in present):
            return False
    return True


def _fuse(body: PlacedBody, outer: Atom, inner: Atom) -> tuple[PlacedBody, Atom]:
    fused = ixs.new_range(outer.size * inner.size, f"{outer.name}{inner.name}")
    whole = ixs.of(fused)
    mapping = {outer: ixs.floordiv(whole, inner.size), inner: ixs.mod(whole, inner.size)}

    def renamed(group: tuple[Atom, ...]) -> tuple[Atom, ...]:
        return tuple(fused if r is outer else r for r in group if r is not inner)

    def swap(node: Node) -> Node | None:
        if node.op is not Op.ACCUMULATE:
            return None
        arg = (node.arg[0], renamed(node.arg[1]), *node.arg[2:])
        return make(node.op, node.dtype, node.src, arg)

    value = rebuild(body.value, mapping, place_again, swap)
    stores = tuple(_moved(s, mapping) for s in body.stores)
    return PlacedBody(renamed(body.ranges), value, stores), fused


def place_again(load: Node, mapping: Mapping[Atom, Ix]) -> Place:
    """Return the argument of a placed LOAD with its ranges replaced."""
    place: Place = load.arg
    index = tuple(ixs.substitute(i, mapping) for i in place.index)
    valid = ixs.substitute_predicate(place.valid, mapping)
    return Place(index, valid, place.fill, ixs.substitute(place.offset, mapping))
