"""Chooses the loops of a kernel for GPUs, where neighboring work-items run in lock step.

    out[m, n] = sum(a[m, k] * w[k, n]; k)   over work-items   (m/4, n/4), n fastest
                                            in each           4 rows x 4 lanes of accumulators

A work-item runs one step, and neighbors store neighboring elements, so that their accesses
coalesce. Weights are packed with the reduced ranges outside, so that neighbors read contiguous
elements at the same time. On devices without detailed costs tiles are small, because many
work-items hide the latency that a large tile hides on a CPU. On others `texel_tile` estimates the
cost of a tile. A work-group computes a large matrix product from local memory. Blocks never
overlap, since a repeated store is extra traffic; so every number of a choice is reduced to a
divisor.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import isqrt, prod

from scheduler.device.costs import LoopCosts, TexelCosts
from scheduler.device.spec import DeviceSpec
from scheduler.device.tuned_table import HEURISTIC, MAX_BODY, Choice
from scheduler.ir import dtype as dt
from scheduler.ir import index as ixs
from scheduler.ir.index import Atom
from scheduler.ir.node import Node, is_weight
from scheduler.ir.ops import LOOPS, Op
from scheduler.kernelize.scalar import scalar_nodes
from scheduler.loops.images import TEXEL
from scheduler.loops.loop_schedule import (
    APART,
    BUFFERS,
    DEPTH,
    GROUPS,
    LANES,
    TILES,
    LocalTile,
    LoopSchedule,
    Tile,
    array_bytes,
)
from scheduler.loops.place import PlacedBody, dependencies, divisors_of, looped
from scheduler.loops.schedule import hoisted_ranges, reduce_order
from scheduler.loops.vector import LoadInfo, loads_of, transposed_range


def group_of(items: int, most: int) -> int:
    """Return the work-group size for a launch: at most `most`, and no larger than needed."""
    group = most
    while group > 1 and group // 2 >= items:
        group //= 2
    return group


def guard_of(items: int, most: int) -> str:
    """Return the statement that ends excess work-items, empty if there are none."""
    group = group_of(items, most)
    return f"  if (get_global_id(0) >= {items}) return;\n" if items % group else ""


def choose_schedule(
    body: PlacedBody,
    vector: Atom | None,
    lanes: int,
    spec: DeviceSpec,
    choice: Choice = HEURISTIC,
    *,
    apart: bool = False,
) -> LoopSchedule:
    """Return the loops for a body whose ranges are merged: one step per work-item.

    The arguments are those of `choose.choose_schedule`; with `apart`, work-items do not cooperate.
    """
    # Devices with one work-item per group have another device row.
    group = max(2, min(choice.group, spec.max_group)) if choice.group else spec.group
    local = _local_tile(body, vector, spec, group, choice.local) if not apart else None
    if local is not None:
        return _in_local_memory(body, local, group)
    tiles = {r: Tile(r) for r in body.ranges}
    # Images are accessed in whole texels; other lanes would turn them into buffers.
    widest = choice.lanes if choice.lanes and spec.images is None else lanes
    if vector is not None:
        # Blocks must not overlap, because two work-items that store one element are unordered. So
        # lanes must divide the range.
        lanes = next(n for n in (lanes, 8, 4, 2, 1) if vector.size % n == 0 and n <= widest)
        vector = vector if lanes > 1 else None
    if vector is not None:
        tiles[vector].lanes = lanes
        tiles[vector].unroll = _divisor(vector.size // lanes, choice.vectors)
    schedule = LoopSchedule([], vector, lanes, group=group)
    schedule.weights_in_images = not choice.weights
    loads = loads_of(body)
    turned = transposed_range(body, loads, vector, lanes, spec) if vector is not None else None
    if turned is not None and turned.size % lanes == 0:
        schedule.transposed = turned
        tiles[turned].unroll = lanes
    _choose_reductions(schedule, body, loads, choice, spec.loops)
    hoisted = _worth_hoisting(body, hoisted_ranges(body), spec)
    if schedule.reduce_order:
        inner = [ld for ld in loads if ld.times > 1]
        window = _register_tile(tiles, vector, inner, hoisted, spec, choice.rows)
        if window is not None and window in schedule.reduce_unroll and not choice.unroll:
            schedule.reduce_unroll[window] = window.size
    schedule.tiles = _coalesced(list(tiles.values()), body, hoisted)
    if hoisted is not None:
        # Loops below hoisted reductions stay in the work-item that computed these.
        schedule.inner = sum(t.atom not in hoisted for t in schedule.tiles)
    outer = schedule.tiles[: len(schedule.tiles) - schedule.inner]
    schedule.steps = prod(t.outer for t in outer)
    return schedule


def _choose_reductions(
    schedule: LoopSchedule,
    body: PlacedBody,
    loads: list[LoadInfo],
    choice: Choice,
    costs: LoopCosts,
) -> None:
    """Choose the loop order, lanes and unrolled steps of each reduction."""
    depends = dependencies(body.value)
    for node in reversed(looped(body)):  # outer ones first: lanes of an outer one serve inner ones
        taken = {schedule.vector, *schedule.across.values()}
        across = None
        if schedule.lanes > 1 and taken.isdisjoint(depends[node]):
            across = _across(node, schedule.lanes)
        if across is not None:
            schedule.across[node] = across
        order = reduce_order(node, loads, across)
        schedule.reduce_order[node] = order
        schedule.reduce_unroll.update(dict.fromkeys(order, 1))
        if order and node.op is Op.ACCUMULATE and order[-1] is not across:
            size, tile = order[-1].size, max(1, choice.vectors) * max(1, choice.rows)
            most = min(choice.unroll, MAX_BODY // tile) or costs.full_unroll
            even = not choice.unroll and size % costs.unroll == 0
            schedule.reduce_unroll[order[-1]] = costs.unroll if even else _divisor(size, most)


def _in_local_memory(body: PlacedBody, local: LocalTile, group: int) -> LoopSchedule:
    """Return the loops of a matrix product that a work-group computes together."""
    tiles = [Tile(r, lanes=LANES if r is local.column else 1) for r in body.ranges]
    schedule = LoopSchedule(tiles, local.column, LANES, local=local, group=group)
    schedule.steps = local.groups * group
    schedule.reduce_order[local.node] = (local.depth,)
    schedule.reduce_unroll[local.depth] = 1
    return schedule


def _local_tile(
    body: PlacedBody, vector: Atom | None, spec: DeviceSpec, group: int, chosen: int = 0
) -> LocalTile | None:
    """Return the local-memory tile of a body that is one matrix product; None for other bodies.

    Lanes run over `vector`, or along the reduction if it is None. If the tile `chosen`
    (`Choice.local`) does not fit, the heuristic decides.
    """
    if chosen == APART:
        return None
    # Products of less than half a tile, or with few steps, are left to independent work-items.
    loops = looped(body)
    vector = vector or _stored_along(body)
    if spec.images is not None or not spec.local_bytes or len(loops) != 1 or vector is None:
        return None
    if spec.lanes < LANES:
        return None
    node, side = loops[0], isqrt(group)
    loads = _product(node)
    if loads is None or len(node.arg[1]) != 1 or group not in GROUPS:
        return None
    everywhere = all(
        s.row is None and body.loops_around(s) == set(body.ranges) for s in body.stores
    )
    (depth,) = node.arg[1]
    right = [ld for ld in loads if vector in set(ixs.leaves(ld.arg.offset))]
    left = [ld for ld in loads if ld not in right]
    if not everywhere or len(left) != 1 or len(right) != 1 or depth.size < BUFFERS * DEPTH:
        return None
    of_left, of_right = (set(ixs.leaves(ld.arg.offset)) for ld in (left[0], right[0]))
    rows = [r for r in body.ranges if r in of_left and r not in of_right]
    if not rows or vector.size < TILES[-1][1] or vector.size % LANES:
        return None
    row = max(rows, key=lambda r: r.size)
    batch = tuple(r for r in body.ranges if r not in (row, vector))
    if row.size < TILES[-1][0] // 2:
        return None
    found = [
        LocalTile(node, left[0], right[0], row, vector, depth, batch, *size, side)
        for size in TILES
        if sum(map(array_bytes, size)) <= spec.local_bytes
        # A work-item loads whole rows of a tile, and computes at least one vector.
        and max(size) <= group
        and size[1] >= side * LANES
    ]
    asked = TILES[chosen - APART - 1] if chosen else None
    wanted = (t for t in found if (t.rows, t.columns) == asked)
    enough = (t for t in found if t.groups >= spec.cores)
    return next(wanted, None) or next(enough, None)


def _stored_along(body: PlacedBody) -> Atom | None:
    """Return a range that walks every result's memory with stride 1."""
    offsets = [s.offset for s in body.stores]
    found = [r for r in body.ranges if all(ixs.coefficient(o, r) == 1 for o in offsets)]
    return found[0] if found else None


