"""The memory of realized tensors in a process, and the plan of what realizing others computes.

All tensors share `SESSION`, the only state of `scheduler/` that a call leaves behind for the next
one; the compilers of files (`compile_plain`, `compile_driving`, `onnx_backend`) do not use it.
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

# --- The value cache finds realized values by the structure of the graph that gave them -------
#
#     c = a + b; c.realize(); d = a + b      ->      d needs no kernel while the buffer of c lives
#
# A value is named by a digest of its graph, in which a buffer counts as the number of its values.
# Neither graphs nor buffers are kept alive by it.


class ValueCache:
    """Names of values by node, and buffers by name; both weak."""

    def __init__(self) -> None:
        self._digests: WeakKeyDictionary[Node, bytes] = WeakKeyDictionary()
        self._values: WeakValueDictionary[bytes, Buffer] = WeakValueDictionary()

    def digest(self, root: Node) -> bytes:
        """Return the name of a value: equal for equal graphs over the same values."""
        for node in post_order(root, lambda n: n.src, self._digests):
            parts = [self._digests[s] for s in node.src]
            if node.op is Op.ASSIGN and node.src[0].arg.kind == "pending":
                self._digests[node] = parts[1]
                continue
            arg = node.arg.serial if isinstance(node.arg, Buffer) else node.arg
            text = f"{node.op.name} {node.dtype.name} {arg!r}".encode()
            self._digests[node] = blake2b(b"".join([text, *parts]), digest_size=16).digest()
        return self._digests[root]

    def remember(self, name: bytes, buffer: Buffer) -> None:
        """Keep the buffer of a value findable as long as something else keeps the buffer."""
        self._values[name] = buffer

    def find(self, node: Node) -> Buffer | None:
        """Return the buffer that holds the value of a node, if one lives."""
        return self._values.get(self.digest(node))

    def forget(self, buffer: Buffer) -> None:
        """Drop what a buffer held before it got new values, and every digest made from them."""
        self._digests.clear()
        for name in [n for n, b in self._values.items() if b is buffer]:
            self._values.pop(name, None)


# --- The registry of live tensors moves each of them to the storage of what it contains -------
#
#     c = a + b; d = c * 2; c.realize()      ->      c is a BUFFER, and d is BUFFER * 2
#
# Tensors are held weakly; those that contain nothing of what was replaced keep their graph.


class Handle(Protocol):
    """What has a graph: a tensor."""

    node: Node


class Handles:
    """The live tensors, and the tensor and the newest version of each realized buffer."""

    def __init__(self) -> None:
        # The newest ASSIGN of a buffer, until it has run or no tensor holds it.
        self.newest: WeakValueDictionary[Buffer, Node] = WeakValueDictionary()
        self._live: WeakValueDictionary[int, Handle] = WeakValueDictionary()
        # Threads may run tensors of their own; nobody may add to what another one goes through.
        self._versions = threading.Lock()
        # The tensor that each buffer was made for, or that was the first to write to it.
        self._holders: WeakKeyDictionary[Buffer, ref[Handle]] = WeakKeyDictionary()

    def register(self, handle: Handle) -> None:
        """Remember a tensor as long as it lives."""
        self._live[id(handle)] = handle

    def wrote(self, buffer: Buffer, version: Node) -> None:
        """Say that a buffer has a new version, an ASSIGN."""
        with self._versions:
            self.newest[buffer] = version

    def hold(self, buffer: Buffer, handle: Handle) -> None:
        """Say that a buffer is a tensor's: others that have the same value may not write to it."""
        self._holders[buffer] = ref(handle)

    def holder_of(self, buffer: Buffer) -> Handle | None:
        """Return the tensor that a buffer is held by, if that still lives."""
        found = self._holders.get(buffer)
        return None if found is None else found()

    def substitute(self, replaced: Mapping[Node, Node]) -> None:
        """Replace nodes in every live tensor; what is replaced is not looked into."""
        if not replaced:
            return
        memo = dict(replaced)
        for live in self._live.valuerefs():  # a list no other thread adds to, unlike values()
            handle = live()
            if handle is not None:
                handle.node = rebuild(handle.node, memo)
        with self._versions:
            for buffer, version in list(self.newest.items()):
                now = memo.get(version, version)
                if now.op is Op.ASSIGN and now.src[0].arg is buffer:
                    self.newest[buffer] = now
                else:  # it has run, or is the value of an ASSIGN that nobody stores
                    self.newest.pop(buffer, None)


def rebuild(root: Node, memo: dict[Node, Node]) -> Node:
    """Return a graph with nodes replaced; `memo` (old node -> new node) grows by those visited."""
    for node in post_order(root, lambda n: n.src, memo):
        memo[node] = with_sources(node, memo)
    return memo[root]


@dataclass(slots=True)
class Session:
    """Live tensors, values that were computed, schedules (in memory alone), a random sequence."""

    handles: Handles = field(default_factory=Handles)
    values: ValueCache = field(default_factory=ValueCache)
    schedules: ScheduleCache = field(default_factory=ScheduleCache)
    random: Generator = field(default_factory=lambda: default_rng(0))

    def clear(self) -> None:
        """Forget values and schedules; tensors that live are still moved with their storage."""
        self.values, self.schedules = ValueCache(), ScheduleCache()


SESSION: Final = Session()

# --- An EagerPlan says what realizing tensors has to compute, as a graph for the compiler -----
#
#     x.T where x is realized        ->   nothing: it is a view
#     (a + b).reshape(8, 2)          ->   a + b; the reshape is applied to its buffer
#     a + b, computed before         ->   nothing
#     BUFFER of 3 realized tensors   ->   inputs b0, b1, b2; a buffer that is assigned is a state
#     ASSIGN(pending buffer, v)      ->   v is stored and is an output

