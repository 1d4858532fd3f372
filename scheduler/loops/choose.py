"""Choose the loops of a kernel for a device: measured ones, or those of its heuristics."""

from __future__ import annotations

from scheduler.device.choice import HEURISTIC, Choice
from scheduler.device.spec import DeviceSpec
from scheduler.device.tuned_table import TunedTable
from scheduler.ir.index import Atom
from scheduler.loops import schedule, simt
from scheduler.loops.body_key import body_key
from scheduler.loops.loop_schedule import LoopSchedule
from scheduler.loops.place import PlacedBody
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
    """Return the loops for a body whose ranges are merged.

    Args:
        body: placed and merged.
        vector: from `schedule.choose_vector`, after merging.
        lanes: same.
        spec: of the device.
        choice: what is taken instead of the heuristics.
        exact: without lanes over results none of them is computed twice.
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
