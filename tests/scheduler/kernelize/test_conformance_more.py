"""Launches per program for neighbours of the tables' rows: the class is solved, not the rows.

The programs are in conformance_more_reduce, _outputs, _networks and _moves.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.scheduler.kernelize.conformance import (
    Row,
    check_limit,
    check_program,
    check_realized,
    plan_of,
    program_of,
)
from tests.scheduler.kernelize.conformance_more_moves import GATHERS, JOINS, WRITES
from tests.scheduler.kernelize.conformance_more_networks import CONV, PRODUCTS
from tests.scheduler.kernelize.conformance_more_outputs import SEVERAL
from tests.scheduler.kernelize.conformance_more_reduce import ALONE, OF_ROWS

ROWS = [*ALONE, *OF_ROWS, *SEVERAL, *CONV, *PRODUCTS, *JOINS, *GATHERS, *WRITES]

# Programs that take more than what is within reach, and why; each ends when it is solved.
_OPEN = {
    "pad-sum-pad-max": "each padded sum is read once, but a place with a remainder in it is stored",
    "sum-under-two-views": "two outputs hold separate parts of one sum: it is stored, then cut",
    "join-beside-parts": "an output that is a part of a join too is stored, then copied",
    "assign-and-read": "elements of an assigned value are not computed again",
    "running-statistics": "epilogues that are assigned leave the loop nest",
}
_REALIZED_OPEN = {**_OPEN, "value-and-its-views": "a part of a result is copied, not a view of it"}
_PROGRAM_OPEN = {**_OPEN, "group-norm": "a reshape of the result hides that rows are whole groups"}


def _marked(open_: dict[str, str]) -> list[Any]:
    assert set(open_) <= {r.name for r in ROWS}
    return [
        pytest.param(
            row,
            id=row.name,
            marks=pytest.mark.xfail(strict=True, raises=AssertionError, reason=open_[row.name])
            if row.name in open_
            else (),
        )
        for row in ROWS
    ]


@pytest.mark.parametrize("row", _marked(_REALIZED_OPEN))
def test_launches(row: Row) -> None:
    plan = plan_of(row)
    check_limit(row, plan, len(plan.launches), "launches")


@pytest.mark.parametrize("row", _marked(_PROGRAM_OPEN))
def test_kernels_of_a_program(row: Row) -> None:
    plan = program_of(row, measured=True)
    check_limit(row, plan, len(plan.kernels), "kernels", row.owned)


@pytest.mark.opencl
@pytest.mark.parametrize("row", ROWS, ids=[r.name for r in ROWS])
def test_values(row: Row) -> None:
    check_realized(row)
    if not row.assigned:
        check_program(row, program_of(row, measured=False))


def test_names_differ() -> None:
    names = [row.name for row in ROWS]
    assert len(names) == len(set(names))
