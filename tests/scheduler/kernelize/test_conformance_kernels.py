"""Compute kernels per program: at most what the best of the peers' versions ever reached.

The programs are in conformance_elementwise, conformance_reduce and conformance_outputs.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from scheduler.emit.artifact import emit
from scheduler.ir import dtype as dt
from scheduler.ir.ops import ELEMENTWISE, Op
from scheduler.kernelize.scalar import scalar_nodes
from scheduler.pipeline import Schedule
from tests.scheduler.kernelize.conformance import (
    Row,
    check_coverage,
    check_limit,
    check_program,
    check_realized,
    plan_of,
    program_of,
)
from tests.scheduler.kernelize.conformance_elementwise import ELEMENTWISE as ELEMENTWISE_ROWS
from tests.scheduler.kernelize.conformance_outputs import OUTPUTS
from tests.scheduler.kernelize.conformance_reduce import REDUCE
from tests.scheduler.kernelize.conformance_training import TRAINING

ROWS = [*ELEMENTWISE_ROWS, *REDUCE, *OUTPUTS, *TRAINING]
TABLE = [f"t{n:02d}" for n in range(2, 210, 2)]

# Rows about a mechanism, not about a program: its own tests have them.
ELSEWHERE = {
    "t172": "test_kernelize_contract",
    "t174": "test_kernelize_contract",
    "t176": "test_custom_kernels",
    "t190": "test_custom_kernels",
    "t192": "test_custom_kernels",
    "t196": "test_kernelize_contract",
    "t200": "test_kernelize_contract",
    "t208": "test_tensor_assign",
}


@pytest.mark.opencl
@pytest.mark.parametrize("row", ROWS, ids=[r.name for r in ROWS])
def test_kernels(row: Row) -> None:
    plan = plan_of(row)
    check_limit(row, plan, len(plan.launches), "launches")
    check_realized(row)


@pytest.mark.opencl
@pytest.mark.parametrize("row", ROWS, ids=[r.name for r in ROWS])
def test_kernels_of_a_program(row: Row) -> None:
    plan = program_of(row, measured=True)
    check_limit(row, plan, len(plan.kernels), "kernels", row.owned)
    if not row.assigned:
        check_program(row, plan)


def test_every_row_of_the_table_is_here() -> None:
    check_coverage(ROWS, ELSEWHERE, TABLE)


def _plan(name: str) -> Schedule:
    return plan_of(next(r for r in ROWS if r.name == name))


def operations(plan: Schedule) -> list[Op]:
    """Return the arithmetic per element of a program that is one elementwise kernel."""
    (kernel,) = plan.kernels
    nodes = scalar_nodes(kernel.bodies[0].value)
    return [n.op for n in nodes if n.op in ELEMENTWISE and n.dtype is dt.float32]


POWERS: dict[str, list[Op]] = {
    "t64-exp2": [Op.POW],
    "t64-square": [Op.MUL],
    "t64-eighth": [Op.MUL] * 3,
}
# A root is no power of -0.0 and of minus infinity: alone it is what `FLOAT_UNSAFE` asks for.
ROOTS: dict[str, list[Op]] = {"t64-sqrt": [Op.SQRT], "t64-rsqrt": [Op.SQRT, Op.RECIP]}


@pytest.mark.parametrize("name", POWERS)
def test_powers_are_the_fewest_operations(name: str) -> None:
    assert operations(_plan(name)) == POWERS[name]


@pytest.mark.parametrize("name", ROOTS)
def test_powers_that_are_roots_are_the_fewest_operations(name: str) -> None:
    assert operations(_plan(name)) == ROOTS[name]
    safe = replace(next(r for r in ROWS if r.name == name), float_unsafe=False)
    assert set(operations(plan_of(safe))) == {Op.ADD, Op.WHERE, *ROOTS[name]}


def test_t24_divides_four_elements_in_at_most_twelve_operations() -> None:
    assert 4 * len(operations(_plan("t24"))) <= 12


def test_t186_a_value_doubled_24_times_stays_small() -> None:
    plan = _plan("t186")
    made = emit({"run": plan}, name="t186", kind="plain")
    assert made.manifest["programs"]
    assert sum(k.text.count("\n") for k in plan.lowered) < 250
