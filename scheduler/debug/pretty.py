"""Formats graphs and kernel bodies as text that is the same on every run.

%0 = buffer input x : float32[4, 3]
%1 = reduce add axes 1 (%0) : float32[4, 1]  # /layer/ReduceSum
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from scheduler.ir.index import Atom, Ix, Predicate
from scheduler.ir.node import Buffer, Node, toposort
from scheduler.ir.ops import LOOPS, Op, parts_of
from scheduler.ir.origin import Origins
from scheduler.kernelize.body import Access, Body
from scheduler.kernelize.scalar import scalar_nodes
from scheduler.loops.loop_schedule import LoopSchedule, Tile

# Part of Python's default text of an object. Addresses differ from run to run, so they are removed.
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
MAX_ARGUMENT = 100  # characters; longer arguments (tables, user code) are truncated
MAX_ORIGINS = 3  # ONNX names shown after a node; further ones are counted


class Names:
    """Assigns numbers to nodes, in the order in which they are first seen."""

    def __init__(self) -> None:
        self._numbers: dict[Node, int] = {}
        self._next = 0

    def __call__(self, node: Node) -> str:
        """Return the name of a node, such as "%7"."""
        if node not in self._numbers:
            self._numbers[node] = self._next
            self._next += 1
        return f"%{self._numbers[node]}"

    def renamed(self, same: Mapping[Node, Node]) -> Names:
        """Return names for another graph; `same` maps its nodes to the old nodes (new -> old).

        A new node gets the number of its old one. Nodes without an old one get unused numbers.
        """
        names = Names()
        names._next = self._next
        names._numbers = {new: self._numbers[old] for new, old in same.items()}
        return names


@dataclass(frozen=True, slots=True)
class Line:
    """A node and its line of text."""

    node: Node
    text: str


def listing(
    roots: Sequence[Node], names: Names | None = None, origins: Origins | None = None
) -> list[Line]:
    """Return a line for each node of a graph, sources before users.

    If several graphs share `names`, a node has the same number in all of them. ONNX names follow
    the nodes as comments.
    """
    names, origins = names or Names(), origins or Origins()
    return [Line(n, _node_text(n, names, origins.of(n))) for n in toposort(roots)]


def pretty(
    roots: Sequence[Node], names: Names | None = None, origins: Origins | None = None
) -> str:
    """Return a graph as text: `listing`, and a last line with the roots."""
    names = names or Names()
    lines = [line.text for line in listing(roots, names, origins)]
    return "\n".join([*lines, f"return {', '.join(names(r) for r in roots)}"])


def _node_text(node: Node, names: Names, origins: Sequence[str]) -> str:
    name = names(node)
    argument = _argument(node)
    sources = f" ({', '.join(names(s) for s in node.src)})" if node.src else ""
    shown = list(origins[:MAX_ORIGINS])
    if len(origins) > MAX_ORIGINS:
        shown.append(f"+{len(origins) - MAX_ORIGINS}")
    origin = f"  # {' '.join(shown)}" if shown else ""
    what = f"{node.op.name.lower()}{' ' + argument if argument else ''}"
    return _one_line(f"{name} = {what}{sources} : {node.dtype.name}{list(node.shape)}{origin}")


def _argument(node: Node) -> str:
    arg = node.arg
    if arg is None:
        return ""
    if isinstance(arg, Buffer):
        return f"{arg.kind} {arg.name}".rstrip()
    if node.op is Op.REDUCE:
        parts = f" in {parts_of(node)} parts" if parts_of(node) else ""
        return f"{arg[0].name.lower()} axes {', '.join(map(str, arg[1]))}{parts}"
    if node.op is Op.WINDOW:
        axis, count, size, stride, dilation = arg
        return f"axis {axis}: {count} of {size}, stride {stride}, dilation {dilation}"
    if node.op is Op.PAD:
        return f"{_plain(arg[0])} with {arg[1]}"
    text = _ADDRESS.sub("", _plain(arg))
    return text if len(text) <= MAX_ARGUMENT else f"{text[:MAX_ARGUMENT]}..."


def _plain(value: Any) -> str:
    if isinstance(value, Enum):
        return value.name.lower()
    if isinstance(value, tuple):
        return f"({', '.join(_plain(v) for v in value)})"
    return str(value)


def _one_line(text: str) -> str:
    return " ".join(text.splitlines())


# --- Kernel bodies ----------------------------------------------------------------------------


def pretty_body(body: Body, label: Callable[[Node], str] | None = None) -> str:
    """Return the text of one iteration of a body.

    Indices are logical: `scheduler/loops/place.py` has not yet turned them into memory offsets.
    `label` names the tensors that the body loads and stores.

    for r0<4, r1<8:
      v0 = load %0[r0, r1]
      store [r0, r1] = v0
    """
    return _BodyText(label or Names()).text(body)


class _BodyText:
    """Names the ranges and values of one body in order of appearance.

    Ranges of the result are r0, r1, ...; those inside reductions k0, k1, ...; values v0, v1, ...
    "?" is a value without a line of its own.
    """

    def __init__(self, label: Callable[[Node], str]) -> None:
        self.label = label
        self.ranges: dict[Atom, str] = {}
        self.values: dict[Node, str] = {}

    def text(self, body: Body) -> str:
        outer = [r for r in body.ranges if r is not None]
        self.ranges.update({r: f"r{i}" for i, r in enumerate(outer)})
        loops = ", ".join(f"{self.ranges[r]}<{r.size}" for r in outer)
        lines = [f"for {loops or 'one element'}:"]
        for node in scalar_nodes(body.value):
            if node.op is Op.CONST:
                self.values[node] = str(node.arg)
                continue
            if node.op is Op.TUPLE:
                continue
            self.values[node] = f"v{len(lines) - 1}"
            lines.append(f"  {self.values[node]} = {self._scalar(node)}")
        for store in body.stores:
            where = "" if len(body.stores) == 1 else f"{self.label(store.target)} "
            index = ", ".join(self._index(ix) for ix in store.index)
            lines.append(f"  store {where}[{index}] = {self.values[store.value]}")
        return "\n".join(_one_line(line) for line in lines)

    def _scalar(self, node: Node) -> str:
        if node.op is Op.LOAD and isinstance(node.arg, Access):
            access = node.arg
            index = ", ".join(self._index(ix) for ix in access.index)
            where = f" where {self._predicate(access.valid)} else {access.fill}"
            return f"load {self.label(node.src[0])}[{index}]{where if access.valid else ''}"
        operands = ", ".join(self.values.get(s, "?") for s in node.src)
        if node.op is Op.INDEX:
            return f"index {self._index(node.arg)}"
        if node.op in LOOPS:  # a reduction, or a row stored in a private array
            what = node.op.name if node.arg[0] is None else node.arg[0].name
            ranges = ", ".join(f"{self._atom(r)}<{r.size}" for r in node.arg[1])
            return f"{what.lower()} over {ranges}: {operands}"
        if node.op is Op.PICK:
            return f"pick {operands}[{self._index(node.arg)}]"
        if node.op is Op.SELECT:
            return f"select {operands} where {self._predicate(node.arg)}"
        return f"{node.op.name.lower()} {operands} : {node.dtype.name}"

    def _predicate(self, predicate: Predicate) -> str:
        return " and ".join(f"{low}<={self._index(ix)}<={high}" for ix, low, high in predicate)

    def _index(self, ix: Ix) -> str:
        parts = [self._atom(a) if c == 1 else f"{c}*{self._atom(a)}" for a, c in ix.terms]
        parts += [str(ix.const)] if ix.const or not parts else []
        return "+".join(parts).replace("+-", "-")

    def _atom(self, atom: Atom) -> str:
        if atom.node is not None:
            return self.values.get(atom.node, "?")
        if atom.inner is not None:
            return f"({self._index(atom.inner)}){'/' if atom.kind == 'div' else '%'}{atom.by}"
        known = self.ranges.get(atom)
        if known is None:
            known = self.ranges[atom] = f"k{sum(n[0] == 'k' for n in self.ranges.values())}"
        return known


# --- Loops ------------------------------------------------------------------------------------


def pretty_loops(loops: LoopSchedule) -> str:
    """Return the loops chosen for a kernel on one line, with "-" for none.

    items 44 x 1 steps, vector r1, lanes 16, tiles r0<22>=22x1x1 r1<64>=2x2x16, reduce k0, unroll
    k0/4

    Work-items x steps of each. A tile is range<size>=outer iterations x unrolled x lanes. "below
    hoisted" lists the tiles inside a step, after the reductions that do not depend on them.
    "across" lists the reduced ranges that lanes run over. k0/4 runs 4 iterations per loop body.
    """
    outer = loops.tiles[: len(loops.tiles) - loops.inner]
    inner = loops.tiles[len(outer) :]
    parts = [
        f"items {loops.items} x {loops.chunk} steps",
        f"vector {loops.vector.name if loops.vector else '-'}",
        f"lanes {loops.lanes}",
        f"tiles {' '.join(map(_tile, outer)) or '-'}",
    ]
    if inner:
        parts.append(f"below hoisted {' '.join(map(_tile, inner))}")
    if loops.across:
        parts.append(f"across {' '.join(a.name for a in loops.across.values())}")
    unrolled = [f"{r.name}/{n}" for r, n in loops.reduce_unroll.items() if n > 1]
    order = [r.name for ranges in loops.reduce_order.values() for r in ranges]
    if order:
        parts.append(f"reduce {' '.join(order)}")
        parts.append(f"unroll {' '.join(unrolled) or '-'}")
    return ", ".join(parts)


def _tile(tile: Tile) -> str:
    return f"{tile.atom.name}<{tile.atom.size}>={tile.outer}x{tile.unroll}x{tile.lanes}"
