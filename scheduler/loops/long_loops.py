"""Share a long loop below hoisted work between work-items, each of which repeats the hoisted work.

    one item:   row = norm(x);  for c in 0..1023: y[c] = row . w[c]
    8 items:    row = norm(x);  for c in 128*part .. 128*part + 127: y[c] = row . w[c]

Where there are fewer rows than cores, the others would wait.
"""

from __future__ import annotations

from math import prod

from scheduler.device.costs import LoopCosts
from scheduler.ir import index as ixs
from scheduler.ir.index import Atom
from scheduler.ir.ops import COST, ELEMENTWISE, LOOPS, Op
from scheduler.kernelize.scalar import scalar_nodes
from scheduler.loops.loop_schedule import Tile
from scheduler.loops.place import PlacedBody, dependencies


def inner_parts(
    body: PlacedBody, outer: frozenset[Atom], steps: int, inner: int, costs: LoopCosts
) -> int:
    """Return into how many parts the outermost loop below hoisted work is cut; 1 for none.

    Args:
        body: placed and merged.
        outer: output ranges of the loops above.
        steps: of these loops, all together.
        inner: steps of the outermost loop below.
        costs: those of the device.
    """
    if any(body.loops_around(store) <= outer for store in body.stores):
        return 1  # a result of the loops above would be stored by every part
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
    """Return the elementary operations (in the outer loops alone, below them)."""
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


# --- Choose how much one step of a kernel without reductions moves ----------------------------
#
# y[c] = 2 * x[c]                   ->     a step stores whole cache lines
# y[c] = c < 12 ? a[c] : b[c - 12]  ->     a step stores all c: each vector comes from one of both

# Most bytes that a streaming step stores: two cache lines share index arithmetic. And most vectors.
STREAM_BYTES = 128
STREAM_UNROLLS = (8, 4, 2)
# Vectors of a range that decides what is stored, up to which a step holds all of them (seen: of 128
# channels of a concat 0.08 of the time of a step for each vector, which computes all sources).
MAX_CHOICES = 8


def stream_unroll(tile: Tile, body: PlacedBody, *, streams: bool) -> int:
    """Return the vectors of a step without reductions; `streams`: lanes serve every load."""
    vectors, rest = divmod(tile.atom.size, tile.lanes)
    if rest == 0 and vectors <= MAX_CHOICES and _is_chosen_by(body, tile.atom):
        return vectors
    vector_bytes = tile.lanes * body.value.dtype.itemsize
    for unroll in STREAM_UNROLLS if streams else ():
        # A step that is not whole would be stored again with an overlap.
        exact = tile.atom.size % (tile.lanes * unroll) == 0
        if exact and vector_bytes * unroll <= STREAM_BYTES:
            return unroll
    return tile.unroll


def _is_chosen_by(body: PlacedBody, r: Atom) -> bool:
    """Whether a range decides which of two values is stored, as behind a concat along it."""
    tests = [n.arg for n in scalar_nodes(body.value) if n.op is Op.SELECT]
    return any(r in ixs.leaves(ix) for test in tests for ix, _, _ in test)
