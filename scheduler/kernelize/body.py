"""Builds the body of a kernel: the scalar expression that one iteration computes.

Its input is a region (a planned loop nest) of a StorePlan, its result a Body:

    tensor level                              scalar level, at ranges (n, m) with k reduced
    sum(EXPAND(x) * EXPAND(w)) + EXPAND(b)    ACCUMULATE(LOAD x[n,k] * LOAD w[k,m]; k) + LOAD b[m]

A LOAD names a buffer node, a logical index (one Ix per axis) and a predicate. If the predicate
fails, its value is the fill. The storage layout is not chosen yet, so there are no offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod

from scheduler.errors import LoweringError
from scheduler.ir import dtype as dt
from scheduler.ir import index as ixs
from scheduler.ir.build import repeated
from scheduler.ir.index import Atom, Ix, Predicate
from scheduler.ir.movement import Index, cat_sources, source_index
from scheduler.ir.node import Node, alu, const, make
from scheduler.ir.ops import ELEMENTWISE, FUSED, Op, is_fused, parts_of
from scheduler.kernelize.regions import Region, StorePlan, reduce_index
from scheduler.kernelize.scalar import (
    atoms_of,
    bounds_of,
    overwrites,
    rebuild,
    scalar_sources,
    tuple_of,
)

Swap = Callable[[Node], Node | None]


@dataclass(frozen=True, slots=True)
class Access:
    """Argument of a LOAD: the element, the predicate under which it is read, and the fill."""

    index: Index
    valid: Predicate
    fill: float | int | bool


@dataclass(frozen=True, slots=True)
class Row:
    """A run-time index on one axis of a store; indices outside the axis write nothing."""

    axis: int
    value: Node  # scalar integer node; negative indices are already counted from the end


@dataclass(frozen=True, slots=True)
class Store:
    """One result of a loop nest."""

    target: Node  # node whose storage is written: a stored node, or the BUFFER of a state
    # Index of the written element, in the shape of target and the ranges of the body. Loops over
    # ranges that it does not use run inside: the element is written once, outside of them.
    index: Index
    value: Node
    row: Row | None = None  # run-time index on one axis; `index` is 0 there


@dataclass(frozen=True, slots=True)
class Body:
    """A loop nest of a kernel; axes of size 1 have the range None."""

    ranges: tuple[Atom | None, ...]
    stores: tuple[Store, ...]

    @property
    def value(self) -> Node:
        """All stored values, then the rows, as one scalar node; a TUPLE if there are several."""
        rows = [s.row.value for s in self.stores if s.row is not None]
        return tuple_of([*(s.value for s in self.stores), *rows])

    @property
    def loops(self) -> tuple[Atom, ...]:
        """The ranges, without the axes of size 1."""
        return tuple(r for r in self.ranges if r is not None)

    def overwrites(self, store: Store, source: Node) -> bool:
        """Whether a result may be stored over a row-major source, such as a state."""
        place = ixs.flatten(store.index, store.target.shape)
        return overwrites(self.value, self.loops, place, source, _row_major)


def _row_major(load: Node) -> Ix:
    return ixs.flatten(load.arg.index, load.src[0].shape)


_Key = tuple[Node, Index, Predicate]


class _Builder:
    """Evaluates tensor nodes at indices to scalar nodes; an explicit stack avoids recursion."""

    def __init__(self, region: Region, plan: StorePlan) -> None:
        self.stored = plan.regions
        self.own = region.root if region.root is region.target else None
        self.stages = {n: s for n, s in plan.stages.items() if s.root is region}
        self.done: dict[_Key, Node] = {}
        self.reduces: dict[_Key, tuple[Index, tuple[Atom, ...]]] = {}
        self.ranges: dict[Node, frozenset[Atom]] = {}

    def build(self, node: Node, index: Index) -> Node:
        """Return the scalar value of `node` at `index`, without loading the region's own node."""
        first: _Key = (node, index, ())
        stack: list[_Key] = [first]
        while stack:
            key = stack[-1]
            if key in self.done:
                stack.pop()
                continue
            own = key == first and node is self.own
            is_leaf = key[0].op in (Op.BUFFER, Op.WORDS)
            is_load = is_leaf or (key[0] in self.stored and not own)
            needed = [] if is_load else self._sources(key)
            missing = [k for k in needed if k not in self.done]
            if missing:
                stack.extend(missing)
                continue
            stack.pop()
            if is_load:
                self.done[key] = _load(*key)
            else:
                self.done[key] = self._combine(key, [self.done[k] for k in needed])
        return self.done[first]

    def _sources(self, key: _Key) -> list[_Key]:
        node, index, valid = key
        if node.op in (Op.CONST, Op.IOTA) or valid == ixs.NEVER:
            return []
        if self._is_picked(key):
            return [(node, self.stages[node].index, ())]
        if node.op in (Op.ASSIGN, Op.CONTIGUOUS):
            return [(node.src[-1], index, valid)]
        if node.op in ELEMENTWISE:
            return [(s, index, valid) for s in node.src]
        if node.op is Op.REDUCE:
            if key not in self.reduces:
                self.reduces[key] = reduce_index(node, index)
            return [(node.src[0], self.reduces[key][0], valid)]
        if node.op is Op.CAT:
            return [(s, i, _both(valid, p)) for s, i, p in cat_sources(node, index)]
        if node.op is Op.GATHER:
            return self._gather_sources(key)
        inner, inside = source_index(node, index)
        return [(node.src[0], inner, _both(valid, inside))]

    def _is_picked(self, key: _Key) -> bool:
        """Whether a value is read from a private array and is not the value that fills it."""
        stage = self.stages.get(key[0])
        return stage is not None and key[1] != stage.index

    def _gather_sources(self, key: _Key) -> list[_Key]:
        """Return the index of a gather; once that is built, also the data at the index."""
        node, index, valid = key
        data, which = node.src
        rank = len(which.shape)
        at: _Key = (which, index[node.arg : node.arg + rank], valid)
        if at not in self.done:
            return [at]
        row = _row_index(self.done[at], data.shape[node.arg])
        return [at, (data, (*index[: node.arg], row, *index[node.arg + rank :]), valid)]

    def _combine(self, key: _Key, src: list[Node]) -> Node:
        node, index, valid = key
        if valid == ixs.NEVER:
            return const(0, node.dtype)
        if node.op is Op.CONST:
            return node
        if self._is_picked(key):
            stage = self.stages[node]
            array = make(Op.STAGE, node.dtype, (src[0],), (None, stage.ranges))
            return make(Op.PICK, node.dtype, (array,), stage.offset(index))
        if node.op is Op.IOTA:
            return make(Op.INDEX, dt.int32, (), index[0])
        if node.op is Op.REDUCE:
            return self._accumulate(node, src[0], self.reduces[key][1])
        if node.op in ELEMENTWISE:
            return make(node.op, node.dtype, tuple(src), FUSED if is_fused(node) else None)
        if node.op is Op.CAT:
            return _select_source(node, index, src)
        if node.op is Op.GATHER:
            return src[1]
        if node.op is Op.PAD:
            return _fill_outside(src[0], source_index(node, index)[1], node.arg[1])
        return src[0]

    def _accumulate(self, node: Node, value: Node, ranges: tuple[Atom, ...]) -> Node:
        """Reduce a scalar value over ranges, by the op of a REDUCE.

        sum(x[i]; j in 0..n)     ->  x[i] * n     no loop over ranges that the value does not use,
        max(x[i]; j in 0..n)     ->  x[i]         see `repeated` in `scheduler/ir/build.py`
        sum(sum(x[i, j]; j); i)  ->  sum(x[i, j]; i, j)

        In a fixed order every range is looped over, because x[i] * n rounds differently.
        """
        op: Op = node.arg[0]
        if parts_of(node):
            arg = (op, ranges, parts_of(node))
            return make(Op.ACCUMULATE, value.dtype, (value,), arg) if ranges else value
        present = self._ranges_of(value)
        moving = tuple(r for r in ranges if r in present)
        once = _loop(op, value, moving)
        count = prod(r.size for r in ranges if r not in present)
        whole = repeated(op, once, count) if count else None
        return _loop(op, value, ranges) if whole is None else whole

    def _ranges_of(self, value: Node) -> frozenset[Atom]:
        """Return the ranges that a scalar value depends on or reduces over."""
        stack = [value]
        while stack:
            node = stack[-1]
            missing = [s for s in scalar_sources(node) if s not in self.ranges]
            if missing and node not in self.ranges:
                stack += missing
                continue
            stack.pop()
            if node in self.ranges:
                continue  # known from an earlier reduction: nodes below it are not walked again
            found: set[Atom] = set()
            for atom in atoms_of(node):
                found |= {atom} if atom.node is None else self.ranges[atom.node]
            for s in node.src if node.op is not Op.LOAD else ():
                found |= self.ranges[s]
            self.ranges[node] = frozenset(found)
        return self.ranges[value]


