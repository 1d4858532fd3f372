"""Chooses the loops of a kernel for CPUs: the register tile, the loop order, the work-items.

A contraction keeps a register tile of `vectors x rows` results. Each loaded weight vector then
meets several rows, and each loaded activation several vectors. If activations are larger than
weights, work-items are blocks of rows, so a core reads the rows that it wrote before. Otherwise
they are blocks of results, so each core reads only its part of the weights. A reduction is hoisted
if it runs in the outer loops and all results of the loops below share it.
"""

from __future__ import annotations

from math import prod

from scheduler.device.costs import LoopCosts
from scheduler.device.spec import DeviceSpec
from scheduler.device.tuned_table import HEURISTIC, Choice
from scheduler.ir import index as ixs
from scheduler.ir.index import Atom
from scheduler.ir.node import Node
from scheduler.ir.ops import COST, ELEMENTWISE, LOOPS, Op, parts_of
from scheduler.kernelize.scalar import scalar_nodes
from scheduler.loops.loop_schedule import LoopSchedule, Tile
from scheduler.loops.place import PlacedBody, dependencies, looped
from scheduler.loops.tile import (
    contraction_tile,
    hoisted_rows,
    operands_of,
    scalar_tile,
    stream_unroll,
    window_rows,
)
from scheduler.loops.vector import (
    WIDTHS,
    LoadInfo,
    choose_across,
    is_outer_product,
    load_score,
    loads_of,
    transposed_range,
)


def choose_schedule(
    body: PlacedBody,
    vector: Atom | None,
    lanes: int,
    spec: DeviceSpec,
    choice: Choice = HEURISTIC,
    *,
    exact: bool = False,
) -> LoopSchedule:
    """Return the loops for a body whose ranges are merged.

    The arguments are those of `choose.choose_schedule`.
    """
    # A choice can narrow vectors but not widen them, because a short range has no wider lanes.
    # Lanes narrower than the narrowest width are for GPUs.
    if choice.lanes >= WIDTHS[-1] and vector is not None and vector.size >= choice.lanes:
        lanes = min(lanes, choice.lanes)
    tiles = {r: Tile(r) for r in body.ranges}
    schedule, costs = LoopSchedule([], vector, lanes), spec.loops
    if vector in tiles:
        tiles[vector].lanes = lanes
    loads = loads_of(body)
    _choose_reductions(schedule, body, loads, costs)
    hoisted = hoisted_ranges(body)
    # Here lanes serve every load, so memory limits the kernel, not arithmetic.
    streams = vector is not None and all(load_score(ld, vector, costs.votes) > 0 for ld in loads)
    if vector in tiles and not exact:
        turned = schedule.transposed = transposed_range(body, loads, vector, lanes, spec)
        if turned is not None:
            tiles[turned].unroll = lanes
    if not schedule.reduce_order and vector in tiles:
        tiles[vector].unroll = stream_unroll(tiles[vector], body, costs, streams=streams)
    if schedule.reduce_order and vector in tiles:
        # Loads outside of reductions run once per result and gain nothing from a register tile.
        heavy = [ld for ld in loads if ld.times > 1]
        _register_tile(schedule, body, tiles, heavy, hoisted, spec)
    if vector is None and hoisted is None:
        sums = sum(map(schedule.accumulators, schedule.across))
        for atom, unroll in scalar_tile(body, loads, schedule.across, lanes, spec, sums).items():
            # The last block may overlap the previous one and store results twice. If that is not
            # allowed (`exact`), only divisors unroll.
            tiles[atom].unroll = 1 if exact and atom.size % unroll else unroll
    _resize(schedule, tiles, choice)
    _unroll_innermost(schedule, prod(t.unroll for t in tiles.values()), choice.unroll, costs)
    schedule.tiles = _loop_order(list(tiles.values()), body, loads, hoisted, choice.outside)
    # Loops below a hoisted reduction stay inside one work-item, which computed that reduction once.
    schedule.inner = 0 if hoisted is None else sum(t.atom not in hoisted for t in schedule.tiles)
    outer = schedule.tiles[: len(schedule.tiles) - schedule.inner]
    schedule.steps = prod(t.outer for t in outer)
    schedule.blocked = _blocked_rows(outer, loads, choice.blocks, costs)
    schedule.chunk = _chunk(schedule, outer, body, choice.items, costs)
    schedule.prefetch = _prefetched(schedule, outer, choice.prefetch, costs)
    # Parts repeat the reductions above them, so only work-items with a single step are split.
    if schedule.inner and schedule.chunk == 1:
        below = schedule.tiles[len(outer)].outer
        above = frozenset(t.atom for t in outer)
        schedule.parts = _parts(body, above, schedule.steps, below, costs)
    return schedule


