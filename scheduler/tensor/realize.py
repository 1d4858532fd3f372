"""`TensorValues`: methods that compute the values of tensors on an OpenCL device.

`realize` stores values in buffers. `run` returns values for given inputs. `pin` decides which
values are stored, without running anything. Later graphs load these values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from runtime import Program, choose_device
from runtime.format.artifact import from_memory
from runtime.opencl.program_cache import shared_cache
from scheduler.context import CompileContext, context_for
from scheduler.device.spec import DeviceSpec
from scheduler.device.targets import spec_of_device
from scheduler.emit.schedule import Schedule
from scheduler.errors import ModelError
from scheduler.flags import Flags
from scheduler.ir import interp
from scheduler.ir.build import peel
from scheduler.ir.node import Buffer, Node, make, toposort
from scheduler.ir.ops import Op
from scheduler.ir.rewrite import with_sources
from scheduler.kernelize.memory_plan import ALIGNMENT
from scheduler.kernelize.store_plan import store_plan
from scheduler.passes.merge_assign import merge_assign
from scheduler.tensor.assign import TensorAssign
from scheduler.tensor.eager import (
    BUFFER_VIEWS,
    INVERTIBLE,
    SESSION,
    EagerPlan,
    base_of,
    device_of,
    is_pending,
    make_plan,
    needs_kernel,
    rebuild,
    simplify,
    unbound,
    views_of,
)

Array = NDArray[Any]


class TensorValues(TensorAssign):
    """Computation of values on an OpenCL device."""

    __slots__ = ()

    def schedule(self, *more: TensorAssign, context: CompileContext | None = None) -> Schedule:
        """Return the schedule that `realize` of these tensors would run, without running it.

        Views of buffers, constants and values that are already computed need no kernel. The default
        context is the device row `cpu` with the environment's flags. Raises SchedulerError if a
        value cannot be compiled.
        """
        context = context or context_for()
        plan = make_plan([self.node, *(t.node for t in more)], context.flags)
        return SESSION.schedules.schedule(plan.graph, context)

    def kernelize(self, *more: TensorAssign, context: CompileContext | None = None) -> Self:
        """Pin the kernel boundaries of these tensors without running them; return this tensor.

        Each value that the compiler would store becomes ASSIGN(BUFFER, value) in all tensors that
        contain it. Graphs built on it later load the value instead of computing it again.
        """
        pin([self.node, *(t.node for t in more)], context or context_for())
        return self

    def realize(self, *more: TensorAssign, context: CompileContext | None = None) -> Self:
        """Compute these tensors together; afterwards they are buffers, or views of buffers.

        The default context is the device with the environment's flags. Raises SchedulerError if a
        value cannot be compiled or depends on an input without a value, and RuntimeFault if there
        is no device.
        """
        realize([self.node, *(t.node for t in more)], context=context)
        return self

    def numpy(
        self,
        inputs: Mapping[str, NDArray[Any]] | None = None,
        context: CompileContext | None = None,
    ) -> NDArray[Any]:
        """Return the values, computed on an OpenCL device.

        A tensor that reads inputs or states (which start as zeros) is compiled and run once, and
        does not change. Any other tensor is realized. Raises SchedulerError if it cannot be
        compiled, and RuntimeFault if there is no device or an input does not fit.
        """
        if inputs or unbound([self.node]):
            return run([self.node], inputs, context=context)[0]
        self.realize(context=context)
        return values_of(self.node)

    def item(self) -> Any:
        """Return the only element as a Python scalar; raise ModelError for any other size."""
        if self.size != 1:
            raise ModelError(f"item: expected one element, found {self!r}")
        return self.numpy().item()

    def tolist(self) -> Any:
        """Return the values as nested lists of Python scalars."""
        return self.numpy().tolist()


# --- realize() and run() ----------------------------------------------------------------------


def realize(roots: Sequence[Node], context: CompileContext | None = None) -> None:
    """Compute values into buffers, and replace them by the buffers in all live tensors.

    The default context is the device with the environment's flags. Raises ModelError if the graph
    reads an input without a value or a program's state, SchedulerError if a value cannot be
    compiled, and RuntimeFault if there is no device or the program does not build.
    """
    missing = unbound(roots)
    if missing:
        raise ModelError(f"realize: {missing[0]} has no value; use numpy(inputs), or compile it")
    flags = Flags.from_environment() if context is None else context.flags
    plan = make_plan(roots, flags)
    names = {name: SESSION.values.digest(node) for name, node in plan.outputs.items()}
    outputs, states = execute(plan, {}, device_of(roots), context, flags)
    stored = _known_values(plan, roots)
    for name, values in outputs.items():
        node = plan.outputs[name]
        stored[node] = _keep(node, values)
        SESSION.values.remember(names[name], stored[node].arg)
    stored.update({assign: assign.src[0] for assign in plan.writes.values()})
    # Keep the old values of buffers for tensors that were made from them.
    old = _old_values(plan)
    for name, assign in plan.writes.items():
        buffer = assign.src[0].arg
        SESSION.values.forget(buffer)
        buffer.update(states[name])
    SESSION.handles.substitute(_replacements(plan, roots, stored, old) | stored | old)


def _replacements(
    plan: EagerPlan, roots: Sequence[Node], stored: Mapping[Node, Node], old: Mapping[Node, Node]
) -> dict[Node, Node]:
    """Return original node -> an equal node that needs no kernel.

    A root that simplifies to a view of another tensor's buffer, or to a view that repeats elements,
    gets a buffer of its own. So a later write to it does not change the other tensor.
    `plan.canonical` has the simplified form of each node.
    """
    views = views_of(plan.canonical, stored)
    found = {node: view for node, view in views.items() if _is_invertible(view)}
    for root in roots:
        base = base_of(plan.canonical[root])
        if root.op is Op.BUFFER or (base not in stored and base.op not in (Op.BUFFER, Op.CONST)):
            continue
        view = views.get(root) or rebuild(plan.canonical[root], dict(old))
        own = view.op is not Op.CONST and base_of(root).op is not Op.BUFFER
        if root not in found and own and not _is_view_of(root, found):
            view = buffer_node(np.asarray(interp.evaluate([view])[0], order="C"), root)
        found[root] = view
    return found


def _is_invertible(view: Node) -> bool:
    """Return whether the elements of a view are distinct elements of a buffer."""
    return peel(view, INVERTIBLE)[1].op is Op.BUFFER


def _is_view_of(node: Node, stored: Mapping[Node, Node]) -> bool:
    """Return whether a node was made as a view of a stored node."""
    while node.op in BUFFER_VIEWS and node not in stored:
        node = node.src[0]
    return node in stored


def _keep(node: Node, values: Array) -> Node:
    """Return a buffer node with the values of a node; a pinned boundary already has a buffer."""
    values.flags.writeable = False
    if node.op is Op.ASSIGN:
        node.src[0].arg.update(values)
        return node.src[0]
    return buffer_node(values, node)


def buffer_node(values: Array, like: Node) -> Node:
    """Return a realized buffer with the given values, and the shape and type of node `like`."""
    buffer = Buffer("input", "", like.shape, like.dtype, values)
    return make(Op.BUFFER, like.dtype, (), buffer)


def _known_values(plan: EagerPlan, roots: Sequence[Node]) -> dict[Node, Node]:
    """Return base -> new buffer for values that need no run: empty or already computed ones.

    A base is the node under the views of a root (see `base_of`).
    """
    found: dict[Node, Node] = {}
    for base in dict.fromkeys(base_of(plan.canonical[r]) for r in roots):
        if not all(base.shape):
            found[base] = buffer_node(np.zeros(base.shape, base.dtype.np), base)
            continue
        wanted = needs_kernel(base) and not plan.writes
        known = SESSION.values.find(base) if wanted else None
        if known is not None and known.data is not None:
            found[base] = buffer_node(known.data, base)
    return found


def _old_values(plan: EagerPlan) -> dict[Node, Node]:
    """Return buffer node -> node with its values before the run, for each assigned buffer."""
    found: dict[Node, Node] = {}
    for assign in plan.writes.values():
        old = buffer_node(assign.src[0].arg.data, assign)
        old.arg.serial, old.arg.device = assign.src[0].arg.serial, assign.src[0].arg.device
        found[assign.src[0]] = old
    return found


def values_of(node: Node) -> Array:
    """Return a copy of the values of a view of a buffer or constant."""
    return np.array(interp.evaluate([node])[0])


def shared_values(node: Node) -> Array | None:
    """Return the values of a view of a buffer without a copy, or None if that is impossible.

    The array is read-only, and keeps its values when the buffer is assigned.
    """
    values: Array = interp.evaluate([node])[0].view()
    held = [n.arg.data for n in toposort([node]) if n.op is Op.BUFFER]
    if len(held) != 1 or not np.may_share_memory(values, held[0]):
        return None
    values.flags.writeable = False
    return values


def run(
    roots: Sequence[Node],
    inputs: Mapping[str, Array] | None = None,
    context: CompileContext | None = None,
) -> list[Array]:
    """Compute values once, without changing any tensor; return one new array per value.

    States start as zeros. Raises SchedulerError if a value cannot be compiled, and RuntimeFault if
    there is no device, the program does not build, or an input does not fit.
    """
    flags = Flags.from_environment() if context is None else context.flags
    plan = make_plan(roots, flags)
    outputs, states = execute(plan, inputs or {}, device_of(roots), context, flags)
    stored = _known_values(plan, roots)
    for name, node in plan.outputs.items():
        stored[node] = buffer_node(outputs[name], node)
    for name, node in plan.writes.items():
        stored[node] = buffer_node(states[name], node)
    found = views_of(plan.canonical, stored) | stored
    return [values_of(found.get(r, plan.canonical[r])) for r in roots]


def execute(
    plan: EagerPlan,
    inputs: Mapping[str, Array],
    device: str | None,
    context: CompileContext | None,
    flags: Flags,
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Compile and run a plan; return its outputs and the new values of states, by name.

    `device` is as for `runtime.load_program`; the default context is for that device.
    """
    if not plan.graph.outputs and not plan.writes:
        return {}, {}
    opened = choose_device(device)
    context = context or context_for(spec_of_device(opened), flags=flags)
    made = SESSION.schedules.emitted({"run": plan.graph}, context, name="tensor", kind="plain")
    data = _with_states(made.manifest, made.data, plan.states())
    artifact = from_memory(made.manifest, data)
    with Program(artifact, opened, shared_cache(opened)) as program:
        results = program.run({**plan.feeds({s.name for s in program.inputs}), **inputs})
        outputs = {name: np.array(results[name]) for name in plan.outputs}
        return outputs, {name: program.state(name) for name in plan.writes}


