"""Choose what a step of the loops computes: the register tile, by what is reduced and read.

Of a contraction: how many vectors of results, for how many rows.

    V vectors x R rows of accumulators; a step of the reduction loads V vectors of weights and R
    scalars, each used R and V times.

A simple model of a core decides: two multiply-adds and two loads a cycle, four cycles of latency,
so many registers, and a price for weights that are read again for other rows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import gcd, prod

from scheduler.device.costs import LoopCosts
from scheduler.device.spec import DeviceSpec
from scheduler.ir import dtype as dt
from scheduler.ir import index as ixs
from scheduler.ir.index import Atom
from scheduler.ir.node import Node
from scheduler.ir.ops import COST, ELEMENTWISE, Op, parts_of
from scheduler.kernelize.scalar import scalar_nodes
from scheduler.loops.loop_schedule import Tile
from scheduler.loops.place import PlacedBody, accumulates, dependencies, looped
from scheduler.loops.vector import LoadInfo


@dataclass(frozen=True, slots=True)
class Operands:
    """What a register tile's size depends on beside its extents."""

    stride: int = 0  # bytes from one row's operand to the next one's; 0 if it is not known
    narrow: bool = False  # whether weights are halves, widened for each tile
    # Whether a scalar of one row waits in a register for another one, at a later unrolled step.
    shared: bool = False
    work: int = 0  # operations per step that compute a row's scalar from what is loaded


UNKNOWN = Operands()


