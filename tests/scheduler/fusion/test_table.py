"""Every row of the table: launches, bytes moved, bytes stored between launches, and values.

Of some rows also the fewest operations for an element.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import cache

import pytest

from scheduler.ir import dtype as dt
from scheduler.ir.ops import ELEMENTWISE, Op
from scheduler.kernelize.scalar import scalar_nodes
from tests.scheduler.fusion.batch import Batch
from tests.scheduler.fusion.row import Row, check_bar, check_inside, program_plan, realized_plan
from tests.scheduler.fusion.table import ROWS, THEMES
from tests.scheduler.support.programs import artifact_of

PROGRAMS = [row for row in ROWS if not row.eager]
# They write to their inputs, so that each is built alone, and have many kernels.
BUILT_LONG = {"conv-norm-adam", "two-convs-adam", "four-convs-sgd"}


def rows(chosen: list[Row], slow: Collection[str] = ()) -> pytest.MarkDecorator:
    marks = {row.name: [pytest.mark.slow] if row.name in slow else [] for row in chosen}
    cases = [pytest.param(row, id=row.name, marks=marks[row.name]) for row in chosen]
    return pytest.mark.parametrize("row", cases)


@pytest.fixture(scope="module")
def batch_of() -> Iterator[Callable[[Row], Batch]]:
    """Return a function that gives the batch that a row is in."""
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
    check_bar(row, program_plan(row, measured=True), program=True)
    if any(inside is not None for inside in (row.flops, row.stored, row.loops)):
        check_inside(row, program_plan(row, measured=True))


@rows(ROWS)
def test_values_of_the_interpreter(row: Row) -> None:
    row.compare([t.interp() for t in row.built()])


@pytest.mark.opencl
@rows(ROWS, slow=BUILT_LONG)
def test_values_of_what_is_realized(row: Row, batch_of: Callable[[Row], Batch]) -> None:
    batch_of(row).check_realized(row)


# The states of a program start as zeros, not as the values of the row.
@pytest.mark.opencl
@rows([row for row in PROGRAMS if not row.assigned])
def test_values_of_a_program(row: Row, batch_of: Callable[[Row], Batch]) -> None:
    batch_of(row).check_program(row)


def test_names_differ() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)


# --- operations ---------------------------------------------------------------------------------


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
