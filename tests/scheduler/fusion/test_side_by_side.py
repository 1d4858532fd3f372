"""Several results in one launch, and when they stay apart."""

from __future__ import annotations

import numpy as np
import pytest

from scheduler.ir import dtype as dt
from scheduler.tensor.tensor import Tensor
from tests.scheduler.support.programs import floats, program_of, same, values_of, x


@pytest.mark.opencl
def test_results_that_need_each_other_through_a_third_stay_apart() -> None:
    """a feeds the product, the product feeds c: a and c share a's input and cannot be one."""
    a = (x(8, 8) * 2.0).contiguous()
    b = (a @ x(8, 8, name="w")).contiguous()
    made = program_of(a, b, b.T + a)
    assert made.launches >= 2
    v, w = floats(8, 8), floats(8, 8, seed=1)
    got = values_of(made, x=v, w=w)
    for found, want in zip(got, (v * 2, v * 2 @ w, (v * 2 @ w).T + v * 2), strict=True):
        same(found, want)


@pytest.mark.opencl
def test_small_independent_kernels_are_one_launch() -> None:
    """Of different shapes, types and kinds: nothing is shared but the launch."""
    parts = [Tensor.input(f"a{i}", (i + 3, 5)) for i in range(6)]
    outputs = [p.exp() if i % 2 else p.sum(0) * 2.0 for i, p in enumerate(parts)]
    outputs.append(Tensor.input("k", (7,), dt.int32) + 1)
    made = program_of(*outputs)
    assert made.launches == 1
    given = {f"a{i}": floats(i + 3, 5, seed=i) for i in range(6)}
    found = values_of(made, **given, k=np.arange(7, dtype=np.int32))
    for i in range(6):
        v = given[f"a{i}"]
        same(found[i], np.exp(v) if i % 2 else v.sum(0) * 2)
    same(found[6], np.arange(7, dtype=np.int32) + 1)


def test_large_kernels_run_one_after_the_other() -> None:
    parts = [Tensor.input(f"a{i}", (512, 512)) for i in range(3)]
    assert program_of(*(p.exp().tanh() for p in parts)).launches == 3


def test_fusion_does_not_raise_the_peak() -> None:
    """All six wide values read one input: in one kernel they would all be alive at once."""
    source = x(64, 64)
    wide = [(source * float(i + 2)).contiguous() for i in range(6)]
    made = program_of(*(w.flip(0).contiguous().sum(1) for w in wide))
    assert made.table.totals.arena_peak <= 2 * 64 * 64 * 4
