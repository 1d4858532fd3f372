"""The register tile of dot products whose lanes run across the reduced range.

    for q: for k: acc = 0; for d, 8 at a time: acc += a[q,d] * b[k,d]; out[q,k] = sum of lanes
    ->  for q, 3 at a time: for k, 4 at a time: 12 sums; a step loads 3 + 4 vectors for 12 products

Without a tile every product waits for two loads of its own and for the product before it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import combinations

from scheduler.index import Atom
from scheduler.kernelize.scalar import scalar_nodes
from scheduler.lower.tile import dot_tile
from scheduler.node import Node
from scheduler.ops import Op


def dot_tiles(
    across: Mapping[Node, Atom],
    ranges: Sequence[Atom],
    depends: Mapping[Node, Collection[Atom]],
    lanes: int,
) -> dict[Atom, int]:
    """Return how many steps of which output ranges share the loads of a reduction across lanes.

    Args:
        across: per reduction the range that its lanes run over.
        ranges: output ranges that may be cut, outermost first.
        depends: per scalar node the ranges its value depends on.
        lanes: vector width.
    """
    sums = {n: r for n, r in across.items() if n.op is Op.ACCUMULATE}
    if not sums:
        return {}
    readers = {r: _readers(list(sums), r, depends) for r in ranges}
    loads = frozenset().union(*(_inside(n, depends) for n in sums))
    sharing = [r for r in ranges if readers[r] and readers[r] < loads]
    pairs = [p for p in combinations(sharing, 2) if readers[p[0]].isdisjoint(readers[p[1]])]
    pairs = [p for p in pairs if all(set(p) <= set(depends[n]) for n in sums)]
    if not pairs:
        return {}
    outer, inner = pairs[-1]
    steps = max(r.size for r in sums.values()) // lanes
    shape = dot_tile(outer.size, inner.size, steps, lanes, len(sums))
    return dict(zip((outer, inner), shape, strict=True))


def _inside(node: Node, depends: Mapping[Node, Collection[Atom]]) -> frozenset[Node]:
    """Return the loads that a reduction repeats."""
    mine = set(node.arg[1])
    loads = (n for n in scalar_nodes(node.src[0]) if n.op is Op.LOAD)
    return frozenset(n for n in loads if not mine.isdisjoint(depends[n]))


def _readers(
    nodes: Sequence[Node], r: Atom, depends: Mapping[Node, Collection[Atom]]
) -> frozenset[Node]:
    """Return the loads of some reductions that a range moves."""
    return frozenset(ld for n in nodes for ld in _inside(n, depends) if r in depends[ld])
