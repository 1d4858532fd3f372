"""What becomes a kernel, and the order kernels run in: dependencies, states, the least memory."""

import random
import time
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.errors import SchedulerError
from scheduler.ir.node import Node
from scheduler.ir.origin import Origins
from scheduler.kernelize.order import Step, best_order, estimated_peak, wait_for_readers
from scheduler.pipeline import kernelize, schedule
from scheduler.tensor.tensor import Tensor
from tests.scheduler.support.programs import floats, make_program, x
from tests.support.selection import quick_cases


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


Rows = list[tuple[str, str]]
SHAPES: dict[str, Callable[[int], Rows]] = {
    "chain": lambda count: [(f"k{i}", f"k{i - 1}" if i else "x") for i in range(count)],
    "fan": lambda count: [*((f"f{i}", "x") for i in range(count)), ("y", "f0 f1")],
}


@pytest.mark.parametrize("shape", quick_cases(SHAPES, "fan"))
def test_time_per_step_does_not_grow(shape: str) -> None:
    def seconds_per_step(count: int) -> float:
        steps, nodes = steps_of(*SHAPES[shape](count))
        sizes = dict.fromkeys(nodes.values(), 1)
        started = time.process_time()
        assert len(best_order(steps, sizes)) == len(steps)
        return (time.process_time() - started) / count

    rounds = [(seconds_per_step(500), seconds_per_step(5000)) for _ in range(3)]
    few, many = (min(times) for times in zip(*rounds, strict=True))
    assert many < 3 * few


@pytest.mark.parametrize(
    ("rows", "writers", "late", "order"),
    [
        # The writer waits for every reader of the old value.
        ([("new", "x"), ("f", "q"), ("g", "q f")], {"q": 0}, "", "f g new"),
        # A reader needs the new value too, itself or through another kernel: a commit.
        ([("new", "x"), ("f", "q new")], {"q": 0}, "q", "new f"),
        ([("new", "x"), ("m", "new"), ("f", "q m")], {"q": 0}, "q", "new m f"),
        # p' reads q, q' reads p: one of the two can be written directly, then the other cannot.
        ([("p1", "q"), ("q1", "p")], {"p": 0, "q": 1}, "q", "q1 p1"),
        # The writer reads its own state elsewhere.
        ([("new", "q")], {"q": 0}, "q", "new"),
    ],
)
def test_who_waits_for_readers_of_an_old_state_and_who_needs_a_commit(
    rows: list[tuple[str, str]], writers: dict[str, int], late: str, order: str
) -> None:
    steps, nodes = steps_of(*rows)
    edged, found = wait_for_readers(steps, {nodes[state]: i for state, i in writers.items()})
    assert found == [nodes[state] for state in late]
    assert names(best_order(edged, {}), edged) == order
    if not late:
        assert edged[0].after == {1, 2}


def test_a_writer_that_reads_its_own_state_in_place_needs_no_commit() -> None:
    steps, nodes = steps_of(("new", "q"))
    same = [Step("new", steps[0].writes, steps[0].reads, reuses=(nodes["q"],))]
    assert wait_for_readers(same, {nodes["q"]: 0})[1] == []


def test_a_long_cycle_is_shortened() -> None:
    steps, _ = steps_of(*((f"k{i}", f"k{(i - 1) % 500}") for i in range(500)))
    with pytest.raises(SchedulerError, match=r"k0 -> k1 .* \(492 more\) -> k0") as error:
        best_order(steps, {})
    assert len(str(error.value)) < 300


def test_a_weight_that_is_an_output_is_copied_and_nothing_else() -> None:
    assert len(kernelize({"y": Tensor.weight(floats(4)).node})[1]) == 1


def test_outputs_of_one_value_have_storage_each() -> None:
    value = x(4) + 1.0
    named, kernels = kernelize({"p": value.node, "q": value.node})
    assert named["p"] is not named["q"]
    (kernel,) = kernels  # one loop nest stores the value twice
    assert kernel.targets == (named["p"], named["q"])


@pytest.mark.opencl
def test_source_manifest_and_profile_name_the_nodes_of_the_model() -> None:
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


def test_a_constant_that_two_layers_share_does_not_lend_its_name() -> None:
    first, second = x(300_000), x(300_000, name="b")  # small ones would share a launch
    y, z, origins = first * 0.3, second * 0.3, Origins()
    origins.name([y.node], ("one",))
    origins.name([z.node], ("two",))
    kernels = schedule({"y": y.node, "z": z.node}, origins=origins).launches
    assert sorted(k.origin for k in kernels) == [("one",), ("two",)]
