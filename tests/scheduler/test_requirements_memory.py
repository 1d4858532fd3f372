"""Requirements R24 to R33: states, order, memory."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from math import erf
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.errors import SchedulerError
from scheduler.ir.origin import Origins
from scheduler.kernelize.order import Step, best_order
from scheduler.tensor.tensor import Tensor
from tests.scheduler.memory_check import memory_faults
from tests.scheduler.random_graphs import Graph, told_of
from tests.scheduler.random_motifs import graphs
from tests.scheduler.requirement import (
    Array,
    floats,
    make_program,
    program_of,
    same,
    values_of,
    x,
)

ROOT = Path(__file__).parents[2]

# --- R24: states ------------------------------------------------------------------------------


@pytest.mark.opencl
def test_r24_a_read_before_the_assignment_gives_the_old_version_and_one_after_it_the_new() -> None:
    state = Tensor.state("s", (8,))
    old = state * 10.0
    new = state.assign(state + x(8))
    after = new * 100.0
    made = make_program({"old": old.flip(0), "new": after, "both": old + after.flip(0)}, [new])
    expected = np.zeros(8, np.float32)
    with made.load() as program:
        for turn in range(3):
            v = floats(8, seed=turn)
            got = program.run({"x": v})
            before, expected = expected, expected + v
            same(got["old"], before[::-1] * 10)
            same(got["new"], expected * 100)
            same(got["both"], before * 10 + expected[::-1] * 100)
            same(program.state("s"), expected)


@pytest.mark.opencl
@pytest.mark.parametrize("first", ["old", "new"])
def test_r24_the_order_of_the_outputs_changes_nothing(first: str) -> None:
    """Whoever needs the old version runs before the update, wherever it stands."""
    state = Tensor.state("s", (4, 4))
    push = state.assign((x(4, 4) * 2.0).contiguous())
    outputs = {"old": state.sum(0) + 0.5, "new": push.max(1)}
    named = {n: outputs[n] for n in sorted(outputs, key=lambda n: n != first)}
    made = make_program(named, [push])
    with made.load() as program:
        before = np.zeros((4, 4), np.float32)
        for turn in range(3):
            v = floats(4, 4, seed=turn)
            got = program.run({"x": v})
            same(got["old"], before.sum(0) + 0.5)
            same(got["new"], (v * 2).max(1))
            before = v * 2


def test_r24_the_edges_are_in_the_kernel_table() -> None:
    state = Tensor.state("s", (64, 64))
    push = state.assign(x(64, 64) @ x(64, 64, name="w"))
    made = make_program({"old": state @ x(64, 64, name="v")}, [push])
    buffer = next(i for i, b in enumerate(made.manifest["buffers"]) if b["kind"] == "state")
    table = made.table
    reads = [
        launch.number
        for launch in table.launches
        if any(table.values[i].buffer == buffer for i in launch.reads)
    ]
    writes = [
        launch.number
        for launch in table.launches
        if any(table.values[i].buffer == buffer for i in launch.writes)
    ]
    assert len(writes) == 1
    assert reads
    assert max(reads) <= writes[0]
    for reader in set(reads) - set(writes):
        assert (reader, writes[0]) in [(a, b) for a, b, _ in table.dependencies()]


def test_r24_two_values_for_one_state_are_refused_by_its_name() -> None:
    state = Tensor.state("features", (4,))
    writes = [state.assign(x(4)), state.assign(x(4, name="b") * 2.0)]
    with pytest.raises(SchedulerError, match=r"features.*assigned") as error:
        program_of(writes=writes)
    assert "\n" not in str(error.value)


@pytest.mark.opencl
def test_r24_three_states_in_a_ring_change_places() -> None:
    states = [Tensor.state(f"s{i}", (5,)) for i in range(3)]
    writes = [s.assign(states[i - 1] + float(i + 1)) for i, s in enumerate(states)]
    made = make_program({"sum": sum(states[1:], states[0]).flip(0)}, writes)
    now = [np.zeros(5, np.float32) for _ in states]
    with made.load() as program:
        for _ in range(4):
            got = program.run({})["sum"]
            same(got, np.sum(now, 0))
            now = [now[i - 1] + np.float32(i + 1) for i in range(3)]
            for i, want in enumerate(now):
                same(program.state(f"s{i}"), want)


# --- R25: a state that reads itself -----------------------------------------------------------

ITSELF: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Array], Array]]] = {
    "transposed": (lambda s: s + s.T, lambda a: a + a.T),
    "turned": (lambda s: s.flip(0) + 1.0, lambda a: a[::-1] + 1),
    "shifted": (
        lambda s: Tensor.cat([s[1:], s[:1] + 1.0]),
        lambda a: np.concatenate([a[1:], a[:1] + 1]),
    ),
    "summed": (lambda s: s + s.sum(0, keepdim=True) + 1.0, lambda a: a + a.sum(0) + 1),
    "padded": (
        lambda s: (s + 1.0)[:-1].pad([(1, 0), (0, 0)], 5.0),
        lambda a: np.pad(a[:-1] + 1, ((1, 0), (0, 0)), constant_values=5),
    ),
}


@pytest.mark.opencl
@pytest.mark.parametrize("name", ITSELF)
def test_r25_a_state_that_reads_other_elements_of_itself_gets_a_temporary(name: str) -> None:
    ours, theirs = ITSELF[name]
    state = Tensor.state("s", (6, 6))
    made = make_program({}, [state.assign(ours(state) * 0.5 + x(6, 6))])
    assert made.stored == [("float32", (6, 6))]
    now: Array = np.zeros((6, 6), np.float32)
    with made.load() as program:
        for turn in range(3):
            v = floats(6, 6, seed=turn)
            program.run({"x": v})
            now = np.asarray(theirs(now) * np.float32(0.5) + v, np.float32)
            same(program.state("s"), now, 1e-4)


@pytest.mark.opencl
def test_r25_a_state_that_reads_the_same_element_is_updated_in_place() -> None:
    state = Tensor.state("s", (6, 6))
    made = make_program({}, [state.assign((state * 0.5 + x(6, 6)).tanh())])
    assert (made.launches, made.stored) == (1, [])


# --- R26: cycles ------------------------------------------------------------------------------


def test_r26_a_cycle_is_told_with_its_kernels_and_a_way_out() -> None:
    names = ("stem/conv", "block1/relu", "block1/add")
    values = [Tensor.input(n, (1,)).node for n in names]
    steps = [Step(n, (values[i],), (values[i - 1],)) for i, n in enumerate(names)]
    steps.append(Step("head", (Tensor.input("h", (1,)).node,), (values[2],)))
    with pytest.raises(SchedulerError) as error:
        best_order(steps, {})
    text = str(error.value)
    assert "cycle: stem/conv -> block1/relu -> block1/add -> stem/conv" in text
    assert "contiguous()" in text
    assert "head" not in text
    assert "\n" not in text


@pytest.mark.opencl
def test_r26_what_would_be_a_cycle_through_a_state_is_scheduled() -> None:
    """Each result needs the other state's old value and the own new one: commits break the ring."""
    p, q = Tensor.state("p", (16,)), Tensor.state("q", (16,))
    new_p, new_q = p.assign(q.flip(0) + 1.0), q.assign(p.flip(0) + 2.0)
    made = make_program({"a": new_p + q, "b": new_q + p}, [new_p, new_q])
    a = b = np.zeros(16, np.float32)
    with made.load() as program:
        for _ in range(3):
            got = program.run({})
            same(got["a"], b[::-1] + 1 + b)
            same(got["b"], a[::-1] + 2 + a)
            a, b = b[::-1] + 1, a[::-1] + 2


