"""A Node is the one immutable, interned vertex of every graph in the compiler.

Interning tables map a structure to its one object and forget it with its last user.
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
# Inputs that nobody named: realized buffers. A schedule of tensors gives them names of its own.
UNNAMED = "%"


class _Entry(ref[Value]):
    """A weak reference to an object, with the key it is found by."""

    __slots__ = ("key",)

    key: Hashable


class Interned(Generic[Value]):
    """A table from structure to the one object of that structure."""

    __slots__ = ("_entries", "_forget")

    def __init__(self) -> None:
        entries: dict[Hashable, _Entry[Value]] = {}

        def forget(entry: ref[Value]) -> None:
            assert isinstance(entry, _Entry)
            if entries.get(entry.key) is entry:  # else it has been made again meanwhile
                del entries[entry.key]

        self._entries = entries
        self._forget = forget

    def get(self, key: Hashable) -> Value | None:
        """Return the object of a structure, None if there is none now."""
        entry = self._entries.get(key)
        return None if entry is None else entry()

    def __setitem__(self, key: Hashable, value: Value) -> None:
        entry = _Entry(value, self._forget)
        entry.key = key
        self._entries[key] = entry

    def __len__(self) -> int:
        return len(self._entries)


class Buffer:
    """Storage that a graph reads or writes; compared by identity.

    Attributes:
        kind: "input" (given each run; with `data` it is a realized buffer and is given by itself),
            "weight" (constant for the compiler, has `data`), "state" (lives on the device between
            runs, starts as zeros), "pending" (a kernel boundary was put here, nothing ran yet).
        name: unique among inputs and among states of a program; made up for unnamed inputs.
        shape, dtype: logical, row-major.
        data: values of a weight or of a realized buffer, never changed in place; None otherwise.
        device: the device it was moved to; "" for the one a program runs on by default.
        partial: whether a run may give fewer elements of this input than its shape has.
        serial: names these values: no two buffers share it unless they hold the same ones.
        content: digest of a weight's values, once somebody asked for it (`scheduler.ir.digest`).
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
        """Whether this is a realized buffer: values of a tensor, not known to the compiler."""
        return self.kind == "input" and self.data is not None

    def update(self, data: NDArray[Any]) -> None:
        """Give the buffer new values: what an assignment or a run leaves in it."""
        self.kind, self.data, self.serial = "input", data, next(_serials)


_interned: Interned[Node] = Interned()


class Node:
    """An operation over other nodes; make one with `make`, never directly."""

    __slots__ = ("__weakref__", "arg", "dtype", "op", "shape", "src")

    op: Op  # op, dtype, src, arg: what it is; together its identity
    dtype: DType
    src: tuple[Node, ...]
    arg: Any
    shape: Shape  # derived from the sources when the node is made

    def __repr__(self) -> str:
        return f"<{self.op.name} {self.dtype.name}{list(self.shape)}>"


def make(op: Op, dtype: DType, src: tuple[Node, ...] = (), arg: Any = None) -> Node:
    """Return the one node of this structure; raise VerifyError if sources do not fit the op."""
    # -0.0 == 0.0 == 0 == False and nan != nan: constants and fills are told apart by their text.
    told: Any = arg
    if op is Op.CONST:
        told = repr(arg)
    elif op is Op.PAD:
        told = (arg[0], repr(arg[1]))
    elif op is Op.LOAD:
        told = (arg, repr(arg.fill))
    key = (op, dtype, src, told)
    found = _interned.get(key)
    if found is not None:
        return found
    node = Node()
    node.op, node.dtype, node.src, node.arg = op, dtype, src, arg
    node.shape = infer_shape(op, src, arg)
    _interned[key] = node
    return node


def storage_of(node: Node) -> Node:
    """Return the node whose storage is read where a node is loaded."""
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
    """Return an elementwise node (comparisons give bool), or raise VerifyError if types differ."""
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
        # Explicit stacks: networks are deeper than Python recurses. Each edge is looked at once.
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
    """Yield what a value is computed from and is not done yet, sources first, the value last.

    A value is a node, or a node with what is asked of it. The caller adds each yielded one to
    `done`.
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
    """Return for each node the nodes that read it, in the given order, each once."""
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
    """The readers of the nodes of a graph; nodes made by a pass are unknown here."""

    users: dict[Node, list[Node]]  # readers of each node
    roots: frozenset[Node]  # nodes that are stored in any case

    @classmethod
    def of(cls, order: Sequence[Node], roots: Iterable[Node]) -> Readers:
        """Return the readers of a graph in topological order."""
        return cls(consumers(order), frozenset(roots))

    def is_private(self, node: Node) -> bool:
        """Whether at most one node reads it."""
        return node not in self.roots and len(self.users.get(node, ())) < 2

    def only_user(self, node: Node) -> Node | None:
        """Return the only reader of a node, None if there are others or it is an output."""
        readers = self.users[node]
        return readers[0] if len(readers) == 1 and node not in self.roots else None
