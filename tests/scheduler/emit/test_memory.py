"""Memory of a program: reuse, inputs and outputs, weights."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.tensor.tensor import Tensor
from tests.fuzz.graphs import programs
from tests.fuzz.program import Program
from tests.scheduler.support.memory_check import memory_faults
from tests.scheduler.support.programs import (
    floats,
    make_program,
    program_of,
    same,
    x,
)


@pytest.mark.opencl
def test_inputs_are_taken_anew_at_every_run_and_outputs_stay_apart() -> None:
    a = x(4, 4)
    made = make_program({"same": a, "again": a, "more": a + 1.0})
    with made.load() as program:
        kept = []
        for turn in range(2):
            v = floats(4, 4, seed=turn)
            got = program.run({"x": v})
            kept.append({n: value.copy() for n, value in got.items()})
        for turn, found in enumerate(kept):
            v = floats(4, 4, seed=turn)
            same(found["same"], v)
            same(found["again"], v)
            same(found["more"], v + 1)


def test_a_weight_that_is_needed_twice_is_carried_once() -> None:
    w = floats(64, 64)
    one = program_of(x(64) + Tensor.weight(w)[0], x(64, name="b") * Tensor.weight(w)[1])
    two = program_of(x(64) + Tensor.weight(w)[0], x(64, name="b") * Tensor.weight(w.copy())[1])
    assert len(one.data) == len(two.data) <= w.nbytes + 1024


def test_reuse_in_place_and_over_time_is_reported_before_and_after() -> None:
    y = (x(32, 8) @ x(8, 32, name="w")).contiguous()
    for i in range(6):
        y = (y * float(i + 2)).contiguous()
    totals = program_of(y.flip(0)).table.totals
    assert totals.arena_peak == totals.arena_live == 32 * 32 * 4
    assert totals.arena_unplanned == 7 * 32 * 32 * 4


@settings(max_examples=150)
@given(programs(12), st.integers(2, 4))
def test_no_two_live_values_share_a_byte(program: Program, every: int) -> None:
    """Launches are run on bytes that know their value; with more boundaries there is more reuse."""
    outputs = {
        n: t.contiguous().flip(0).contiguous() if t.ndim and i % every else t
        for i, (n, t) in enumerate(program.outputs.items())
    }
    made = make_program(outputs, list(program.writes.values()))
    assert memory_faults(made.manifest) == []
    totals = made.table.totals
    assert totals.arena_live <= totals.arena_peak <= totals.arena_unplanned
