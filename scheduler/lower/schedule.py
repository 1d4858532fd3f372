"""Choose the loops of a kernel: the vector range, the register tile, what a work-item does.

Heuristics for CPUs. Vector lanes go over the range that most loads walk with stride 1 (weights
always can: they are packed to fit). A contraction keeps a register tile of `vector blocks x rows`,
so that each loaded weight vector meets several rows and each loaded activation several vectors.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

from scheduler import index as ixs
from scheduler.index import Atom
from scheduler.kernelize.kernels import scalar_nodes
from scheduler.lower.place import PlacedBody, accumulates, is_weight
from scheduler.node import Node
from scheduler.ops import Op

MAX_LANES = 16
# Register tile of a contraction: vectors of outputs x rows. 2x6 of 16 lanes fit 32 registers of
# 512 bits.
TILE_VECTORS = 2
TILE_ROWS = 6
# Rows of a sliding-window kernel without cross-channel sums: neighbours share most of their window.
WINDOW_ROWS = 4
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
        items: work-items to launch; each does `chunk` consecutive outer steps of `steps` in all.
        vector: the range that lanes run over (output or reduce), None for scalar code.
        lanes: vector width.
        reduce_unroll: per reduce range, how many steps the loop body holds.
        reduce_order: per ACCUMULATE its ranges, outermost loop first.
    """

    tiles: list[Tile]
    vector: Atom | None
    lanes: int
    steps: int = 1
    chunk: int = 1
    reduce_unroll: dict[Atom, int] = field(default_factory=dict)
    reduce_order: dict[Node, tuple[Atom, ...]] = field(default_factory=dict)

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
    masked_by: frozenset[Atom]


def loads_of(body: PlacedBody) -> list[LoadInfo]:
    """Return the loads of a body with their multiplicity per output element."""
    times: dict[Node, int] = {body.value: 1}
    result = []
    for node in reversed(scalar_nodes(body.value)):
        own = times.get(node, 1)
        if node.op is Op.ACCUMULATE:
            own *= prod(r.size for r in node.arg[1])
        for s in node.src:
            times[s] = max(times.get(s, 0), own)
        if node.op is Op.LOAD:
            masks = frozenset(a for ix, _, _ in node.arg.valid for a in ixs.leaves(ix))
            result.append(LoadInfo(node, is_weight(node.src[0]), own, masks))
    return result


def choose_vector(body: PlacedBody, *, free_layout: bool) -> tuple[Atom | None, int]:
    """Return the range to run lanes over and the number of lanes (None, 1: scalar code).

    Args:
        body: placed, ranges not merged.
        free_layout: the result may be stored in any order of axes.
    """
    loads = loads_of(body)
    reduces = [r for n in accumulates(body) for r in n.arg[1]]
    best: tuple[float, Atom | None, int] = (0.0, None, 1)
    for atom in [*reversed(body.ranges), *reversed(dict.fromkeys(reduces))]:
        is_output = atom in body.ranges
        lanes = _lanes(atom.size, exact=not is_output)
        if lanes < 4:
            continue
        score = sum(_load_score(load, atom) for load in loads)
        if is_output and not free_layout:
            score += 1.0 if ixs.coefficient(body.offset, atom) == 1 else -2.0
        if is_output and any(_is_outer_product(load, atom, loads) for load in loads):
            score *= 1.25
        score *= _efficiency(atom.size, lanes, exact=not is_output)
        if not is_output:
            score *= 0.7  # a horizontal sum at the end, and nothing to share between lanes
        if score > best[0]:
            best = (score, atom, lanes)
    return best[1], best[2]


def _lanes(size: int, *, exact: bool) -> int:
    for lanes in (16, 8, 4):
        if lanes <= MAX_LANES and (size % lanes == 0 if exact else size >= lanes):
            return lanes
    return 1


