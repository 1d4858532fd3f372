"""The loops of a kernel for the device in force: which chooser is asked."""

from __future__ import annotations

from scheduler.device import spec as device_spec
from scheduler.ir.index import Atom
from scheduler.loops import schedule, simt
from scheduler.loops.choice import HEURISTIC, Choice
from scheduler.loops.place import PlacedBody
from scheduler.loops.schedule import Schedule


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
