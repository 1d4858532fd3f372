"""Defines Node, the immutable vertex of all graphs in the compiler, and Buffer, its storage.

Nodes are interned: nodes of equal structure are the same object. The intern tables hold weak
references, so a node is freed with its last user.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Generic, TypeVar
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from scheduler.errors import VerifyError
from scheduler.ir import dtype as dt
from scheduler.ir.dtype import DType
from scheduler.ir.ops import COMPARE, Op, Shape, infer_shape

Key = TypeVar("Key")
Value = TypeVar("Value")

_serials = count()
# Name prefix of unnamed inputs: realized buffers. A schedule of tensors renames them.
UNNAMED = "%"


class _Entry(ref[Value]):
    """A weak reference to an object, with its key in the table."""

    __slots__ = ("key",)

    key: Hashable


class Interned(Generic[Value]):
    """A table from a structure to the only object of that structure."""

    __slots__ = ("_entries", "_forget")

    def __init__(self) -> None:
        entries: dict[Hashable, _Entry[Value]] = {}

        def forget(entry: ref[Value]) -> None:
            assert isinstance(entry, _Entry)
            if entries.get(entry.key) is entry:  # otherwise an equal object has been made since
                del entries[entry.key]

        self._entries = entries
        self._forget = forget

    def get(self, key: Hashable) -> Value | None:
        """Return the object of a structure; None if there is none at present."""
        entry = self._entries.get(key)
        return None if entry is None else entry()

    def __setitem__(self, key: Hashable, value: Value) -> None:
        entry = _Entry(value, self._forget)
        entry.key = key
        self._entries[key] = entry

    def __len__(self) -> int:
        return len(self._entries)


class Buffer:
    """Storage that a graph reads or writes. Buffers compare by identity.

    Attributes:
        kind: "input" (given for each run, or with `data` a realized buffer that supplies itself),
            "weight" (constant for the compiler, has `data`), "state" (stays on the device between
            runs, starts as zeros), "pending" (a kernel boundary that has not run yet).
        name: unique among inputs and among states of a program; generated for unnamed inputs.
        shape, dtype: logical, row-major.
        data: values of a weight or of a realized buffer, never changed in place; None otherwise.
        device: the device it was moved to; "" for the program's default device.
        partial: whether a run may give fewer elements of this input than its shape has.
        serial: number of these values; buffers share it only if they have the same values.
        content: digest of a weight's values, cached by `scheduler.ir.digest`; "" before.
    """

    __slots__ = (
        *("__weakref__", "content", "data", "device", "dtype", "kind", "name", "partial"),
        *("serial", "shape"),
    )

    def __init__(
        self, kind: str, name: str, shape: Shape, dtype: DType, data: NDArray[Any] | None = None
    ) -> None:
        self.serial = next(_serials)
        self.kind = kind
        self.name = name or (f"{UNNAMED}{self.serial}" if kind == "input" else "")
        self.shape = shape
        self.dtype = dtype
        self.data = data
        self.device = ""
        self.partial = False
        self.content = ""

    def __repr__(self) -> str:
        return f"{self.kind}:{self.name}{list(self.shape)}"

    @property
    def is_realized(self) -> bool:
        """Whether this is a realized buffer: values of a tensor, unknown to the compiler."""
        return self.kind == "input" and self.data is not None

    def update(self, data: NDArray[Any]) -> None:
        """Replace the values of the buffer, after an assignment or a run."""
        self.kind, self.data, self.serial = "input", data, next(_serials)


_interned: Interned[Node] = Interned()


class Node:
    """An operation over other nodes, made by `make` only."""

    __slots__ = ("__weakref__", "arg", "dtype", "op", "shape", "src")

    op: Op  # operation, type, sources and argument: together its identity
    dtype: DType
    src: tuple[Node, ...]
    arg: Any
    shape: Shape  # derived from the sources when the node is made

    def __repr__(self) -> str:
        return f"<{self.op.name} {self.dtype.name}{list(self.shape)}>"


def make(op: Op, dtype: DType, src: tuple[Node, ...] = (), arg: Any = None) -> Node:
    """Return the only node of this structure; raise VerifyError if sources do not fit the op."""
    # As -0.0 == 0.0 == 0 == False and nan != nan, constants and fills are compared by their text.
    key_arg: Any = arg
    if op is Op.CONST:
        key_arg = repr(arg)
    elif op is Op.PAD:
        key_arg = (arg[0], repr(arg[1]))
    elif op is Op.LOAD:
        key_arg = (arg, repr(arg.fill))
    key = (op, dtype, src, key_arg)
    found = _interned.get(key)
    if found is not None:
        return found
    node = Node()
    node.op, node.dtype, node.src, node.arg = op, dtype, src, arg
    node.shape = infer_shape(op, src, arg)
    _interned[key] = node
    return node


def storage_of(node: Node) -> Node:
    """Return the node whose storage is read when a node is loaded."""
    return node.src[0] if node.op is Op.WORDS else node


def const(value: float | int | bool, dtype: DType) -> Node:
    """Return a scalar constant, rounded to its type; integers wrap around."""
    if dtype is dt.bool_:
        return make(Op.CONST, dtype, (), bool(value))
    if dtype.is_int:
        low, high = int(dt.min_value(dtype)), int(dt.max_value(dtype))
        return make(Op.CONST, dtype, (), (int(value) - low) % (high - low + 1) + low)
    with np.errstate(over="ignore"):
        return make(Op.CONST, dtype, (), float(dtype.np.type(value)))


def alu(op: Op, *src: Node) -> Node:
    """Return an elementwise node (bool for comparisons); raise VerifyError if types differ."""
    values = src[1:] if op is Op.WHERE else src
    if len({s.dtype for s in values}) != 1:
        raise VerifyError(f"{op.name}: operands must have one type, found {[s.dtype for s in src]}")
    return make(op, dt.bool_ if op in COMPARE else values[0].dtype, src)


def is_weight(node: Node) -> bool:
    """Whether a node is a constant buffer."""
    return node.op is Op.BUFFER and node.arg.kind == "weight"


def toposort(roots: Iterable[Node]) -> list[Node]:
    """Return all nodes reachable from `roots`, sources before users, in a deterministic order."""
    order: list[Node] = []
    done: set[Node] = set()
    for root in roots:
        # Explicit stacks: networks are deeper than Python's recursion limit. Each edge is visited
        # once.
        path, sources = ([], []) if root in done else ([root], [iter(root.src)])
        while path:
            for source in sources[-1]:
                if source not in done:
                    path.append(source)
                    sources.append(iter(source.src))
                    break
            else:
                sources.pop()
                done.add(path[-1])
                order.append(path.pop())
    return order


def post_order(
    root: Key, sources: Callable[[Key], Iterable[Key]], done: Container[Key]
) -> Iterator[Key]:
    """Yield the keys that `root` is computed from and that are not in `done`, sources first.

    A key is a node, possibly with further data. The root comes last. The caller adds each yielded
    key to `done`.
    """
    stack = [root]
    while stack:
        key = stack[-1]
        missing = [] if key in done else [k for k in sources(key) if k not in done]
        stack.extend(missing)
        if not missing:
            stack.pop()
            if key not in done:
                yield key


def consumers(order: Iterable[Node]) -> dict[Node, list[Node]]:
    """Return, for each node, its readers in the given order, each once."""
    users: dict[Node, list[Node]] = {}
    for node in order:
        if node not in users:
            users[node] = []
        for s in node.src:
            readers = users.get(s)
            if readers is None:
                users[s] = [node]
            elif not readers or readers[-1] is not node:  # x * x reads x once
                readers.append(node)
    return users


@dataclass(frozen=True, slots=True)
class Readers:
    """The readers of a graph's nodes, without nodes that a pass has added since."""

    users: dict[Node, list[Node]]  # readers of each node
    roots: frozenset[Node]  # nodes that are stored in any case

    @classmethod
    def of(cls, order: Sequence[Node], roots: Iterable[Node]) -> Readers:
        """Return the readers of a graph in topological order."""
        return cls(consumers(order), frozenset(roots))

    def is_private(self, node: Node) -> bool:
        """Whether at most one node reads it and it is no root."""
        return node not in self.roots and len(self.users.get(node, ())) < 2

    def only_user(self, node: Node) -> Node | None:
        """Return the only reader of a node; None if there are others or it is an output."""
        readers = self.users[node]
        return readers[0] if len(readers) == 1 and node not in self.roots else None
