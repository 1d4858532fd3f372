"""Where values lie: nothing alive is overwritten, results in place are right, reuse pays."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.context import DEFAULT_CONTEXT
from scheduler.driving.program import DEFAULT_CAPACITY, driving_entries
from scheduler.driving.recognise import recognise_driving
from scheduler.emit.schedule import Schedule, plan_arena
from scheduler.errors import SchedulerError
from scheduler.ir import dtype as dt
from scheduler.lower import LoweredKernel
from scheduler.onnx_import import import_model, load_model
from scheduler.tensor.tensor import Tensor
from tests.fuzz.apart import apart
from tests.fuzz.batch import run_batch
from tests.fuzz.case import Name
from tests.fuzz.draw import Draw
from tests.fuzz.graphs import case_of, programs
from tests.fuzz.program import Program
from tests.fuzz.values import array
from tests.scheduler.support.memory_check import memory_faults
from tests.scheduler.support.programs import (
    artifact_of,
    floats,
    make_program,
    plan_for,
    plan_of,
    program_of,
    same,
    x,
)
from tests.support.built import example_models


def faults(plan: Schedule) -> list[str]:
    """Return what is wrong with the memory of a plan: its launches are run on marked bytes."""
    return memory_faults(artifact_of(plan).manifest)


@pytest.mark.opencl
def test_inputs_are_taken_anew_at_every_run_and_outputs_stay_apart() -> None:
    a = x(4, 4)
    made = make_program({"same": a, "again": a, "more": a + 1.0})
    with made.load() as program:
        kept = []
        for turn in range(2):
            got = program.run({"x": floats(4, 4, seed=turn)})
            kept.append({n: value.copy() for n, value in got.items()})
    for turn, found in enumerate(kept):
        v = floats(4, 4, seed=turn)
        for name, want in {"same": v, "again": v, "more": v + 1}.items():
            same(found[name], want)


def test_a_weight_that_is_needed_twice_is_carried_once() -> None:
    w = floats(64, 64)
    one = program_of(x(64) + Tensor.weight(w)[0], x(64, name="b") * Tensor.weight(w)[1])
    two = program_of(x(64) + Tensor.weight(w)[0], x(64, name="b") * Tensor.weight(w.copy())[1])
    assert len(one.data) == len(two.data) <= w.nbytes + 1024


def test_reuse_in_place_and_over_time_is_reported_before_and_after() -> None:
    values = [product(32, 32)]
    for i in range(6):
        values.append((values[-1] * float(i + 2)).contiguous())
    made = program_of(values[-1].flip(0))
    arena, totals = made.plan.arena(), made.table.totals
    assert {arena.storage[v.node] for v in values} == {values[0].node}
    assert memory_faults(made.manifest) == []
    assert totals.arena_peak == totals.arena_live == 32 * 32 * 4
    assert totals.arena_unplanned == 7 * 32 * 32 * 4


def product(*shape: int) -> Tensor:
    return (x(*shape[:-1], 8) @ x(8, shape[-1], name="w")).contiguous()


def kernel_of(plan: Schedule, tensor: Tensor) -> LoweredKernel:
    """The kernel that stores a value whose node survived the passes."""
    return next(k for k in plan.lowered if tensor.node in k.storage)


def after(tensor: Tensor) -> Tensor:
    """Something that needs the stored value, so that it is not an output."""
    return tensor.flip(0)


def test_an_elementwise_result_takes_the_bytes_of_what_it_reads_last() -> None:
    source = product(16, 32)
    result = (source.exp() * 2.0).contiguous()
    plan = plan_for(after(result))
    assert kernel_of(plan, result).in_place_of is source.node
    assert plan.arena().storage[result.node] is source.node
    assert plan.peak_bytes == 16 * 32 * 4
    assert plan.unplanned_bytes == 2 * 16 * 32 * 4
    assert faults(plan) == []
    manifest = artifact_of(plan).manifest
    assert sum(b["kind"] == "arena" for b in manifest["buffers"]) == 1
    assert [len(k["args"]) - len(set(k["args"])) for k in manifest["kernels"]] == [0, 1, 0]
    assert manifest["arena_size"] == 2048


def test_a_residual_is_added_in_place() -> None:
    """source + source' @ w: the contraction reads other memory, the residual is read once."""
    source = product(16, 32)
    result = (source + x(16, 8, name="o") @ x(8, 32, name="v")).contiguous()
    assert kernel_of(plan_for(after(result)), result).in_place_of is source.node


REFUSED: dict[str, Callable[[Tensor], Tensor]] = {
    "another element is read": lambda s: s.flip(1) * 2.0,
    "other elements are read too": lambda s: s * 2.0 + s.flip(0),
    "a row is read again for each element": lambda s: s / s.sum(-1, keepdim=True),
    "a contraction reads it": lambda s: s @ x(32, 32, name="v"),
    "the result is smaller": lambda s: s[:8] * s[8:],
    "the result is larger": lambda s: s.unsqueeze(0) * x(2, 1, 1, name="v"),
    "elements get narrower": lambda s: (s > 0.0).logical_not(),
    "elements get wider": lambda s: s.cast(dt.float64) * 2.0,
}


@pytest.mark.parametrize("where", REFUSED)
def test_not_in_place_where(where: str) -> None:
    result = REFUSED[where](product(16, 32)).contiguous()
    plan = plan_for(after(result))
    assert kernel_of(plan, result).in_place_of is None
    assert faults(plan) == []


def test_not_in_place_of_what_is_read_later_or_leaves_the_program() -> None:
    source = product(16, 32)
    result = (source * 2.0).contiguous()
    later = after(result) + source  # reads both
    assert kernel_of(plan_for(later), result).in_place_of is None
    assert kernel_of(plan_for(after(result), source), result).in_place_of is None
    outside = (x(16, 32) * 2.0).contiguous()
    assert kernel_of(plan_for(after(outside)), outside).in_place_of is None