def _product(node: Node) -> tuple[Node, Node] | None:
    """Return the two loads of a sum of products; None for any other node."""
    term = node.src[0]
    if node.op is not Op.ACCUMULATE or node.arg[0] is not Op.ADD or term.op is not Op.MUL:
        return None
    if node.dtype not in (dt.float32, dt.float16):
        return None
    loads = []
    for source in term.src:
        widens = source.op is Op.CAST and source.src[0].dtype is dt.float16
        load = source.src[0] if widens else source  # fp16 values are float32 in registers
        if load.op is not Op.LOAD or load.arg.valid or not load.dtype.is_float:
            return None
        if load.dtype is dt.float64 or any(a.node for a in ixs.leaves(load.arg.offset)):
            return None
        loads.append(load)
    return loads[0], loads[1]


def _worth_hoisting(
    body: PlacedBody, hoisted: frozenset[Atom] | None, spec: DeviceSpec
) -> frozenset[Atom] | None:
    """Return the hoisted ranges; None if they are too few to serve as work-items.

    In that case every work-item recomputes the hoisted value, such as the mean of a LayerNorm's
    row, unless it is stored.
    """
    if hoisted is None:
        return None
    ranges = frozenset(body.ranges)
    # A store above the other loops runs once per row, which needs one work-item per row.
    stored = any(body.loops_around(store) < ranges for store in body.stores)
    staged = any(n.op is Op.STAGE for n in looped(body))
    if stored or staged:
        return hoisted
    depends = dependencies(body.value)
    steps = {n: prod(r.size for r in n.arg[1]) for n in looped(body)}
    above = sum(count for n, count in steps.items() if set(depends[n]) < ranges)
    within = sum(count for n, count in steps.items() if set(depends[n]) == ranges)
    few = prod(r.size for r in hoisted) < spec.subgroup * spec.cores
    return None if few or above <= spec.loops.max_repeated * within else hoisted


