"""The rewrite driver: named rules indexed by root op, applied bottom-up with an explicit stack."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from scheduler.errors import SchedulerError
from scheduler.node import Node, make, toposort
from scheduler.ops import Op

# A node may be rewritten this often before we call it a cycle of rules.
MAX_STEPS = 64


@dataclass(frozen=True, slots=True)
class Rule:
    """A named rewrite: `apply` returns the replacement of a node of one of `ops`, or None."""

    name: str
    ops: tuple[Op, ...]
    apply: Callable[[Node], Node | None]


@dataclass(slots=True)
class Rewriter:
    """A list of rules; counts how often each fired (`hits`)."""

    rules: Sequence[Rule]
    hits: Counter[str] = field(default_factory=Counter)

    def __call__(self, roots: Sequence[Node]) -> dict[Node, Node]:
        """Return old node -> new node for everything reachable from `roots`.

        Raises:
            SchedulerError: rules undo each other.
        """
        table: dict[Op, list[Rule]] = {}
        for rule in self.rules:
            for op in rule.ops:
                table.setdefault(op, []).append(rule)
        new: dict[Node, Node] = {}
        for node in toposort(roots):
            src = tuple(new[s] for s in node.src)
            current = node if src == node.src else remake(node, src)
            new[node] = self._fixpoint(current, table)
        return new

    def _fixpoint(self, node: Node, table: Mapping[Op, list[Rule]]) -> Node:
        for _ in range(MAX_STEPS):
            for rule in table.get(node.op, ()):
                result = rule.apply(node)
                if result is not None and result is not node:
                    self.hits[rule.name] += 1
                    if not result.origin:
                        result.origin = node.origin
                    node = result
                    break
            else:
                return node
        raise SchedulerError(f"{node!r}: rewrite rules do not come to an end ({self.hits})")


def remake(node: Node, src: tuple[Node, ...]) -> Node:
    """Return the node with other sources; it keeps its origin."""
    result = make(node.op, node.dtype, src, node.arg)
    if not result.origin:
        result.origin = node.origin
    return result
