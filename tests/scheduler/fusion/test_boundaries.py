"""Where a program is cut: what is stored, computed again, or not computed; what shares a launch."""

from __future__ import annotations

import pickle
import time

import numpy as np
import pytest

from scheduler.passes.split_reduce import THRESHOLD
from scheduler.tensor.tensor import Tensor
from tests.scheduler.support.programs import Made, floats, program_of, same, values_of, x


@pytest.mark.opencl
def test_outputs_states_and_what_the_user_asks_for_are_stored() -> None:
    a, state = x(6, 6), Tensor.state("s", (6, 6))
    inner = a + 1.0
    pinned = (inner * 2.0).contiguous()
    push = state.assign(pinned.flip(0))
    made = program_of(inner, pinned.sum(0), writes=[push])
    assert ("float32", (6, 6)) in made.stored
    v = floats(6, 6)
    with made.load() as program:
        got = program.run({"x": v})
        same(got["y0"], v + 1)
        same(got["y1"], (v * 2 + 2).sum(0))
        same(program.state("s"), np.flip(v * 2 + 2, 0))


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
def test_a_kernel_has_a_largest_size() -> None:
    y = x(32)
    want = floats(32)
    for i in range(1300):
        y = (y + float(i % 5)) * 0.5
        want = (want + np.float32(i % 5)) * np.float32(0.5)
    made = program_of(y)
    assert 3 <= made.launches <= 8
    longest = max(made.source.split("__kernel"), key=len)
    assert longest.count("\n") < 2000
    same(values_of(made, x=floats(32))[0], want)


def test_what_nobody_reads_is_not_computed() -> None:
    a = x(8, 8)
    used, unused = a.exp(), a.cos().sum(1)
    joined = Tensor.cat([used.sum(1), unused])
    assert "cos(" not in program_of(joined[:8]).source
    assert "cos(" in program_of(joined[7:]).source


def test_states_are_written_though_no_output_needs_them() -> None:
    state = Tensor.state("s", (4,))
    made = program_of(x(4) + 1.0, writes=[state.assign(x(4, name="b").exp())])
    assert "exp(" in made.source


def test_an_input_that_is_an_output_is_copied_and_not_computed() -> None:
    made = program_of(x(4, 6))
    assert (len(made.plan.kernels), len(made.plan.copies)) == (0, 1)


# --- what shares a launch ------------------------------------------------------------------------


def test_large_kernels_run_one_after_the_other() -> None:
    parts = [Tensor.input(f"a{i}", (512, 512)) for i in range(3)]
    assert program_of(*(p.exp().tanh() for p in parts)).launches == 3


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