def _loop(op: Op, value: Node, ranges: tuple[Atom, ...]) -> Node:
    """Return a scalar value reduced over ranges.

    A reduction with the same op directly below it is merged.
    """
    if not ranges:
        return value
    if value.op is Op.ACCUMULATE and value.arg[0] is op and not parts_of(value):
        value, ranges = value.src[0], ranges + value.arg[1]
    return make(Op.ACCUMULATE, value.dtype, (value,), (op, ranges))


def _both(a: Predicate, b: Predicate) -> Predicate:
    for ix, low, high in b:
        a = ixs.conjoin(a, ix, low, high)
    return a


def _load(node: Node, index: Index, valid: Predicate) -> Node:
    read = tuple([ixs.where(ix, valid) for ix in index]) if valid else index
    return make(
        Op.LOAD, node.dtype, (node,), Access(read, valid, False if node.dtype is dt.bool_ else 0)
    )


def _fill_outside(value: Node, inside: Predicate, fill: float) -> Node:
    """Mask a padded value; a masked load returns its fill itself and needs no select."""
    if inside == ():
        return value
    if inside == ixs.NEVER:
        return const(fill, value.dtype)
    if value.op is Op.LOAD and value.arg.valid == inside:
        return make(Op.LOAD, value.dtype, value.src, Access(value.arg.index, value.arg.valid, fill))
    if fill == 0 and _is_zero_outside(value, inside):
        return value
    return make(Op.SELECT, value.dtype, (value, const(fill, value.dtype)), inside)


