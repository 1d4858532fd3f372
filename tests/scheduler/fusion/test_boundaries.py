"""Where a program is cut: nothing is stored by itself, a long reduction has two stages."""

from __future__ import annotations

import pickle
import time

import pytest

from scheduler.passes.split_reduce import THRESHOLD
from tests.scheduler.support.programs import Made, floats, program_of, same, values_of, x


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