def hoisted_ranges(body: PlacedBody) -> frozenset[Atom] | None:
    """Return the output ranges that shared values depend on; None if no value is shared.

    A shared value is used for several results, such as the maximum of a softmax row, or a sum
    stored next to its row. It is hoisted: its ranges become the outer loops.
    """
    depends = dependencies(body.value)
    mine = frozenset(body.ranges)
    outside = [frozenset(depends[node]) for node in looped(body)]
    outside += [body.loops_around(store) for store in body.stores]
    # Only a proper subset is shared: a reduction that depends on all ranges has nothing to hoist.
    hoisted = [on for on in outside if on < mine]
    return frozenset().union(*hoisted) if hoisted else None


def _choose_reductions(
    schedule: LoopSchedule, body: PlacedBody, loads: list[LoadInfo], costs: LoopCosts
) -> None:
    """Choose the order of the loops of each reduction, and the range its lanes run over."""
    depends = dependencies(body.value)
    for node in reversed(looped(body)):  # outer ones first: lanes of an outer one serve inner ones
        taken = {schedule.vector, *schedule.across.values()}
        if schedule.lanes > 1 and taken.isdisjoint(depends[node]):
            across = choose_across(node, schedule.lanes, costs.votes)
            if across is not None:
                schedule.across[node] = across
        order = reduce_order(node, loads, schedule.across.get(node))
        schedule.reduce_order[node] = order
        schedule.reduce_unroll.update(dict.fromkeys(order, 1))
        if order and node.op is Op.ACCUMULATE:
            # Lanes across a reduction do `lanes` steps together, so fewer steps are left to unroll.
            lanes = schedule.lanes if order[-1] is schedule.across.get(node) else 1
            step = schedule.accumulators(node)
            size = order[-1].size // lanes // step
            schedule.reduce_unroll[order[-1]] = (size if size <= costs.full_unroll else 1) * step