def _with_states(manifest: dict[str, Any], data: bytes, states: Mapping[str, Array]) -> bytes:
    """Return the data blob with initial values of states appended.

    Also set "reset" of each state's buffer in the manifest to the position of its value.
    """
    blob = bytearray(data)
    for entry in manifest["buffers"]:
        if entry["kind"] == "state" and entry["name"] in states:
            blob.extend(b"\0" * (-len(blob) % ALIGNMENT))
            entry["reset"] = len(blob)
            blob.extend(states[entry["name"]].tobytes())
    return bytes(blob)


# --- pin(): fixes kernel boundaries without running anything, for Tensor.kernelize ------------
#
#     y = (x @ w).relu() and z = y.sum(), then z.kernelize()
#     ->  z is ASSIGN(BUFFER, sum(ASSIGN(BUFFER, relu(...)))), if two kernels are needed
#
# The boundaries are those that the compiler chooses. They do not change afterwards: graphs built on
# a pinned value load it.


def pin(roots: Sequence[Node], context: CompileContext) -> None:
    """Pin the kernel boundaries of some values in every live tensor that contains them."""
    planned, pending = _planned(roots, context.flags)
    bases = dict.fromkeys(base_of(planned[r]) for r in roots)
    wanted = [b for b in bases if needs_kernel(b)]
    if not wanted:
        return
    stored = _stored_nodes(wanted, context.spec)
    pinned = _with_boundaries(wanted, stored, pending)
    SESSION.handles.substitute(_pinned_forms(planned, pinned))


