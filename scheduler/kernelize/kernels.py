"""The kernel list: bodies, what they read and write, and the order they run in.

State: a kernel that writes a state must not run before a kernel that reads its old value, nor read
the state itself (blocks may overlap, so an element may be computed twice). Where that cannot be
had, as in a shifted queue, the new value goes to a temporary and a commit kernel copies it at the
end:

    q' = cat(q[1:], x); y = f(q')     ->     t = cat(q[1:], x); y = f(t); q = t
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scheduler.errors import SchedulerError
from scheduler.kernelize.body import Access, Body, build_body, scalar_nodes
from scheduler.kernelize.limits import nodes_to_store
from scheduler.kernelize.realize import open_region, realize
from scheduler.node import Node, make, toposort
from scheduler.ops import Op


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


def _origins(root: Node, stored: frozenset[Node]) -> tuple[str, ...]:
    """Return the ONNX names of everything fused into the kernel of `root`, in topological order."""
    names: dict[str, None] = {}
    seen: set[Node] = set()
    stack = [root]
    while stack:
        node = stack.pop()
        if (
            node in seen
            or node.op in (Op.BUFFER, Op.CONST)
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
    regions = realize(sinks)
    while more := nodes_to_store(regions) - pins:
        pins |= more
        regions = realize(sinks, pins)
    stored = frozenset(regions)
    kernels = []
    for root in [n for n in toposort(sinks) if n in regions]:
        body = build_body(regions[root], stored)
        kernels.append(Kernel(body, root, _reads(body), _origins(root, stored)))
    return _with_state(_without_unread(kernels, frozenset(sinks)))


def _without_unread(kernels: list[Kernel], sinks: frozenset[Node]) -> list[Kernel]:
    """Drop kernels whose result nobody reads: a slice may have kept only the padding around it."""
    kept: list[Kernel] = []
    wanted = set(sinks)
    for kernel in reversed(kernels):
        if kernel.target in wanted or kernel.target.op is Op.ASSIGN:
            wanted.update(kernel.reads)
            kept.append(kernel)
    return kept[::-1]


def _with_state(kernels: list[Kernel]) -> list[Kernel]:
    """Order all; let ASSIGN kernels write their state where that is safe, add commits elsewhere."""
    writers: dict[Node, Kernel] = {}
    for kernel in kernels:
        if kernel.target.op is Op.ASSIGN:
            state = kernel.target.src[0]
            if state in writers:
                raise SchedulerError(f"{state.arg}: two values are assigned in one run")
            writers[state] = kernel
    early = _order(kernels)
    position = {k.target: i for i, k in enumerate(early)}
    commits: list[Kernel] = []
    for state, writer in writers.items():
        at = position[writer.target]
        if any(state in k.reads and position[k.target] >= at for k in early):
            commits.append(_commit(state, writer))
    return [*early, *commits]


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


def _order(kernels: Sequence[Kernel]) -> list[Kernel]:
    """Return a deterministic order: producers first, readers of an old state before its writer.

    Raises:
        SchedulerError: there is none; the message names the kernels involved.
    """
    number = {k.target: i for i, k in enumerate(kernels)}
    waits: dict[int, set[int]] = {i: set() for i in range(len(kernels))}
    for i, k in enumerate(kernels):
        waits[i] |= {number[r] for r in k.reads if r in number}
    for i, k in enumerate(kernels):
        if k.target.op is not Op.ASSIGN:
            continue
        for j, other in enumerate(kernels):
            reads_old = j != i and k.target.src[0] in other.reads
            if reads_old and i not in _ancestors(j, waits):
                waits[i].add(j)
    return _kahn(kernels, waits)


def _ancestors(start: int, waits: Mapping[int, set[int]]) -> set[int]:
    seen: set[int] = set()
    stack = [start]
    while stack:
        for j in waits[stack.pop()]:
            if j not in seen:
                seen.add(j)
                stack.append(j)
    return seen


def _kahn(kernels: Sequence[Kernel], waits: Mapping[int, set[int]]) -> list[Kernel]:
    users: dict[int, list[int]] = {i: [] for i in waits}
    for i, before in waits.items():
        for j in before:
            users[j].append(i)
    missing = {i: len(before) for i, before in waits.items()}
    ready = [i for i, n in missing.items() if n == 0]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        i = heapq.heappop(ready)
        order.append(i)
        for j in users[i]:
            missing[j] -= 1
            if missing[j] == 0:
                heapq.heappush(ready, j)
    if len(order) != len(kernels):
        stuck = [repr(kernels[i].target) for i, n in missing.items() if n > 0]
        raise SchedulerError(f"kernels depend on each other in a cycle: {', '.join(stuck[:8])}")
    return [kernels[i] for i in order]
