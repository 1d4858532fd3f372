"""Where intermediates lie: nothing alive is overwritten, results in place are right, reuse pays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.context import DEFAULT_CONTEXT
from scheduler.driving.program import DEFAULT_CAPACITY, driving_entries
from scheduler.driving.recognise import recognise_driving
from scheduler.emit.arena import Arena, plan_arena
from scheduler.emit.artifact import emit
from scheduler.emit.schedule import Schedule
from scheduler.errors import SchedulerError
from scheduler.ir import dtype as dt
from scheduler.ir.node import Node
from scheduler.ir.ops import Op
from scheduler.kernelize.kernel import states_in_place
from scheduler.kernelize.memory_plan import ALIGNMENT, Lifetime, aligned, live_bytes, plan_memory
from scheduler.lower import LoweredKernel
from scheduler.onnx_import import import_model, load_model
from scheduler.pipeline import schedule
from scheduler.tensor.tensor import Tensor
from tests.fuzz.apart import apart
from tests.fuzz.batch import run_batch
from tests.fuzz.case import Name
from tests.fuzz.draw import Draw
from tests.fuzz.graphs import case_of, programs
from tests.fuzz.program import Program
from tests.fuzz.values import array
from tests.scheduler.support.programs import load
from tools.make_model import write_models


def plan_of(*outputs: Tensor) -> Schedule:
    return schedule({f"y{i}": t.node for i, t in enumerate(outputs)})


def overlaps(plan: Schedule) -> list[str]:
    """Return every two values of an arena that are alive at once and share bytes, by brute force.

    Lives are taken from the launches themselves. The only values that may share bytes are a result
    and the source it is computed in place of, in the one launch that reads the source last.
    """
    outputs = set(plan.outputs.values())
    touched: dict[Node, list[int]] = {}
    direct = set(states_in_place(plan.launches))
    for i, kernel in enumerate(plan.lowered):
        for node in (*kernel.storage, *kernel.arguments):
            if isinstance(node, Node) and node.op is not Op.BUFFER and node not in outputs | direct:
                touched.setdefault(node, []).append(i)
    arena = plan.arena()
    assert set(touched) == set(arena.lives)
    found = []
    for a, b in combinations(touched, 2):
        together = set(range(touched[a][0], touched[a][-1] + 1))
        together &= set(range(touched[b][0], touched[b][-1] + 1))
        shared = _bytes(arena, a) & _bytes(arena, b)
        if not together or not shared:
            continue
        kernel = plan.lowered[min(together)]
        reused = kernel.in_place_of
        allowed = {*kernel.storage, reused} == {a, b} and len(together) == 1
        if not (allowed and arena.offsets[a] == arena.offsets[b]):
            found.append(f"{a!r} {b!r}")
    return found


def _bytes(arena: Arena, node: Node) -> set[int]:
    """Units of the alignment that a value takes."""
    start = arena.offsets[node] // ALIGNMENT
    assert arena.offsets[node] % ALIGNMENT == 0
    assert arena.offsets[node] + arena.lives[node].size <= arena.size
    return set(range(start, start + aligned(arena.lives[node].size) // ALIGNMENT))


# --- the plan ---------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(1, 3000), st.integers(0, 12), st.integers(0, 6)), max_size=25)
)
def test_random_plans_keep_what_is_alive_apart(rows: list[tuple[int, int, int]]) -> None:
    lives = [Lifetime(size, first, first + more) for size, first, more in rows]
    plan = plan_memory(lives)
    places = [(o, o + v.size, v.first, v.last) for o, v in zip(plan.offsets, lives, strict=True)]
    for a, b in combinations(places, 2):
        assert a[1] <= b[0] or b[1] <= a[0] or a[3] < b[2] or b[3] < a[2]
    assert live_bytes(lives) <= plan.arena_size <= plan.unplanned_size


def test_live_bytes_are_those_of_the_fullest_launch() -> None:
    lives = [Lifetime(256, 0, 2), Lifetime(512, 1, 1), Lifetime(100, 2, 3), Lifetime(1, 9, 9)]
    assert live_bytes(lives) == 768  # launch 1
    assert live_bytes([]) == plan_memory([]).arena_size == 0


def test_another_sequence_is_tried_where_largest_first_wastes_memory() -> None:
    rng = np.random.default_rng(0)
    wins = 0
    for _ in range(200):
        lives = []
        for _ in range(12):
            size, first, more = (int(n) for n in rng.integers([1, 0, 0], [9, 11, 6]))
            lives.append(Lifetime(256 * size, first, first + more))
        wins += plan_memory(lives).arena_size < largest_first(lives)
        assert plan_memory(lives).arena_size <= largest_first(lives)
    assert wins > 10


def largest_first(lives: Sequence[Lifetime]) -> int:
    """First fit, largest first, the plan of one sequence."""
    placed: list[tuple[int, Lifetime]] = []
    for life in sorted(lives, key=lambda v: (-v.size, -(v.last - v.first), v.first)):
        at = 0
        for offset, other in sorted(placed, key=lambda p: p[0]):
            alive = other.first <= life.last and life.first <= other.last
            if alive and offset < at + life.size:
                at = max(at, offset + other.size)
        placed.append((at, life))
    return max(offset + life.size for offset, life in placed)


def test_ten_thousand_values_are_placed_fast() -> None:
    lives = [Lifetime(1000 + i % 7, i, i + 2) for i in range(10_000)]
    assert plan_memory(lives).arena_size == live_bytes(lives) == 3 * 1024


# --- in place ---------------------------------------------------------------------------------


def product(*shape: int) -> Tensor:
    """Return a stored product of this shape, made of inputs of its own."""
    rows = Tensor.input("x", (*shape[:-1], 8))
    return (rows @ Tensor.input("w", (8, shape[-1]))).contiguous()


def kernel_of(plan: Schedule, tensor: Tensor) -> LoweredKernel:
    """The kernel that stores a value whose node survived the passes."""
    return next(k for k in plan.lowered if tensor.node in k.storage)


def after(tensor: Tensor) -> Tensor:
    """Something that needs the stored value, so that it is not an output."""
    return tensor.flip(0)


def test_an_elementwise_result_takes_the_bytes_of_what_it_reads_last() -> None:
    source = product(16, 32)
    result = (source.exp() * 2.0).contiguous()
    plan = plan_of(after(result))
    assert kernel_of(plan, result).in_place_of is source.node
    arena = plan.arena()
    assert arena.storage[result.node] is source.node
    assert plan.peak_bytes == 16 * 32 * 4
    assert plan.unplanned_bytes == 2 * 16 * 32 * 4
    assert overlaps(plan) == []


def test_a_residual_is_added_in_place() -> None:
    """source + source' @ w: the contraction reads other memory, the residual is read once."""
    source, other = product(16, 32), Tensor.input("o", (16, 8))
    result = (source + other @ Tensor.input("v", (8, 32))).contiguous()
    plan = plan_of(after(result))
    assert kernel_of(plan, result).in_place_of is source.node


