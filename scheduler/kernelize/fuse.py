"""Fuses finished kernels: several results in one loop nest, or several nests in one launch.

    c = a.sum() + 2; d = a.sum() * 3       ->     one kernel: s = sum(a); c = s + 2; d = s * 3
    s = a.sum(1); c = cos(a)               ->     for each row: its sum, then its cosines
    small heads of a model                 ->     one launch, each work-item runs one of the nests
    y = custom(x); z = relu(y)             ->     one launch, the custom kernel's slot stores z

Candidates are pairs of kernels that share a buffer and are close in creation order; small ones need
not share anything. `score` ranks them. A pair is refused if another kernel must run between the
two, if the result exceeds the limits of a kernel, or if it raises the peak of live memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from math import prod

from scheduler.device.costs import Costs
from scheduler.device.spec import DeviceSpec, Limits
from scheduler.ir.index import leaves
from scheduler.ir.node import Node, is_weight
from scheduler.ir.ops import LOOPS, PRODUCTS, Op
from scheduler.kernelize.body import Body
from scheduler.kernelize.fusion_graph import FusionGraph
from scheduler.kernelize.kernel import Kernel, make_kernel, with_epilogue
from scheduler.kernelize.merge import Merged, merge
from scheduler.kernelize.order import Step
from scheduler.kernelize.scalar import depends_on, scalar_nodes

# --- Combining two kernels, as one loop nest or side by side ----------------------------------
#
#     equal loops, or the loops of one are the outer loops of the other      ->     one loop nest
#     small, and neither needs the other                                     ->     side by side
#
# One nest pays if data are shared: a value that one stores and the other reads, or that both read.
# It does not pay if it takes the register tile of a large contraction away. Two different large
# contractions therefore stay separate, as do one and a kernel that only reads the same input.

Pair = tuple[int, int]
Score = tuple[int, bool, int, int]


def score(graph: FusionGraph, pair: Pair) -> Score | None:
    """Return the rank of a pair, or None if it is no candidate; the smallest rank is the best.

    The rank is (0 for an epilogue, 1 for one nest, 2 for side by side; whether exactly one of them
    reduces; bytes in common, negated; distance in creation order).
    """
    a, b = (graph.groups[i].kernel for i in pair)
    if a.custom is not None or b.custom is not None:
        return (0, False, 0, 0) if _with_epilogue(graph, *pair) is not None else None
    shared = {*a.reads, *a.targets} & {*b.reads, *b.targets}
    moved = sum(n.dtype.itemsize * prod(n.shape) for n in shared)
    nested = moved > 0 and _loops_fit(a, b)
    if not nested and not _fit_side_by_side(graph, a, b):
        return None
    distance = abs(graph.position(pair[1]) - graph.position(pair[0]))
    return (1 if nested else 2, bool(a.reductions) is not bool(b.reductions), -moved, distance)


def combine(graph: FusionGraph, first: int, second: int) -> Kernel | None:
    """Return two kernels as one; None if that is impossible or does not pay.

    `first` does not depend on `second`. `second` may depend on `first`, but not through a third
    kernel.
    """
    a, b = graph.groups[first].kernel, graph.groups[second].kernel
    limits = graph.spec.limits
    if a.custom is not None or b.custom is not None:
        return _with_epilogue(graph, first, second)
    if a.operations + b.operations > limits.operations:
        return None
    bodies: tuple[Body, ...] | None = None
    kept: tuple[Node, ...] | None = None
    nest = _nest(graph, first, second, limits)
    if nest is not None:
        stores = [s for s in nest.stores if not graph.is_local(s.target, first, second)]
        bodies, kept = (Body(nest.ranges, tuple(stores)),), tuple(s.target for s in stores)
    bindable = limits.fits(len({*a.reads, *b.reads}), len({*a.targets, *b.targets}))
    side_by_side = bindable and _fit_side_by_side(graph, a, b)
    if bodies is None and side_by_side and not graph.overwrites(first, second):
        bodies = (*a.bodies, *b.bodies)
    if bodies is None:
        return None
    kernel = graph.tried.kernels.get((a, b, kept))
    if kernel is None:
        kernel = make_kernel(bodies, tuple(dict.fromkeys((*a.origin, *b.origin))))
        graph.tried.kernels[a, b, kept] = kernel
    return kernel if limits.fits(_arguments(kernel), len(kernel.targets)) else None


def _with_epilogue(graph: FusionGraph, first: int, second: int) -> Kernel | None:
    """Return a custom kernel with its only reader in its slot; None if that is impossible."""
    a, b = graph.groups[first].kernel, graph.groups[second].kernel
    local = graph.is_local(a.targets[0], first, second)
    return with_epilogue(a, b, graph.spec.limits) if local else None


def _nest(graph: FusionGraph, first: int, second: int, limits: Limits) -> Body | None:
    """Return two kernels as one loop nest with the stores of both; None if that does not pay."""
    a, b = graph.groups[first].kernel, graph.groups[second].kernel
    pair, nests = (a, b), graph.tried.nests  # None there: tried, and refused
    if nests.get(pair, ()) is None or not _loops_fit(a, b) or _is_pinned(a, b):
        return None
    if _reads_too_much(graph, first, second, limits):
        return None
    if pair not in nests:
        merged = merge(a.bodies[0], b.bodies[0], graph.spec.costs.max_recompute_cost)
        nests[pair] = None
        if (
            merged is not None
            and _pays(merged, a, b, graph.spec.costs)
            and _keeps_old_values(graph, merged.body)
        ):
            nests[pair] = merged.body
    return nests[pair]


def _arguments(kernel: Kernel) -> int:
    """Return the maximum number of buffers read: each load of a weight can have its own packing."""
    views = sum(is_weight(n.src[0]) for n in kernel.loads)
    return views + sum(not is_weight(r) for r in kernel.reads)


def _reads_too_much(graph: FusionGraph, first: int, second: int, limits: Limits) -> bool:
    """Whether one nest of two kernels surely has too many buffers and need not be built."""
    a, b = graph.groups[first].kernel, graph.groups[second].kernel
    local = {t for t in (*a.targets, *b.targets) if graph.is_local(t, first, second)}
    if not local <= {*a.targets} & {*b.reads}:
        # dropping a result that nobody reads also drops the buffers that only it reads
        return False
    reads, targets = {*a.reads, *b.reads} - {*a.targets}, {*a.targets, *b.targets} - local
    return not limits.fits(len(reads), len(targets))


def _loops_fit(a: Kernel, b: Kernel) -> bool:
    """Whether both are one loop nest and the loops of one are among those of the other."""
    bodies = (*a.bodies, *b.bodies)
    if len(bodies) > 2 or any(s.row is not None for body in bodies for s in body.stores):
        return False
    mine, other = (Counter(r.size for r in k.bodies[0].loops) for k in (a, b))
    return mine <= other or other <= mine


def _is_pinned(a: Kernel, b: Kernel) -> bool:
    """Whether the second kernel reads across a boundary that the user requested."""
    return any(t.op is Op.CONTIGUOUS and t in b.reads for t in a.targets)


def _keeps_old_values(graph: FusionGraph, body: Body) -> bool:
    """Whether every element of a state is read before the same iteration overwrites it."""
    changed = [(s, graph.state_of(s.target)) for s in body.stores]
    return all(state is None or body.overwrites(store, state) for store, state in changed)


def _fit_side_by_side(graph: FusionGraph, a: Kernel, b: Kernel) -> bool:
    """Whether two kernels are small and neither reads a result of the other."""
    apart = not {*a.targets} & {*b.reads} and not {*b.targets} & {*a.reads}
    few = len(a.bodies) + len(b.bodies) <= graph.spec.costs.max_bodies
    return apart and few and graph.is_small(a) and graph.is_small(b)


def _pays(merged: Merged, a: Kernel, b: Kernel, costs: Costs) -> bool:
    """Whether one loop nest is better than two."""
    body = merged.body
    loops = [n for n in scalar_nodes(body.value) if n.op in LOOPS]
    on = {n: frozenset(found) for n, found in depends_on(body.value).items()}
    mine = frozenset(body.loops)
    size = prod(r.size for r in mine)
    hoisted = {on[n] & mine for n in loops} - {mine}
    outside = {frozenset(a for ix in s.index for a in leaves(ix)) for s in body.stores} - {mine}
    if len(hoisted | outside) > 1:
        return False  # no order of the loops puts each of these outside all others
    if merged.shorter is not None:
        rows = prod(r.size for r in merged.shorter)
        alike = all(on[n] & mine == merged.shorter for n in loops)
        reduced = rows * sum(prod(r.size for r in n.arg[1]) for n in loops)
        if merged.recomputes and reduced > costs.max_recomputed * size:
            return False
        return alike and (rows >= costs.hoist_rows or size <= costs.small_kernel)
    if merged.recomputes:
        return False
    if hoisted and any(on[n] & mine == mine for n in loops):
        return False
    reads_it = bool({*a.targets} & {*b.reads})
    apart = merged.added and len(loops) > len(merged.added)
    # If all of it is less work than a launch, losing a register tile does not matter.
    little = size * sum(prod(r.size for r in n.arg[1]) for n in loops) <= costs.launch
    heavy = any(_is_product(n) for n in loops) and not little
    return not heavy or (reads_it and not apart)


def _is_product(node: Node) -> bool:
    return node.op is Op.ACCUMULATE and node.src[0].op in PRODUCTS


# Maximum number of rounds, chosen by hand. A round without a fusion ends fusion earlier.
MAX_ROUNDS = 10
# Kernels further apart than this in creation order are no candidates.
MAX_DISTANCE = 64
# Maximum number of parts of a round to try separately if the round raises the peak.
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
        kernels: the kernels in creation order.
        steps: their edges; `after` holds those that states need.
        sizes: arena bytes of written nodes; a node that is missing here must stay stored.
        spec: the device row.
        alone: stored nodes whose kernels stay as they are.
    """
    graph = FusionGraph(kernels, steps, sizes, spec)
    for _ in range(MAX_ROUNDS):
        pairs = _candidates(graph, frozenset(alone))
        trial = graph.copy()
        if not _fuse_pairs(trial, pairs):
            break
        if trial.peak() > graph.peak():
            trial = _fuse_partly(graph, pairs)
            if trial is graph:
                break
        graph = trial
    return graph.result()


