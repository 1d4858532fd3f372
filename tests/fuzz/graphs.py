"""Kinds `graphs` and `state`: programs of every type on a target, against the interpreter."""

from collections.abc import Sequence

from hypothesis import strategies as st

from scheduler.device.spec import SPECS
from scheduler.ir import dtype as dt
from tests.fuzz.case import Case, Name, Variant
from tests.fuzz.draw import Draw
from tests.fuzz.motifs import SITUATIONS, STATEFUL
from tests.fuzz.networks import PROFILES as OF_NETWORKS
from tests.fuzz.networks import layers
from tests.fuzz.program import KINDS, LARGE, SMALL, Program, Step
from tests.fuzz.steps import STEPS
from tests.fuzz.values import FINITE, PROFILES

# Programs of long values, that are reduced in stages.
LONG_EVERY = 16
LENGTHS = (2, 4, 6, 8, 10, 14, 20)
RUNS, RUNS_OF_STATE = 3, 5  # of a program that writes states, and of the kind `state`


def make(name: Name) -> Case:
    """Return the program of a seed: of single steps, of situations, or of layers."""
    way = name.seed % 8
    if way == 5:
        return network(name)
    return case_of(situations(name) if way in (3, 7) else single_steps(name), name)


def with_states(name: Name) -> Case:
    """Return a program of situations that begins with some that write states."""
    draw = Draw(name.seed)
    first = [draw.pick(STATEFUL) for _ in range(draw.integer(1, 3))]
    return case_of(situations(name, first), name, runs=RUNS_OF_STATE)


def case_of(p: Program, name: Name, variants: Sequence[Variant] = (), runs: int = RUNS) -> Case:
    writes = tuple(p.writes.values())
    given = [p.feed(turn) for turn in range(runs if writes else 1)]
    plain = [Variant("", p.outputs, writes)]
    return Case(name, p.outputs, list(variants) or plain, given, writes, p.output_ranges)


def single_steps(name: Name, kinds: Sequence[dt.DType] = KINDS) -> Program:
    """Return a program of single steps, some of them on long values; types of new ones: `kinds`."""
    draw = Draw(name.seed)
    profile, steps = draw.pick(PROFILES), draw.pick(LENGTHS)
    long = name.seed % LONG_EVERY == 0
    most = LARGE if long else SMALL
    p = Program(draw, SPECS[name.row].float64, profile, most, kinds=kinds)
    p.grow(name.steps or (min(steps, 6) if long else steps), STEPS)
    p.finish(Draw(name.seed + 1))
    return p


def situations(
    name: Name, first: Sequence[Step] = (), kinds: Sequence[dt.DType] = KINDS
) -> Program:
    """Return a program of situations that decide what is fused, with states."""
    draw = Draw(name.seed)
    profile = draw.pick(PROFILES)
    p = Program(draw, SPECS[name.row].float64, profile, stateful=True, kinds=kinds)
    steps = draw.pick(LENGTHS[:6])
    p.grow(0, ())
    for step in first:
        p.take(step, p.values[-1])
    p.grow(name.steps or steps, SITUATIONS)
    p.finish(Draw(name.seed + 1))
    return p


def network(name: Name, kind: dt.DType = dt.float32) -> Case:
    """Return a stack of layers on values of a type."""
    draw = Draw(name.seed)
    net = layers(draw, draw.pick(OF_NETWORKS), kind=kind)
    data = net.data(draw.integer(1, 4))
    y = net(net.input("x", data.shape))
    outputs = {"y": y, "z": y.sum(-1)}
    return Case(name, outputs, [Variant("", outputs)], [{"x": data, **net.inputs}])


def build(seed: int, steps: int, *, states: bool = True) -> Program:
    """Return a program without infinities and NaN, for any target."""
    draw = Draw(seed)
    p = Program(draw, profile=draw.pick(FINITE), stateful=states)
    p.grow(steps, SITUATIONS if states else STEPS)
    p.finish(Draw(seed + 1))
    return p


def programs(steps: int = 10, *, states: bool = True) -> st.SearchStrategy[Program]:
    """Random programs of at most `steps` steps; a failing one is cut to its shortest prefix."""
    # Long programs are drawn more often.
    lengths = st.sampled_from([*range(1, steps + 1), *range(steps // 2, steps + 1)])
    return st.builds(build, st.integers(0, 2**32 - 1), lengths, states=st.just(states))