REFUSED: list[tuple[str, Callable[[Tensor], Tensor]]] = [
    ("another element is read", lambda s: s.flip(1) * 2.0),
    ("other elements are read too", lambda s: s * 2.0 + s.flip(0)),
    ("a row is read again for each element", lambda s: s / s.sum(-1, keepdim=True)),
    ("a contraction reads it", lambda s: s @ Tensor.input("v", (32, 32))),
    ("the result is smaller", lambda s: s[:8] * s[8:]),
    ("the result is larger", lambda s: s.unsqueeze(0) * Tensor.input("v", (2, 1, 1))),
    ("elements get narrower", lambda s: (s > 0.0).logical_not()),
    ("elements get wider", lambda s: s.cast(dt.float64) * 2.0),
]


@pytest.mark.parametrize("build", [b for _, b in REFUSED], ids=[n for n, _ in REFUSED])
def test_not_in_place_where(build: Callable[[Tensor], Tensor]) -> None:
    source = product(16, 32)
    result = build(source).contiguous()
    plan = plan_of(after(result))
    assert kernel_of(plan, result).in_place_of is None
    assert overlaps(plan) == []


def test_not_in_place_of_what_is_read_later_or_leaves_the_program() -> None:
    source = product(16, 32)
    result = (source * 2.0).contiguous()
    later = after(result) + source  # reads both
    assert kernel_of(plan_of(later), result).in_place_of is None
    assert kernel_of(plan_of(after(result), source), result).in_place_of is None
    outside = (Tensor.input("x", (16, 32)) * 2.0).contiguous()
    assert kernel_of(plan_of(after(outside)), outside).in_place_of is None


