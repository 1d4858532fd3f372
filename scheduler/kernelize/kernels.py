"""The kernel list: bodies, what they read and write, and the order they run in.

State: a kernel that writes a state must not run before a kernel that reads its old value. Nor may
it read elements of that state that it may have overwritten already. Where that cannot be had, as in
a shifted queue, the new value goes to a temporary, and a commit kernel copies it when all have read
the old one:

    q' = cat(q[1:], x); y = f(q')     ->     t = cat(q[1:], x); y = f(t); q = t
    s' = s + x                        ->     s = s + x, each element in place
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from scheduler import index as ixs
from scheduler.errors import SchedulerError
from scheduler.kernelize.body import Access, Body, build_body, scalar_nodes
from scheduler.kernelize.limits import nodes_to_store
from scheduler.kernelize.memory_plan import aligned
from scheduler.kernelize.order import Step, best_order, wait_for_readers
from scheduler.kernelize.realize import realize
from scheduler.kernelize.uses import open_region
from scheduler.node import Node, make, toposort
from scheduler.ops import LOOPS, Op


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel to run.

    Attributes:
        body: what it computes.
        target: whose storage it writes: a stored node, or the BUFFER of a state.
        reads: BUFFER and stored nodes it loads, in first-use order.
        origin: ONNX node names it covers.
    """

    body: Body
    target: Node
    reads: tuple[Node, ...]
    origin: tuple[str, ...]


def _reads(body: Body) -> tuple[Node, ...]:
    return tuple(dict.fromkeys(n.src[0] for n in scalar_nodes(body.value) if n.op is Op.LOAD))


def _is_constant(node: Node) -> bool:
    """Whether a node is a constant, spread or not: one node serves all who use that number."""
    while node.op in (Op.RESHAPE, Op.EXPAND, Op.PERMUTE):
        node = node.src[0]
    return node.op is Op.CONST


def _origins(root: Node, stored: frozenset[Node]) -> tuple[str, ...]:
    """Return the ONNX names of everything fused into the kernel of `root`, in topological order."""
    names: dict[str, None] = {}
    seen: set[Node] = set()
    stack = [root]
    while stack:
        node = stack.pop()
        if (
            node in seen
            or node.op is Op.BUFFER
            or _is_constant(node)
            or (node in stored and node is not root)
        ):
            continue
        seen.add(node)
        names.update(dict.fromkeys(node.origin))
        stack.extend(node.src)
    return tuple(reversed(names))


def make_kernels(sinks: Sequence[Node]) -> list[Kernel]:
    """Return the kernels that compute `sinks` (outputs and ASSIGN nodes), in running order.

    Raises:
        SchedulerError: two ASSIGN nodes write one state, or the kernels depend on each other in a
            cycle.
    """
    pins: set[Node] = set()
    plan = realize(sinks)
    while more := nodes_to_store(plan.regions) - pins:
        pins |= more
        plan = realize(sinks, pins)
    stored = frozenset(plan.regions)
    kernels = []
    for root in [n for n in toposort(sinks) if n in plan.regions]:
        body = build_body(plan.regions[root], plan)
        kernels.append(Kernel(body, root, _reads(body), _origins(root, stored)))
    outputs = frozenset(s for s in sinks if s.op is not Op.ASSIGN)
    return _in_order(_without_unread(kernels, frozenset(sinks)), outputs)


def _without_unread(kernels: list[Kernel], sinks: frozenset[Node]) -> list[Kernel]:
    """Drop kernels whose result nobody reads: a slice may have kept only the padding around it."""
    kept: list[Kernel] = []
    wanted = set(sinks)
    for kernel in reversed(kernels):
        if kernel.target in wanted or kernel.target.op is Op.ASSIGN:
            wanted.update(kernel.reads)
            kept.append(kernel)
    return kept[::-1]


def _in_order(kernels: list[Kernel], outputs: frozenset[Node]) -> list[Kernel]:
    """Order all; let ASSIGN kernels write their state where that is safe, add commits elsewhere."""
    writers: dict[Node, int] = {}
    for i, kernel in enumerate(kernels):
        if kernel.target.op is Op.ASSIGN:
            state = kernel.target.src[0]
            if state in writers:
                raise SchedulerError(f"{state.arg}: two values are assigned in one run")
            writers[state] = i
    steps, late = wait_for_readers([_step(k) for k in kernels], writers)
    commits = [_commit(state, kernels[writers[state]]) for state in late]
    for state, commit in zip(late, commits, strict=True):
        readers = frozenset(i for i, k in enumerate(kernels) if state in k.reads)
        steps.append(Step(_name(commit), (), commit.reads, after=readers))
    everything = [*kernels, *commits]
    return [everything[i] for i in best_order(steps, _arena_sizes(everything, outputs))]


def _step(kernel: Kernel) -> Step:
    return Step(_name(kernel), (kernel.target,), kernel.reads, overwritable(kernel))


def _name(kernel: Kernel) -> str:
    return ", ".join(kernel.origin) or repr(kernel.target)


def overwritable(kernel: Kernel) -> tuple[Node, ...]:
    """Return what a kernel reads only where it writes, outside loops that may read it again.

    Logical indices are compared; whether layouts and blocks allow it, lowering finds out.
    """
    body = kernel.body
    here = tuple(ixs.ZERO if r is None else ixs.of(r) for r in body.ranges)
    nodes = scalar_nodes(body.value)
    elsewhere = {n.src[0] for n in nodes if n.op is Op.LOAD and n.arg.index != here}
    for node in nodes:
        if node.op in LOOPS:
            elsewhere.update(n.src[0] for n in scalar_nodes(node.src[0]) if n.op is Op.LOAD)
    width = body.root.dtype.itemsize
    return tuple(
        r
        for r in kernel.reads
        if r not in elsewhere and r.dtype.itemsize == width and r.shape == body.root.shape
    )


def _arena_sizes(kernels: Sequence[Kernel], outputs: frozenset[Node]) -> dict[Node, int]:
    """Return the bytes of what is neither an output nor written to a state."""
    committed = {k.target for k in kernels if k.target.op is Op.BUFFER}
    sizes = {}
    for target in (k.target for k in kernels):
        direct = target.op is Op.ASSIGN and target.src[0] not in committed
        if target.op is not Op.BUFFER and target not in outputs and not direct:
            sizes[target] = aligned(target.dtype.itemsize * prod(target.shape))
    return sizes


def state_of(kernel: Kernel, kernels: Sequence[Kernel]) -> Node | None:
    """Return the state BUFFER an ASSIGN kernel may write itself, None if a commit kernel does."""
    if kernel.target.op is not Op.ASSIGN:
        return None
    state = kernel.target.src[0]
    committed = any(k.target is state for k in kernels)
    return None if committed else state


def _commit(state: Node, writer: Kernel) -> Kernel:
    region = open_region(state)
    load = make(Op.LOAD, state.dtype, (writer.target,), Access(region.index, (), 0))
    return Kernel(Body(state, region.ranges, load), state, (writer.target,), writer.origin)
