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

# Names of values by node, and buffers by name; both weak, see above.
_digests: WeakKeyDictionary[Node, bytes] = WeakKeyDictionary()
_values: WeakValueDictionary[bytes, Buffer] = WeakValueDictionary()


def digest(root: Node) -> bytes:
    """Return the name of a value: equal for equal graphs over the same values."""
    for node in post_order(root, lambda n: n.src, _digests):
        _digests[node] = _own_digest(node)
    return _digests[root]


def _own_digest(node: Node) -> bytes:
    if node.op is Op.ASSIGN and node.src[0].arg.kind == "pending":
        return _digests[node.src[1]]
    arg = node.arg.serial if isinstance(node.arg, Buffer) else node.arg
    text = f"{node.op.name} {node.dtype.name} {arg!r}".encode()
    return blake2b(b"".join([text, *(_digests[s] for s in node.src)]), digest_size=16).digest()


def remember(name: bytes, buffer: Buffer) -> None:
    """Keep the buffer of a value findable as long as something else keeps the buffer."""
    _values[name] = buffer


def find(node: Node) -> Buffer | None:
    """Return the buffer that holds the value of a node, if one lives."""
    return _values.get(digest(node))


def forget(buffer: Buffer) -> None:
    """Drop what a buffer held before it was given new values, and every digest made from them."""
    _digests.clear()
    for name in [n for n, b in _values.items() if b is buffer]:
        _values.pop(name, None)
