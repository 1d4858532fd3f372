"""Choose the register tile of results that have no lanes of their own.

Dot products, whose lanes run across the reduced range:

    for q: for k: acc = 0; for d, 8 at a time: acc += a[q,d] * b[k,d]; out[q,k] = sum of lanes
    ->  for q, 3 at a time: for k, 4 at a time: 12 sums; a step loads 3 + 4 vectors for 12 products

Sums without any lanes, because nothing suits them: a few neighbours of a window, which share loads.
Without a tile every product waits for two loads of its own and for the product before it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import combinations

from scheduler.device.spec import DeviceSpec
from scheduler.ir import index as ixs
from scheduler.ir.index import Atom
from scheduler.ir.node import Node
from scheduler.ir.ops import Op
from scheduler.ir.ordered import parts_of
from scheduler.kernelize.scalar import scalar_nodes
from scheduler.loops.place import PlacedBody, dependencies, looped
from scheduler.loops.tile import dot_tile, window_rows
from scheduler.loops.vector import LoadInfo

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

    Its results have no lanes, and its reductions depend on all ranges; `across` is the range that
    lanes of a reduction run over, `sums` the vectors that keep one result of all of them.
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
