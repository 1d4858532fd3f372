"""Every row of the table: launches, bytes moved, bytes stored between launches, and values.

Of some rows also the fewest operations for an element; and where other programs are cut.
"""

import pickle
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cache, partial
from typing import Any
from unittest import mock

import pytest

from runtime.opencl.device import choose_device
from scheduler.device.targets import spec_of_device
from scheduler.emit.schedule import Schedule
from scheduler.ir import dtype as dt
from scheduler.ir.ops import ELEMENTWISE, Op
from scheduler.kernelize.scalar import scalar_nodes
from scheduler.passes.split import THRESHOLD
from scheduler.tensor import realize
from scheduler.tensor.eager import SESSION, EagerPlan, base_of
from scheduler.tensor.tensor import Tensor
from tests.scheduler.fusion.row import Row, check_bar, check_inside, program_plan, realized_plan
from tests.scheduler.fusion.table import ROWS, THEMES
from tests.scheduler.support.programs import (
    Made,
    artifact_of,
    floats,
    program_of,
    same,
    values_of,
    x,
)
from tests.scheduler.support.together import UNOPTIMIZED, Together

PROGRAMS = [row for row in ROWS if not row.eager]
# The plans and the interpreter's values of all rows are quick. A theme is built as one program.
BUILT = {
    *(row.name for theme in ("joins", "products", "training") for row in THEMES[theme]),
    *("add-in-place", "assign-from-each-other", "assign-reversed", "momentum", "pinned-then-plus"),
} - {"conv-norm-adam", "four-convs-sgd"}  # they write to their inputs and have many kernels


def rows(chosen: list[Row], slow: Collection[str] = ()) -> pytest.MarkDecorator:
    marks = {row.name: [pytest.mark.slow] if row.name in slow else [] for row in chosen}
    cases = [pytest.param(row, id=row.name, marks=marks[row.name]) for row in chosen]
    return pytest.mark.parametrize("row", cases)


class Batch:
    """What realizing the outputs of rows runs.

    Rows that are eager, or write to their inputs, are realized alone.
    """

    def __init__(self, rows: Sequence[Row], programs: ExitStack) -> None:
        SESSION.clear()  # what was computed before would be no part of a plan
        plain = [row for row in rows if not row.eager and not row.assigned]
        spec = spec_of_device(choose_device(None))
        self._contexts = {row.name: row.context(spec) for row in rows}
        self._made: dict[str, list[Tensor]] = {}
        realized = {row.name: partial(self._plan_of_realized, row) for row in plain}
        self._realized = programs.enter_context(Together(realized, UNOPTIMIZED))

    def _plan_of_realized(self, row: Row) -> Schedule:
        made = self._made[row.name] = row.built()
        return made[0].schedule(*made[1:], context=self._contexts[row.name])

    def check_realized(self, row: Row) -> None:
        """Realize the outputs of a row together and compare; each has a buffer after that."""
        SESSION.clear()
        made = self._made.pop(row.name, None) or row.built()
        context = self._contexts[row.name]
        alone = realize.execute

        def execute(plan: EagerPlan, *rest: Any) -> Any:
            if row.name not in self._realized.plans or not plan.outputs:
                return alone(plan, *rest)
            return self._realized.run(row.name, plan.feeds(plan.buffers)), {}

        with mock.patch.object(realize, "execute", execute):
            made[0].realize(*made[1:], context=context)
        row.compare([t.numpy() for t in made])
        assert all(base_of(t.node).op in (Op.BUFFER, Op.CONST) for t in made)
        assert made[0].schedule(*made[1:], context=context).launches == []


@pytest.fixture(scope="module")
def batch_of() -> Iterator[Callable[[Row], Batch]]:
    theme_of = {row.name: theme for theme, found in THEMES.items() for row in found}
    with ExitStack() as programs:
        batch = cache(lambda theme: Batch(THEMES[theme], programs))
        yield lambda row: batch(theme_of[row.name])


@pytest.mark.opencl
@rows(ROWS)
def test_what_realizing_takes(row: Row) -> None:
    plan, made = realized_plan(row)
    roots = [t.node for t in made]
    check_bar(row, plan, program=False)
    assert [t.node for t in made] == roots


