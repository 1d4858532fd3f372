"""Applies named rewrite rules to a graph, bottom-up.

It also holds ALTERNATIVES, which stores two forms of one value for two kinds of device.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from scheduler.errors import SchedulerError
from scheduler.ir.node import Node, make, toposort
from scheduler.ir.ops import Op

# Maximum number of rewrites of one node before the rules are assumed to form a cycle.
MAX_STEPS = 64


@dataclass(frozen=True, slots=True)
class Rule:
    """A named rewrite: `apply` returns the replacement of a node with an op of `ops`, or None."""

    name: str
    ops: tuple[Op, ...]
    apply: Callable[[Node], Node | None]


@dataclass(slots=True)
class Rewriter:
    """A list of rules that is applied to every node of a graph."""

    rules: Sequence[Rule]  # applied in order of preference, until none applies to the node
    hits: Counter[str] = field(default_factory=Counter)  # number of times that each rule fired

    def __call__(self, roots: Sequence[Node]) -> dict[Node, Node]:
        """Return old node -> new node; raise SchedulerError if rules undo each other."""
        table: dict[Op, list[Rule]] = {}
        for rule in self.rules:
            for op in rule.ops:
                table.setdefault(op, []).append(rule)
        order = toposort(roots)
        new = unchanged(order)
        changed = False
        for node in order:
            # Most calls do not change anything.
            current = with_sources(node, new) if changed else node
            if current.op in table:
                current = self._fixpoint(current, table)
            if current is not node:
                new[node], changed = current, True
        return new

    def _fixpoint(self, node: Node, table: Mapping[Op, list[Rule]]) -> Node:
        for _ in range(MAX_STEPS):
            for rule in table.get(node.op, ()):
                result = rule.apply(node)
                if result is not None and result is not node:
                    self.hits[rule.name] += 1
                    node = result
                    break
            else:
                return node
        raise SchedulerError(f"{node!r}: rewrite rules do not terminate ({self.hits})")


def unchanged(order: Sequence[Node]) -> dict[Node, Node]:
    """Return the result of a pass that changes nothing: each node maps to itself."""
    return dict(zip(order, order, strict=True))


def with_sources(node: Node, new: Mapping[Node, Node]) -> Node:
    """Return the node with the new forms of its sources."""
    src = tuple(map(new.__getitem__, node.src))
    return node if src == node.src else remake(node, src)


def remake(node: Node, src: tuple[Node, ...]) -> Node:
    """Return the node with other sources."""
    return make(node.op, node.dtype, src, node.arg)


# --- ALTERNATIVES: one value in two forms, of which a device keeps one ------------------------
#
#     alternatives(running(x), blocks(x))   ->   running(x)   or   blocks(x)
#
# This keeps an imported model independent of the device.

# Position of the source for devices with one work-item per core, and for those in lock step.
SERIAL, SIMT = 0, 1


def alternatives(serial: Node, simt: Node) -> Node:
    """Return a node with two forms; if they are the same node, that node."""
    if serial is simt:
        return serial
    return make(Op.ALTERNATIVES, serial.dtype, (serial, simt))


def keep_form(roots: Sequence[Node], form: int) -> dict[Node, Node]:
    """Return old node -> new node, with one form (SERIAL or SIMT) in place of all alternatives."""
    return Rewriter((Rule("keep form", (Op.ALTERNATIVES,), lambda node: node.src[form]),))(roots)