VIEWS = frozenset({Op.RESHAPE, Op.PERMUTE, Op.FLIP, Op.EXPAND})
# Movements of which every element is one of the source's, and another for each.
INVERTIBLE = frozenset({Op.RESHAPE, Op.PERMUTE, Op.FLIP, Op.SHRINK})
# Movements that a buffer's elements can be read through, though the result has other elements.
BUFFER_VIEWS = VIEWS | {Op.SHRINK, Op.WINDOW}
_KEPT = frozenset({Op.BUFFER, Op.CONST})


def base_of(node: Node) -> Node:
    """Return the node under the views of a value: what has to be stored for it."""
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
    """What realizing tensors takes."""

    canonical: dict[Node, Node]  # every node of the tensors' graphs -> its simplified form
    # By output name, the simplified node that it holds; for a pending ASSIGN that node.
    outputs: dict[str, Node] = field(default_factory=dict)
    # By state name, the ASSIGN node, to a realized buffer or a state of a program.
    writes: dict[str, Node] = field(default_factory=dict)
    buffers: dict[str, Buffer] = field(default_factory=dict)  # by input or state name
    graph: EntryGraph = field(init=False)  # all of it, as the compiler takes it

    def feeds(self, wanted: Collection[str]) -> dict[str, NDArray[Any]]:
        """Return the values of the realized buffers among some inputs."""
        return {n: np.asarray(b.data, order="C") for n, b in self.buffers.items() if n in wanted}

    def states(self) -> dict[str, NDArray[Any]]:
        """Return the values of the realized buffers that are assigned, before the run."""
        written = [n for n in self.writes if n in self.buffers]
        return {n: np.asarray(self.buffers[n].data, order="C") for n in written}


def simplify(roots: Sequence[Node], flags: Flags) -> dict[Node, Node]:
    """Return node -> simplified node for everything below some roots."""
    return dict(canonicalize(roots, float_unsafe=flags.float_unsafe))


def needs_kernel(node: Node) -> bool:
    """Whether a base has to be computed: it is neither stored, constant nor empty."""
    return node.op not in _KEPT and prod(node.shape) > 0


def make_plan(roots: Sequence[Node], flags: Flags) -> EagerPlan:
    """Return what computing values takes; raise ModelError for two devices or assignments."""
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
    """Maps nodes over realized buffers to nodes over inputs and states of a program."""

    def __init__(self, plan: EagerPlan, order: Sequence[Node]) -> None:
        self.plan = plan
        self.pending: list[Node] = []
        self._new: dict[Node, Node] = {}
        self._stand_ins: dict[Buffer, Node] = {}
        self._named = {n.arg.name for n in order if n.op is Op.BUFFER and n.arg.data is None}
        self._assigned = {n.src[0] for n in order if n.op is Op.ASSIGN and n.src[0].arg.is_realized}

    def known(self, node: Node) -> Buffer | None:
        """Return the buffer of a value that was computed before.

        Where something is assigned the graph is run as it is, or the assignment could be left out.
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
            self._new[node] = self._translate(node) if known is None else self._stand_in(known)
        return self._new[root]

    def _translate(self, node: Node) -> Node:
        if node.op is Op.BUFFER:
            kind = "state" if node in self._assigned else "input"
            return self._stand_in(node.arg, kind) if node.arg.is_realized else node
        src = tuple(self._new[s] for s in _needed(node))
        if is_pending(node):
            self.pending.append(node)
            return make(Op.CONTIGUOUS, node.dtype, src)
        if node.op is Op.ASSIGN and self.plan.writes.setdefault(src[0].arg.name, node) is not node:
            raise ModelError(f"{node.src[0].arg}: two values are assigned in one run")
        return node if src == node.src else remake(node, src)

    def _stand_in(self, buffer: Buffer, kind: str = "input") -> Node:
        """Return an input or a state that takes the values of a realized buffer."""
        if buffer not in self._stand_ins:
            name = self._name_of(buffer)
            self.plan.buffers[name] = buffer
            stand_in = Buffer(kind, name, buffer.shape, buffer.dtype)
            self._stand_ins[buffer] = make(Op.BUFFER, buffer.dtype, (), stand_in)
        return self._stand_ins[buffer]

    def _name_of(self, buffer: Buffer) -> str:
        taken = self._named | set(self.plan.buffers)
        if buffer.name.startswith(UNNAMED) or not buffer.name:
            numbers = range(len(self.plan.buffers), len(self.plan.buffers) + len(taken) + 1)
            return next(f"b{i}" for i in numbers if f"b{i}" not in taken)
        if buffer.name in taken:
            raise ModelError(f'two variables have the same name: "{buffer.name}"; rename one')
        return buffer.name


def is_pending(node: Node) -> bool:
    """Whether a node is a kernel boundary that was asked for and has not run."""
    return node.op is Op.ASSIGN and node.src[0].arg.kind == "pending"


def _needed(node: Node) -> tuple[Node, ...]:
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
    """Return the device that the buffers of a graph were moved to; None for the default one."""
    for node in toposort(roots):
        if node.op is Op.BUFFER and node.arg.device:
            return str(node.arg.device)
    return None


def unbound(roots: Sequence[Node]) -> list[Buffer]:
    """Return inputs without values and states: what only a caller or a program can give."""
    buffers = [n.arg for n in toposort(roots) if n.op is Op.BUFFER]
    return [b for b in buffers if b.data is None and b.kind in ("input", "state")]


def views_of(canonical: Mapping[Node, Node], stored: Mapping[Node, Node]) -> dict[Node, Node]:
    """Return original node -> views of storage, for every node whose base was stored.

    `canonical` is original -> simplified node, `stored` simplified node -> reader of its storage.
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