def _efficiency(size: int, lanes: int, *, exact: bool) -> float:
    useful = 1.0 if exact else size / (-(-size // lanes) * lanes)
    return useful * float((lanes / MAX_LANES) ** 0.25)


def _load_score(load: LoadInfo, atom: Atom) -> float:
    if load.weight:
        return float(load.times)
    step = ixs.coefficient(load.node.arg.offset, atom)
    if step not in (0, 1):
        return -2.0 * load.times
    return -1.5 * load.times if step == 1 and atom in load.masked_by else 1.0 * load.times


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
    for node in accumulates(body):
        order = _reduce_order(node, loads)
        schedule.reduce_order[node] = order
        for r in order:
            schedule.reduce_unroll[r] = 1
        if order:
            inner = order[-1]
            if inner is vector:
                schedule.reduce_unroll[inner] = lanes
            elif inner.size <= FULL_UNROLL:
                schedule.reduce_unroll[inner] = inner.size
            else:
                schedule.reduce_unroll[inner] = next(u for u in (4, 3, 2, 1) if inner.size % u == 0)
    if schedule.reduce_order and vector in tiles:
        _register_tile(tiles, vector, loads)
    schedule.tiles = _loop_order(list(tiles.values()), body, loads)
    schedule.steps = prod(t.outer for t in schedule.tiles)
    schedule.chunk = _chunk(schedule, body)
    return schedule


def _reduce_order(node: Node, loads: list[LoadInfo]) -> tuple[Atom, ...]:
    """Order reduce loops by the stride of the first non-weight load, largest outermost."""
    offsets = [ld.node.arg.offset for ld in loads if ld.times > 1 and not ld.weight]
    offsets = offsets or [ld.node.arg.offset for ld in loads if ld.times > 1]

    def stride(r: Atom) -> int:
        steps = [abs(c) for o in offsets if (c := ixs.coefficient(o, r))]
        return steps[0] if steps else 0

    return tuple(sorted(node.arg[1], key=lambda r: (-stride(r), r.serial)))


def _register_tile(tiles: dict[Atom, Tile], vector: Atom, loads: list[LoadInfo]) -> None:
    inner = [ld for ld in loads if ld.times > 1]
    outer_product = any(_is_outer_product(ld, vector, inner) for ld in inner)
    rows = [
        r
        for r in tiles
        if r is not vector
        and any(ixs.coefficient(ld.node.arg.offset, r) not in (0,) for ld in inner if not ld.weight)
    ]
    row = rows[-1] if rows else None
    if outer_product:
        lanes = tiles[vector].lanes
        tiles[vector].unroll = _blocks(vector.size, lanes, TILE_VECTORS if row else 4)
        if row is not None:
            tiles[row].unroll = _divisor(row.size, TILE_ROWS)
    elif row is not None:
        tiles[row].unroll = _divisor(row.size, WINDOW_ROWS)


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


def _loop_order(tiles: list[Tile], body: PlacedBody, loads: list[LoadInfo]) -> list[Tile]:
    """Put the vector range of a contraction outermost: a work-item keeps its panel of weights."""
    heavy = [ld for ld in loads if ld.weight and ld.times > 1]

    def rank(tile: Tile) -> tuple[int, int]:
        walks_weights = any(tile.atom in set(ixs.leaves(ld.node.arg.offset)) for ld in heavy)
        return (0 if walks_weights else 1, body.ranges.index(tile.atom))

    return sorted(tiles, key=rank)


def _chunk(schedule: Schedule, body: PlacedBody) -> int:
    """Return outer steps per work-item: enough items to share, none too small to pay its launch."""
    reduce = max((prod(r.size for r in rs) for rs in schedule.reduce_order.values()), default=1)
    ops = max(1, len(scalar_nodes(body.value)))
    work = prod(t.atom.size for t in schedule.tiles) * reduce * ops
    items = max(1, min(MAX_ITEMS, work // MIN_ITEM_WORK, schedule.steps))
    return -(-schedule.steps // items)
