"""The session is what the tensors of a process remember from call to call: they are eager.

All tensors share `SESSION`, the only state of `scheduler/` that a call leaves behind for the next
one; the compilers of files (`compile_plain`, `compile_driving`, `onnx_backend`) do not use it.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final, Protocol
from weakref import WeakKeyDictionary, WeakValueDictionary, ref

from numpy.random import Generator, default_rng

from scheduler.cache.schedules import ScheduleCache
from scheduler.ir.node import Buffer, Node, post_order
from scheduler.ir.ops import Op
from scheduler.ir.rewrite import with_sources

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