@rows(PROGRAMS)
def test_what_a_program_takes(row: Row) -> None:
    check_bar(row, program_plan(row), program=True)
    if any(inside is not None for inside in (row.flops, row.stored, row.loops)):
        check_inside(row, program_plan(row))


@rows(ROWS)
def test_values_of_the_interpreter(row: Row) -> None:
    row.compare([t.interp() for t in row.built()])


@pytest.mark.opencl
@rows(ROWS, slow={row.name for row in ROWS} - BUILT)
def test_values_of_what_is_realized(row: Row, batch_of: Callable[[Row], Batch]) -> None:
    batch_of(row).check_realized(row)


def test_names_differ() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)


BY_NAME = {row.name: row for row in ROWS}


def operations(row: Row) -> list[Op]:
    (kernel,) = realized_plan(row)[0].kernels
    nodes = scalar_nodes(kernel.bodies[0].value)
    return [n.op for n in nodes if n.op in ELEMENTWISE and n.dtype is dt.float32]


@pytest.mark.parametrize(
    ("name", "fewest"),
    [
        ("power-of-two", [Op.POW]),
        ("power-two", [Op.MUL]),
        ("power-eight", [Op.MUL] * 3),
        ("power-half", [Op.SQRT]),
        ("power-minus-half", [Op.SQRT, Op.RECIP]),
    ],
)
def test_powers_are_the_fewest_operations(name: str, fewest: list[Op]) -> None:
    row = BY_NAME[name]
    assert operations(row) == fewest
    if row.float_unsafe:  # a root is no power of -0.0 and of minus infinity
        safe = replace(row, float_unsafe=False)
        assert set(operations(safe)) == {Op.ADD, Op.WHERE, *fewest}


def test_two_divisions_of_four_elements_take_at_most_twelve_operations() -> None:
    assert 4 * len(operations(BY_NAME["divided-twice"])) <= 12


def test_a_value_doubled_24_times_stays_small() -> None:
    plan, _ = realized_plan(BY_NAME["doubled-24-times"])
    assert artifact_of(plan).manifest["programs"]
    assert sum(k.text.count("\n") for k in plan.lowered) < 250


def test_scheduling_computes_and_allocates_nothing() -> None:
    """Four gigabytes of intermediates are scheduled as fast as four kilobytes."""

    def scheduled(bits: int) -> tuple[float, Made]:
        started = time.process_time()
        wide = (x(2**bits, 1) * x(1, 2**bits, name="b")).reshape(2 ** (2 * bits))
        rows = wide[: 2 ** (2 * bits - 10)].reshape(2 ** (bits - 5), 2 ** (bits - 5))
        made = program_of(rows.sum(1))
        assert made.stored == []
        return time.process_time() - started, made

    rounds = [(scheduled(5), scheduled(15)) for _ in range(3)]
    assert min(large for _, (large, _) in rounds) < 10 * min(small for (small, _), _ in rounds)
    made = rounds[0][1][1]
    assert pickle.loads(pickle.dumps(made.manifest)) == made.manifest


@pytest.mark.opencl
@pytest.mark.parametrize(("size", "launches"), [(THRESHOLD, 2), (THRESHOLD - 1, 1), (65537, 1)])
def test_a_long_reduction_has_two_stages(size: int, launches: int) -> None:
    """65537 is prime: it cannot be split evenly, so it stays whole."""
    assert THRESHOLD == 32768
    made = program_of(x(size).max())
    assert made.launches == launches
    same(values_of(made, x=floats(size))[0], floats(size).max())


@pytest.mark.opencl
def test_the_threshold_is_per_result() -> None:
    assert program_of(x(64, 4096).sum(1)).launches == 1
    made = program_of(x(4, 65536).sum(1) * 2.0)
    assert made.launches == 2
    assert 8 <= made.stored[0][1][1] <= 256
    same(values_of(made, x=floats(4, 65536))[0], floats(4, 65536).sum(1) * 2, 1e-2)
