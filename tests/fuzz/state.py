"""Kind `state`: programs that write states, over several runs."""

from __future__ import annotations

from tests.fuzz.case import Case, Name, Variant
from tests.scheduler.random_motifs import STATEFUL, build
from tests.scheduler.strategies import Draw

RUNS = 5


def make(name: Name) -> Case:
    """Return a program of motifs that begins with some that write states."""
    draw = Draw(name.seed)
    first = [draw.pick(STATEFUL) for _ in range(draw.integer(1, 3))]
    steps = draw.pick((0, 1, 2, 3, 5, 8, 11))
    graph = build(name.seed, name.steps or steps, first)
    outputs, writes = graph.tensors, tuple(graph.assigns)
    runs = [graph.feed(turn) for turn in range(RUNS)]
    return Case(name, outputs, [Variant("", outputs, writes)], runs, writes)
