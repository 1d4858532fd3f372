"""Where a program is cut: what is stored, computed again, or not computed; what shares a launch."""

from __future__ import annotations

import pickle
import time
from math import erf, sin

import numpy as np
import pytest

from scheduler.ir import dtype as dt
from scheduler.tensor.tensor import Tensor
from tests.scheduler.support.programs import Array, Made, floats, program_of, same, values_of, x


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


def test_what_nobody_asks_for_is_not_stored() -> None:
    y = x(6, 6)
    for i in range(8):
        y = (y * 0.5 + float(i)).tanh().T
    assert program_of(y).stored == []


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


def flops(made: Made) -> int:
    return made.table.totals.flops


def all_same(got: list[Array], *want: Array, tolerance: float = 1e-5) -> None:
    for found, value in zip(got, want, strict=True):
        same(found, value, tolerance)


@pytest.mark.opencl
def test_a_reduction_is_never_recomputed() -> None:
    total = x(32, 64).sum(1, keepdim=True)
    made = program_of(total.broadcast_to((32, 48)) * x(32, 48, name="b"))
    assert flops(made) <= 32 * 64 + 32 * 48
    a, b = floats(32, 64), floats(32, 48, seed=1)
    same(values_of(made, x=a, b=b)[0], a.sum(1, keepdims=True) * b)


@pytest.mark.opencl
def test_an_expensive_value_is_stored_before_it_is_repeated() -> None:
    """A column of values, each needed in 4096 columns: computed 4096 times it costs far more."""
    row = x(1, 4096, name="b")
    made = program_of((x(512, 1).exp().tanh().erf().sin() + 0.0 * row).maximum(row))
    assert flops(made) < 512 * 4096 * 8
    a, b = floats(512, 1), floats(1, 4096, seed=1)
    once = np.array([[sin(erf(v))] for v in np.tanh(np.exp(a))[:, 0].tolist()], np.float32)
    same(values_of(made, x=a, b=b)[0], np.maximum(once + 0 * b, b))


@pytest.mark.opencl
def test_the_user_may_force_a_boundary() -> None:
    a = x(8, 1) + 1.0
    b = x(8, 8, name="b")
    assert program_of(a.contiguous() * b).stored == [("float32", (8, 1))]
    assert program_of(a * b).stored == []


@pytest.mark.opencl
def test_a_prologue_that_multiplies_the_work_is_stored() -> None:
    """The exponential of an image is computed once per pixel, not once per tap of a filter."""
    image = x(1, 16, 32, 32).exp().tanh().erf()
    made = program_of(image.conv2d(Tensor.weight(floats(16, 16, 3, 3)), padding=1))
    taps = 2 * 16 * 32 * 32 * 16 * 9
    assert flops(made) < taps + 16 * 32 * 32 * 100


@pytest.mark.opencl
def test_the_epilogue_is_stored_and_not_the_bare_reduction() -> None:
    """Two reductions over different axes need r; r is stored with its addition, once."""
    r = x(4, 4, 4).sum(0) + 6.0
    made = program_of(r.sum(0) * 4.0, r.sum(1) * 2.0)
    assert made.launches <= 3
    assert made.stored == [("float32", (4, 4))]
    assert flops(made) <= 4 * 4 * 4 + 4 * 4 + 2 * (4 * 4 + 4)
    a = floats(4, 4, 4).sum(0) + 6
    all_same(values_of(made, x=floats(4, 4, 4)), a.sum(0) * 4, a.sum(1) * 2)


@pytest.mark.opencl
def test_a_movement_that_drops_elements_is_stored_behind_it() -> None:
    """Of two values that could be stored, the one of fewer bytes is."""
    total = x(64, 64).sum(1, keepdim=True).broadcast_to((64, 64))
    made = program_of(total.sum(0) + 0.0, (total @ x(64, 4, name="w")))
    assert all(np.prod(shape) <= 64 for _, shape in made.stored)


@pytest.mark.opencl
def test_of_two_types_the_narrower_one_is_stored() -> None:
    """A widening conversion behind the stored value belongs to its readers."""
    narrow = x(64, 64, 8).sum(2).half()
    made = program_of(narrow.float().sum(0) * 2.0, narrow.float() @ x(64, 3, name="w"))
    assert made.stored == [("float16", (64, 64))]
    a, w = floats(64, 64, 8), floats(64, 3, seed=1)
    n = a.sum(2).astype(np.float16).astype(np.float32)
    all_same(values_of(made, x=a, w=w), n.sum(0) * 2, n @ w, tolerance=1e-2)


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


def test_a_producer_whose_values_are_all_cut_away_is_not_run() -> None:
    padded = (x(8, 8) @ x(8, 8, name="w")).exp().pad([(4, 0), (0, 0)], 2.0)
    made = program_of(padded[:4] * 3.0)
    assert made.table.totals.flops <= 4 * 8
    assert made.stored == []


def test_states_are_written_though_no_output_needs_them() -> None:
    state = Tensor.state("s", (4,))
    made = program_of(x(4) + 1.0, writes=[state.assign(x(4, name="b").exp())])
    assert "exp(" in made.source


def test_an_input_that_is_an_output_is_copied_and_not_computed() -> None:
    made = program_of(x(4, 6))
    assert (len(made.plan.kernels), len(made.plan.copies)) == (0, 1)


# --- what shares a launch ------------------------------------------------------------------------


@pytest.mark.opencl
def test_results_that_need_each_other_through_a_third_stay_apart() -> None:
    """a feeds the product, the product feeds c: a and c share a's input and cannot be one."""
    a = (x(8, 8) * 2.0).contiguous()
    b = (a @ x(8, 8, name="w")).contiguous()
    made = program_of(a, b, b.T + a)
    assert made.launches >= 2
    v, w = floats(8, 8), floats(8, 8, seed=1)
    all_same(values_of(made, x=v, w=w), v * 2, v * 2 @ w, (v * 2 @ w).T + v * 2)


@pytest.mark.opencl
def test_small_independent_kernels_are_one_launch() -> None:
    """Of different shapes, types and kinds: nothing is shared but the launch."""
    parts = [Tensor.input(f"a{i}", (i + 3, 5)) for i in range(6)]
    outputs = [p.exp() if i % 2 else p.sum(0) * 2.0 for i, p in enumerate(parts)]
    outputs.append(Tensor.input("k", (7,), dt.int32) + 1)
    made = program_of(*outputs)
    assert made.launches == 1
    given, k = [floats(i + 3, 5, seed=i) for i in range(6)], np.arange(7, dtype=np.int32)
    found = values_of(made, **{f"a{i}": v for i, v in enumerate(given)}, k=k)
    want = [np.exp(v) if i % 2 else v.sum(0) * 2 for i, v in enumerate(given)]
    all_same(found, *want, k + 1)


def test_large_kernels_run_one_after_the_other() -> None:
    parts = [Tensor.input(f"a{i}", (512, 512)) for i in range(3)]
    assert program_of(*(p.exp().tanh() for p in parts)).launches == 3


def test_fusion_does_not_raise_the_peak() -> None:
    """All six wide values read one input: in one kernel they would all be alive at once."""
    source = x(64, 64)
    wide = [(source * float(i + 2)).contiguous() for i in range(6)]
    made = program_of(*(w.flip(0).contiguous().sum(1) for w in wide))
    assert made.table.totals.arena_peak <= 2 * 64 * 64 * 4