def contraction_tile(
    vectors: int,
    rows: int,
    steps: int,
    lanes: int,
    spec: DeviceSpec,
    operands: Operands = UNKNOWN,
) -> tuple[int, int]:
    """Return (vectors, rows) of the register tile, of so many results.

    `steps` are those of the reduction, `lanes` float32 elements of a vector, `operands` what rows
    read.
    """
    most = _cached_rows(operands.stride, spec)
    ranked = ranked_tiles(vectors, rows, steps, lanes, spec, operands)
    # Rows beyond what the cache's sets hold evict each other at every step of the reduction.
    ranked = [t for t in ranked if t[2] <= most]
    if operands.narrow:
        columns = {v: -(-vectors // v) * v for _, v, _ in ranked}
        # Each tile of rows widens the weights again, so fewer tiles convert less.
        step = spec.loops.conversion * steps
        ranked.sort(key=lambda t: t[0] + step * columns[t[1]] * -(-rows // t[2]))
    return (1, 1) if not ranked else (ranked[0][1], ranked[0][2])


def _cached_rows(stride: int, spec: DeviceSpec) -> int:
    """Return how many rows the innermost cache holds a line of.

    Lines a page apart share a set. Rows whole pages apart all do; rows half a page apart share two.
    """
    page = spec.loops.page
    ways = max(spec.loops.min_ways, spec.l1_bytes // page)
    sets = page // gcd(stride, page) if stride else page
    return ways * sets + spec.loops.max_shared_rows


def ranked_tiles(
    vectors: int,
    rows: int,
    steps: int,
    lanes: int,
    spec: DeviceSpec,
    operands: Operands = UNKNOWN,
) -> list[tuple[float, int, int]]:
    """Return (cycles, vectors, rows) of every tile that fits the registers, cheapest first."""
    found: list[tuple[float, int, int]] = []
    costs = spec.loops
    for v in range(1, min(costs.max_vectors, vectors) + 1):
        # Registers only fill up with more rows, so the first tile that does not fit ends the
        # search.
        for r in range(1, rows + 1):
            if not _fits(v, r, spec, operands):
                break
            step = _step_cycles(v, r, operands.work, spec)
            # With a single tile of rows, weights are read once, as any kernel must.
            if rows > r:  # the weights are read once more for other rows
                step += v * lanes * dt.float32.itemsize * costs.stream
            cycles = steps * step + costs.tile + costs.result * v * r + costs.row * r
            # Ceilings count partial tiles as whole ones: their overlap is computed like the rest.
            found.append((-(-vectors // v) * -(-rows // r) * cycles, v, r))
    return sorted(found)


def _fits(v: int, r: int, spec: DeviceSpec, operands: Operands) -> bool:
    # Of scalars that serve later steps, one for each further row was seen to wait; of several
    # vectors, what waits longer is loaded again where it can be an operand. With one vector such a
    # scalar, or one that is computed, is none: 27 rows of a dilated convolution took 2.4 times as
    # long as 10, and 20 rows of a computed operand twice as long as 16 (32 registers).
    costs = spec.loops
    waiting = r - 1 if operands.shared and (v == 1 or not spec.broadcasts) else 0
    if v == 1:
        computed = r - 1 if operands.work else 0
        spare = max(costs.spare_registers, costs.operand_registers + max(waiting, computed))
        return r + spare <= spec.vector_registers + 1
    return v * r + v + r + waiting <= spec.vector_registers + costs.register_slack


def _step_cycles(v: int, r: int, work: int, spec: DeviceSpec) -> float:
    """Return the cycles of one step of the reduction, operands in the innermost cache."""
    # A scalar that only one multiply-add uses is folded into it by devices that broadcast from
    # memory.
    alone, costs = v > 1 or work > 0 or not spec.broadcasts, spec.loops
    operations = v * r + v + (r if alone else 0) + r * work
    # The slowest of the units decides: multiply-adds, loads, issue slots, or the latency of a sum.
    loads, products = (v + r) / costs.issue, (v + work) * r / costs.issue
    return max(products, loads, operations / costs.issued, costs.latency)


def window_rows(rows: int, most: int) -> int:
    """Return the rows of a sliding window's tile: a divisor of at most `most`, if one is good.

    Neighbours share loads, and with few tiles few of them need a test at the border.
    """
    if rows <= most:
        return rows
    least = -(-most // 2)  # fewer rows share fewer loads
    return max((d for d in range(least, most + 1) if rows % d == 0), default=least)


# --- What rows read, and whether they share values --------------------------------------------
#
# sum(x[2*p + t] * w[t, c]; t)     ->     rows 2 apart, 3 taps 1 apart: x[2] serves rows 0 and 1


def operands_of(
    body: PlacedBody, tile: tuple[Atom, Atom], loads: Collection[LoadInfo], whole: Collection[Atom]
) -> Operands:
    """Return what the rows of a contraction read, by its loads inside the reduction.

    `tile` are the ranges that lanes run over, and that rows are of; `whole` reduced ranges are
    unrolled.
    """
    vector, row = tile
    others = [ld.node for ld in loads if not ld.weight]
    strides = {(ixs.coefficient(n.arg.offset, row) or 0) * n.dtype.itemsize for n in others} - {0}
    return Operands(
        strides.pop() if len(strides) == 1 else 0,
        any(ld.weight and ld.node.dtype is dt.float16 for ld in loads),
        any(_meet(n, row, r) for n in others for r in whole),
        _scalar_work(body, vector, row),
    )


def _scalar_work(body: PlacedBody, vector: Atom, row: Atom) -> int:
    """Return what it costs, per step of a sum, to compute the operand that its lanes share."""
    depends = dependencies(body.value)
    found = 0
    for node in accumulates(body):
        reduced = set(node.arg[1])
        mine = [
            n
            for n in scalar_nodes(node.src[0], into_reductions=False)
            if n.op in ELEMENTWISE and row in depends[n] and vector not in depends[n]
        ]
        found = max(found, sum(int(COST.get(n.op, 1)) for n in mine if reduced & {*depends[n]}))
    return found


def _meet(load: Node, row: Atom, reduced: Atom) -> bool:
    """Whether two rows read one element, at different steps of a reduced range."""
    steps = [ixs.coefficient(load.arg.offset, r) for r in (row, reduced)]
    if None in steps:  # behind a remainder both are steps, but for its ends
        return {row, reduced} <= set(ixs.leaves(load.arg.offset))
    step, tap = (abs(s or 0) for s in steps)
    # Rows i and steps t with i * step == t * tap; the least such t is step / gcd.
    return step > 0 and tap > 0 and step // gcd(step, tap) < reduced.size


def hoisted_rows(body: PlacedBody, vector: Atom, rows: list[Atom], costs: LoopCosts) -> list[Atom]:
    """Return those rows of hoisted reductions that may share what a sum below them reads.

        for row: s = sum(row); out[row] = sum(x[row, k] / s * v[k, :])   ->   for 4 rows: ...

    None if a private array holds one row, or if rows are few: cores would be idle.
    """
    depends = dependencies(body.value)
    loops = looped(body)
    if any(n.op is Op.STAGE for n in loops) or all(vector not in depends[n] for n in loops):
        return []
    # There must be a tile for each work-item.
    return rows if prod(r.size for r in rows) >= costs.tile_rows * costs.max_items else []


# --- Choose the register tile of results that have no lanes of their own ----------------------
#
# Dot products, whose lanes run across the reduced range:
#
#     for q: for k: acc = 0; for d, 8 at a time: acc += a[q,d] * b[k,d]; out[q,k] = sum of lanes
#     ->  for q, 3 at a time: for k, 4 at a time: 12 sums; a step loads 3 + 4 vectors for 12
#     products
#
# Sums without any lanes, because nothing suits them: a few neighbours of a window, which share
# loads. Without a tile every product waits for two loads of its own and for the product before it.
def scalar_tile(
    body: PlacedBody,
    loads: Collection[LoadInfo],
    across: Mapping[Node, Atom],
    lanes: int,
    spec: DeviceSpec,
    sums: int,
) -> dict[Atom, int]:
    """Return how many results of which output ranges a step computes, where there are several.

    Results have no lanes; those of reductions run over `across`. `sums` vectors keep one result of
    all.
    """
    nodes = looped(body)
    if not nodes or any(n.op is not Op.ACCUMULATE for n in nodes):
        return {}  # of a private array there is one, not one per result
    if lanes > 1:
        return _dots(body, across, lanes, spec, sums)
    # Results of many partial sums have no latency to hide.
    alone = any(parts_of(n) > 1 for n in nodes)
    return {} if alone else _neighbours(body.ranges, loads, spec)


def _dots(
    body: PlacedBody, across: Mapping[Node, Atom], lanes: int, spec: DeviceSpec, sums: int
) -> dict[Atom, int]:
    """Cut the innermost two ranges of which each moves loads that the other does not."""
    depends = dependencies(body.value)
    loads = {n for node in across for n in _repeated(node, depends)}
    shared = [r for r in body.ranges if all(r in depends[node] for node in across)]
    moves = {r: {n for n in loads if r in depends[n]} for r in shared}
    pairs = [(a, b) for a, b in combinations(shared, 2) if moves[a].isdisjoint(moves[b])]
    pairs = [(a, b) for a, b in pairs if moves[a] and moves[b]]
    if not pairs:
        return {}
    outer, inner = pairs[-1]
    steps = max(1, max(r.size for r in across.values()) * len(across) // (lanes * sums))
    shape = dot_tile(outer.size, inner.size, steps, lanes, spec, sums)
    return dict(zip((outer, inner), shape, strict=True))


def dot_tile(
    rows: int, columns: int, steps: int, lanes: int, spec: DeviceSpec, sums: int = 1
) -> tuple[int, int]:
    """Return (rows, columns) of the register tile of dot products with lanes across the reduction.

        rows x columns accumulators; a step loads one vector for each row and each column.

    `steps` are the reduction's, in vectors; `sums` reductions run side by side.
    """
    registers, costs = spec.vector_registers, spec.loops
    horizontal = 2 * (lanes.bit_length() - 1) / costs.issued  # half a vector is moved, and added
    best = (float("inf"), 2, 1, 1)
    for r in range(1, min(rows, costs.max_rows) + 1):
        for c in range(1, min(columns, costs.max_rows) + 1):
            count = sums * r * c
            if count + sums * (c + 1) > registers and r * c > 1:  # columns stay, rows pass
                break
            operations = count + sums * (r + c)
            step = max(count / costs.issue, operations / costs.issued, costs.latency)
            cycles = steps * step + costs.tile + (horizontal + costs.result) * count
            tiles = -(-rows // r) * -(-columns // c)
            # Among equal costs the tile with fewer loads is taken, which is the second element.
            best = min(best, (tiles * cycles, r + c, r, c))
    return best[2:]


def _neighbours(
    ranges: Sequence[Atom], loads: Collection[LoadInfo], spec: DeviceSpec
) -> dict[Atom, int]:
    moved = {a for ld in loads if not ld.weight for a in ixs.leaves(ld.node.arg.offset)}
    rows = [r for r in ranges if r in moved]
    return {rows[-1]: window_rows(rows[-1].size, spec.loops.scalar_rows)} if rows else {}


def _repeated(node: Node, depends: Mapping[Node, Collection[Atom]]) -> list[Node]:
    """Return the loads that a reduction repeats."""
    mine = set(node.arg[1])
    loads = (n for n in scalar_nodes(node.src[0]) if n.op is Op.LOAD)
    return [n for n in loads if not mine.isdisjoint(depends[n])]


# --- Choose how much one step of a kernel without reductions moves ----------------------------
#
# y[c] = 2 * x[c]                   ->     a step stores whole cache lines
# y[c] = c < 12 ? a[c] : b[c - 12]  ->     a step stores all c: each vector comes from one of both


def stream_unroll(tile: Tile, body: PlacedBody, costs: LoopCosts, *, streams: bool) -> int:
    """Return the vectors of a step without reductions; `streams`: lanes serve every load."""
    vectors, rest = divmod(tile.atom.size, tile.lanes)
    if rest == 0 and vectors <= costs.step_vectors and _is_chosen_by(body, tile.atom):
        return vectors
    vector_bytes = tile.lanes * body.value.dtype.itemsize
    unroll = costs.step_vectors if streams else 1
    # A step that is not whole would be stored again with an overlap.
    while unroll > 1 and (
        tile.atom.size % (tile.lanes * unroll) or vector_bytes * unroll > costs.stream_bytes
    ):
        unroll //= 2
    return unroll


def _is_chosen_by(body: PlacedBody, r: Atom) -> bool:
    """Whether a range decides which of two values is stored, as behind a concat along it."""
    tests = [n.arg for n in scalar_nodes(body.value) if n.op is Op.SELECT]
    return any(r in ixs.leaves(ix) for test in tests for ix, _, _ in test)
