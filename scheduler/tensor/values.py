"""TensorValues adds scheduling, pinning and computing of values on an OpenCL device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

from numpy.typing import NDArray

from scheduler.context import CompileContext, context_for
from scheduler.device.spec import DeviceSpec
from scheduler.emit.schedule import Schedule
from scheduler.errors import ModelError
from scheduler.flags import Flags
from scheduler.ir.node import Buffer, Node, make, toposort
from scheduler.ir.ops import Op
from scheduler.ir.rewrite import with_sources
from scheduler.kernelize.store_plan import store_plan
from scheduler.passes.merge_assign import merge_assign
from scheduler.tensor import realize as running
from scheduler.tensor.assign import TensorAssign
from scheduler.tensor.eager_plan import (
    base_of,
    is_pending,
    make_plan,
    needs_kernel,
    simplify,
    unbound,
)
from scheduler.tensor.session import SESSION, rebuild

# --- pin() fixes kernel boundaries without running anything: it is what Tensor.kernelize does -
#
#     y = (x @ w).relu() and z = y.sum(), then z.kernelize()
#     ->  z is ASSIGN(BUFFER, sum(ASSIGN(BUFFER, relu(...)))) where two kernels are needed
#
# The boundaries are those the compiler would choose, and stay where they are from then on: what is
# built on a pinned value loads it. A pinned value is a leaf for later calls.


def pin(roots: Sequence[Node], context: CompileContext) -> None:
    """Pin the kernel boundaries of some values in every live tensor that contains them."""
    planned, pending = _planned(roots, context.flags)
    bases = dict.fromkeys(base_of(planned[r]) for r in roots)
    wanted = [b for b in bases if needs_kernel(b)]
    if not wanted:
        return
    stored = _stored_nodes(wanted, context.spec)
    pinned = _with_boundaries(wanted, stored, pending)
    SESSION.handles.substitute(_replacements(planned, pinned))


def _planned(roots: Sequence[Node], flags: Flags) -> tuple[dict[Node, Node], dict[Node, Node]]:
    """Return the simplified form of each node, and the boundary of each pending buffer."""
    simple = simplify(roots, flags)
    cut: dict[Node, Node] = {}
    pending: dict[Node, Node] = {}
    for node, new in simple.items():
        known = SESSION.values.find(new) if new.op is not Op.BUFFER else None
        if is_pending(node):
            cut[new] = node.src[0]
            pending[node.src[0]] = node
        elif known is not None:
            cut[new] = make(Op.BUFFER, new.dtype, (), known)
    return {node: rebuild(new, cut) for node, new in simple.items()}, pending


def _stored_nodes(wanted: Sequence[Node], spec: DeviceSpec) -> set[Node]:
    """Return what the compiler would store to compute some values, those included."""
    whole = merge_assign(wanted)
    sinks = list(dict.fromkeys(whole[w] for w in wanted))
    stored = store_plan(sinks, spec).regions
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
    """Return original node -> pinned form, of writes too, which would be two versions."""
    found: dict[Node, Node] = {}
    for node, plan in planned.items():
        new = pinned.get(plan)
        if new is not None and new.op is Op.ASSIGN and node.op is not Op.BUFFER:
            found[node] = new
    return found


class TensorValues(TensorAssign):
    """From graphs to values, on an OpenCL device."""

    __slots__ = ()

    def schedule(self, *more: TensorAssign, context: CompileContext | None = None) -> Schedule:
        """Return what realizing these tensors together would run; nothing runs, nothing changes.

        Views of buffers, constants and values computed before need no kernel. The same nodes give
        the same schedule again. The context is by default the row `cpu` with the environment's
        flags. Raises SchedulerError if a value cannot be compiled.
        """
        context = context or context_for()
        plan = make_plan([self.node, *(t.node for t in more)], context.flags)
        return SESSION.schedules.schedule(plan.graph, context)

    def kernelize(self, *more: TensorAssign, context: CompileContext | None = None) -> Self:
        """Pin the kernel boundaries of these tensors without running anything; return this tensor.

        What the compiler would store becomes ASSIGN(BUFFER, value) in every tensor that contains
        it, and is loaded, never computed again, by what is built on it later.
        """
        pin([self.node, *(t.node for t in more)], context or context_for())
        return self

    def realize(self, *more: TensorAssign, context: CompileContext | None = None) -> Self:
        """Compute these tensors together; afterwards they are buffers, or views of buffers.

        The context is by default the device with the environment's flags. Raises SchedulerError if
        a value cannot be compiled or depends on an input without a value, and RuntimeFault without
        a device.
        """
        running.realize([self.node, *(t.node for t in more)], context=context)
        return self

    def numpy(
        self,
        inputs: Mapping[str, NDArray[Any]] | None = None,
        context: CompileContext | None = None,
    ) -> NDArray[Any]:
        """Return the values, computed on an OpenCL device.

        A tensor of realized buffers is realized by this. One that reads inputs or states (zeros) is
        compiled and run once, and stays as it is. Raises SchedulerError if it cannot be compiled,
        and RuntimeFault if there is no device or an input does not fit.
        """
        if inputs or unbound([self.node]):
            return running.run([self.node], inputs, context=context)[0]
        self.realize(context=context)
        return running.values_of(self.node)

    def item(self) -> Any:
        """Return the only element as a Python scalar; raise ModelError if there are others."""
        if self.size != 1:
            raise ModelError(f"item: expected one element, found {self!r}")
        return self.numpy().item()

    def tolist(self) -> Any:
        """Return the values as nested lists of Python scalars."""
        return self.numpy().tolist()
