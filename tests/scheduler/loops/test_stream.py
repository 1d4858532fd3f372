"""Kernels without reductions move cache lines, or all that a concat puts beside each other."""

from collections.abc import Callable

import pytest

from scheduler.context import CompileContext
from scheduler.device.spec import DEFAULT, SPECS
from scheduler.tensor.tensor import Tensor
from tests.scheduler.loops.jobs import check_apart, job_of
from tests.scheduler.support.programs import plan_of, x

ROWS = 60
STEPS: dict[str, tuple[Callable[[], Tensor], int]] = {
    "two cache lines": (lambda: x(ROWS, 128) * 2.0, 2),
    "no line is whole": (lambda: x(ROWS, 16, name="n").T * 2.0, 1),
    "all of a concat": (lambda: joined(48, 80), 8),
    "a concat of too many": (lambda: joined(48, 16 * DEFAULT.loops.step_vectors), 1),
    "rows of a concat": (lambda: Tensor.cat([x(20, 64), x(40, 64, name="z")]) * 2.0, 2),
}


def joined(first: int, second: int) -> Tensor:
    """Enough arithmetic that lanes pay."""
    found = Tensor.cat([x(ROWS, first), x(ROWS, second, name="z")], 1)
    for _ in range(8):
        found = (found * 0.5 + 1.0).relu()
    return found


def vectors(tensor: Tensor) -> int:
    """Return the vectors of results of a step."""
    loops = job_of(tensor).nest.schedule
    return next(t.unroll for t in loops.tiles if t.atom is loops.vector)


@pytest.mark.parametrize("name", STEPS)
def test_a_step_moves(name: str) -> None:
    build, count = STEPS[name]
    assert vectors(build()) == count


def test_what_a_step_stores_is_known_while_it_is_generated() -> None:
    (kernel,) = plan_of({"y": joined(48, 80)}, context=CompileContext(SPECS["cpu"])).lowered
    assert kernel.text.count("M_LOAD(") == 8  # not one of each source for each vector


@pytest.mark.opencl
def test_numbers_are_those_of_the_interpreter() -> None:
    contexts = [CompileContext(SPECS[row]) for row in ("cpu", "cpu-avx2", "cpu-neon")]
    check_apart((build(), context) for context in contexts for build, _ in STEPS.values())
