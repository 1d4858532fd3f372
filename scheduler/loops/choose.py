"""The loops of a kernel for the device in force: which chooser is asked."""

from __future__ import annotations

from scheduler.device import spec as device_spec
from scheduler.device import tuned_table
from scheduler.device.choice import HEURISTIC, Choice
from scheduler.ir.index import Atom
from scheduler.loops import schedule, simt
from scheduler.loops.body_key import body_key
from scheduler.loops.place import PlacedBody
from scheduler.loops.schedule import Schedule
from scheduler.loops.variations import form_of


def choose_schedule(
    body: PlacedBody,
    vector: Atom | None,
    lanes: int,
    choice: Choice = HEURISTIC,
    *,
    exact: bool = False,
) -> Schedule:
    """Return the loops for a body whose ranges are merged.

    Args:
        body: placed and merged.
        vector: from `schedule.choose_vector`, after merging.
        lanes: same.
        choice: what is taken instead of the heuristics; GPUs have no choices.
        exact: without lanes over results none of them is computed twice.
    """
    if device_spec.current().is_simt:
        return simt.choose_schedule(body, vector, lanes)
    return schedule.choose_schedule(body, vector, lanes, choice, exact=exact)


def tuned_schedule(body: PlacedBody, vector: Atom | None, lanes: int) -> Schedule:
    """Return the loops of a body: the heuristic's, or those that were measured to be faster.

    Args:
        body: placed and merged.
        vector: from `choose_vector`, after merging.
        lanes: same.
    """
    chosen = choose_schedule(body, vector, lanes)
    table = tuned_table.current()
    if not table.entries:
        return chosen
    entry = table.entries.get(body_key(body, vector, lanes))
    if entry is None or entry.choice.is_heuristic or entry.was != form_of(chosen):
        return chosen
    return choose_schedule(body, vector, lanes, entry.choice)