def _implies(valid: Predicate, inside: Predicate) -> bool:
    bounds = {ix: (low, high) for ix, low, high in valid}
    return all(
        ix in bounds and bounds[ix][0] >= low and bounds[ix][1] <= high for ix, low, high in inside
    )


def _is_zero_outside(value: Node, inside: Predicate) -> bool:
    while value.op is Op.CAST:
        value = value.src[0]
    return value.op is Op.LOAD and value.arg.fill == 0 and _implies(value.arg.valid, inside)


def _select_source(node: Node, index: Index, src: list[Node]) -> Node:
    """Select among the sources of a CAT; the last one is the default."""
    parts = cat_sources(node, index)
    value = src[-1]
    for (_, _, inside), candidate in zip(reversed(parts[:-1]), reversed(src[:-1]), strict=True):
        if inside == ():
            value = candidate
        elif inside != ixs.NEVER:
            value = make(Op.SELECT, node.dtype, (candidate, value), inside)
    return value


def _row_index(value: Node, size: int) -> Ix:
    """Return the row of a gather; negative indices count from the end, the result is clipped."""
    known = _as_index(value)
    if known is not None and known.lo >= 0 and known.hi < size:
        return known
    if size > ixs.LARGEST:
        raise LoweringError(
            f"a gather from an axis of {size} elements; at most {ixs.LARGEST}: gather from parts"
        )
    low, high = bounds_of(value)
    row = _counted_from_start(value, size)
    if low < -size:
        row = alu(Op.MAX, row, const(0, dt.int32))
    if high >= size:
        row = alu(Op.MIN, row, const(size - 1, dt.int32))
    return ixs.of(ixs.value_atom(row, 0, size - 1))