def _planned(roots: Sequence[Node], flags: Flags) -> tuple[dict[Node, Node], dict[Node, Node]]:
    """Return node -> simplified node, and pending buffer -> its ASSIGN.

    In simplified nodes, buffers replace values that are pinned or already computed.
    """
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
    """Return the nodes that the compiler would store to compute some values, including them."""
    whole = merge_assign(wanted)
    sinks = list(dict.fromkeys(whole[w] for w in wanted))
    stored = store_plan(sinks, spec).regions
    return {old for old, new in whole.items() if new in stored}


def _with_boundaries(
    wanted: Sequence[Node], stored: set[Node], pending: dict[Node, Node]
) -> dict[Node, Node]:
    """Return node -> new node, in which each stored node is an ASSIGN to a pending buffer."""
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
    """Return whether a node is only a kernel boundary, and not a copy of a buffer."""
    return node.op is Op.CONTIGUOUS and base_of(node.src[0]).op is not Op.BUFFER


def _pinned_forms(planned: dict[Node, Node], pinned: dict[Node, Node]) -> dict[Node, Node]:
    """Return original node -> its pinned ASSIGN; this includes writes to realized buffers."""
    found: dict[Node, Node] = {}
    for node, plan in planned.items():
        new = pinned.get(plan)
        if new is not None and new.op is Op.ASSIGN and node.op is not Op.BUFFER:
            found[node] = new
    return found
