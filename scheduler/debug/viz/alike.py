"""Pair the nodes of a graph with those of the graph before a pass, whatever their numbers.

Nodes are interned: where a pass replaces one, all that depend on it are other nodes, though nothing
else about them changed. So nodes are paired by what they are and by what stands around them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from itertools import islice

from scheduler.ir.node import Buffer, Node
from scheduler.ir.origin import Origins

Pairs = dict[Node, Node]


def pair_nodes(
    before: Sequence[Node],
    now: Sequence[Node],
    roots: Sequence[tuple[Node, Node]],
    origins: Origins,
) -> Pairs:
    """Return node of now -> node of before, for each that has one; no node has two.

    First from the inputs upwards: nodes that are the same on the same sources. Then from the
    outputs downwards: sources in the same place that are the same but for what they read. What is
    left between is paired by its ONNX nodes, then in order, and downwards from there.

    Args:
        before: all nodes of the graph before, sources first.
        now: all nodes of the graph after it, sources first.
        roots: outputs of now with those of before.
        origins: ONNX nodes of both.
    """
    finder = _Finder(before, now)
    finder.upwards()
    finder.downwards(roots)
    for key in (lambda node: (_kind(node), origins.of(node)), _kind):
        finder.downwards(finder.left_over(key))
    return finder.pairs


def rewired(node: Node, pairs: Pairs) -> bool:
    """Return whether a node that stood before reads something else now."""
    old = pairs.get(node)
    return old is not None and [pairs.get(s) for s in node.src] != list(old.src)


class _Finder:
    def __init__(self, before: Sequence[Node], now: Sequence[Node]) -> None:
        self.before, self.now = before, now
        self.pairs: Pairs = {}
        self._taken: set[Node] = set()

    def upwards(self) -> None:
        known = {(_kind(node), node.src): node for node in self.before}
        for node in self.now:
            sources = tuple(self.pairs.get(s) for s in node.src)
            old = known.get((_kind(node), sources))  # type: ignore[arg-type]  # None finds nothing
            if old is not None:
                self._pair(node, old)

    def downwards(self, starts: Sequence[tuple[Node, Node]]) -> None:
        stack = [(new, old) for new, old in starts if self._fits(new, old)]
        while stack:
            new, old = stack.pop()
            if not self._fits(new, old):
                continue
            self._pair(new, old)
            if len(new.src) == len(old.src):
                stack.extend(zip(new.src, old.src, strict=True))

    def left_over(self, key: Callable[[Node], Hashable]) -> list[tuple[Node, Node]]:
        """Return what has no pair yet and the same key, in order."""
        waiting: dict[Hashable, list[Node]] = defaultdict(list)
        for old in self.before:
            if old not in self._taken:
                waiting[key(old)].append(old)
        queues = {k: iter(nodes) for k, nodes in waiting.items()}
        found = []
        for new in self.now:
            if new not in self.pairs and key(new) in queues:
                found += [(new, old) for old in islice(queues[key(new)], 1)]
        return found[::-1]  # a stack is worked off from its end

    def _fits(self, new: Node, old: Node) -> bool:
        return new not in self.pairs and old not in self._taken and _kind(new) == _kind(old)

    def _pair(self, new: Node, old: Node) -> None:
        if old not in self._taken:
            self.pairs[new] = old
            self._taken.add(old)


def _kind(node: Node) -> Hashable:
    """Return what a node is, but for what it reads; numbers are told apart by their text."""
    told = node.arg if isinstance(node.arg, Buffer) else repr(node.arg)
    return node.op, node.dtype, node.shape, told
