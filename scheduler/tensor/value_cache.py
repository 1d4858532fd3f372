"""The value cache finds realized values by the structure of the graph that gave them.

    c = a + b; c.realize(); d = a + b      ->      d needs no kernel while the buffer of c lives

A value is named by a digest of its graph, in which a buffer counts as the number of its values.
Neither graphs nor buffers are kept alive by it.
"""

from __future__ import annotations

from hashlib import blake2b
from weakref import WeakKeyDictionary, WeakValueDictionary

from scheduler.ir.node import Buffer, Node, post_order
from scheduler.ir.ops import Op


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
