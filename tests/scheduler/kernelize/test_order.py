"""The order kernels run in: dependencies, states, the least memory, and always the same."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.errors import SchedulerError
from scheduler.ir.node import Node
from scheduler.kernelize.kernel import states_in_place
from scheduler.kernelize.order import Step, best_order, estimated_peak, wait_for_readers
from scheduler.pipeline import kernelize
from scheduler.tensor.tensor import Tensor
from tests.scheduler.support.programs import load

ROOT = Path(__file__).parents[3]


def value(name: str) -> Node:
    return Tensor.input(name, (1,)).node


def steps_of(*rows: tuple[str, str]) -> tuple[list[Step], dict[str, Node]]:
    """Steps from (result, what it reads separated by spaces); one letter or word a value."""
    nodes: dict[str, Node] = {}
    steps = []
    for result, reads in rows:
        for name in (result, *reads.split()):
            nodes.setdefault(name, value(name))
        steps.append(Step(result, (nodes[result],), tuple(nodes[r] for r in reads.split())))
    return steps, nodes


def names(order: Sequence[int], steps: Sequence[Step]) -> str:
    return " ".join(steps[i].name for i in order)


# --- which order ------------------------------------------------------------------------------


def test_equal_peaks_keep_creation_order() -> None:
    steps, nodes = steps_of(("a", "x"), ("b", "x"), ("c", "a b"))
    sizes = {nodes["a"]: 8, nodes["b"]: 8}
    order = best_order(steps, sizes)
    assert names(order, steps) == "a b c"
    assert estimated_peak(order, steps, sizes) == 16


def test_a_branch_runs_to_its_end_before_the_next_one_starts() -> None:
    """Two wide values that shrink: alive together in creation order, one after the other here."""
    steps, nodes = steps_of(("A", "x"), ("B", "x"), ("a", "A"), ("b", "B"), ("y", "a b"))
    sizes = {nodes["A"]: 100, nodes["B"]: 100, nodes["a"]: 1, nodes["b"]: 1}
    assert estimated_peak(range(5), steps, sizes) == 201
    order = best_order(steps, sizes)
    assert names(order, steps) == "A a B b y"
    assert estimated_peak(order, steps, sizes) == 102  # a, B and b


def test_what_frees_more_runs_first() -> None:
    """Forward by growth beats any order that goes by branches: every consumer frees 10 for 1."""
    rows = [(f"w{i}", "x") for i in range(4)]
    rows += [(f"s{i}", f"w{i} w{(i + 1) % 4}") for i in range(4)]
    steps, nodes = steps_of(*rows, ("y", "s0 s1 s2 s3"))
    sizes = {n: 1 if name[0] == "s" else 10 for name, n in nodes.items() if name not in "xy"}
    order = best_order(steps, sizes)
    assert estimated_peak(order, steps, sizes) <= estimated_peak(range(9), steps, sizes) - 9


def test_a_result_in_place_counts_once() -> None:
    steps, nodes = steps_of(("a", "x"), ("b", "a"), ("c", "b"))
    sizes = {nodes["a"]: 8, nodes["b"]: 8}
    assert estimated_peak(range(3), steps, sizes) == 16
    steps[1] = Step("b", (nodes["b"],), (nodes["a"],), reuses=(nodes["a"],))
    assert estimated_peak(range(3), steps, sizes) == 8


def test_two_wide_products_of_which_only_row_sums_are_needed_are_never_alive_together() -> None:
    """f = (a @ c).sum(-1) + (b @ c).sum(-1), with the products stored."""
    a, b, c = (Tensor.input(n, s) for n, s in (("a", (64, 8)), ("b", (64, 8)), ("c", (8, 64))))
    wide = [(left @ c).contiguous() for left in (a, b)]
    first, second = (p.flip(0).contiguous().sum(-1).contiguous() for p in wide)
    y = first + second
    _, kernels = kernelize({"y": y.node})
    alive = most = 0
    last = {n: i for i, k in enumerate(kernels) for n in k.reads}
    for i, k in enumerate(kernels):
        alive += k.targets[0].shape == (64, 64)
        most = max(most, alive)
        alive -= sum(last[n] == i and n.shape == (64, 64) for n in k.reads)
    assert most == 2, "a product and its flip, not both products"


@given(st.integers(1, 30), st.randoms(use_true_random=False))
def test_orders_of_random_graphs_are_valid_and_never_worse_than_creation_order(
    count: int, rng: random.Random
) -> None:
    steps, sizes = random_steps(count, rng)
    order = best_order(steps, sizes)
    assert sorted(order) == list(range(count))
    position = {i: at for at, i in enumerate(order)}
    producer = {step.writes[0]: i for i, step in enumerate(steps)}
    for i, step in enumerate(steps):
        assert all(position[producer[r]] < position[i] for r in step.reads)
        assert all(position[j] < position[i] for j in step.after)
    assert peak_by_hand(order, steps, sizes) <= peak_by_hand(range(count), steps, sizes)
    assert estimated_peak(order, steps, sizes) == peak_by_hand(order, steps, sizes)


def random_steps(count: int, rng: random.Random) -> tuple[list[Step], dict[Node, int]]:
    made: list[Step] = []
    for i in range(count):
        reads = rng.sample(range(i), min(i, rng.randint(0, 3)))
        after = frozenset(rng.sample(range(i), min(i, rng.randint(0, 1))))
        sources = tuple(made[j].writes[0] for j in reads)
        made.append(Step(f"s{i}", (value(f"s{i}"),), sources, after=after))
    return made, {s.writes[0]: rng.choice([0, 1, 8, 50]) for s in made}


def peak_by_hand(order: Sequence[int], steps: Sequence[Step], sizes: dict[Node, int]) -> int:
    """Bytes alive at each point of an order, straight from the definition."""
    peak = 0
    for at in range(len(order)):
        done, rest = order[: at + 1], order[at:]
        needed = {r for i in rest for r in steps[i].reads}
        unread = {n for n in sizes if not any(n in s.reads for s in steps)}
        kept = {steps[i].writes[0] for i in done}
        now = steps[order[at]].writes[0]
        peak = max(peak, sum(sizes[n] for n in kept if n in needed or n in unread or n is now))
    return peak


def chain(count: int) -> tuple[list[Step], dict[str, Node]]:
    return steps_of(*((f"k{i}", f"k{i - 1}" if i else "x") for i in range(count)))


def fan(count: int) -> tuple[list[Step], dict[str, Node]]:
    return steps_of(*((f"f{i}", "x") for i in range(count)), ("y", "f0 f1"))


@pytest.mark.parametrize("shape", [chain, fan])
def test_time_per_step_does_not_grow(
    shape: Callable[[int], tuple[list[Step], dict[str, Node]]],
) -> None:
    def seconds_per_step(count: int) -> float:
        steps, nodes = shape(count)
        sizes = dict.fromkeys(nodes.values(), 1)
        started = time.process_time()
        assert len(best_order(steps, sizes)) == len(steps)
        return (time.process_time() - started) / count

    rounds = [(seconds_per_step(1000), seconds_per_step(10_000)) for _ in range(3)]
    few, many = (min(times) for times in zip(*rounds, strict=True))
    assert many < 3 * few


# --- states -----------------------------------------------------------------------------------


def test_the_writer_of_a_state_waits_for_every_reader_of_its_old_value() -> None:
    steps, nodes = steps_of(("new", "x"), ("f", "q"), ("g", "q f"))
    edged, late = wait_for_readers(steps, {nodes["q"]: 0})
    assert late == []
    assert edged[0].after == {1, 2}
    assert names(best_order(edged, {}), edged) == "f g new"


def test_a_reader_that_needs_the_new_value_too_makes_a_commit() -> None:
    steps, nodes = steps_of(("new", "x"), ("f", "q new"))
    edged, late = wait_for_readers(steps, {nodes["q"]: 0})
    assert late == [nodes["q"]]
    assert edged[0].after == frozenset()


def test_a_dependence_through_another_kernel_or_another_state_is_seen() -> None:
    through = steps_of(("new", "x"), ("m", "new"), ("f", "q m"))
    assert wait_for_readers(through[0], {through[1]["q"]: 0})[1] == [through[1]["q"]]
    # p' reads q, q' reads p: one of the two can be written directly, then the other cannot.
    steps, nodes = steps_of(("p1", "q"), ("q1", "p"))
    edged, late = wait_for_readers(steps, {nodes["p"]: 0, nodes["q"]: 1})
    assert late == [nodes["q"]]
    assert names(best_order(edged, {}), edged) == "q1 p1"


def test_a_writer_that_reads_its_own_state_elsewhere_makes_a_commit() -> None:
    steps, nodes = steps_of(("new", "q"))
    assert wait_for_readers(steps, {nodes["q"]: 0})[1] == [nodes["q"]]
    same = [Step("new", steps[0].writes, steps[0].reads, reuses=(nodes["q"],))]
    assert wait_for_readers(same, {nodes["q"]: 0})[1] == []


def test_a_state_is_updated_in_place_where_each_element_reads_itself() -> None:
    """33 elements: lanes of 16 would compute some of them twice."""
    for size in (4, 32, 33):
        state = Tensor.state("q", (size,))
        push = state.assign(state * 2.0 + 1.0)
        _, kernels = kernelize({}, [push.node])
        assert len(kernels) == 1
        assert list(states_in_place(kernels).values()) == [state.node]
        with load({}, [push]) as program:
            for expected in (1.0, 3.0, 7.0):
                program.run({})
                assert program.state("q").tolist() == [expected] * size


def test_a_state_that_reads_itself_shifted_gets_a_temporary() -> None:
    state = Tensor.state("q", (4,))
    push = state.assign(state.flip(0) + 1.0)
    assert len(kernelize({}, [push.node])[1]) == 2
    running = state.assign(state + state.sum(0, keepdim=True))
    assert len(kernelize({}, [running.node])[1]) >= 2


def test_everyone_sees_the_old_value_until_the_state_is_updated_in_place() -> None:
    state = Tensor.state("q", (5,))
    push = state.assign(state + 1.0)
    old = state.max()
    with load({"old": old}, [push]) as program:
        for expected in (0.0, 1.0, 2.0):
            assert program.run({})["old"].item() == expected


def test_who_reads_the_old_value_runs_first_wherever_it_stands_in_the_program() -> None:
    state = Tensor.state("q", (5,))
    push = state.assign(Tensor.input("x", (5,)) * 2.0)
    outputs = {"new": push.max(), "old": state.sum()}
    _, kernels = kernelize({n: t.node for n, t in outputs.items()}, [push.node])
    assert len(kernels) <= 3, "no commit is needed"
    with load(outputs, [push]) as program:
        for old, x in ((0.0, 1.0), (10.0, 3.0), (30.0, 0.0)):
            got = program.run({"x": np.full(5, x, np.float32)})
            assert (got["old"].item(), got["new"].item()) == (old, 2 * x)


def test_a_commit_runs_as_soon_as_everyone_has_read_the_old_value() -> None:
    """The temporary of a queue need not live until the end of the frame."""
    queue, weight = Tensor.state("q", (4, 64)), Tensor.input("w", (64, 64))
    push = queue.assign(Tensor.cat([queue[1:], Tensor.input("x", (1, 64))]))
    y = push @ weight
    for _ in range(3):
        y = (y.contiguous().flip(0).contiguous() @ weight).contiguous()
    _, kernels = kernelize({"y": y.node}, [push.node])
    at = next(i for i, k in enumerate(kernels) if queue.node in k.targets)
    assert {queue.node} == {n for k in kernels[:at] for n in k.reads} & {queue.node}
    assert not any(queue.node in k.reads for k in kernels[at:])


# --- cycles -----------------------------------------------------------------------------------


def test_a_cycle_names_the_kernels_on_it_and_only_those() -> None:
    steps, _ = steps_of(("conv1", "add2 x"), ("relu", "conv1"), ("add2", "relu"), ("tail", "add2"))
    with pytest.raises(SchedulerError, match=r"in a cycle: conv1 -> relu -> add2 -> conv1;") as e:
        best_order(steps, {})
    assert "tail" not in str(e.value)


def test_a_long_cycle_is_shortened() -> None:
    steps, _ = steps_of(*((f"k{i}", f"k{(i - 1) % 500}") for i in range(500)))
    with pytest.raises(SchedulerError, match=r"k0 -> k1 .* \(492 more\) -> k0") as error:
        best_order(steps, {})
    assert len(str(error.value)) < 300


# --- always the same --------------------------------------------------------------------------

SCRIPT = """
import hashlib
from scheduler.emit.artifact import emit
from scheduler.pipeline import schedule
from scheduler.tensor.tensor import Tensor
x, w = Tensor.input("x", (1, 8, 16, 16)), Tensor.input("w", (8, 8, 3, 3))
q = Tensor.state("q", (4, 8))
branches = [x.conv2d(w, padding=1).contiguous().flip(i + 1).contiguous() for i in range(3)]
y = branches[0] + branches[1].conv2d(w, padding=1) + branches[2].max((2, 3), keepdim=True)
push = q.assign(Tensor.cat([q[1:], y.mean((2, 3))]))
plan = schedule({"y": y.node, "old": q.sum().node, "new": push.max().node}, [push.node])
made = emit({"run": plan}, name="m", kind="plain")
print(hashlib.sha256(repr(made.manifest).encode() + made.data).hexdigest())
"""


def test_the_result_does_not_depend_on_the_hash_seed() -> None:
    found = set()
    for seed in ("0", "1", "2", "3"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-c", SCRIPT]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        found.add(done.stdout)
    assert len(found) == 1
