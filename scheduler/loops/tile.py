"""Chooses the results that one step of the loops computes: the register tile.

For a contraction, the tile is a number of result vectors times a number of rows:

    V vectors x R rows of accumulators; a step of the reduction loads V vectors of weights, each
    used R times, and R scalars, each used V times.

A simple model of a core decides: two multiply-adds and two loads per cycle, four cycles of latency,
a limited number of registers, and a price for reading weights again for other rows.
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
    """Properties of a contraction's operands that influence the tile."""

    stride: int = 0  # bytes between the operands of consecutive rows; 0 if unknown
    narrow: bool = False  # True for fp16 weights, which are widened for each tile
    # Whether a row's scalar is kept in a register for another row, at a later unrolled step.
    shared: bool = False
    work: int = 0  # operations per step to compute a row's scalar from loaded values


UNKNOWN = Operands()


def contraction_tile(
    vectors: int,
    rows: int,
    steps: int,
    lanes: int,
    spec: DeviceSpec,
    operands: Operands = UNKNOWN,
) -> tuple[int, int]:
    """Return (vectors, rows) of the register tile, at most `vectors` and `rows`.

    `steps` is the length of the reduction, `lanes` the float32 elements of a vector.
    """
    most = _cached_rows(operands.stride, spec)
    ranked = ranked_tiles(vectors, rows, steps, lanes, spec, operands)
    # More rows than the cache's sets hold would evict each other at every step of the reduction.
    ranked = [t for t in ranked if t[2] <= most]
    if operands.narrow:
        columns = {v: -(-vectors // v) * v for _, v, _ in ranked}
        # Each tile of rows widens the weights again, so fewer tiles mean fewer conversions.
        step = spec.loops.conversion * steps
        ranked.sort(key=lambda t: t[0] + step * columns[t[1]] * -(-rows // t[2]))
    return (1, 1) if not ranked else (ranked[0][1], ranked[0][2])


def _cached_rows(stride: int, spec: DeviceSpec) -> int:
    """Return the number of rows whose lines fit the innermost cache together.

    Lines a page apart share a set. All rows share one set if they are whole pages apart, and two
    sets if they are half a page apart.
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
        # More rows need more registers, so the first tile that does not fit ends the search.
        for r in range(1, rows + 1):
            if not _fits(v, r, spec, operands):
                break
            step = _step_cycles(v, r, operands.work, spec)
            # With a single tile of rows, weights are read once, as in any kernel.
            if rows > r:  # the weights are read again for other rows
                step += v * lanes * dt.float32.itemsize * costs.stream
            cycles = steps * step + costs.tile + costs.result * v * r + costs.row * r
            # Partial tiles count as full ones: their overlap is computed too.
            found.append((-(-vectors // v) * -(-rows // r) * cycles, v, r))
    return sorted(found)


def _fits(v: int, r: int, spec: DeviceSpec, operands: Operands) -> bool:
    # Measured with 32 registers: about one scalar that serves later steps is kept per additional
    # row. With several vectors, a scalar that is kept longer is loaded again, if it can be a memory
    # operand. With one vector, such a scalar or a computed one cannot: 27 rows of a dilated
    # convolution took 2.4 times as long as 10, and 20 rows of a computed operand twice as long as
    # 16.
    costs = spec.loops
    waiting = r - 1 if operands.shared and (v == 1 or not spec.broadcasts) else 0
    if v == 1:
        computed = r - 1 if operands.work else 0
        spare = max(costs.spare_registers, costs.operand_registers + max(waiting, computed))
        return r + spare <= spec.vector_registers + 1
    return v * r + v + r + waiting <= spec.vector_registers + costs.register_slack


def _step_cycles(v: int, r: int, work: int, spec: DeviceSpec) -> float:
    """Return the cycles of one step of the reduction, with operands in the innermost cache."""
    # Devices that broadcast from memory fold a scalar into its only multiply-add.
    alone, costs = v > 1 or work > 0 or not spec.broadcasts, spec.loops
    operations = v * r + v + (r if alone else 0) + r * work
    # The slowest unit decides: multiply-adds, loads, issue slots, or the latency of a sum.
    loads, products = (v + r) / costs.issue, (v + work) * r / costs.issue
    return max(products, loads, operations / costs.issued, costs.latency)


def window_rows(rows: int, most: int) -> int:
    """Return the rows of a sliding window's tile: a divisor up to `most`, if one is large enough.

    Neighboring rows share loads, and with fewer tiles fewer rows need a test at the border.
    """
    if rows <= most:
        return rows
    least = -(-most // 2)  # fewer rows would share too few loads
    return max((d for d in range(least, most + 1) if rows % d == 0), default=least)


# --- Operands of rows, and whether rows share values ------------------------------------------
#
# sum(x[2*p + t] * w[t, c]; t)     ->     rows 2 apart, 3 taps 1 apart: x[2] serves rows 0 and 1


def operands_of(
    body: PlacedBody, tile: tuple[Atom, Atom], loads: Collection[LoadInfo], whole: Collection[Atom]
) -> Operands:
    """Return the operands of a contraction's rows, from its loads inside the reduction.

    `tile` is (range of the lanes, range of the rows); `whole` are fully unrolled reduced ranges.
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
    """Return the operations per step of a sum that compute the scalar shared by its lanes."""
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
    """Whether two rows read the same element, at different steps of a reduced range."""
    steps = [ixs.coefficient(load.arg.offset, r) for r in (row, reduced)]
    if None in steps:  # behind a remainder, both ranges move by steps, except at its ends
        return {row, reduced} <= set(ixs.leaves(load.arg.offset))
    step, tap = (abs(s or 0) for s in steps)
    # Row i and step t read the same element if i * step == t * tap; the least such t is step / gcd.
    return step > 0 and tap > 0 and step // gcd(step, tap) < reduced.size


def hoisted_rows(body: PlacedBody, vector: Atom, rows: list[Atom], costs: LoopCosts) -> list[Atom]:
    """Return the rows of hoisted reductions that can share the operand of a sum below them.

        for row: s = sum(row); out[row] = sum(x[row, k] / s * v[k, :])   ->   for 4 rows: ...

    Return none if a private array holds one row, or if too few rows would leave cores idle.
    """
    depends = dependencies(body.value)
    loops = looped(body)
    if any(n.op is Op.STAGE for n in loops) or all(vector not in depends[n] for n in loops):
        return []
    # There must be a tile for each work-item.
    return rows if prod(r.size for r in rows) >= costs.tile_rows * costs.max_items else []


# --- The register tile of results without lanes -----------------------------------------------
#
# Dot products, whose lanes run across the reduced range:
#
#     for q: for k: acc = 0; for d, 8 at a time: acc += a[q,d] * b[k,d]; out[q,k] = sum of lanes
#     ->  for q, 3 at a time: for k, 4 at a time: 12 sums; a step loads 3 + 4 vectors for 12
#     products
#
# Sums for which no lanes are suitable: a tile is a few neighbors of a window, which share loads.
# Without a tile, every product waits for two loads and for the previous product.
def scalar_tile(
    body: PlacedBody,
    loads: Collection[LoadInfo],
    across: Mapping[Node, Atom],
    lanes: int,
    spec: DeviceSpec,
    sums: int,
) -> dict[Atom, int]:
    """Return the number of results per step for output ranges that are tiled.

    Results have no lanes; those of reductions run over `across`. `sums` vectors hold one result of
    all reductions.
    """
    nodes = looped(body)
    if not nodes or any(n.op is not Op.ACCUMULATE for n in nodes):
        return {}  # there is one private array, not one per result
    if lanes > 1:
        return _dots(body, across, lanes, spec, sums)
    # Results with many partial sums have no latency to hide.
    alone = any(parts_of(n) > 1 for n in nodes)
    return {} if alone else _neighbours(body.ranges, loads, spec)


def _dots(
    body: PlacedBody, across: Mapping[Node, Atom], lanes: int, spec: DeviceSpec, sums: int
) -> dict[Atom, int]:
    """Tile the innermost two ranges of which each moves loads that the other does not."""
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

    `steps` is the length of the reduction in vectors; `sums` reductions run side by side.
    """
    registers, costs = spec.vector_registers, spec.loops
    horizontal = 2 * (lanes.bit_length() - 1) / costs.issued  # half a vector is moved, and added
    best = (float("inf"), 2, 1, 1)
    for r in range(1, min(rows, costs.max_rows) + 1):
        for c in range(1, min(columns, costs.max_rows) + 1):
            count = sums * r * c
            # column operands stay in registers, row operands do not
            if count + sums * (c + 1) > registers and r * c > 1:
                break
            operations = count + sums * (r + c)
            step = max(count / costs.issue, operations / costs.issued, costs.latency)
            cycles = steps * step + costs.tile + (horizontal + costs.result) * count
            tiles = -(-rows // r) * -(-columns // c)
            # Among equal costs, the tile with fewer loads wins, by the second element.
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


# --- Elements per step of a kernel without reductions -----------------------------------------
#
# y[c] = 2 * x[c]                   ->     a step stores whole cache lines
# y[c] = c < 12 ? a[c] : b[c - 12]  ->     a step stores all c: each vector comes from a or b


def stream_unroll(tile: Tile, body: PlacedBody, costs: LoopCosts, *, streams: bool) -> int:
    """Return the vectors per step without reductions; `streams`: lanes serve every load."""
    vectors, rest = divmod(tile.atom.size, tile.lanes)
    if rest == 0 and vectors <= costs.step_vectors and _is_chosen_by(body, tile.atom):
        return vectors
    vector_bytes = tile.lanes * body.value.dtype.itemsize
    unroll = costs.step_vectors if streams else 1
    # A partial last step would overlap and store results again.
    while unroll > 1 and (
        tile.atom.size % (tile.lanes * unroll) or vector_bytes * unroll > costs.stream_bytes
    ):
        unroll //= 2
    return unroll


def _is_chosen_by(body: PlacedBody, r: Atom) -> bool:
    """Whether a range decides which of two values is stored, as after a concat along it."""
    tests = [n.arg for n in scalar_nodes(body.value) if n.op is Op.SELECT]
    return any(r in ixs.leaves(ix) for test in tests for ix, _, _ in test)