# --- R27: always the same ---------------------------------------------------------------------

SCRIPT = """
import hashlib
from scheduler.emit import emit
from scheduler.schedule import schedule
from tests.scheduler.random_motifs import build
found = hashlib.sha256()
for seed in range(40):
    graph = build(seed, 10)
    writes = [t.node for t in graph.assigns]
    plan = schedule({n: t.node for n, t in graph.tensors.items()}, writes)
    made = emit({"run": plan}, name="m", kind="plain")
    found.update(repr(made.manifest).encode() + made.data)
print(found.hexdigest())
"""


def test_r27_random_programs_are_scheduled_alike_under_every_hash_seed() -> None:
    found = set()
    for seed in ("0", "1", "77"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-c", SCRIPT]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        found.add(done.stdout)
    assert len(found) == 1


@settings(max_examples=20)
@given(graphs(8))
def test_r27_scheduling_twice_gives_the_same_bytes(graph: Graph) -> None:
    with told_of(graph):
        first, second = (make_program(graph.tensors, graph.assigns) for _ in range(2))
        assert first.manifest == second.manifest
        assert first.data == second.data


def test_r27_among_valid_orders_one_of_low_peak_is_taken() -> None:
    """Eight wide values that each shrink to a row: one is alive at a time."""
    rows = []
    for i in range(8):
        wide = (x(64, 8, name=f"a{i}") @ x(8, 64, name=f"b{i}")).contiguous()
        rows.append(wide.flip(0).contiguous().sum(1).contiguous())
    made = program_of(Tensor.stack(rows, 0).max(0))
    assert made.table.totals.arena_peak <= 2 * 64 * 64 * 4 + 9 * 512


# --- R28: dead code ---------------------------------------------------------------------------


def test_r28_what_nobody_reads_is_not_computed() -> None:
    a = x(8, 8)
    used, unused = a.exp(), a.cos().sum(1)
    joined = Tensor.cat([used.sum(1), unused])
    assert "cos(" not in program_of(joined[:8]).source
    assert "cos(" in program_of(joined[7:]).source


def test_r28_a_producer_whose_values_are_all_cut_away_is_not_run() -> None:
    padded = (x(8, 8) @ x(8, 8, name="w")).exp().pad([(4, 0), (0, 0)], 2.0)
    made = program_of(padded[:4] * 3.0)
    assert made.table.totals.flops <= 4 * 8
    assert made.stored == []


def test_r28_states_are_written_though_no_output_needs_them() -> None:
    state = Tensor.state("s", (4,))
    made = make_program({"y": x(4) + 1.0}, [state.assign(x(4, name="b").exp())])
    assert "exp(" in made.source


# --- R30: copies ------------------------------------------------------------------------------


@pytest.mark.opencl
def test_r30_inputs_are_taken_anew_at_every_run_and_outputs_stay_apart() -> None:
    a = x(4, 4)
    made = make_program({"same": a, "again": a, "more": a + 1.0})
    with made.load() as program:
        kept = []
        for turn in range(2):
            v = floats(4, 4, seed=turn)
            got = program.run({"x": v})
            kept.append({n: value.copy() for n, value in got.items()})
        for turn, found in enumerate(kept):
            v = floats(4, 4, seed=turn)
            same(found["same"], v)
            same(found["again"], v)
            same(found["more"], v + 1)


def test_r30_a_weight_that_is_needed_twice_is_carried_once() -> None:
    w = floats(64, 64)
    one = program_of(x(64) + Tensor.weight(w)[0], x(64, name="b") * Tensor.weight(w)[1])
    two = program_of(x(64) + Tensor.weight(w)[0], x(64, name="b") * Tensor.weight(w.copy())[1])
    assert len(one.data) == len(two.data) <= w.nbytes + 1024


# --- R31: where a kernel comes from -----------------------------------------------------------


@pytest.mark.opencl
def test_r31_source_manifest_and_profile_name_the_nodes_of_the_model() -> None:
    y = x(8, 8) @ Tensor.weight(floats(8, 8))
    relu = y.relu().contiguous()
    probabilities, origins = relu.softmax(), Origins()
    origins.name([y.node], ("/encoder/MatMul",))
    origins.name([relu.node], ("/encoder/Relu",))
    origins.name([probabilities.node], ("/head/Softmax",))
    made = make_program({"y": probabilities}, origins=origins)
    first, second = made.manifest["kernels"]
    assert first["origin"] == ["/encoder/MatMul", "/encoder/Relu"]
    assert second["origin"] == ["/head/Softmax"]
    assert "/* /encoder/MatMul, /encoder/Relu */" in made.source
    with made.load() as program:
        times = program.profile({"x": floats(8, 8)}, iterations=1)
    assert [time.origin for time in times] == [
        ("/encoder/MatMul", "/encoder/Relu"),
        ("/head/Softmax",),
    ]


# --- R32, R33: memory -------------------------------------------------------------------------


def test_r32_reuse_in_place_and_over_time_is_reported_before_and_after() -> None:
    y = (x(32, 8) @ x(8, 32, name="w")).contiguous()
    for i in range(6):
        y = (y * float(i + 2)).contiguous()
    totals = program_of(y.flip(0)).table.totals
    assert totals.arena_peak == totals.arena_live == 32 * 32 * 4
    assert totals.arena_unplanned == 7 * 32 * 32 * 4


@settings(max_examples=150)
@given(graphs(12), st.integers(2, 4))
def test_r32_no_two_live_values_share_a_byte(graph: Graph, every: int) -> None:
    """Launches are run on bytes that know their value; with more boundaries there is more reuse."""
    outputs = {
        n: t.contiguous().flip(0).contiguous() if t.ndim and i % every else t
        for i, (n, t) in enumerate(graph.tensors.items())
    }
    with told_of(graph):
        made = make_program(outputs, graph.assigns)
        assert memory_faults(made.manifest) == []
        totals = made.table.totals
        assert totals.arena_live <= totals.arena_peak <= totals.arena_unplanned


@pytest.mark.opencl
def test_r33_what_lives_in_a_kernel_only_has_no_memory() -> None:
    y = ((x(16, 48) * 2.0).layernorm().softmax() - 0.5).gelu()
    made = program_of(y.sum(1) + y.max(1))
    assert made.stored == []
    assert made.manifest["arena_size"] == 0
    a = floats(16, 48) * 2
    d = a - a.mean(1, keepdims=True)
    n = d / np.sqrt((d * d).mean(1, keepdims=True) + 1e-5)
    e = np.exp(n - n.max(1, keepdims=True))
    s = e / e.sum(1, keepdims=True) - 0.5
    g = np.array([[0.5 * v * (1 + erf(v / 2**0.5)) for v in row] for row in s.tolist()])
    same(values_of(made, x=floats(16, 48))[0], (g.sum(1) + g.max(1)).astype(np.float32), 1e-4)
