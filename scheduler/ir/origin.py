"""Origins keep the names of the ONNX nodes that a graph's nodes come from beside the graph.

Two models may share an interned node under different names, so a node cannot hold them. The
importer fills the table of a model; the pipeline follows it from pass to pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from scheduler.ir.movement import MOVES
from scheduler.ir.node import Node
from scheduler.ir.ops import Op

Names = tuple[str, ...]
_VIEWS = MOVES | {Op.CAST}


class Origins:
    """A table from nodes to the names of ONNX nodes, for people: no value depends on it."""

    __slots__ = ("_names",)

    def __init__(self) -> None:
        self._names: dict[Node, Names] = {}

    def of(self, node: Node) -> Names:
        """Return the names of a node; a custom kernel without any goes by its own."""
        names = self._names.get(node, ())
        if names or node.op not in (Op.CUSTOM, Op.RESULT):
            return names
        launch = node.src[0] if node.op is Op.RESULT else node
        return (launch.arg.name,)

    def name(self, roots: Iterable[Node], names: Names) -> None:
        """Name (() for inputs) all below `roots` that has no entry; below an entry all have one."""
        stack = list(roots)
        while stack:
            node = stack.pop()
            if node not in self._names:
                self._names[node] = names
                stack.extend(node.src)

    def over(self, roots: Iterable[Node]) -> Origins:
        """Return a copy to `follow` a compilation with, in which every node of a graph is known."""
        copy = Origins()
        if self._names:
            copy._names = dict(self._names)
            copy.name(roots, ())
        return copy

    def follow(self, new: Mapping[Node, Node]) -> None:
        """Enter the nodes that a pass made (old -> new, in topological order).

        A new node is named after the old ones whose work it does, or else after the first one that
        was made into something above it. What only moves or casts a result belongs to its readers,
        and bears no name.
        """
        if not self._names:
            return
        work: list[tuple[Node, Node]] = []
        olds: dict[Node, list[Node]] = {}
        views: list[Node] = []
        for old, made in new.items():
            if made is old:
                continue
            at = made
            while at.op in _VIEWS and old.op not in _VIEWS and at not in self._names:
                views.append(at)
                at = at.src[0]
            olds.setdefault(at, []).append(old)
            work.append((old, at))
        self._names.update(dict.fromkeys((n for n in views if n not in olds), ()))
        for old, at in work:
            stack = [at]
            while stack:
                node = stack.pop()
                if node not in self._names:
                    self._names[node] = self._inherited(node, olds.get(node) or [old])
                    stack.extend(node.src)

    def _inherited(self, made: Node, olds: Sequence[Node]) -> Names:
        """Return the names of the old node of the same operation and shape, or else of all."""
        alike = [n for n in olds if n.op is made.op and n.shape == made.shape]
        return tuple(dict.fromkeys(name for n in alike[:1] or olds for name in self.of(n)))
