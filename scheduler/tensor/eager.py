"""The process-wide state of realized tensors, and the plan for realizing others (`EagerPlan`).

To realize a tensor is to compute its values into a buffer. All tensors share `SESSION`, which
persists between calls. The compilers of model files (`compile_plain`, `compile_driving`,
`onnx_backend`) take no values or schedules from it.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from math import prod
from typing import Any, Final, Protocol
from weakref import WeakKeyDictionary, WeakValueDictionary, ref

import numpy as np
from numpy.random import Generator, default_rng
from numpy.typing import NDArray

from scheduler.errors import ModelError
from scheduler.flags import Flags
from scheduler.ir.node import UNNAMED, Buffer, Node, make, post_order, toposort
from scheduler.ir.ops import Op
from scheduler.ir.rewrite import remake, with_sources
from scheduler.passes.canonicalize import canonicalize
from scheduler.schedule_cache import EntryGraph, ScheduleCache

# --- The value cache: finds realized values by the structure of their graphs ------------------
#
#     c = a + b; c.realize(); d = a + b      ->      d needs no kernel while the buffer of c lives
#
# The key of a value is a digest of its graph. A buffer enters the digest with a serial number that
# changes with its values. The cache keeps neither graphs nor buffers alive.


class ValueCache:
    """Weak mappings from nodes to digests, and from digests to buffers."""

    def __init__(self) -> None:
        self._digests: WeakKeyDictionary[Node, bytes] = WeakKeyDictionary()
        self._values: WeakValueDictionary[bytes, Buffer] = WeakValueDictionary()

    def digest(self, root: Node) -> bytes:
        """Return the digest of a value, which is equal for equal graphs over the same values."""
        for node in post_order(root, lambda n: n.src, self._digests):
            parts = [self._digests[s] for s in node.src]
            if node.op is Op.ASSIGN and node.src[0].arg.kind == "pending":
                self._digests[node] = parts[1]  # the same value as without the pinned boundary
                continue
            arg = node.arg.serial if isinstance(node.arg, Buffer) else node.arg
            text = f"{node.op.name} {node.dtype.name} {arg!r}".encode()
            self._digests[node] = blake2b(b"".join([text, *parts]), digest_size=16).digest()
        return self._digests[root]

    def remember(self, name: bytes, buffer: Buffer) -> None:
        """Map a digest to a buffer while something else keeps the buffer alive."""
        self._values[name] = buffer

    def find(self, node: Node) -> Buffer | None:
        """Return a live buffer with the value of a node, or None."""
        return self._values.get(self.digest(node))

    def forget(self, buffer: Buffer) -> None:
        """Remove a buffer, because its values change, and all digests, which can depend on them."""
        self._digests.clear()
        for name in [n for n, b in self._values.items() if b is buffer]:
            self._values.pop(name, None)


# --- The registry of live tensors: replaces computed nodes by buffers in their graphs ---------
#
#     c = a + b; d = c * 2; c.realize()      ->      c is a BUFFER, and d is BUFFER * 2
#
# Tensors are held weakly. A tensor without replaced nodes keeps its graph.


class Handle(Protocol):
    """An object with a graph, such as a tensor."""

    node: Node


class Handles:
    """The live tensors, and for each realized buffer its holder and its newest version.

    A version is an ASSIGN that writes the buffer, or the buffer node itself. The holder is the only
    tensor that may write to the buffer in place.
    """

    def __init__(self) -> None:
        # The newest ASSIGN of each buffer, until it has run or no tensor contains it.
        self.newest: WeakValueDictionary[Buffer, Node] = WeakValueDictionary()
        self._live: WeakValueDictionary[int, Handle] = WeakValueDictionary()
        # Guards `newest` against changes by one thread while another iterates over it.
        self._versions = threading.Lock()
        # The tensor for which each buffer was made, or that first wrote to it.
        self._holders: WeakKeyDictionary[Buffer, ref[Handle]] = WeakKeyDictionary()

    def register(self, handle: Handle) -> None:
        """Add a tensor, until it is freed."""
        self._live[id(handle)] = handle

    def record_version(self, buffer: Buffer, version: Node) -> None:
        """Record a new version, an ASSIGN, of a buffer."""
        with self._versions:
            self.newest[buffer] = version

    def hold(self, buffer: Buffer, handle: Handle) -> None:
        """Record the holder of a buffer: other tensors with the same value must not write to it."""
        self._holders[buffer] = ref(handle)

    def holder_of(self, buffer: Buffer) -> Handle | None:
        """Return the tensor that holds a buffer, or None if there is none or it was freed."""
        found = self._holders.get(buffer)
        return None if found is None else found()

    def substitute(self, replaced: Mapping[Node, Node]) -> None:
        """Replace nodes in the graphs of all live tensors."""
        if not replaced:
            return
        memo = dict(replaced)
        for live in self._live.valuerefs():  # a copy, unlike values(): safe with other threads
            handle = live()
            if handle is not None:
                handle.node = rebuild(handle.node, memo)
        with self._versions:
            for buffer, version in list(self.newest.items()):
                now = memo.get(version, version)
                if now.op is Op.ASSIGN and now.src[0].arg is buffer:
                    self.newest[buffer] = now
                else:  # the ASSIGN has run, or was replaced by its value
                    self.newest.pop(buffer, None)


def rebuild(root: Node, memo: dict[Node, Node]) -> Node:
    """Return a graph with nodes replaced by `memo` (old -> new); visited nodes are added to it."""
    for node in post_order(root, lambda n: n.src, memo):
        memo[node] = with_sources(node, memo)
    return memo[root]


@dataclass(slots=True)
class Session:
    """The state shared by all tensors: live tensors, known values, schedules, random numbers."""

    handles: Handles = field(default_factory=Handles)
    values: ValueCache = field(default_factory=ValueCache)
    schedules: ScheduleCache = field(default_factory=ScheduleCache)
    random: Generator = field(default_factory=lambda: default_rng(0))

    def clear(self) -> None:
        """Clear known values and schedules; live tensors stay registered."""
        self.values, self.schedules = ValueCache(), ScheduleCache()


SESSION: Final = Session()

# --- The EagerPlan: the graph to compile in order to realize some tensors ---------------------
#
#     x.T of a realized x            ->   nothing to compute: it is a view
#     (a + b).reshape(8, 2)          ->   a + b; the reshape is applied to its buffer
#     a + b, already computed        ->   nothing to compute
#     BUFFER of 3 realized tensors   ->   inputs b0, b1, b2, or states if they are assigned
#     ASSIGN(pending buffer, v)      ->   output v; pending: a boundary that `realize.pin` fixed

VIEWS = frozenset({Op.RESHAPE, Op.PERMUTE, Op.FLIP, Op.EXPAND})
# Movements whose elements are distinct elements of the source.
INVERTIBLE = frozenset({Op.RESHAPE, Op.PERMUTE, Op.FLIP, Op.SHRINK})
# Movements that can be applied to a buffer without a kernel.
BUFFER_VIEWS = VIEWS | {Op.SHRINK, Op.WINDOW}
_KEPT = frozenset({Op.BUFFER, Op.CONST})


def base_of(node: Node) -> Node:
    """Return the base of a value: the node under its views, which has to be stored."""
    deepest = node
    while deepest.op in BUFFER_VIEWS:
        deepest = deepest.src[0]
    if deepest.op in _KEPT or deepest.op is Op.ASSIGN:
        return deepest
    while node.op in VIEWS:
        node = node.src[0]
    return node


@dataclass(slots=True)
class EagerPlan:
    """The computation that realizes some tensors."""

    canonical: dict[Node, Node]  # every node of the tensors' graphs -> its simplified form
    # Output name -> its simplified node, which can be a pending ASSIGN.
    outputs: dict[str, Node] = field(default_factory=dict)
    # State name -> the ASSIGN to it. The state is a realized buffer or a program's state.
    writes: dict[str, Node] = field(default_factory=dict)
    buffers: dict[str, Buffer] = field(default_factory=dict)  # input or state name -> buffer
    graph: EntryGraph = field(init=False)  # the graph to compile

    def feeds(self, wanted: Collection[str]) -> dict[str, NDArray[Any]]:
        """Return the values of realized buffers among the inputs named in `wanted`."""
        return {n: np.asarray(b.data, order="C") for n, b in self.buffers.items() if n in wanted}

    def states(self) -> dict[str, NDArray[Any]]:
        """Return the values before the run of the realized buffers that are assigned."""
        written = [n for n in self.writes if n in self.buffers]
        return {n: np.asarray(self.buffers[n].data, order="C") for n in written}


def simplify(roots: Sequence[Node], flags: Flags) -> dict[Node, Node]:
    """Return node -> simplified node for all nodes in the graphs of `roots`."""
    return dict(canonicalize(roots, float_unsafe=flags.float_unsafe))


def needs_kernel(node: Node) -> bool:
    """Return whether a base has to be computed: it is not stored, constant or empty."""
    return node.op not in _KEPT and prod(node.shape) > 0


def make_plan(roots: Sequence[Node], flags: Flags) -> EagerPlan:
    """Return the plan for computing values.

    Raises ModelError if the graph has buffers on two devices, or two assignments to a buffer.
    """
    plan = EagerPlan(simplify(roots, flags))
    bases = dict.fromkeys(base_of(plan.canonical[r]) for r in roots)
    wanted = [b for b in bases if needs_kernel(b)]
    order = toposort(wanted)
    _check_devices(order)
    compiled = _Translation(plan, order)
    wanted = [b for b in wanted if compiled.known(b) is None]
    for base in wanted:
        compiled(base)
    outputs: dict[str, Node] = {}
    for node in [*compiled.pending, *(b for b in wanted if b.op is not Op.ASSIGN)]:
        name = f"out{len(outputs)}"
        outputs[name], plan.outputs[name] = compiled(node), node
    plan.graph = EntryGraph(outputs, [compiled(n) for n in plan.writes.values()])
    return plan


class _Translation:
    """Maps nodes to nodes in which inputs and states of a program replace realized buffers."""

    def __init__(self, plan: EagerPlan, order: Sequence[Node]) -> None:
        self.plan = plan
        self.pending: list[Node] = []
        self._new: dict[Node, Node] = {}
        self._replacements: dict[Buffer, Node] = {}
        self._named = {n.arg.name for n in order if n.op is Op.BUFFER and n.arg.data is None}
        self._assigned = {n.src[0] for n in order if n.op is Op.ASSIGN and n.src[0].arg.is_realized}

    def known(self, node: Node) -> Buffer | None:
        """Return a buffer with a node's value if it was already computed, else None.

        If the graph assigns to a realized buffer, it is always None, so that the assignment runs.
        """
        return None if self._assigned or node.op is Op.BUFFER else SESSION.values.find(node)

    def __call__(self, root: Node) -> Node:
        stack = [root]
        while stack:
            node = stack[-1]
            if node in self._new:
                stack.pop()
                continue
            known = self.known(node)
            missing = [s for s in _needed(node) if s not in self._new] if known is None else []
            if missing:
                stack.extend(missing[::-1])
                continue
            stack.pop()
            self._new[node] = self._translate(node) if known is None else self._replacement(known)
        return self._new[root]

    def _translate(self, node: Node) -> Node:
        if node.op is Op.BUFFER:
            kind = "state" if node in self._assigned else "input"
            return self._replacement(node.arg, kind) if node.arg.is_realized else node
        src = tuple(self._new[s] for s in _needed(node))
        if is_pending(node):
            self.pending.append(node)
            return make(Op.CONTIGUOUS, node.dtype, src)
        if node.op is Op.ASSIGN and self.plan.writes.setdefault(src[0].arg.name, node) is not node:
            raise ModelError(f"{node.src[0].arg}: two values are assigned in one run")
        return node if src == node.src else remake(node, src)

    def _replacement(self, buffer: Buffer, kind: str = "input") -> Node:
        """Return the input or state that replaces a realized buffer."""
        if buffer not in self._replacements:
            name = self._name_of(buffer)
            self.plan.buffers[name] = buffer
            replacement = Buffer(kind, name, buffer.shape, buffer.dtype)
            self._replacements[buffer] = make(Op.BUFFER, buffer.dtype, (), replacement)
        return self._replacements[buffer]

    def _name_of(self, buffer: Buffer) -> str:
        taken = self._named | set(self.plan.buffers)
        if buffer.name.startswith(UNNAMED) or not buffer.name:
            numbers = range(len(self.plan.buffers), len(self.plan.buffers) + len(taken) + 1)
            return next(f"b{i}" for i in numbers if f"b{i}" not in taken)
        if buffer.name in taken:
            raise ModelError(f'two variables have the same name: "{buffer.name}"; rename one')
        return buffer.name


def is_pending(node: Node) -> bool:
    """Return whether a node is a pinned kernel boundary that has not run (see `realize.pin`)."""
    return node.op is Op.ASSIGN and node.src[0].arg.kind == "pending"


def _needed(node: Node) -> tuple[Node, ...]:
    """Return the sources to translate: a pending buffer is not one of them."""
    return node.src[1:] if is_pending(node) else node.src


def _check_devices(order: Sequence[Node]) -> None:
    found: dict[str, Buffer] = {}
    for node in order:
        if node.op is Op.BUFFER and (node.arg.is_realized or node.arg.device):
            found.setdefault(node.arg.device, node.arg)
    if len(found) > 1:
        shown = ", ".join(f'{b} on "{d or "the default"}"' for d, b in sorted(found.items()))
        raise ModelError(f"one graph runs on one device, found {shown}; move one with to(...)")


def device_of(roots: Sequence[Node]) -> str | None:
    """Return the device to which the buffers of a graph were moved; None for the default device."""
    for node in toposort(roots):
        if node.op is Op.BUFFER and node.arg.device:
            return str(node.arg.device)
    return None


def unbound(roots: Sequence[Node]) -> list[Buffer]:
    """Return the buffers that need values from a caller: states, and inputs without a value."""
    buffers = [n.arg for n in toposort(roots) if n.op is Op.BUFFER]
    return [b for b in buffers if b.data is None and b.kind in ("input", "state")]


def views_of(canonical: Mapping[Node, Node], stored: Mapping[Node, Node]) -> dict[Node, Node]:
    """Return original node -> view of a buffer, for every node whose base was stored.

    `canonical` maps original to simplified nodes, and `stored` simplified nodes to buffer nodes.
    """
    memo = dict(stored)
    found: dict[Node, Node] = {}
    for node, simple in canonical.items():
        base = base_of(simple)
        if base in stored and node.op is not Op.BUFFER:
            found[node] = _reapply(simple, base, memo)
    return found


def _reapply(view: Node, base: Node, memo: dict[Node, Node]) -> Node:
    chain = []
    while view is not base:
        chain.append(view)
        view = view.src[0]
    for node in reversed(chain):
        if node not in memo:
            memo[node] = remake(node, (memo[node.src[0]],))
    return memo[chain[0]] if chain else memo[base]