def _unroll_innermost(schedule: LoopSchedule, tile: int, chosen: int, costs: LoopCosts) -> None:
    """Unroll innermost reduce loops further while their bodies stay small.

    `tile` is the number of accumulators; `chosen` is the number of steps per body by choice, 0 to
    decide here.
    """
    for node, order in schedule.reduce_order.items():
        # Filling a private array has no accumulator whose latency unrolling could hide.
        if not order or node.op is not Op.ACCUMULATE:
            continue
        r = order[-1]
        # Lanes share one accumulator here: unroll all or nothing, since a remainder is a separate
        # loop.
        step = schedule.accumulators(node)
        if r is schedule.across.get(node) or step > 1:
            if schedule.reduce_unroll[r] * tile > costs.max_unrolled:
                schedule.reduce_unroll[r] = step
            continue
        if chosen or r.size > costs.full_unroll:
            most = chosen or max(1, min(costs.unroll, costs.max_unrolled // tile))
            # The body must divide the range, since reduce loops have no partial last step.
            schedule.reduce_unroll[r] = next(u for u in range(most, 0, -1) if r.size % u == 0)


def reduce_order(node: Node, loads: list[LoadInfo], across: Atom | None) -> tuple[Atom, ...]:
    """Order reduce loops by the stride of non-weight loads, largest first; lanes run innermost.

    A sum with parts (`ops.parts_of`) keeps its order, which its rounding depends on.
    """
    if parts_of(node):
        return tuple(node.arg[1])
    # Weights are packed in loop order, so the strides of other operands decide.
    offsets = [ld.node.arg.offset for ld in loads if ld.times > 1 and not ld.weight]
    offsets = offsets or [ld.node.arg.offset for ld in loads if ld.times > 1]

    def stride(r: Atom) -> int:
        steps = [abs(c) for o in offsets if (c := ixs.coefficient(o, r))]
        return steps[0] if steps else 0

    return tuple(sorted(node.arg[1], key=lambda r: (r is across, -stride(r), r.serial)))


def _resize(schedule: LoopSchedule, tiles: dict[Atom, Tile], choice: Choice) -> None:
    """Set the register tile to the size of a choice, within its ranges."""
    vector, row = schedule.vector, schedule.row
    if choice.vectors and vector in tiles:
        tile = tiles[vector]
        tile.unroll = min(choice.vectors, -(-vector.size // tile.lanes))
    if choice.rows and row is not None:
        tiles[row].unroll = min(choice.rows, row.size)


def _register_tile(
    schedule: LoopSchedule,
    body: PlacedBody,
    tiles: dict[Atom, Tile],
    inner: list[LoadInfo],
    hoisted: frozenset[Atom] | None,
    spec: DeviceSpec,
) -> None:
    vector = schedule.vector
    assert vector is not None  # checked by the caller
    # A vector that meets scalars is an outer product: both operands of the tile are reused.
    outer_product = any(is_outer_product(ld, vector, inner) for ld in inner)
    shared = any(  # the vector meets other operands as scalars
        ixs.coefficient(ld.node.arg.offset, vector) == 0 for ld in inner if not ld.weight
    )
    # Rows are ranges along which another operand moves, so one weight vector serves all of them.
    # A coefficient of None, a range inside a division, counts as moving.
    rows = [
        r
        for r in tiles
        if r is not vector
        and any(ixs.coefficient(ld.node.arg.offset, r) not in (0,) for ld in inner if not ld.weight)
    ]
    shared_rows = _rows_of_values(rows, vector, inner)
    rows = shared_rows or rows
    schedule.contracts = outer_product or bool(shared_rows) or (hoisted is not None and shared)
    if hoisted is not None:
        # Rows above a hoisted reduction would need its results for several rows simultaneously.
        below = [r for r in rows if r not in hoisted]
        rows = below or (hoisted_rows(body, vector, rows, spec.loops) if schedule.contracts else [])
    row = schedule.row = rows[-1] if rows else None
    if schedule.contracts:
        lanes = tiles[vector].lanes
        vectors = -(-vector.size // lanes)
        if row is None:
            tiles[vector].unroll = min(vectors, spec.loops.stream_vectors)
            return
        steps = max(ld.times for ld in inner)
        ends = [order[-1] for order in schedule.reduce_order.values() if order]
        # In fully unrolled loops, overlapping windows share loads, which the cost model must know.
        whole = [r for r in ends if schedule.reduce_unroll.get(r) == r.size > 1]
        operands = operands_of(body, (vector, row), inner, whole)
        shape = contraction_tile(vectors, row.size, steps, lanes, spec, operands)
        tiles[vector].unroll, tiles[row].unroll = shape
        return
    # Small ranges add accumulators that read the same inputs and need extra loads of weights only:
    # several results of the same inputs, as in a channel multiplier.
    costs, taken = spec.loops, {vector, *rows}
    shared_by = [r for r in tiles if r.size <= costs.small_range and r not in taken]
    if row is not None:
        each = max(map(schedule.accumulators, schedule.reduce_order))
        if any(ld.weight for ld in inner):
            # Columns that several taps read stay in registers, about one per accumulator.
            vectors, most = 1, max(1, costs.window_rows // (each * prod(r.size for r in shared_by)))
        else:
            accumulators = max(1, spec.vector_registers // costs.window_part // each)
            vectors = min(
                max(1, accumulators // costs.window_rows), -(-vector.size // tiles[vector].lanes)
            )
            most = min(costs.pool_rows, accumulators)
        tiles[vector].unroll, tiles[row].unroll = vectors, window_rows(row.size, most)
    for r in shared_by:
        tiles[r].unroll = r.size


def _rows_of_values(rows: list[Atom], vector: Atom, inner: list[LoadInfo]) -> list[Atom]:
    """Return the rows that share the vectors of a product of two values; empty if there are none.

        q[h, i, d] * k[h, d, j], lanes over j     ->     i: a vector of k serves several; not h

    The other operand must be a scalar for all lanes.
    """
    along = [(ld.node.arg.offset, ixs.coefficient(ld.node.arg.offset, vector)) for ld in inner]
    if any(ld.weight for ld in inner) or {step for _, step in along} != {0, 1}:
        return []
    vectors = {a for offset, step in along if step == 1 for a in ixs.leaves(offset)}
    return [r for r in rows if r not in vectors]


def _loop_order(
    tiles: list[Tile],
    body: PlacedBody,
    loads: list[LoadInfo],
    hoisted: frozenset[Atom] | None,
    chosen: int,
) -> list[Tile]:
    """Put hoisted ranges outermost, then ranges that weights follow (last if `chosen` is 1)."""
    heavy = [ld for ld in loads if ld.weight and ld.times > 1]

    def rank(tile: Tile) -> tuple[bool, bool, int]:
        walks_weights = any(tile.atom in set(ixs.leaves(ld.node.arg.offset)) for ld in heavy)
        below = hoisted is not None and tile.atom not in hoisted
        # False sorts first.
        return (below, walks_weights == (chosen == 1), body.ranges.index(tile.atom))

    return sorted(tiles, key=rank)


def _blocked_rows(
    outer: list[Tile], loads: list[LoadInfo], chosen: int, costs: LoopCosts
) -> tuple[Atom, int] | None:
    """Return the range to split into blocks outside the loop over weights, and steps per block.

    Unless a number of blocks is `chosen`, return None if weights are larger than other operands.
    Also return None if rows are outermost anyway.
    """
    heavy = [ld for ld in loads if ld.weight and ld.times > 1]
    walked = {a for ld in heavy for a in ixs.leaves(ld.node.arg.offset)}
    rows = [t for t in outer if t.atom not in walked and t.outer > 1]
    # If weights are walked in a single step, there is no loop for rows to be outside of.
    if not rows or not any(t.atom in walked and t.outer > 1 for t in outer):
        return None
    weights = max(prod(ld.node.src[0].shape) for ld in heavy)
    others = [prod(ld.node.src[0].shape) for ld in loads if not ld.weight]
    if not chosen and weights >= costs.blocked_weights * max(others, default=0):
        return None
    row = rows[0]
    # Blocks have equal lengths, since the step number is decomposed by division.
    blocks = max(d for d in range(1, (chosen or costs.wanted_parts) + 1) if row.outer % d == 0)
    return (row.atom, row.outer // blocks) if blocks > 1 else None


def _prefetched(
    schedule: LoopSchedule, outer: list[Tile], chosen: int, costs: LoopCosts
) -> Atom | None:
    """Return the vector's range if its weights are read few times before the next ones.

    `chosen` is 0 to decide here, 1 for no prefetch, 2 for prefetch.
    """
    repeats = prod(t.outer for t in outer if t.atom is not schedule.vector)
    alone = schedule.blocked is None and schedule.inner == 0
    rows = prod(t.unroll for t in schedule.tiles if t.atom is not schedule.vector)
    # A prefetch costs an instruction per weight vector; enough rows must share it.
    pays = repeats <= costs.max_prefetch_repeats and rows >= costs.min_prefetch_rows
    wanted = chosen == 2 or (not chosen and pays)
    return schedule.vector if alone and wanted else None


def _chunk(
    schedule: LoopSchedule, outer: list[Tile], body: PlacedBody, chosen: int, costs: LoopCosts
) -> int:
    """Return the outer steps per work-item: enough items for all cores, none too small to pay off.

    `chosen` is the number of work-items by choice, 0 to decide here.
    """
    reduce = max((prod(r.size for r in rs) for rs in schedule.reduce_order.values()), default=1)
    ops = max(1, len(scalar_nodes(body.value)))
    # The estimate is in scalar operations: steps of all loops times nodes of the body.
    work = prod(t.atom.size for t in schedule.tiles) * reduce * ops
    most = chosen or min(costs.max_items, work // costs.min_item_work)
    items = max(1, min(most, schedule.steps))
    chunk = -(-schedule.steps // items)
    if schedule.blocked is None:
        return chunk
    atom, per_block = schedule.blocked
    # A work-item that ended inside a block would share the rows of that block with another one.
    count = next(t.outer for t in outer if t.atom is atom)
    block = schedule.steps // (count // per_block)
    # Use whole blocks if they are small, or equal parts of one unless these are much smaller than
    # the wanted chunk.
    if chunk >= block:
        return chunk // block * block
    part = max(d for d in range(1, chunk + 1) if block % d == 0)
    return part if 2 * part > chunk else chunk


# --- Splitting a long loop below hoisted work among work-items --------------------------------
#
#     one item:   row = norm(x);  for c in 0..1023: y[c] = row . w[c]
#     8 items:    row = norm(x);  for c in 128*part .. 128*part + 127: y[c] = row . w[c]
#
# Each work-item repeats the hoisted work. With fewer rows than cores, other cores would be idle.


def _parts(
    body: PlacedBody, outer: frozenset[Atom], steps: int, inner: int, costs: LoopCosts
) -> int:
    """Return the number of parts of the outermost loop below hoisted work; 1 if it is not split.

    Args:
        body: the placed and merged body.
        outer: output ranges of the loops above.
        steps: total number of steps of these loops.
        inner: number of steps of the outermost loop below.
        costs: the cost model of the device row.
    """
    if any(body.loops_around(store) <= outer for store in body.stores):
        return 1  # every part would store a result of the loops above
    above, below = _work(body, outer)
    best = 1
    for parts in range(2, inner + 1):
        share = below / steps / parts
        if inner % parts or steps * parts > costs.wanted_parts or share < costs.min_item_work:
            continue
        if above / steps <= costs.max_repeated * share or parts <= costs.free_parts:
            best = parts
    return best


def _work(body: PlacedBody, outer: frozenset[Atom]) -> tuple[int, int]:
    """Return the numbers of elementary operations in the outer loops only, and below them."""
    depends = dependencies(body.value)
    above = below = 0
    for node in scalar_nodes(body.value):
        if node.op in LOOPS:
            ranges, own = set(depends[node]), prod(r.size for r in node.arg[1])
        elif node.op in ELEMENTWISE:
            ranges, own = set(depends[node]), int(COST.get(node.op, 1))
        else:
            continue
        times = prod(r.size for r in ranges) * own
        if ranges & set(body.ranges) <= outer:
            above += times
        else:
            below += times
    return above, below