def test_not_in_place_where_the_last_block_overlaps() -> None:
    """21 elements in lanes of 16: the second block starts at 5 and computes 11 elements again."""
    for size, taken in ((32, True), (21, False)):
        source = product(1, size)
        result = (source * 2.0).contiguous()
        plan = plan_of(result.flip(1))
        assert (kernel_of(plan, result).in_place_of is source.node) is taken


def test_a_chain_in_place_is_one_piece_of_memory() -> None:
    values = [product(16, 32)]
    for i in range(5):
        values.append((values[-1] + float(i)).contiguous())
    plan = plan_of(after(values[-1]))
    arena = plan.arena()
    assert {arena.storage[v.node] for v in values} == {values[0].node}
    assert arena.size == arena.live == 2048
    assert arena.unplanned == 6 * 2048
    assert overlaps(plan) == []


def test_in_place_arguments_are_one_buffer_of_the_artifact() -> None:
    source = product(16, 32)
    result = (source * 2.0).contiguous()
    made = emit({"run": plan_of(after(result))}, name="m", kind="plain")
    arena = [b for b in made.manifest["buffers"] if b["kind"] == "arena"]
    assert len(arena) == 1
    assert [len(k["args"]) - len(set(k["args"])) for k in made.manifest["kernels"]] == [0, 1, 0]
    assert made.manifest["arena_size"] == 2048


# --- whole programs ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return [path for path, _ in write_models(tmp_path_factory.mktemp("models"))]


def test_example_models_take_no_more_memory_than_is_alive(models: list[Path]) -> None:
    """Bytes of the arena when this was written; without reuse 22.3 and 1.6 million."""
    for path, most in zip(models, (5_242_880, 256_000), strict=True):
        model = import_model(load_model(path))
        plan = schedule({n: t.node for n, t in model.outputs.items()})
        arena = plan.arena()
        assert overlaps(plan) == []
        assert arena.size == arena.live <= most
        assert plan.unplanned_bytes > 4 * plan.peak_bytes
        assert any(k.in_place_of is not None for k in plan.lowered)


def test_the_driving_program_takes_no_more_memory_than_is_alive(models: list[Path]) -> None:
    """Without reuse 27.4 million bytes; in creation order 7.2 million."""
    interface, ordered, _ = recognise_driving([load_model(path) for path in models], None)
    graphs = driving_entries(interface, ordered, DEFAULT_CAPACITY).values()
    for graph, most in zip(graphs, (5_300_000, 1_180_000), strict=True):
        plan = graph.schedule(DEFAULT_CONTEXT)
        assert overlaps(plan) == []
        assert plan.arena().size == plan.arena().live <= most


