"""Choose the loops of a kernel: the vector range, the register tile, what a work-item does.

Heuristics for CPUs. Vector lanes go over the range that most loads walk with stride 1 (weights
always can: they are packed to fit). A contraction keeps a register tile of `vector blocks x rows`,
so that each loaded weight vector meets several rows and each loaded activation several vectors.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from math import prod

from scheduler import index as ixs
from scheduler.index import Atom
from scheduler.kernelize.body import scalar_nodes
from scheduler.lower.place import (
    PlacedBody,
    PlacedStore,
    accumulates,
    dependencies,
    is_weight,
    looped,
)
from scheduler.node import Node
from scheduler.ops import ELEMENTWISE, LOOPS, Op

MAX_LANES = 16
# Register tile of a contraction: vectors of outputs x rows, or a divisor of the rows up to two
# more: 2x8 accumulators of 16 lanes leave half of 32 registers of 512 bits to operands.
TILE_VECTORS = 2
TILE_ROWS = 6
# Rows of a sliding-window kernel without cross-channel sums: neighbours share most of their window.
WINDOW_ROWS = 4
# Bytes a step of a streaming kernel stores: its index arithmetic is paid once for two lines.
STREAM_BYTES = 128
# What lanes gain on an operation, in units of what they gain on a load.
ARITHMETIC_SCORE = 0.2
# Ranges that only weights follow are unrolled up to this size: the other loads are shared.
SMALL_RANGE = 4
# Reduce loops up to this size are unrolled whole, so that overlapping windows share their loads.
FULL_UNROLL = 7
# Smallest useful share of a launch per work-item, in elementary operations.
MIN_ITEM_WORK = 20_000
MAX_ITEMS = 64


@dataclass(slots=True)
class Tile:
    """How one output range is cut: `size = outer * unroll * lanes`; the last block may overlap."""

    atom: Atom
    unroll: int = 1
    lanes: int = 1

    @property
    def block(self) -> int:
        """Elements per step of the outer loop."""
        return self.unroll * self.lanes

    @property
    def outer(self) -> int:
        """Steps of the outer loop."""
        return -(-self.atom.size // self.block)


@dataclass(slots=True)
class Schedule:
    """The loops of a kernel.

    Attributes:
        tiles: output ranges, outermost loop first.
        inner: how many of the last tiles are loops inside a step, below hoisted reductions; the
            others make up `steps`, of which each work-item does `chunk` consecutive ones.
        vector: the output range that lanes run over, None for scalar results.
        lanes: vector width.
        across: per ACCUMULATE or STAGE the range of its own that lanes run over, where the result
            has none.
        reduce_unroll: per reduce range, how many steps the loop body holds.
        reduce_order: per ACCUMULATE or STAGE its ranges, outermost loop first.
    """

    tiles: list[Tile]
    vector: Atom | None
    lanes: int
    inner: int = 0
    steps: int = 1
    chunk: int = 1
    reduce_unroll: dict[Atom, int] = field(default_factory=dict)
    reduce_order: dict[Node, tuple[Atom, ...]] = field(default_factory=dict)
    across: dict[Node, Atom] = field(default_factory=dict)

    @property
    def items(self) -> int:
        """Work-items to launch."""
        return -(-self.steps // self.chunk)


@dataclass(frozen=True, slots=True)
class LoadInfo:
    """A load and how often one output element performs it."""

    node: Node
    weight: bool
    times: int
    masked_by: frozenset[Atom]  # ranges its predicate depends on
    gathered_by: frozenset[Atom] = frozenset()  # ranges a run-time index of it depends on


def loads_of(body: PlacedBody) -> list[LoadInfo]:
    """Return the loads of a body with their multiplicity per output element.

    A load is repeated by the inner loops that it depends on; out of the others it is hoisted.
    """
    depends = dependencies(body.value)
    mine = set(body.ranges)
    result = []
    for node in reversed(scalar_nodes(body.value)):
        if node.op is Op.LOAD:
            times = prod(r.size for r in depends[node] if r not in mine)
            behind = {a.node for ix in node.arg.index for a in ixs.leaves(ix)} - {None}
            gathered = frozenset(r for n, on in depends.items() if n in behind for r in on)
            result.append(LoadInfo(node, is_weight(node.src[0]), times, _masks(node), gathered))
    return result


def choose_vector(body: PlacedBody, free: Collection[Node]) -> tuple[Atom | None, int]:
    """Return the output range to run lanes over and the number of lanes.

    (None, lanes) means that lanes are better spent across reductions; (None, 1) is scalar code.

    Args:
        body: placed, ranges not merged.
        free: results that may be stored in any order of axes.
    """
    loads = loads_of(body)
    depends = dependencies(body.value)
    arithmetic = [n for n in scalar_nodes(body.value) if n.op in ELEMENTWISE]
    reduces = [r for n in accumulates(body) for r in n.arg[1]]
    rows = {r for n in looped(body) if n.op is Op.STAGE for r in depends[n]}
    rows |= {r for s in body.stores if s.row is not None for r in depends[body.values[s.row[0]]]}
    best: tuple[float, Atom | None, int] = (0.0, None, 1)
    for atom in [*reversed(body.ranges), *reversed(dict.fromkeys(reduces))]:
        is_output = atom in body.ranges
        lanes = _lanes(atom.size)
        if lanes == 1 or atom in rows:  # a private array, or a store, has one row for all lanes
            continue
        score = sum(_load_score(load, atom) for load in loads)
        score += ARITHMETIC_SCORE * sum(atom in depends[n] for n in arithmetic)
        if is_output:
            score += sum(_store_score(s, atom) for s in body.stores if s.target not in free)
        if is_output and any(_is_outer_product(load, atom, loads) for load in loads):
            score *= 1.25
        score *= _efficiency(atom.size, lanes)
        if not is_output:
            score *= 0.7  # a horizontal sum at the end, and nothing to share between lanes
        if score > best[0]:
            best = (score, atom if is_output else None, lanes)
    return best[1], best[2]


def _store_score(store: PlacedStore, atom: Atom) -> float:
    if atom not in set(ixs.leaves(store.offset)):
        return 0.0
    return 1.0 if ixs.coefficient(store.offset, atom) == 1 else -2.0


def _lanes(size: int) -> int:
    return next((n for n in (16, 8, 4) if n <= min(MAX_LANES, size)), 1)


def _efficiency(size: int, lanes: int) -> float:
    useful = size / (-(-size // lanes) * lanes)
    return useful * float((lanes / MAX_LANES) ** 0.25)


def _load_score(load: LoadInfo, atom: Atom) -> float:
    if atom in load.gathered_by:
        return -2.0 * load.times
    if load.weight:
        return float(load.times)
    step = ixs.coefficient(load.node.arg.offset, atom)
    if step not in (0, 1):
        return -2.0 * load.times
    return -1.5 * load.times if atom in load.masked_by else 1.0 * load.times


def _is_outer_product(load: LoadInfo, atom: Atom, loads: list[LoadInfo]) -> bool:
    """Whether lanes over `atom` make a weight a vector and another operand a scalar."""
    if not load.weight or load.times == 1 or atom not in set(ixs.leaves(load.node.arg.offset)):
        return False
    others = [o for o in loads if not o.weight and o.times == load.times]
    return bool(others) and all(ixs.coefficient(o.node.arg.offset, atom) == 0 for o in others)


def choose_schedule(body: PlacedBody, vector: Atom | None, lanes: int) -> Schedule:
    """Return the loops for a body whose ranges are merged.

    Args:
        body: placed and merged.
        vector: from `choose_vector`, after merging.
        lanes: same.
    """
    tiles = {r: Tile(r) for r in body.ranges}
    schedule = Schedule([], vector, lanes)
    if vector in tiles:
        tiles[vector].lanes = lanes
    loads = loads_of(body)
    depends = dependencies(body.value)
    for node in reversed(looped(body)):  # outer ones first: lanes of an outer one serve inner ones
        taken = {vector, *schedule.across.values()}
        if lanes > 1 and taken.isdisjoint(depends[node]):
            across = _choose_across(node, lanes)
            if across is not None:
                schedule.across[node] = across
        order = _reduce_order(node, loads, schedule.across.get(node))
        schedule.reduce_order[node] = order
        for r in order:
            schedule.reduce_unroll[r] = 1
        if order and node.op is Op.ACCUMULATE and order[-1] is not schedule.across.get(node):
            schedule.reduce_unroll[order[-1]] = _unroll(order[-1].size)
    hoisted = hoisted_ranges(body)
    streams = vector is not None and all(_load_score(load, vector) > 0 for load in loads)
    if not schedule.reduce_order and vector in tiles and streams:
        _stream_tile(tiles[vector], body)
    if schedule.reduce_order and vector in tiles:
        _register_tile(tiles, vector, [ld for ld in loads if ld.times > 1], hoisted)
    schedule.tiles = _loop_order(list(tiles.values()), body, loads, hoisted)
    schedule.inner = (
        sum(t.atom not in hoisted for t in schedule.tiles) if hoisted is not None else 0
    )
    outer = schedule.tiles[: len(schedule.tiles) - schedule.inner]
    schedule.steps = prod(t.outer for t in outer)
    schedule.chunk = _chunk(schedule, body)
    return schedule


def hoisted_ranges(body: PlacedBody) -> frozenset[Atom] | None:
    """Return the output ranges that reductions shared by several results depend on, None if none.

    A row's maximum in a softmax depends on the row alone: rows become the outer loops. So does a
    row's sum that is stored beside the row.
    """
    depends = dependencies(body.value)
    mine = frozenset(body.ranges)
    outside = [frozenset(depends[node]) for node in looped(body)]
    outside += [body.loops_around(store) for store in body.stores]
    hoisted = [on for on in outside if on < mine]
    return frozenset().union(*hoisted) if hoisted else None


def _choose_across(node: Node, lanes: int) -> Atom | None:
    """Return the reduced range whose loads lanes serve best, None if lanes would gather."""
    if node.op is Op.STAGE and any(n.op in LOOPS for n in _computed_each_step(node)):
        return None  # the lanes serve the reduction that each element is
    best: tuple[float, Atom | None] = (0.0, None)
    loads = [n for n in scalar_nodes(node.src[0]) if n.op is Op.LOAD]
    for atom in reversed(node.arg[1]):
        if atom.size < lanes:
            continue
        infos = [LoadInfo(n, is_weight(n.src[0]), 1, _masks(n)) for n in loads]
        score = sum(_load_score(info, atom) for info in infos)
        if score > best[0]:
            best = (score, atom)
    return best[1]


def _computed_each_step(stage: Node) -> list[Node]:
    """Return the nodes that filling a private array evaluates anew for each element."""
    own = set(stage.arg[1])
    depends = dependencies(stage.src[0])
    nodes = scalar_nodes(stage.src[0], into_reductions=False)
    return [n for n in nodes if not own.isdisjoint(depends[n])]


def _masks(load: Node) -> frozenset[Atom]:
    return frozenset(a for ix, _, _ in load.arg.valid for a in ixs.leaves(ix))


def _unroll(size: int) -> int:
    """Return how many steps of a reduce loop its body holds."""
    if size <= FULL_UNROLL:
        return size
    return next(u for u in (4, 3, 2, 1) if size % u == 0)


def _reduce_order(node: Node, loads: list[LoadInfo], across: Atom | None) -> tuple[Atom, ...]:
    """Order reduce loops by the stride of the first non-weight load, largest first; lanes last."""
    offsets = [ld.node.arg.offset for ld in loads if ld.times > 1 and not ld.weight]
    offsets = offsets or [ld.node.arg.offset for ld in loads if ld.times > 1]

    def stride(r: Atom) -> int:
        steps = [abs(c) for o in offsets if (c := ixs.coefficient(o, r))]
        return steps[0] if steps else 0

    return tuple(sorted(node.arg[1], key=lambda r: (r is across, -stride(r), r.serial)))


def _stream_tile(tile: Tile, body: PlacedBody) -> None:
    """Let a step of a kernel that only streams move whole cache lines, not narrow vectors."""
    vector_bytes = tile.lanes * body.value.dtype.itemsize
    for unroll in (8, 4, 2):
        exact = tile.atom.size % (tile.lanes * unroll) == 0
        if exact and vector_bytes * unroll <= STREAM_BYTES:
            tile.unroll = unroll
            return


def _register_tile(
    tiles: dict[Atom, Tile],
    vector: Atom,
    inner: list[LoadInfo],
    hoisted: frozenset[Atom] | None,
) -> None:
    outer_product = any(_is_outer_product(ld, vector, inner) for ld in inner)
    shared = any(  # the vector meets other operands as scalars
        ixs.coefficient(ld.node.arg.offset, vector) == 0 for ld in inner if not ld.weight
    )
    rows = [
        r
        for r in tiles
        if r is not vector
        and (hoisted is None or r not in hoisted)
        and any(ixs.coefficient(ld.node.arg.offset, r) not in (0,) for ld in inner if not ld.weight)
    ]
    row = rows[-1] if rows else None
    if outer_product or (hoisted is not None and shared):
        lanes = tiles[vector].lanes
        tiles[vector].unroll = _blocks(vector.size, lanes, TILE_VECTORS if row else 4)
        if row is not None:
            tiles[row].unroll = _divisor(row.size, TILE_ROWS)
        return
    if row is not None:
        tiles[row].unroll = _divisor(row.size, WINDOW_ROWS)
    for r, tile in tiles.items():  # several results of the same inputs, as in a channel multiplier
        if r.size <= SMALL_RANGE and r is not vector and r not in rows:
            tile.unroll = r.size


def _blocks(size: int, lanes: int, most: int) -> int:
    """Return how many vectors a tile takes: as many as wanted without much overlap at the end."""
    vectors = -(-size // lanes)
    return next((n for n in range(most, 0, -1) if vectors % n == 0 and size >= n * lanes), 1)


def _divisor(size: int, most: int) -> int:
    """Return the rows per tile: a divisor near `most`, else `most` with an overlapping end."""
    best = max(d for d in range(1, most + 3) if size % d == 0)
    if best * 2 > most or size < most:
        return best
    return most


def _loop_order(
    tiles: list[Tile], body: PlacedBody, loads: list[LoadInfo], hoisted: frozenset[Atom] | None
) -> list[Tile]:
    """Put hoisted ranges outermost, then the vector of a contraction, so that weights stay put."""
    heavy = [ld for ld in loads if ld.weight and ld.times > 1]

    def rank(tile: Tile) -> tuple[bool, bool, int]:
        walks_weights = any(tile.atom in set(ixs.leaves(ld.node.arg.offset)) for ld in heavy)
        below = hoisted is not None and tile.atom not in hoisted
        return (below, not walks_weights, body.ranges.index(tile.atom))

    return sorted(tiles, key=rank)


def _chunk(schedule: Schedule, body: PlacedBody) -> int:
    """Return outer steps per work-item: enough items to share, none too small to pay its launch."""
    reduce = max((prod(r.size for r in rs) for rs in schedule.reduce_order.values()), default=1)
    ops = max(1, len(scalar_nodes(body.value)))
    work = prod(t.atom.size for t in schedule.tiles) * reduce * ops
    items = max(1, min(MAX_ITEMS, work // MIN_ITEM_WORK, schedule.steps))
    return -(-schedule.steps // items)