def test_not_in_place_where_the_last_block_overlaps() -> None:
    """21 elements in lanes of 16: the second block starts at 5 and computes 11 elements again."""
    for size, taken in ((32, True), (21, False)):
        source = product(1, size)
        result = (source * 2.0).contiguous()
        plan = plan_for(result.flip(1))
        assert (kernel_of(plan, result).in_place_of is source.node) is taken


def test_plan_arena_refuses_what_is_never_read() -> None:
    plan = plan_for(after(product(4, 4)))
    with pytest.raises(SchedulerError, match="never read"):
        plan_arena(plan.lowered[:1], [])
    with pytest.raises(SchedulerError, match="before it is computed"):
        plan_arena(plan.lowered[1:], plan.outputs.values())


def test_what_stays_inside_a_kernel_is_never_allocated() -> None:
    """Ten operations and a private array of row values: only the stored product is in the arena."""
    source = product(16, 32)
    plan = plan_for(((source * 2.0 + 1.0).exp().softmax() - 0.5).tanh().flip(0))
    assert set(plan.arena().lives) == {source.node}
    assert plan.peak_bytes == plan.unplanned_bytes == 2048


@pytest.mark.parametrize(
    ("role", "most"),
    [("policy", 256_000), pytest.param("vision", 5_242_880, marks=pytest.mark.slow)],
)
def test_example_models_take_no_more_memory_than_is_alive(role: str, most: int) -> None:
    """Bytes of the arena when this was written; without reuse 1.6 and 22.3 million."""
    plan = plan_of(import_model(load_model(example_models(role)[role])).outputs)
    arena = plan.arena()
    assert arena.size == arena.live <= most
    assert plan.unplanned_bytes > 4 * plan.peak_bytes
    assert any(k.in_place_of is not None for k in plan.lowered)
    made = artifact_of(plan)
    assert memory_faults(made.manifest) == []
    assert made.manifest["arena_size"] < made.arena_unplanned


@pytest.mark.slow
def test_the_driving_program_takes_no_more_memory_than_is_alive() -> None:
    """Without reuse 27.4 million bytes; in creation order 7.2 million."""
    paths = example_models("vision", "policy").values()
    interface, ordered, _ = recognise_driving([load_model(path) for path in paths], None)
    graphs = driving_entries(interface, ordered, DEFAULT_CAPACITY).values()
    for graph, most in zip(graphs, (5_300_000, 1_180_000), strict=True):
        plan = graph.schedule(DEFAULT_CONTEXT)
        assert faults(plan) == []
        assert plan.arena().size == plan.arena().live <= most


@settings(max_examples=60)
@given(programs(12), st.integers(0, 2**32 - 1))
def test_no_two_live_values_share_a_byte(program: Program, seed: int) -> None:
    """Values are stored here and there, so that there is something to take the place of.

    Launches are run on bytes that know their value.
    """
    draw = Draw(seed)
    made = apart(program.tensors, only=lambda _: draw.integer(0, 9) < 6)
    outputs = dict(zip(program.outputs, made, strict=False))
    plan = plan_of(outputs, made[len(outputs) :])
    assert plan.arena().live <= plan.peak_bytes <= plan.unplanned_bytes
    assert faults(plan) == []


STEPS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "same element": lambda a, b: a * 0.5 - b,
    "same element twice": lambda a, b: a * a * 0.125 + b,
    "flipped rows": lambda a, b: a - b.flip(0),
    "flipped columns": lambda a, b: a.flip(1) * 0.5 + b,
    "itself flipped": lambda a, b: a * 0.5 + a.flip(1) + b.min(),
    "row mean": lambda a, b: a - b.mean(-1, keepdim=True),
    "column maximum": lambda a, b: b - a.max(0, keepdim=True),
    "first row": lambda a, b: a + b[:1],
    "shifted": lambda a, b: a + b.pad([(1, 0), (0, 0)])[:-1],
    "padded": lambda a, b: b[1:].pad([(1, 0), (0, 0)]) + a,
}


def stored_chain(seed: int) -> Program:
    """Return stored values of one shape, each made of earlier ones, and a state of theirs."""
    draw = Draw(seed)
    program = Program(draw, profile="halves")
    shape = draw.pick([(4, 16), (3, 21), (16, 32), (5, 33), (6, 7), (1, 64)])
    first = program.input(array(draw, shape, dt.float32, "halves"), dt.float32)
    state = program.state(shape, dt.float32)
    values = [(first * 2.0).contiguous(), state]
    for _ in range(draw.integer(2, 7)):
        step = STEPS[draw.pick(sorted(STEPS))]
        values.append(step(draw.pick(values[-3:]), draw.pick(values[-3:])).contiguous())
    push = state.assign(STEPS[draw.pick(sorted(STEPS))](state, values[-2]))
    program.write(state, push)
    program.outputs["new"] = push.flip(0)
    program.outputs["old"] = (state * 2.0).contiguous().flip(1)
    program.outputs["y"] = values[-1].flip(0)
    return program


@pytest.mark.opencl
@pytest.mark.parametrize("seeds", [range(8), pytest.param(range(8, 60), marks=pytest.mark.slow)])
def test_chains_of_stored_values_in_place_give_what_the_interpreter_gives(seeds: range) -> None:
    chains = [stored_chain(seed) for seed in seeds]
    for chain in chains:
        assert faults(plan_of(chain.outputs, list(chain.writes.values()))) == []
    cases = [case_of(c, Name("graphs", "cpu", i)) for i, c in zip(seeds, chains, strict=True)]
    assert [outcome for outcome in run_batch(cases) if outcome.problem] == []