def _counted_from_start(value: Node, size: int) -> Node:
    """Return an integer index as int32, with negative indices counted from the end."""
    row, (low, high) = value, bounds_of(value)
    if row.dtype is not dt.int32:
        if high > ixs.LARGEST:  # values outside of the axis must stay outside
            row = alu(Op.MIN, row, const(size, row.dtype))
        if low < -ixs.LARGEST:
            row = alu(Op.MAX, row, const(-size - 1, row.dtype))
        row = make(Op.CAST, dt.int32, (row,))
    if low >= 0:
        return row
    below = alu(Op.LT, row, const(0, dt.int32))
    return alu(Op.WHERE, below, alu(Op.ADD, row, const(size, dt.int32)), row)


def _as_index(value: Node) -> Ix | None:
    """Return an integer expression of ranges and constants as an index; None for any other."""
    if value.op is Op.CONST and isinstance(value.arg, int):
        return ixs.constant(value.arg)
    if value.op is Op.INDEX:
        return value.arg if isinstance(value.arg, Ix) else None
    if value.op is Op.CAST and value.src[0].dtype.is_int and value.dtype.is_int:
        ix = _as_index(value.src[0])
        fits = ix is not None and dt.holds(value.dtype, ix.lo) and dt.holds(value.dtype, ix.hi)
        return ix if fits else None  # a narrow type would wrap around
    if value.op in (Op.ADD, Op.MUL):
        a, b = _as_index(value.src[0]), _as_index(value.src[1])
        if a is None or b is None or not (value.op is Op.ADD or a.is_const or b.is_const):
            return None
        if value.op is Op.ADD:
            ix = ixs.add(a, b)
        else:
            ix = ixs.mul(a, b.const) if b.is_const else ixs.mul(b, a.const)
        fits = dt.holds(value.dtype, ix.lo) and dt.holds(value.dtype, ix.hi)
        return ix if fits else None  # values wrap around, indices do not
    return None


def build_body(region: Region, plan: StorePlan) -> Body:
    """Return the loop nest of a region, with LOADs of stored nodes; LoweringError is a bug."""
    builder = _Builder(region, plan)
    value = builder.build(region.root, region.index)
    if value.shape != ():
        raise LoweringError(f"{region.root!r}: the kernel body is not scalar")
    row = None
    if region.row is not None:
        axis, index = region.row
        at = builder.build(index, (region.index[axis],))
        row = Row(axis, _counted_from_start(at, region.target.shape[axis]))
    return Body(region.ranges, (Store(region.target, region.target_index, value, row),))


def moved_access(load: Node, mapping: Mapping[Atom, Ix]) -> Access:
    """Return the argument of a LOAD with its ranges replaced."""
    access: Access = load.arg
    index = tuple(ixs.substitute(i, mapping) for i in access.index)
    return Access(index, ixs.substitute_predicate(access.valid, mapping), access.fill)


def moved(body: Body, mapping: Mapping[Atom, Ix], swap: Swap = lambda _: None) -> Body:
    """Return a body without rows with its ranges replaced and some nodes replaced by `swap`."""
    value = rebuild(body.value, mapping, moved_access, swap)
    values = value.src if value.op is Op.TUPLE else (value,)
    stores = tuple(
        Store(s.target, tuple(ixs.substitute(i, mapping) for i in s.index), v)
        for s, v in zip(body.stores, values, strict=True)
    )
    return Body(body.ranges, stores)
