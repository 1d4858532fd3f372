"""Chooses the loops of a kernel for a device: measured ones if known, else by heuristics.

Measured loops come from the tuned table, in which a kernel is found by the key of its body.
"""

from __future__ import annotations

import hashlib
from math import prod

from scheduler.device.spec import DeviceSpec
from scheduler.device.tuned_table import HEURISTIC, KEY_LENGTH, Choice, TunedTable
from scheduler.ir.index import Atom, Ix, Predicate
from scheduler.ir.node import Node, is_weight
from scheduler.ir.ops import LOOPS, Op, parts_of
from scheduler.kernelize.scalar import scalar_nodes, scalar_sources
from scheduler.loops import schedule, simt
from scheduler.loops.loop_schedule import LoopSchedule
from scheduler.loops.place import PlacedBody, looped
from scheduler.loops.variations import form_of


def choose_schedule(
    body: PlacedBody,
    vector: Atom | None,
    lanes: int,
    spec: DeviceSpec,
    choice: Choice = HEURISTIC,
    *,
    exact: bool = False,
) -> LoopSchedule:
    """Return the loops for a placed body whose ranges are merged.

    `vector` and `lanes` come from `vector.choose_vector`, after merging. `choice` overrides the
    heuristics. If `exact`, no result without lanes is computed twice.
    """
    if spec.is_simt:
        return simt.choose_schedule(body, vector, lanes, spec, choice)
    return schedule.choose_schedule(body, vector, lanes, spec, choice, exact=exact)


def tuned_schedule(
    body: PlacedBody, vector: Atom | None, lanes: int, spec: DeviceSpec, table: TunedTable
) -> LoopSchedule:
    """Return the measured loops of a body if they are faster, else the heuristic's."""
    chosen = choose_schedule(body, vector, lanes, spec)
    if not table.entries:
        return chosen
    entry = table.entries.get(body_key(body, vector, lanes))
    if entry is None or entry.choice.is_heuristic or entry.was != form_of(chosen):
        return chosen
    return choose_schedule(body, vector, lanes, spec, entry.choice)


def is_exact(schedule: LoopSchedule) -> bool:
    """Whether every element is computed once, so that no block overlaps the previous one."""
    return all(t.atom.size % t.block == 0 for t in schedule.tiles)


def exact_schedule(
    body: PlacedBody, vector: Atom | None, lanes: int, spec: DeviceSpec
) -> LoopSchedule:
    """Return loops that compute every element once, with the widest lanes that sizes allow."""
    for width in (n for n in (lanes, 8, 4) if n <= lanes):
        schedule = choose_schedule(body, vector, width, spec)
        if is_exact(schedule):
            return schedule
    return choose_schedule(body, None, lanes if looped(body) else 1, spec, exact=True)


# --- The key of a body, equal for loop nests that run the same way ----------------------------
#
#     two layers of equal shape     ->     one key, whatever their weights and names are
#
# Values of weights and constants are not part of the key because they do not affect the time.


def body_key(body: PlacedBody, vector: Atom | None, lanes: int) -> str:
    """Return the key of a body in hexadecimal."""
    names = _Names(body)
    buffers: dict[Node, int] = {}
    lines = [f"{names.ranges.get(vector, '?') if vector is not None else '-'} x{lanes}"]
    for node in scalar_nodes(body.value):
        sources = ",".join(str(names.nodes[s]) for s in scalar_sources(node))
        names.nodes[node] = len(names.nodes)
        argument = _argument(node, names, buffers)
        lines.append(f"{node.op.name} {node.dtype.name} ({sources}) {argument}")
    for store in body.stores:
        dtype = store.target.dtype.name
        lines.append(f"store {dtype} {names.index(store.offset)} {store.row}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:KEY_LENGTH]


class _Names:
    """Texts of indices, with names for ranges and run-time values."""

    def __init__(self, body: PlacedBody) -> None:
        self.ranges = {r: f"o{i}:{r.size}" for i, r in enumerate(body.ranges)}
        self.nodes: dict[Node, int] = {}
        nodes = scalar_nodes(body.value)
        for node in (n for n in nodes if n.op in LOOPS):
            for r in node.arg[1]:
                self.ranges.setdefault(r, f"k{len(self.ranges)}:{r.size}")
        self._texts: dict[Ix, str] = {}

    def index(self, ix: Ix) -> str:
        stack = [ix]
        while stack:
            top = stack[-1]
            below = [a.inner for a, _ in top.terms if a.inner is not None]
            missing = [i for i in below if i not in self._texts]
            if missing:
                stack.extend(missing)
                continue
            stack.pop()
            terms = sorted(f"{factor}*{self._atom(atom)}" for atom, factor in top.terms)
            self._texts[top] = "+".join([*terms, str(top.const)])
        return self._texts[ix]

    def _atom(self, atom: Atom) -> str:
        if atom.inner is not None:
            return f"({self._texts[atom.inner]}){atom.kind}{atom.by}"
        if atom.node is not None:
            return f"n{self.nodes[atom.node]}"
        return self.ranges.get(atom, "?")

    def predicate(self, predicate: Predicate) -> str:
        return "&".join(sorted(f"{low}<={self.index(ix)}<={high}" for ix, low, high in predicate))


def _argument(node: Node, names: _Names, buffers: dict[Node, int]) -> str:
    if node.op is Op.LOAD:
        source = node.src[0]
        number = buffers.setdefault(source, len(buffers))
        kind = "weight" if is_weight(source) else "data"
        size = prod(source.shape)
        place = node.arg
        return f"{kind} {number}:{size} {names.index(place.offset)} {names.predicate(place.valid)}"
    if node.op in LOOPS:
        how = node.arg[0].name if node.arg[0] is not None else ""
        order = f" in {parts_of(node)}" if parts_of(node) else ""
        return f"{how} {' '.join(names.ranges[r] for r in node.arg[1])}{order}"
    if node.op in (Op.INDEX, Op.PICK):
        return names.index(node.arg)
    return names.predicate(node.arg) if node.op is Op.SELECT else ""
