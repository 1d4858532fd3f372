"""States: which version is read, when it is written, and where."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from scheduler.errors import SchedulerError
from scheduler.kernelize.order import Step, best_order
from scheduler.tensor.tensor import Tensor
from tests.scheduler.support.programs import (
    Array,
    floats,
    make_program,
    program_of,
    same,
    x,
)


@pytest.mark.opencl
def test_a_read_before_the_assignment_gives_the_old_version_and_one_after_it_the_new() -> None:
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
def test_the_order_of_the_outputs_changes_nothing(first: str) -> None:
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


def test_the_edges_are_in_the_kernel_table() -> None:
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


def test_two_values_for_one_state_are_refused_by_its_name() -> None:
    state = Tensor.state("features", (4,))
    writes = [state.assign(x(4)), state.assign(x(4, name="b") * 2.0)]
    with pytest.raises(SchedulerError, match=r"features.*assigned") as error:
        program_of(writes=writes)
    assert "\n" not in str(error.value)


@pytest.mark.opencl
def test_three_states_in_a_ring_change_places() -> None:
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
def test_a_state_that_reads_other_elements_of_itself_gets_a_temporary(name: str) -> None:
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
def test_a_state_that_reads_the_same_element_is_updated_in_place() -> None:
    state = Tensor.state("s", (6, 6))
    made = make_program({}, [state.assign((state * 0.5 + x(6, 6)).tanh())])
    assert (made.launches, made.stored) == (1, [])


def test_a_cycle_is_told_with_its_kernels_and_a_way_out() -> None:
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
def test_what_would_be_a_cycle_through_a_state_is_scheduled() -> None:
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
