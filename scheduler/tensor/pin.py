"""pin() fixes kernel boundaries without running anything: it is what Tensor.kernelize does.

    y = (x @ w).relu(); z = y.sum(); z.kernelize()
        ->      z is ASSIGN(BUFFER, sum(ASSIGN(BUFFER, relu(...))))     where two kernels are needed

The boundaries are those the compiler would choose, and stay where they are from then on: what
is built on a pinned value loads it. A pinned value is a leaf for later calls.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.context import CompileContext
from scheduler.device.spec import DeviceSpec
from scheduler.flags import Flags
from scheduler.ir.node import Buffer, Node, make, toposort
from scheduler.ir.ops import Op
from scheduler.ir.rewrite import with_sources
from scheduler.kernelize.make_kernels import storage_plan
from scheduler.passes.merge_assign import merge_assign
from scheduler.tensor import handles, value_cache
from scheduler.tensor.eager_plan import base_of, is_pending, needs_kernel, simplify


def pin(roots: Sequence[Node], context: CompileContext) -> None:
    """Pin the kernel boundaries of some values in every live tensor that contains them."""
    planned, pending = _planned(roots, context.flags)
    bases = dict.fromkeys(base_of(planned[r]) for r in roots)
    wanted = [b for b in bases if needs_kernel(b)]
    if not wanted:
        return
    stored = _stored_nodes(wanted, context.spec)
    pinned = _with_boundaries(wanted, stored, pending)
    handles.substitute(_replacements(planned, pinned))


def _planned(roots: Sequence[Node], flags: Flags) -> tuple[dict[Node, Node], dict[Node, Node]]:
    """Return what is planned for each node, and the boundary that each pending buffer stands for.

    What is planned is simplified, and what has storage, or will have it, is a leaf.
    """
    simple = simplify(roots, flags)
    cut: dict[Node, Node] = {}
    pending: dict[Node, Node] = {}
    for node, new in simple.items():
        known = value_cache.find(new) if new.op is not Op.BUFFER else None
        if is_pending(node):
            cut[new] = node.src[0]
            pending[node.src[0]] = node
        elif known is not None:
            cut[new] = make(Op.BUFFER, new.dtype, (), known)
    return {node: handles.rebuild(new, cut) for node, new in simple.items()}, pending


def _stored_nodes(wanted: Sequence[Node], spec: DeviceSpec) -> set[Node]:
    """Return what the compiler would store to compute some values, those included."""
    whole = merge_assign(wanted)
    sinks = list(dict.fromkeys(whole[w] for w in wanted))
    stored = storage_plan(sinks, spec).regions
    return {old for old, new in whole.items() if new in stored}


def _with_boundaries(
    wanted: Sequence[Node], stored: set[Node], pending: dict[Node, Node]
) -> dict[Node, Node]:
    """Return stored node -> ASSIGN of a buffer that is yet to be computed."""
    new = dict(pending)
    for node in toposort(wanted):
        if node in new:
            continue
        value = with_sources(node, new)
        if node in stored and node.op not in (Op.ASSIGN, Op.BUFFER):
            inner = value.src[0] if _is_boundary(node) else value
            buffer = Buffer("pending", "", node.shape, node.dtype)
            target = make(Op.BUFFER, node.dtype, (), buffer)
            value = make(Op.ASSIGN, node.dtype, (target, inner))
        new[node] = value
    return new


def _is_boundary(node: Node) -> bool:
    """Whether a node only asks for a boundary: a copy of a buffer is more than that."""
    return node.op is Op.CONTIGUOUS and base_of(node.src[0]).op is not Op.BUFFER


def _replacements(planned: dict[Node, Node], pinned: dict[Node, Node]) -> dict[Node, Node]:
    """Return original node -> its pinned form, for what is stored and for writes.

    Of a write too, or there were two versions of it: one with boundaries inside and one without.
    """
    found: dict[Node, Node] = {}
    for node, plan in planned.items():
        new = pinned.get(plan)
        if new is not None and new.op is Op.ASSIGN and node.op is not Op.BUFFER:
            found[node] = new
    return found
