"""Decide what is stored: one reverse walk gives every node the index at which each kernel needs it.

    y = relu(conv(x)); z = conv(y) + y      ->      kernels {relu(conv(x))}, {conv(y) + y}

Consumers come before their sources. A node that is not stored is computed inside every kernel that
needs it, at the indices found here; a node is stored when that would cost more than memory does:

- outputs, state writes and pins (CONTIGUOUS) are always stored;
- a value that holds a reduction is computed once: it stays inside a kernel only if exactly one
  kernel needs it, once per element, and outside every other reduction. Otherwise it is stored at
  the topmost elementwise node, so that the epilogue (bias, activation, residual) is part of the
  producing kernel;
- an elementwise value without own reduction is recomputed unless the repeated work exceeds a store
  and a launch;
- movement ops are never stored by choice: the node below them is, and the movement is an index.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from scheduler import index as ixs
from scheduler.index import Atom, Ix
from scheduler.kernelize.ranges import Index, cat_sources, source_index
from scheduler.node import Node, toposort
from scheduler.ops import COST, ELEMENTWISE, MOVEMENT, Op

# What storing a value costs, in vector adds: a launch (about 10 us on PoCL, 2026-11), and per
# element the store and the loads. Repeated work below this is recomputed.
LAUNCH_COST = 100_000
MEMORY_COST = 32
# Lanes share what does not move along the innermost axis.
LANES = 16
# A contraction's register tile reads each of its inputs once for this many outputs.
TILE_REUSE = 16
# Nested divisions in an index beyond this are cut by storing the node: loads cost less.
MAX_INDEX_DEPTH = 12

# A value needed at more different places than this is stored, or indices would multiply forever.
MAX_USES = 64

_LEAVES = frozenset({Op.BUFFER, Op.CONST, Op.IOTA})
_ONE_TO_ONE = frozenset({Op.RESHAPE, Op.PERMUTE, Op.FLIP})


@dataclass(slots=True)
class Use:
    """How one kernel needs a node.

    Attributes:
        root: the stored node whose kernel it is.
        index: of the needed element, in the ranges of that kernel.
        times: evaluations per element of the node.
        once: no path repeats, masks or reduces it: each element is needed at most once per kernel.
        reduced: it is needed inside a reduction, whose register tile shares it between results.
    """

    root: Node
    index: Index
    times: float
    once: bool
    reduced: bool = False


@dataclass(frozen=True, slots=True)
class Region:
    """A kernel to be: the stored node and the ranges over its shape."""

    root: Node
    ranges: tuple[Atom | None, ...]  # None for axes of size 1

    @property
    def index(self) -> Index:
        """The element this kernel's iteration stores."""
        return tuple(ixs.ZERO if r is None else ixs.of(r) for r in self.ranges)


def open_region(root: Node) -> Region:
    """Return a region with fresh ranges over the shape of a node."""
    ranges = tuple(None if s == 1 else ixs.new_range(s, f"r{i}") for i, s in enumerate(root.shape))
    return Region(root, ranges)


def realize(sinks: Sequence[Node]) -> dict[Node, Region]:
    """Return the nodes to store with their ranges, consumers before producers.

    Args:
        sinks: outputs and state writes.
    """
    order = toposort(sinks)
    forced = set(sinks) | {n for n in order if n.op in (Op.ASSIGN, Op.CONTIGUOUS)}
    carries, cost = _summaries(order, forced)
    uses: dict[Node, dict[tuple[Node, Index], Use]] = {n: {} for n in order}
    regions: dict[Node, Region] = {}
    for node in reversed(order):
        needed = list(uses[node].values())
        if node in forced or (needed and _must_store(node, needed, carries[node], cost[node])):
            regions[node] = open_region(node)
            needed = [Use(node, regions[node].index, 1.0, once=True)]
        elif node.op in _LEAVES:
            continue
        for use in needed:
            for src, need in _needs(node, use):
                _merge_use(uses[src], need)
    return regions


def _merge_use(table: dict[tuple[Node, Index], Use], use: Use) -> None:
    """Add a use; the same element needed twice by one kernel is one evaluation there."""
    old = table.get((use.root, use.index))
    if old is None:
        table[use.root, use.index] = use
    else:
        old.times = max(old.times, use.times)
        old.once = old.once and use.once
        old.reduced = old.reduced and use.reduced


