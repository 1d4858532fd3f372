"""Scheduling takes time in proportion to the graph, and little of it.

Each figure is a ratio of two times of the same run, the least of some.
"""

import json
import math
import sys
from collections.abc import Callable, Iterator

import pytest

from benchmarks.scheduler_speed import (
    GRAPHS,
    Speed,
    calibration_ms,
    elementwise,
    main,
    measure,
    reductions,
    residual,
    transformer,
    wide_stack,
    wide_sum,
)
from scheduler import Tensor, pipeline
from scheduler.context import CompileContext
from tests.scheduler.support.verified import Verified
from tests.support.selection import quick_cases

# 3 ms a kernel where the calibration loop takes 8 ms (2.6 GHz Xeon, 2026-11).
MAX_UNITS = 3 / 8
# Sizes differ by four or more, so a quadratic pass stays far above this.
MAX_GROWTH = 2
ROUNDS = 8


@pytest.fixture(autouse=True)
def passes_as_users_have_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the check after each pass that all other tests of the compiler run with."""
    checked = pipeline.passes

    def listed(context: CompileContext) -> tuple[tuple[str, pipeline.Pass], ...]:
        found = checked(context)
        return tuple((n, p.apply if isinstance(p, Verified) else p) for n, p in found)

    monkeypatch.setattr(pipeline, "passes", listed)


def least_growth(
    graph: Callable[[int], Tensor], small: int, large: int, time: Callable[[Speed], float]
) -> float:
    """Return the least ratio of the times of a large and a small graph, measured one after another.

    A busy machine stretches some pairs. A pass that looks at all nodes for each node stretches
    every pair by the ratio of the sizes, four or more here.
    """
    few, many = graph(small), graph(large)
    least = math.inf
    for _ in range(ROUNDS):
        first, then = measure("", few, 1), measure("", many, 1)
        least = min(least, time(then) / time(first))
        if least < MAX_GROWTH:
            break
    return least


@pytest.mark.alone
@pytest.mark.parametrize("graph", quick_cases([residual, transformer], residual))
def test_time_per_kernel_does_not_grow_with_the_graph(graph: Callable[[int], Tensor]) -> None:
    assert least_growth(graph, 32, 128, lambda s: s.ms_per_kernel) < MAX_GROWTH


@pytest.mark.alone
@pytest.mark.parametrize(
    ("graph", "small"),
    [
        pytest.param(elementwise, 2000, marks=pytest.mark.slow),
        pytest.param(reductions, 400, marks=pytest.mark.slow),
        (wide_stack, 600),
    ],
)
def test_time_per_node_does_not_grow_with_the_graph(
    graph: Callable[[int], Tensor], small: int
) -> None:
    assert least_growth(graph, small, 5 * small, lambda s: s.ms_per_node) < MAX_GROWTH


KERNELS = ["residual-8", "residual-32", "transformer-8", "transformer-32"]


@pytest.mark.alone
@pytest.mark.parametrize("name", quick_cases(KERNELS, "residual-8"))
def test_a_kernel_takes_less_than_three_milliseconds(name: str) -> None:
    tensor = GRAPHS[name]()
    took = unit = math.inf
    # The least of each: a busy machine slows either down, never up.
    for _ in range(4 * ROUNDS):
        unit = min(unit, calibration_ms(2))
        took = min(took, measure(name, tensor, 1).ms_per_kernel)
        if took < MAX_UNITS * unit:
            break
    assert took < MAX_UNITS * unit


@pytest.fixture
def shallow_stack() -> Iterator[None]:
    """Leave a test about a hundred frames: any recursion over a graph of thousands would show."""
    before, depth, frame = sys.getrecursionlimit(), 0, sys._getframe()
    while frame.f_back is not None:
        depth, frame = depth + 1, frame.f_back
    sys.setrecursionlimit(depth + 120)
    yield
    sys.setrecursionlimit(before)


DEEP: dict[Callable[[int], Tensor], int] = {
    elementwise: 10_000,
    reductions: 500,
    wide_sum: 512,
    wide_stack: 1000,
    residual: 32,
    transformer: 8,
}


@pytest.mark.usefixtures("shallow_stack")
@pytest.mark.parametrize("graph", quick_cases(DEEP, wide_sum, wide_stack, residual, transformer))
def test_no_graph_walk_recurses(graph: Callable[[int], Tensor]) -> None:
    found = measure("", graph(DEEP[graph]), 1, lowering=True)
    assert found.kernels
    assert found.lower_ms > 0


def test_shared_values_are_looked_at_once() -> None:
    """Each value is used twice by the next: 2**60 paths, 60 nodes."""
    y = Tensor.input("x", (64, 64))
    for _ in range(60):
        y = y + y
    z = y.sum(1, keepdim=True)
    for _ in range(60):
        z = z + z
    assert measure("", (y - z).sum(1), 1).kernels < 10


def test_the_benchmark_says_what_it_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "sum-512", "--repeats", "1", "--json"]) == 0
    (graph,) = json.loads(capsys.readouterr().out)["graphs"]
    assert graph["name"] == "sum-512"
    assert graph["nodes"] == 1023
    assert graph["schedule_ms"] > 0 < graph["lower_ms"]
    assert main(["--only", "sum-512", "--repeats", "1", "--no-lowering"]) == 0
    header, names, row = capsys.readouterr().out.splitlines()
    assert header.startswith("calibration loop: ")
    assert row.split()[0] == "sum-512"
    assert len(row.split()) == 7
    assert len(names.replace("lower ms/kernel", "lower").split()) == 7


def test_time_per_kernel_and_node() -> None:
    found = Speed("n", nodes=10, kernels=4, schedule_ms=8.0)
    assert (found.ms_per_kernel, found.ms_per_node) == (2.0, 0.8)
