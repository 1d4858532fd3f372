"""Every row of the table: launches, bytes moved, bytes stored between launches, and values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache

import pytest

from tests.scheduler.fusion.batch import Batch
from tests.scheduler.fusion.row import Row, check_bar, program_plan, realized_plan
from tests.scheduler.fusion.table import ROWS, THEMES

PROGRAMS = [row for row in ROWS if not row.eager]


def rows(chosen: list[Row]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("row", chosen, ids=[row.name for row in chosen])


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


@rows(ROWS)
def test_values_of_the_interpreter(row: Row) -> None:
    row.compare([t.interp() for t in row.built()])


@pytest.mark.opencl
@rows(ROWS)
def test_values_of_what_is_realized(row: Row, batch_of: Callable[[Row], Batch]) -> None:
    batch_of(row).check_realized(row)


# The states of a program start as zeros, not as the values of the row.
@pytest.mark.opencl
@rows([row for row in PROGRAMS if not row.assigned])
def test_values_of_a_program(row: Row, batch_of: Callable[[Row], Batch]) -> None:
    batch_of(row).check_program(row)


@rows([row for row in ROWS if row.open])
def test_what_is_said_to_be_open_is_open(row: Row) -> None:
    assert row.open is not None
    reach, reason = row.open
    most = max(row.figures(program=program).launches for program in (False, True))
    assert most > reach, f"{row.name} is solved: it no longer holds that {reason}"


def test_names_differ() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)