def _must_store(node: Node, needed: list[Use], carries: bool, cost: float) -> bool:
    if node.op in _LEAVES:
        return False
    if node.op in MOVEMENT and node.op is not Op.CAT:
        return False
    if len(needed) > MAX_USES:
        return True
    if any(ix.depth > MAX_INDEX_DEPTH for use in needed for ix in use.index):
        return True
    if carries:
        return len(needed) > 1 or not needed[0].once
    evaluations = sum(max(1.0, u.times / TILE_REUSE) if u.reduced else u.times for u in needed)
    size = prod(node.shape)
    return size * (evaluations - 1) * cost > LAUNCH_COST + size * MEMORY_COST


def _summaries(order: list[Node], forced: set[Node]) -> tuple[dict[Node, bool], dict[Node, float]]:
    """Return per node whether it carries a reduction, and the cost of recomputing it in adds."""
    carries: dict[Node, bool] = {}
    cost: dict[Node, float] = {}
    for node in order:
        below = [s for s in node.src if s not in forced]
        if node.op is Op.REDUCE:
            carries[node], cost[node] = True, 1e9
            continue
        same_size = node.op in ELEMENTWISE or node.op in _ONE_TO_ONE
        if node.op is Op.EXPAND:
            same_size = node.shape == node.src[0].shape
        carries[node] = same_size and any(carries[s] for s in below)
        own = float(COST.get(node.op, 1)) if node.op in ELEMENTWISE else 0.0
        if node.op is Op.CAT:
            own = 2.0 * len(node.src)
        if node.op is Op.GATHER:
            own = 2.0
        cost[node] = own + sum(cost[s] for s in below if not carries[s])
    return carries, cost


def _needs(node: Node, use: Use) -> list[tuple[Node, Use]]:
    """Return what evaluating `node` at a use needs of its sources."""
    index, times, once = use.index, use.times, use.once

    def need(inner: Index, ratio: float, *, keeps_once: bool) -> Use:
        return Use(use.root, inner, times * ratio, once and keeps_once, use.reduced)

    if node.op in _LEAVES:
        return []
    if node.op is Op.ASSIGN:
        return [(node.src[1], use)]
    if node.op is Op.REDUCE:
        inner = reduce_index(node, index)[0]
        return [(node.src[0], Use(use.root, inner, times, once=False, reduced=True))]
    if node.op is Op.GATHER:
        data, which = node.src
        at = index[node.arg : node.arg + len(which.shape)]
        ratio = prod(node.shape) / max(1, prod(which.shape))
        # The row read is known at run time only; data below a gather is read, not recomputed.
        hidden = tuple(ixs.of(ixs.new_range(max(2, s), "g")) for s in data.shape)
        return [
            (data, need(hidden, 2.0, keeps_once=False)),
            (which, need(at, ratio, keeps_once=ratio <= 1)),
        ]
    if node.op is Op.CAT:  # every source is evaluated for every result, then one is selected
        size = prod(node.shape)
        return [
            (s, need(i, size / max(1, prod(s.shape)), keeps_once=False))
            for s, i, _ in cat_sources(node, index)
        ]
    if node.op in MOVEMENT:
        src = node.src[0]
        inner, _ = source_index(node, index)
        ratio = prod(node.shape) / max(1, prod(src.shape))
        masked = node.op is Op.PAD or (node.op in (Op.EXPAND, Op.WINDOW) and ratio > 1)
        if node.op is Op.EXPAND and node.shape[-1] > src.shape[-1]:
            ratio = max(1.0, ratio / min(LANES, node.shape[-1]))
        return [(src, need(inner, ratio, keeps_once=not masked))]
    return [(s, need(index, 1.0, keeps_once=True)) for s in node.src]


def reduce_index(node: Node, index: Index) -> tuple[Index, tuple[Atom, ...]]:
    """Return the source index of a REDUCE with fresh ranges on reduced axes, and those ranges."""
    axes, shape = node.arg[1], node.src[0].shape
    ranges: list[Atom] = []
    inner: list[Ix] = []
    for axis, (i, size) in enumerate(zip(index, shape, strict=True)):
        if axis in axes and size > 1:
            ranges.append(ixs.new_range(size, f"k{axis}"))
            inner.append(ixs.of(ranges[-1]))
        else:
            inner.append(i)
    return tuple(inner), tuple(ranges)
