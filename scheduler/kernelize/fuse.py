"""Fuse finished kernels: several results in one loop nest, several small loop nests in one launch.

    c = a.sum() + 2; d = a.sum() * 3       ->     one kernel: s = sum(a); c = s + 2; d = s * 3
    s = a.sum(1); c = cos(a)               ->     for each row: its sum, then its cosines
    small heads of a model                 ->     one launch, each work-item runs one of the nests

Runs after what is stored has been decided, on kernels and their edges. Candidates read or write the
same buffer and stand near each other; small ones may share nothing. The best are taken first: in
one loop nest, both reduce or neither does, most bytes in common, nearest. A pair is refused if a
third kernel lies on a way from one to the other, if the result exceeds the limits of a kernel, or
if the peak of live memory would rise.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise

from scheduler.device.spec import DeviceSpec
from scheduler.ir.node import Node
from scheduler.kernelize.combine import Pair, combine, score
from scheduler.kernelize.fusion_graph import FusionGraph
from scheduler.kernelize.kernel import Kernel
from scheduler.kernelize.order import Step

MAX_ROUNDS = 10  # a round that combines nothing ends it sooner; chosen by hand
# Kernels further apart than this in creation order are no candidates.
MAX_DISTANCE = 64
# Where a round raises the peak, parts of it are tried, so many times.
MAX_TRIES = 64


def fuse(
    kernels: Sequence[Kernel],
    steps: Sequence[Step],
    sizes: Mapping[Node, int],
    spec: DeviceSpec,
    alone: Collection[Node] = (),
) -> tuple[list[Kernel], list[Step]]:
    """Return fewer kernels that compute the same, and their steps.

    Args:
        kernels: in creation order.
        steps: of the same kernels; `after` holds the edges that states need.
        sizes: bytes in the arena of what kernels write; what is not in it must stay stored.
        spec: of the device.
        alone: stored nodes whose kernels stay as they are.
    """
    graph = FusionGraph(kernels, steps, sizes, spec)
    for _ in range(MAX_ROUNDS):
        pairs = _candidates(graph, frozenset(alone))
        trial = graph.copy()
        if not _take(trial, pairs):
            break
        if trial.peak() > graph.peak():
            trial = _take_partly(graph, pairs)
            if trial is graph:
                break
        graph = trial
    return graph.result()


def _candidates(graph: FusionGraph, alone: frozenset[Node]) -> list[Pair]:
    """Return pairs of groups that may become one, best first."""
    fixed = {i for i, g in graph.groups.items() if not alone.isdisjoint(g.kernel.targets)}
    found: dict[Pair, None] = {}
    for touching in graph.touching():
        near = sorted(touching, key=graph.position)
        for at, i in enumerate(near):
            for j in near[at + 1 :]:
                if graph.position(j) - graph.position(i) > MAX_DISTANCE:
                    break
                found[i, j] = None
    for i, j in pairwise(graph.small()):
        if graph.position(j) - graph.position(i) <= MAX_DISTANCE:
            found[i, j] = None
    # What lies between two kernels may become part of one of them: then the next round finds them.
    free = [p for p in found if fixed.isdisjoint(p) and graph.ordered(*p) is not None]
    scored = [(score(graph, pair), pair) for pair in free]
    kept = [(value, pair) for value, pair in scored if value is not None]
    return [pair for value, pair in sorted(kept, key=lambda s: (s[0], s[1]))]


def _take(graph: FusionGraph, pairs: Iterable[Pair]) -> int:
    """Fuse what can be fused; return how many pairs were."""
    taken = 0
    for pair in pairs:
        i, j = graph.now(pair[0]), graph.now(pair[1])
        if i == j:
            continue
        ordered = graph.ordered(i, j)
        kernel = combine(graph, *ordered) if ordered is not None else None
        if ordered is not None and kernel is not None:
            graph.accept(*ordered, kernel)
            taken += 1
    return taken


def _take_partly(graph: FusionGraph, pairs: Sequence[Pair]) -> FusionGraph:
    """Fuse the pairs that leave the peak where it is: all of a part, or its halves one by one."""
    parts = [pairs]
    for _ in range(MAX_TRIES):
        if not parts:
            break
        part = parts.pop()
        trial = graph.copy()
        if not _take(trial, part):
            continue
        if trial.peak() <= graph.peak():
            graph = trial
        elif len(part) > 1:
            middle = len(part) // 2
            parts += [part[middle:], part[:middle]]  # the better half first
    return graph
