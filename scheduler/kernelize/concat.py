"""Find stored values to compute slice by slice because concats (CAT) are below them.

    stored: cat(a, b, c)            ->  three loop nests of one kernel, each writes its slice
    stored: relu(cat(a, b) * w)     ->  two: relu(a * w[:, :ka]), relu(b * w[:, ka:])

One loop nest would evaluate every source for every element, without vector loads.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import prod

from scheduler.device.costs import Costs
from scheduler.ir.node import Node
from scheduler.ir.ops import ELEMENTWISE, Op


def in_parts(
    concat: Node, carries: Mapping[Node, bool], cost: Mapping[Node, float], costs: Costs
) -> bool:
    """Whether the sources of a stored concat are computed in loops of their own, not selected from.

    Args:
        concat: the CAT; other nodes have no parts.
        carries: per node, whether it holds a reduction.
        cost: per node, of computing an element again.
        costs: those of the device.
    """
    if concat.op is not Op.CAT:
        return False
    if any(carries[s] for s in concat.src):
        return True
    size = prod(concat.shape)
    repeated = sum(cost[s] * (size - prod(s.shape)) for s in concat.src)
    return repeated > costs.launch or _selected(concat, len(concat.src), costs)


def _selected(node: Node, sources: int, costs: Costs) -> bool:
    """Whether choosing among sources for each element costs more than loops of their own."""
    selecting = prod(node.shape) * (sources - 1) * costs.select
    return 1 < sources <= costs.max_slices and selecting > costs.launch


def cut_at_concats(
    node: Node, users: Mapping[Node, Sequence[Node]], forced: Collection[Node], costs: Costs
) -> tuple[int, list[int]] | None:
    """Return the axis and ends of the slices to compute a stored value in; None for all at once.

    Args:
        node: what is stored; it holds no reduction.
        users: per node, who reads it.
        forced: what is stored in any case.
        costs: those of the device.
    """
    cuts: dict[int, set[int]] = {}
    for concat, axes in _concats_below(node, users, forced):
        ends, at = cuts.setdefault(axes.index(concat.arg), set()), 0
        for source in concat.src:
            at += source.shape[concat.arg]
            ends.add(at)
    if not cuts:
        return None
    axis = max(cuts, key=lambda a: len(cuts[a]))
    return (axis, sorted(cuts[axis])) if _selected(node, len(cuts[axis]), costs) else None


def _concats_below(
    node: Node, users: Mapping[Node, Sequence[Node]], forced: Collection[Node]
) -> list[tuple[Node, tuple[int, ...]]]:
    """Return the concats that alone make up a value elementwise, each with the value's axes."""
    start = (node, tuple(range(len(node.shape))))
    stack, seen, found = [start], {node}, []
    while stack:
        below, axes = stack.pop()
        if below.op is Op.CAT:
            found.append((below, axes))
            continue
        if below.op is Op.PERMUTE:
            axes = tuple(below.arg[a] for a in axes)
        elif below.op not in ELEMENTWISE and below.op is not Op.CONTIGUOUS:
            continue
        for source in below.src:
            # What reads it twice, as PReLU does, is looked at before.
            mine = seen.issuperset(users[source])
            if mine and source not in seen and source not in forced:
                seen.add(source)
                stack.append((source, axes))
    return found
