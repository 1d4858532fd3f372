"""Choose the loops of a kernel for a device: measured ones, or those of its heuristics."""

from __future__ import annotations

from scheduler.device.choice import HEURISTIC, Choice
from scheduler.device.spec import DeviceSpec
from scheduler.device.tuned_table import TunedTable
from scheduler.ir.index import Atom
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
