"""Maps the nodes of a graph to the ONNX nodes that they come from, in a table beside the graph.

Two models can share an interned node under different names, so nodes cannot hold names. The
importer fills the table of a model; each pass of the pipeline updates it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from scheduler.ir.movement import MOVES
from scheduler.ir.node import Node
from scheduler.ir.ops import Op

Names = tuple[str, ...]
_VIEWS = MOVES | {Op.CAST}


class Origins:
    """A table from nodes to names of ONNX nodes, for messages only: no value depends on it."""

    __slots__ = ("_names",)

    def __init__(self) -> None:
        self._names: dict[Node, Names] = {}

    def of(self, node: Node) -> Names:
        """Return the names of a node; an unnamed custom kernel has the name of its source."""
        names = self._names.get(node, ())
        if names or node.op not in (Op.CUSTOM, Op.RESULT):
            return names
        launch = node.src[0] if node.op is Op.RESULT else node
        return (launch.arg.name,)

    def name(self, roots: Iterable[Node], names: Names) -> None:
        """Give `names` (() for inputs) to all nodes from `roots` down to nodes with an entry."""
        stack = list(roots)
        while stack:
            node = stack.pop()
            if node not in self._names:
                self._names[node] = names
                stack.extend(node.src)

    def over(self, roots: Iterable[Node]) -> Origins:
        """Return a copy in which every node of a graph has an entry, for use with `follow`."""
        copy = Origins()
        if self._names:
            copy._names = dict(self._names)
            copy.name(roots, ())
        return copy

    def follow(self, new: Mapping[Node, Node]) -> None:
        """Add the nodes that a pass made (old -> new, in topological order).

        A new node inherits the names of the old nodes whose work it does, or else of the first old
        node whose replacement uses it. Nodes that only move or cast a result belong to its readers
        and have no names.
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
        """Return the names of an old node with the same operation and shape, or else of all."""
        alike = [n for n in olds if n.op is made.op and n.shape == made.shape]
        return tuple(dict.fromkeys(name for n in alike[:1] or olds for name in self.of(n)))
