"""Kind `graphs`: random graphs of every type on a target, against the interpreter."""

from __future__ import annotations

from scheduler.device.spec import SPECS
from scheduler.tensor.tensor import Tensor
from tests.fuzz.case import Case, Name, Variant
from tests.fuzz.typed import LARGE, SMALL, Typed
from tests.fuzz.typed_steps import grow
from tests.fuzz.values import PROFILES
from tests.scheduler.random_motifs import build
from tests.scheduler.strategies import Draw

# Programs of long values, that are reduced in stages.
LONG_EVERY = 16
STEPS = (2, 4, 6, 8, 10, 14, 20)


def make(name: Name) -> Case:
    """Return the program of a seed: of single steps, or of motifs."""
    return motifs(name) if name.seed % 4 == 3 else typed(name)


def typed_graph(name: Name) -> tuple[Typed, dict[str, Tensor], dict[str, tuple[int, int]]]:
    """Return a graph of single steps, its outputs, and limits of some of them."""
    draw = Draw(name.seed)
    profile, steps = draw.pick(PROFILES), draw.pick(STEPS)
    long = name.seed % LONG_EVERY == 0
    t = Typed(draw, SPECS[name.row].float64, profile, LARGE if long else SMALL)
    steps = min(steps, 6) if long else steps
    grow(t, name.steps or steps)
    chosen = Draw(name.seed + 1)
    last = range(max(0, len(t.values) - 6), len(t.values))
    places = dict.fromkeys([*t.ranges, len(t.values) - 1, *chosen.some(last, 3)])
    outputs = {f"y{i}": t.values[i] for i in places}
    return t, outputs, {f"y{i}": limits for i, limits in t.ranges.items()}


def typed(name: Name) -> Case:
    """Return a graph of single steps."""
    t, outputs, ranges = typed_graph(name)
    return Case(name, outputs, [Variant("", outputs)], [t.inputs], ranges=ranges)


def motifs(name: Name) -> Case:
    """Return a graph of situations that decide what is fused; states are run three times."""
    draw = Draw(name.seed)
    graph = build(name.seed, name.steps or draw.pick(STEPS[:6]))
    outputs, writes = graph.tensors, tuple(graph.assigns)
    runs = [graph.feed(turn) for turn in range(3 if writes else 1)]
    return Case(name, outputs, [Variant("", outputs, writes)], runs, writes)
