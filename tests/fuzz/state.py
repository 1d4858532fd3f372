"""Kind `state`: programs that write states, over several runs."""

from __future__ import annotations

from tests.fuzz.case import Case, Name
from tests.fuzz.draw import Draw
from tests.fuzz.graphs import case_of, situations
from tests.fuzz.motifs import STATEFUL

RUNS = 5


def make(name: Name) -> Case:
    """Return a program of situations that begins with some that write states."""
    draw = Draw(name.seed)
    first = [draw.pick(STATEFUL) for _ in range(draw.integer(1, 3))]
    return case_of(situations(name, first), name, runs=RUNS)