@settings(max_examples=60)
@given(programs(), st.integers(0, 2**32 - 1))
def test_random_programs_never_overlap(program: Program, seed: int) -> None:
    """Values are stored here and there, so that there is something to take the place of."""
    draw = Draw(seed)
    made = apart(program.tensors, only=lambda _: draw.integer(0, 9) < 6)
    outputs = {n: t.node for n, t in zip(program.outputs, made, strict=False)}
    plan = schedule(outputs, [t.node for t in made[len(outputs) :]])
    assert overlaps(plan) == []
    assert plan.arena().live <= plan.peak_bytes <= plan.unplanned_bytes


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


@st.composite
def stored_chains(draw: st.DrawFn) -> Program:
    """Programs of stored values of one shape, each made of earlier ones, and a state of theirs."""
    program = Program(Draw(draw(st.integers(0, 2**32 - 1))), profile="halves")
    shape = draw(st.sampled_from([(4, 16), (3, 21), (16, 32), (5, 33), (6, 7), (1, 64)]))
    first = program.input(array(program.draw, shape, dt.float32, "halves"), dt.float32)
    state = program.state(shape, dt.float32)
    values = [(first * 2.0).contiguous(), state]
    for _ in range(draw(st.integers(2, 7))):
        a, b = (draw(st.sampled_from(values[-3:])) for _ in "ab")
        values.append(STEPS[draw(st.sampled_from(sorted(STEPS)))](a, b).contiguous())
    push = state.assign(STEPS[draw(st.sampled_from(sorted(STEPS)))](state, values[-2]))
    program.write(state, push)
    program.outputs["new"] = push.flip(0)
    program.outputs["old"] = (state * 2.0).contiguous().flip(1)
    program.outputs["y"] = values[-1].flip(0)
    return program


@pytest.mark.opencl
@settings(max_examples=15)
@given(stored_chains())
def test_chains_of_stored_values_in_place_give_what_the_interpreter_gives(program: Program) -> None:
    writes = [t.node for t in program.writes.values()]
    plan = schedule({n: t.node for n, t in program.outputs.items()}, writes)
    assert overlaps(plan) == []
    (outcome,) = run_batch([case_of(program, Name("graphs", "cpu", 0))])
    assert outcome.problem == ""


@pytest.mark.opencl
@pytest.mark.parametrize("shape", [(16, 32), (7, 48), (3, 5, 16), (64, 64)])
def test_results_in_place_are_right(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    inputs = {
        "x": rng.standard_normal((*shape[:-1], 8)).astype(np.float32),
        "w": rng.standard_normal((8, shape[-1])).astype(np.float32),
        "r": rng.standard_normal(shape).astype(np.float32),
    }
    value, residual = product(*shape), Tensor.input("r", shape)
    for i in range(4):
        value = (value.tanh() * float(i + 1) + residual).contiguous()
    y = value.flip(0)
    plan = plan_of(y)
    assert sum(k.in_place_of is not None for k in plan.lowered) == 4
    expected = inputs["x"] @ inputs["w"]
    for i in range(4):
        expected = np.tanh(expected) * np.float32(i + 1) + inputs["r"]
    with load({"y": y}) as compiled:
        for _ in range(2):
            got = compiled.run(inputs)["y"]
            np.testing.assert_allclose(got, expected[::-1], rtol=2e-5, atol=2e-5)


def test_plan_arena_refuses_what_is_never_read() -> None:
    plan = plan_of(after(product(4, 4)))
    with pytest.raises(SchedulerError, match="never read"):
        plan_arena(plan.lowered[:1], [])
    with pytest.raises(SchedulerError, match="before it is computed"):
        plan_arena(plan.lowered[1:], plan.outputs.values())


def test_what_stays_inside_a_kernel_is_never_allocated() -> None:
    """Ten operations and a private array of row values: only the stored product is in the arena."""
    source = product(16, 32)
    y = ((source * 2.0 + 1.0).exp().softmax() - 0.5).tanh().flip(0)
    plan = plan_of(y)
    assert set(plan.arena().lives) == {source.node}
    assert plan.peak_bytes == plan.unplanned_bytes == 2048