def _candidates(graph: FusionGraph, alone: frozenset[Node]) -> list[Pair]:
    """Return pairs of groups that may be fused, best first."""
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
    # A kernel between two others may be fused with one; the next round then finds the pair.
    free = [p for p in found if fixed.isdisjoint(p) and graph.ordered(*p) is not None]
    scored = [(score(graph, pair), pair) for pair in free]
    kept = [(value, pair) for value, pair in scored if value is not None]
    return [pair for value, pair in sorted(kept, key=lambda s: (s[0], s[1]))]


def _fuse_pairs(graph: FusionGraph, pairs: Iterable[Pair]) -> int:
    """Fuse pairs in order where possible; return the number of fusions."""
    taken = 0
    for pair in pairs:
        i, j = graph.current_group(pair[0]), graph.current_group(pair[1])
        if i == j:
            continue
        ordered = graph.ordered(i, j)
        kernel = combine(graph, *ordered) if ordered is not None else None
        if ordered is not None and kernel is not None:
            graph.accept(*ordered, kernel)
            taken += 1
    return taken


def _fuse_partly(graph: FusionGraph, pairs: Sequence[Pair]) -> FusionGraph:
    """Fuse only pairs that do not raise the peak of live memory.

    A part is a run of pairs. If fusing all of it raises the peak, each of its halves is tried.
    """
    parts = [pairs]
    for _ in range(MAX_TRIES):
        if not parts:
            break
        part = parts.pop()
        trial = graph.copy()
        if not _fuse_pairs(trial, part):
            continue
        if trial.peak() <= graph.peak():
            graph = trial
        elif len(part) > 1:
            middle = len(part) // 2
            parts += [part[middle:], part[:middle]]  # the half with the better pairs first
    return graph
