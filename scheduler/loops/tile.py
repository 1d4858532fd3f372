"""Choose the register tile of a contraction: how many vectors of results, for how many rows.

    V vectors x R rows of accumulators; a step of the reduction loads V vectors of weights and R
    scalars, each used R and V times.

A simple model of a core decides: two multiply-adds and two loads a cycle, four cycles of latency,
so many registers, and a price for weights that are read again for other rows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import combinations
from math import gcd

from scheduler.device.spec import DeviceSpec
from scheduler.ir import index as ixs
from scheduler.ir.index import Atom
from scheduler.ir.node import Node
from scheduler.ir.ops import Op
from scheduler.ir.ordered import parts_of
from scheduler.kernelize.scalar import scalar_nodes
from scheduler.loops.operands import Operands
from scheduler.loops.place import PlacedBody, dependencies, looped
from scheduler.loops.vector import LoadInfo

# Per cycle of a core: vector multiply-adds, and loads; as of x86-64 since AVX2.
ISSUE = 2
# Cycles until the result of a multiply-add can be added to.
LATENCY = 4
# Compilers load all rows of a step first where several vectors use them: these many registers more
# than there are still serve (seen: 2x10 and 4x5 of 32 do, 2x12 and 2x13 spill).
REGISTER_SLACK = 2
# Registers that accumulators of one vector leave free: its rows are operands in memory. Where they
# are not, a vector of weights and a scalar take at least two.
SPARE_REGISTERS = 6
OPERAND_REGISTERS = 2
# Operations a cycle, half of what a core can issue: its other hardware thread may be busy. A scalar
# that several vectors use is loaded once; one that a single vector uses is an operand in memory
# where the device has such operands.
ISSUED = 3.4
FLOAT_BYTES = 4  # of a float32
# Cycles per byte of weights that are read again for the next rows.
STREAM_COST = 0.002
# Cycles around a tile's reduction, and per vector of results. These and the above were fitted on
# one processor with registers of 512 bits.
TILE_OVERHEAD = 12
RESULT_OVERHEAD = 3
# Cycles per row of results: it starts on a cache line of its own.
ROW_OVERHEAD = 3
# Vectors of results of a tile: of five, 32 registers hold four rows only.
MAX_VECTORS = 4
# Rows and columns of a tile of dot products: 64 accumulators are more than any row's registers.
MAX_DOTS = 8
# Bytes after which the sets of the innermost cache repeat: 64 sets of lines of
# 64 bytes; and its ways at least.
PAGE = 4096
MIN_WAYS = 4
# Cycles to widen a vector of halves.
CONVERSION = 1.0
# Rows beyond the cache's that replacement still copes with (seen: 25 rows in 2 sets of 12 ways run
# at full speed, 25 in one set at half of it, in 2 sets of 8 ways at 0.6).
MAX_SHARED_ROWS = 2
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
    most = _cached_rows(operands.stride, spec.l1_bytes)
    ranked = ranked_tiles(vectors, rows, steps, lanes, spec, operands)
    # Rows beyond what the cache's sets hold evict each other at every step of the reduction.
    ranked = [t for t in ranked if t[2] <= most]
    if operands.narrow:
        columns = {v: -(-vectors // v) * v for _, v, _ in ranked}
        # Each tile of rows widens the weights again, so fewer tiles convert less.
        ranked.sort(key=lambda t: t[0] + CONVERSION * steps * columns[t[1]] * -(-rows // t[2]))
    return (1, 1) if not ranked else (ranked[0][1], ranked[0][2])


def _cached_rows(stride: int, cache_bytes: int) -> int:
    """Return how many rows the innermost cache holds: lines a page apart share a set."""
    ways = max(MIN_WAYS, cache_bytes // PAGE)
    sets = PAGE // gcd(stride, PAGE) if stride else PAGE
    return ways * sets + MAX_SHARED_ROWS


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
    for v in range(1, min(MAX_VECTORS, vectors) + 1):
        # Registers only fill up with more rows, so the first tile that does not fit ends the
        # search.
        for r in range(1, rows + 1):
            if not _fits(v, r, spec, operands):
                break
            step = _step_cycles(v, r, operands.work, broadcasts=spec.broadcasts)
            # With a single tile of rows, weights are read once, as any kernel must.
            if rows > r:  # the weights are read once more for other rows
                step += v * lanes * FLOAT_BYTES * STREAM_COST
            cycles = steps * step + TILE_OVERHEAD + RESULT_OVERHEAD * v * r + ROW_OVERHEAD * r
            # Ceilings count partial tiles as whole ones: their overlap is computed like the rest.
            found.append((-(-vectors // v) * -(-rows // r) * cycles, v, r))
    return sorted(found)


def _fits(v: int, r: int, spec: DeviceSpec, operands: Operands) -> bool:
    # Of scalars that serve later steps, one for each further row was seen to wait; of several
    # vectors, what waits longer is loaded again where it can be an operand. With one vector such a
    # scalar, or one that is computed, is none: 27 rows of a dilated convolution took 2.4 times as
    # long as 10, and 20 rows of a computed operand twice as long as 16 (32 registers).
    waiting = r - 1 if operands.shared and (v == 1 or not spec.broadcasts) else 0
    if v == 1:
        computed = r - 1 if operands.work else 0
        spare = max(SPARE_REGISTERS, OPERAND_REGISTERS + max(waiting, computed))
        return r + spare <= spec.vector_registers + 1
    return v * r + v + r + waiting <= spec.vector_registers + REGISTER_SLACK


def dot_tile(
    rows: int, columns: int, steps: int, lanes: int, spec: DeviceSpec, sums: int = 1
) -> tuple[int, int]:
    """Return (rows, columns) of the register tile of dot products with lanes across the reduction.

        rows x columns accumulators; a step loads one vector for each row and each column.

    `steps` are the reduction's, in vectors; `sums` reductions run side by side.
    """
    registers = spec.vector_registers
    horizontal = 2 * (lanes.bit_length() - 1) / ISSUED  # half a vector is moved, and added
    best = (float("inf"), 2, 1, 1)
    for r in range(1, min(rows, MAX_DOTS) + 1):
        for c in range(1, min(columns, MAX_DOTS) + 1):
            count = sums * r * c
            if count + sums * (c + 1) > registers and r * c > 1:  # columns stay, rows pass
                break
            step = max(count / ISSUE, (count + sums * (r + c)) / ISSUED, LATENCY)
            cycles = steps * step + TILE_OVERHEAD + (horizontal + RESULT_OVERHEAD) * count
            tiles = -(-rows // r) * -(-columns // c)
            # Among equal costs the tile with fewer loads is taken, which is the second element.
            best = min(best, (tiles * cycles, r + c, r, c))
    return best[2:]


def _step_cycles(v: int, r: int, work: int, *, broadcasts: bool) -> float:
    """Return the cycles of one step of the reduction, operands in the innermost cache."""
    # A scalar that only one multiply-add uses is folded into it by devices that broadcast from
    # memory.
    alone = v > 1 or work > 0 or not broadcasts
    operations = v * r + v + (r if alone else 0) + r * work
    # The slowest of the units decides: multiply-adds, loads, issue slots, or the latency of a sum.
    return max((v + work) * r / ISSUE, (v + r) / ISSUE, operations / ISSUED, LATENCY)


def window_rows(rows: int, most: int) -> int:
    """Return the rows of a sliding window's tile: a divisor of at most `most`, if one is good.

    Neighbours share loads, and with few tiles few of them need a test at the border.
    """
    if rows <= most:
        return rows
    least = -(-most // 2)  # fewer rows share fewer loads
    return max((d for d in range(least, most + 1) if rows % d == 0), default=least)


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

# Sums of a tile without lanes: enough to hide the latency of an addition.
SCALAR_ROWS = 8


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
    return {} if alone else _neighbours(body.ranges, loads)


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


def _neighbours(ranges: Sequence[Atom], loads: Collection[LoadInfo]) -> dict[Atom, int]:
    moved = {a for ld in loads if not ld.weight for a in ixs.leaves(ld.node.arg.offset)}
    rows = [r for r in ranges if r in moved]
    return {rows[-1]: window_rows(rows[-1].size, SCALAR_ROWS)} if rows else {}


def _repeated(node: Node, depends: Mapping[Node, Collection[Atom]]) -> list[Node]:
    """Return the loads that a reduction repeats."""
    mine = set(node.arg[1])
    loads = (n for n in scalar_nodes(node.src[0]) if n.op is Op.LOAD)
    return [n for n in loads if not mine.isdisjoint(depends[n])]
