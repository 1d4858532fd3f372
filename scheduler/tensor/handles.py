"""The registry of live tensors moves each of them to the storage of what it contains.

    c = a + b; d = c * 2; c.realize()      ->      c is a BUFFER, and d is BUFFER * 2

Tensors are held weakly; those that contain nothing of what was replaced keep their graph.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Protocol
from weakref import WeakKeyDictionary, WeakValueDictionary, ref

from scheduler.ir.node import Buffer, Node, post_order
from scheduler.ir.ops import Op
from scheduler.ir.rewrite import with_sources


class Handle(Protocol):
    """What has a graph: a tensor."""

    node: Node


class Handles:
    """The live tensors, and the tensor and the newest version of each realized buffer.

    Attributes:
        newest: the newest ASSIGN of a buffer, until it has run or no tensor holds it.
    """

    def __init__(self) -> None:
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
    """Return a graph with nodes replaced.

    Args:
        root: of the graph.
        memo: old node -> new node; grows by every node visited.
    """
    for node in post_order(root, lambda n: n.src, memo):
        memo[node] = with_sources(node, memo)
    return memo[root]
