"""Choose the loops of a kernel for a device: measured ones, or those of its heuristics."""

from __future__ import annotations

from collections.abc import Iterable

from scheduler.device.spec import DeviceSpec
from scheduler.device.tuned_table import HEURISTIC, Choice, TunedTable
from scheduler.ir.index import Atom
from scheduler.ir.node import Node, storage_of
from scheduler.ir.ops import Op
from scheduler.kernelize.scalar import scalar_nodes
from scheduler.loops import schedule, simt
from scheduler.loops.body_key import body_key
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

    `vector` and `lanes` are from `vector.choose_vector`, after merging; `choice` replaces the
    heuristics. If `exact`, no result without lanes is computed twice.
    """
    if spec.is_simt:
        return simt.choose_schedule(body, vector, lanes, spec, choice)
    return schedule.choose_schedule(body, vector, lanes, spec, choice, exact=exact)


def tuned_schedule(
    body: PlacedBody, vector: Atom | None, lanes: int, spec: DeviceSpec, table: TunedTable
) -> LoopSchedule:
    """Return the loops of a body: the heuristic's, or those that were measured to be faster."""
    chosen = choose_schedule(body, vector, lanes, spec)
    if not table.entries:
        return chosen
    entry = table.entries.get(body_key(body, vector, lanes))
    if entry is None or entry.choice.is_heuristic or entry.was != form_of(chosen):
        return chosen
    return choose_schedule(body, vector, lanes, spec, entry.choice)


# A kernel may write over what it reads if it reads elements only where it stores them.
#
#     t[i] = f(s[i], w[i])         t may take the bytes of s: work-item i reads s[i] first
#     t[i] = f(s[n-1-i])           no: another work-item may still need the element
#     t[i] = sum(s[i] * w[k]; k)   no: the loop may read it again; the renderer decides on hoisting
#     last block overlaps          no: it computes elements again, from overwritten sources
#
# Offsets are compared after layouts are chosen; they are interned, so equal ones are one object. An
# equal offset in another form counts as different: safe, and not seen in practice.


def is_exact(schedule: LoopSchedule) -> bool:
    """Whether every element is computed once: no block overlaps the one before."""
    return all(t.atom.size % t.block == 0 for t in schedule.tiles)


def exact_schedule(
    body: PlacedBody, vector: Atom | None, lanes: int, spec: DeviceSpec
) -> LoopSchedule:
    """Return loops that compute every element once, as wide as sizes allow."""
    for width in (n for n in (lanes, 8, 4) if n <= lanes):
        schedule = choose_schedule(body, vector, width, spec)
        if is_exact(schedule):
            return schedule
    return choose_schedule(body, None, lanes if looped(body) else 1, spec, exact=True)


def overwrites(body: PlacedBody, source: Node, target: Node) -> bool:
    """Whether each load of a source is outside loops, and at the offset that a store overwrites."""
    (offset,) = [s.offset for s in body.stores if s.target is target]
    every = (n for n in scalar_nodes(body.value) if n.op is Op.LOAD)
    loads = {n for n in every if storage_of(n.src[0]) is source}
    repeated = {n for loop in looped(body) for n in scalar_nodes(loop.src[0])}
    return loads.isdisjoint(repeated) and all(
        n.arg.offset is offset and n.src[0] is source for n in loads
    )


def in_place_of(
    body: PlacedBody, schedule: LoopSchedule, candidates: Iterable[Node]
) -> Node | None:
    """Return the first candidate whose storage the result may take, None if there is none.

    Candidates are intermediates with as many elements of as many bytes that nobody reads later.
    """
    if not is_exact(schedule) or len(body.stores) > 1:
        return None
    target = body.stores[0].target
    return next((c for c in candidates if overwrites(body, c, target)), None)
