"""Arithmetic of rows that are one elementwise kernel: the fewest operations per element."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scheduler.ir import dtype as dt
from scheduler.ir.ops import ELEMENTWISE, Op
from scheduler.kernelize.scalar import scalar_nodes
from tests.scheduler.fusion.row import Row, realized_plan
from tests.scheduler.fusion.table import ROWS
from tests.scheduler.support.programs import artifact_of

BY_NAME = {row.name: row for row in ROWS}


def operations(row: Row) -> list[Op]:
    (kernel,) = realized_plan(row)[0].kernels
    nodes = scalar_nodes(kernel.bodies[0].value)
    return [n.op for n in nodes if n.op in ELEMENTWISE and n.dtype is dt.float32]


POWERS: dict[str, list[Op]] = {
    "power-of-two": [Op.POW],
    "power-two": [Op.MUL],
    "power-eight": [Op.MUL] * 3,
}
# A root is no power of -0.0 and of minus infinity: alone it is what `FLOAT_UNSAFE` asks for.
ROOTS: dict[str, list[Op]] = {
    "power-half": [Op.SQRT],
    "power-minus-half": [Op.SQRT, Op.RECIP],
}


@pytest.mark.parametrize("name", POWERS)
def test_powers_are_the_fewest_operations(name: str) -> None:
    assert operations(BY_NAME[name]) == POWERS[name]


@pytest.mark.parametrize("name", ROOTS)
def test_powers_that_are_roots_are_the_fewest_operations(name: str) -> None:
    assert operations(BY_NAME[name]) == ROOTS[name]
    safe = replace(BY_NAME[name], float_unsafe=False)
    assert set(operations(safe)) == {Op.ADD, Op.WHERE, *ROOTS[name]}


def test_two_divisions_of_four_elements_take_at_most_twelve_operations() -> None:
    assert 4 * len(operations(BY_NAME["divided-twice"])) <= 12


def test_a_value_doubled_24_times_stays_small() -> None:
    plan, _ = realized_plan(BY_NAME["doubled-24-times"])
    made = artifact_of(plan)
    assert made.manifest["programs"]
    assert sum(k.text.count("\n") for k in plan.lowered) < 250
