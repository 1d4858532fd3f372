"""Makes the ordered list of kernels of a StorePlan: their bodies, buffers, fusion and order.

A kernel that writes a state must not run before a kernel that reads the old value, and must not
read elements that it may have overwritten. If it would, a commit kernel copies the new value from a
temporary at the end:

    q' = cat(q[1:], x); y = f(q')     ->     t = cat(q[1:], x); y = f(t); q = t
    s' = s + x                        ->     s = s + x, each element in place
"""

from __future__ import annotations

from math import prod

from scheduler.errors import SchedulerError
from scheduler.ir.build import peel
from scheduler.ir.node import Node, make, toposort
from scheduler.ir.ops import Op
from scheduler.ir.origin import Origins
from scheduler.kernelize.body import Access, Body, Store, build_body
from scheduler.kernelize.fuse import fuse
from scheduler.kernelize.kernel import (
    Kernel,
    intermediates,
    make_custom_kernel,
    make_kernel,
    name_of,
    overwritable,
)
from scheduler.kernelize.memory_plan import aligned
from scheduler.kernelize.order import Step, best_order, wait_for_readers
from scheduler.kernelize.regions import StorePlan, open_region


def _is_constant(node: Node) -> bool:
    """Whether a node is a constant, perhaps expanded; many kernels share it, so it has no name."""
    return peel(node, (Op.RESHAPE, Op.EXPAND, Op.PERMUTE))[1].op is Op.CONST


def _names(root: Node, stored: frozenset[Node], origins: Origins) -> tuple[str, ...]:
    """Return the ONNX names of all fused nodes in topological order, else of stored sources."""
    names: dict[str, None] = {}
    read: dict[str, None] = {}
    seen: set[Node] = set()
    stack = [root]
    while stack:
        node = stack.pop()
        if node in seen or node.op is Op.BUFFER or _is_constant(node):
            continue
        seen.add(node)
        if node in stored and node is not root:
            read.update(dict.fromkeys(origins.of(node)))
            continue
        names.update(dict.fromkeys(origins.of(node)))
        stack.extend(node.src)
    return tuple(reversed(names or read))


def make_kernels(plan: StorePlan, origins: Origins | None = None) -> list[Kernel]:
    """Return the kernels of a plan in running order.

    Raises SchedulerError if two ASSIGN nodes write one state, or if kernels depend on each other in
    a cycle.
    """
    origins, sinks, spec = origins or Origins(), frozenset(plan.sinks), plan.spec
    stored = frozenset(plan.regions)
    kernels: list[Kernel] = []
    launched: set[Node] = set()
    for root in [n for n in toposort(plan.sinks) if n in plan.regions]:
        if root.op is Op.RESULT:
            if root.src[0] not in launched:
                launched.add(root.src[0])
                names = _names(root, stored, origins)
                kernels.append(make_custom_kernel(root.src[0], names, spec.limits))
            continue
        bodies = tuple(build_body(region, plan) for region in plan.regions[root])
        kernels.append(make_kernel(bodies, _names(root, stored, origins)))
    kernels = _without_unread(kernels, sinks)
    kernels, steps = _with_states(kernels)
    arena = intermediates(kernels, [s for s in sinks if s.op is not Op.ASSIGN])
    sizes = {n: aligned(n.dtype.itemsize * prod(n.shape)) for n in arena}
    kernels, steps = fuse(kernels, steps, sizes, spec, plan.alone)
    return [kernels[i] for i in best_order(steps, sizes)]


def _without_unread(kernels: list[Kernel], sinks: frozenset[Node]) -> list[Kernel]:
    """Drop kernels without readers: a slice may have kept only the padding around a value."""
    kept: list[Kernel] = []
    wanted = set(sinks)
    for kernel in reversed(kernels):
        if any(t in wanted or t.op is Op.ASSIGN for t in kernel.targets):
            wanted.update(kernel.reads)
            kept.append(kernel)
    return kept[::-1]


def _with_states(kernels: list[Kernel]) -> tuple[list[Kernel], list[Step]]:
    """Let ASSIGN kernels write their state in place if that is safe; otherwise add commits."""
    writers: dict[Node, int] = {}
    for i, kernel in enumerate(kernels):
        for target in kernel.targets:
            if target.op is Op.ASSIGN:
                state = target.src[0]
                if state in writers:
                    raise SchedulerError(f"{state.arg}: two values are assigned in one run")
                writers[state] = i
    steps, late = wait_for_readers([_step(k) for k in kernels], writers)
    commits = [_commit(state, kernels[writers[state]]) for state in late]
    for state, commit in zip(late, commits, strict=True):
        readers = frozenset(i for i, k in enumerate(kernels) if state in k.reads)
        steps.append(Step(name_of(commit), (), commit.reads, after=readers))
    return [*kernels, *commits], steps


def _step(kernel: Kernel) -> Step:
    return Step(name_of(kernel), kernel.targets, kernel.reads, overwritable(kernel))


def _commit(state: Node, writer: Kernel) -> Kernel:
    (value,) = [t for t in writer.targets if t.op is Op.ASSIGN and t.src[0] is state]
    region = open_region(state)
    load = make(Op.LOAD, state.dtype, (value,), Access(region.index, (), 0))
    body = Body(region.ranges, (Store(state, region.index, load),))
    return Kernel((body,), (state,), (value,), writer.origin)
