"""Every row of the table: launches, bytes moved, bytes stored between launches, and values."""

from __future__ import annotations

import pytest

from tests.scheduler.fusion.row import (
    Row,
    by_interpreter,
    check_bar,
    check_program,
    check_realized,
    program_plan,
    realized_plan,
)
from tests.scheduler.fusion.table import ROWS

PROGRAMS = [row for row in ROWS if not row.eager]
OPEN = [row for row in ROWS if row.open]


def rows(chosen: list[Row]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("row", chosen, ids=[row.name for row in chosen])


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


@rows([row for row in ROWS if row.expected is not by_interpreter])
def test_values_of_the_interpreter(row: Row) -> None:
    row.compare(row.interpreted())


@pytest.mark.opencl
@rows(ROWS)
def test_values_of_what_is_realized(row: Row) -> None:
    check_realized(row)


@pytest.mark.opencl
@rows([row for row in PROGRAMS if not row.assigned])
def test_values_of_a_program(row: Row) -> None:
    check_program(row, program_plan(row, measured=False))


@rows(OPEN)
def test_what_is_said_to_be_open_is_open(row: Row) -> None:
    assert row.open is not None
    reach, reason = row.open
    most = max(row.bar[0], (row.owned or row.bar)[0])
    assert most > reach, f"{row.name} is solved: it no longer holds that {reason}"


def test_names_differ() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)