def _across(node: Node, lanes: int) -> Atom | None:
    """Return the reduced range that every load walks with stride 1 or not at all."""
    ranges: tuple[Atom, ...] = node.arg[1]
    below = scalar_nodes(node.src[0], into_reductions=False)
    if node.op is Op.STAGE and any(n.op in LOOPS for n in below):
        return None  # lanes serve the reduction inside each element
    loads = [n for n in below if n.op is Op.LOAD and not is_weight(n.src[0])]
    for atom in reversed(ranges):
        steps = [ixs.coefficient(n.arg.offset, atom) for n in loads]
        # A predicate that differs between lanes would turn one vector load into per-lane tests.
        masked = any(atom in set(ixs.leaves(ix)) for n in loads for ix, _, _ in n.arg.valid)
        fits = atom.size >= lanes and all(s in (0, 1) for s in steps) and 1 in steps
        if fits and not masked:
            return atom
    return None


def _divisor(size: int, most: int) -> int:
    """Return the largest divisor of a size up to `most`, 1 if there is none."""
    return next((n for n in range(most, 1, -1) if size % n == 0), 1)


def _register_tile(
    tiles: dict[Atom, Tile],
    vector: Atom | None,
    inner: list[LoadInfo],
    hoisted: frozenset[Atom] | None,
    spec: DeviceSpec,
    chosen: int,
) -> Atom | None:
    """Give a work-item several rows of the range that activations move with, if items remain.

    Devices with known costs get several vectors as well. `chosen` is the number of rows, 0 for the
    heuristic. Returns a reduced range to unroll fully, or None.
    """
    costs = spec.loops
    activations = [ld.node.arg.offset for ld in inner if not ld.weight]
    rows = [
        r
        for r in tiles
        if r is not vector
        and (hoisted is None or r not in hoisted)
        and any(ixs.coefficient(o, r) != 0 for o in activations)
    ]
    if not rows:
        return None
    row = rows[-1]
    if chosen:
        tiles[row].unroll = _divisor(row.size, chosen)
        return None
    shared = vector is None or any(ixs.coefficient(o, vector) == 0 for o in activations)
    items = prod(t.outer for t in tiles.values())
    # The vector range, if no choice has set its vectors.
    free = vector if vector is not None and tiles[vector].unroll == 1 else None
    if spec.core_lanes and free is not None and shared and any(ld.weight for ld in inner):
        window = _window(inner, row, costs.texels)
        shape = texel_tile(tiles[free].outer, row.size, items, spec, window)
        tiles[free].unroll, tiles[row].unroll, taps = shape
        return window.range if window is not None and taps > 1 else None
    repeats = max(divisors_of(free, activations), default=1) if free is not None else 1
    if free is not None and repeats <= costs.max_vectors and tiles[free].outer % repeats == 0:
        # Lanes of these results repeat one element that is read: its texel serves all of them.
        tiles[free].unroll = repeats
        items //= repeats
    else:
        repeats = 1
    most = costs.tile_rows if shared else costs.window_rows
    if spec.core_lanes:
        most = costs.max_rows // repeats
    enough = spec.group * spec.cores * costs.min_groups
    # Rows must divide the range, and leave enough work-items to hide the latency of memory.
    choices = [u for u in range(most, 1, -1) if row.size % u == 0 and items // u >= enough]
    tiles[row].unroll = max(choices, default=1)
    return None


@dataclass(frozen=True, slots=True)
class Window:
    """A reduced range that moves a window along the rows, and the stride between rows."""

    range: Atom
    stride: int


def _window(inner: list[LoadInfo], row: Atom, costs: TexelCosts) -> Window | None:
    """Return the window of which rows share texels; None if there is none."""
    along = [ix for ld in inner if not ld.weight for ix in ld.node.arg.index]
    found = {
        Window(a, ixs.coefficient(ix, row) or 0)
        for ix in along
        if ixs.coefficient(ix, row)
        for a in ixs.leaves(ix)
        if a is not row and a.size <= costs.window_steps and ixs.coefficient(ix, a) == 1
    }
    return found.pop() if len(found) == 1 else None


def texel_tile(
    vectors: int, rows: int, items: int, spec: DeviceSpec, window: Window | None = None
) -> tuple[int, int, int]:
    """Return (vectors, rows, taps) of the register tile of a contraction that reads texels.

        V x R accumulators; four steps of the sum read 4 * V texels of weights and R of activations,
        for T taps of a window 4 * V * T of weights and T + (R - 1) * stride of activations.

    `vectors` and `rows` are the total numbers for neighboring results; `items` is the number of
    work-items if a tile is one vector. Rows share the window.
    """
    best = (float("inf"), 1, 1, 1)
    costs, lanes = spec.loops, spec.cores * spec.core_lanes
    unroll, texels = costs.unroll, costs.texels
    stride, sizes = (0, (1,)) if window is None else (window.stride, (1, window.range.size))
    columns = [n for n in range(1, costs.max_vectors + 1) if vectors % n == 0]
    heights = [n for n in range(1, costs.max_rows + 1) if rows % n == 0]
    for v, r, taps in product(columns, heights, sizes):
        values = taps + (r - 1) * min(stride, taps) if taps > 1 else r
        registers = v * r + values + unroll * v + texels.address_registers
        if v * r > 1 and registers > spec.vector_registers:
            continue
        reads = unroll * v * taps + values
        slots = unroll * TEXEL * v * r * taps + texels.read * reads + texels.loop
        # Waves that share a unit issue in turn; a single wave waits for its texels.
        turns = -(-items // (v * r * lanes))
        cost = max(turns * slots, slots + texels.latency) / taps
        best = min(best, (cost, v, r, taps))
    return best[1:]


def _coalesced(tiles: list[Tile], body: PlacedBody, hoisted: frozenset[Atom] | None) -> list[Tile]:
    """Order ranges by the first result's memory, innermost last, so neighbors run along it."""
    offset = body.stores[0].offset

    def rank(tile: Tile) -> tuple[bool, int, int]:
        below = hoisted is not None and tile.atom not in hoisted
        # Neighboring work-items differ in the innermost range: their accesses form one transaction.
        return (below, -abs(ixs.coefficient(offset, tile.atom) or 0), body.ranges.index(tile.atom))

    return sorted(tiles, key=rank)
