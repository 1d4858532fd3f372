"""Fusion of finished kernels: what becomes one, what must not, and that values stay right."""

from __future__ import annotations

import numpy as np
import pytest

from scheduler.device.limits import MAX_OPERATIONS
from scheduler.device.spec import DEFAULT
from scheduler.emit.schedule import Schedule
from scheduler.ir import dtype as dt
from scheduler.ir.index import leaves
from scheduler.ir.node import Node
from scheduler.ir.ops import Op
from scheduler.kernelize import combine
from scheduler.kernelize.fusion_graph import FusionGraph
from scheduler.kernelize.kernel import Kernel
from scheduler.kernelize.make_kernels import make_kernels
from scheduler.pipeline import schedule
from scheduler.tensor.tensor import Tensor, evaluate
from tests.scheduler.support.programs import load

LARGE = (1024, 512)  # work beyond a launch: such kernels do not go side by side


def x(*shape: int, name: str = "x", dtype: dt.DType = dt.float32) -> Tensor:
    return Tensor.input(name, shape, dtype)


def plan(*outputs: Tensor, writes: tuple[Tensor, ...] = ()) -> Schedule:
    return schedule({f"o{i}": t.node for i, t in enumerate(outputs)}, [w.node for w in writes])


def stores(kernel: Kernel) -> list[int]:
    """Return the number of stores of each loop nest."""
    return [len(body.stores) for body in kernel.bodies]


def test_results_of_one_reduction_are_one_loop_nest_that_reduces_once() -> None:
    total = x(64, 64).sum()
    (kernel,) = plan(total + 2.0, total * 3.0).launches
    assert stores(kernel) == [2]
    assert kernel.reductions == 1


def test_a_value_that_only_the_pair_reads_is_not_stored_any_more() -> None:
    a = x(*LARGE)
    rows = a.sum(1, keepdim=True).contiguous().sum(0)  # a boundary: this one stays
    shared = a.sum(1)
    both = plan(shared.exp(), shared.tanh())
    (kernel,) = both.launches
    assert [t.op for t in kernel.targets] == [Op.EXP, Op.TANH]
    assert len(plan(rows).launches) == 2


def test_a_row_and_its_sum_are_one_kernel_that_stores_the_sum_once_per_row() -> None:
    a = x(*LARGE)
    (kernel,) = plan(a.sum(1), a.cos()).launches
    (body,) = kernel.bodies
    assert len(body.ranges) == 2
    loops = [{a for ix in s.index for a in leaves(ix)} for s in body.stores]
    assert sorted(map(len, loops)) == [1, 2]
    assert kernel.bytes_moved == 4 * (1024 * 512 * 2 + 1024)


def test_a_transposed_reader_is_aligned_by_the_element_it_reads() -> None:
    a = x(*LARGE)
    b = (a + 1.0).contiguous()
    kernels = plan(b, b.T * 2.0).launches
    assert len(kernels) == 2, "across a boundary the value is loaded"
    c = a.exp()
    (kernel,) = plan(c, c.T * 2.0).launches
    assert stores(kernel) == [2]


def test_readers_of_one_input_are_one_nest() -> None:
    a, b = x(*LARGE), x(*LARGE, name="b")
    (kernel,) = plan(a + b, a * 2.0 - b).launches
    assert stores(kernel) == [2]
    assert kernel.bytes_moved == 4 * 4 * 1024 * 512


def test_kernels_that_share_nothing_stay_apart_unless_they_are_small() -> None:
    large = plan(x(*LARGE).exp(), x(*LARGE, name="b").exp()).launches
    small = plan(x(4, 4).exp(), x(7, name="b").exp()).launches
    assert [stores(k) for k in large] == [[1], [1]]
    assert [stores(k) for k in small] == [[1, 1]]


def test_small_heads_run_side_by_side() -> None:
    h = x(1, 64)
    heads = [h @ Tensor.input(f"w{i}", (64, 8 * (i + 1))) for i in range(4)]
    (kernel,) = plan(*heads).launches
    assert len(kernel.bodies) == 4


def test_a_launch_has_a_bounded_number_of_loop_nests() -> None:
    values = [x(i + 8, name=f"x{i}").exp() for i in range(40)]
    counts = [len(k.bodies) for k in plan(*values).launches]
    assert sum(counts) == 40
    assert max(counts) <= combine.MAX_BODIES
    assert len(counts) <= 5


def test_no_kernel_gets_more_buffers_than_the_limit() -> None:
    values = [x(8, name=f"x{i}") + x(8, name=f"y{i}") for i in range(60)]
    for kernel in plan(*values).launches:
        assert len(kernel.reads) + len(kernel.targets) <= 64


def test_a_third_kernel_between_two_keeps_them_apart() -> None:
    a = x(64, 64)
    first = a.exp()
    middle = first.flip(0).contiguous()  # needs all of the first
    last = first + middle
    kernels = plan(first, last).launches
    at = {t: i for i, k in enumerate(kernels) for t in k.targets}
    assert len(kernels) == 3
    assert at[first.node] < at[middle.node] < at[last.node]


def test_the_reader_of_an_old_state_is_not_fused_with_its_writer() -> None:
    state = Tensor.state("s", (64,))
    old = state.flip(0) * 2.0
    push = state.assign(x(64) + 1.0)
    made = plan(old, writes=(push,))
    assert len(made.launches) == 2
    assert state.node in made.launches[0].reads


def test_two_contractions_keep_their_register_tiles() -> None:
    a, v, w = x(256, 256), x(256, 256, name="v"), x(256, 256, name="w")
    assert [stores(k) for k in plan(a @ v, a @ w).launches] == [[1], [1]]


def test_an_elementwise_reader_of_a_stored_contraction_becomes_its_epilogue() -> None:
    a, v = x(256, 256), x(256, 256, name="v")
    y = a @ v
    (kernel,) = plan(y, y.relu()).launches
    assert stores(kernel) == [2]


def test_a_join_of_contractions_is_one_launch_without_a_copy() -> None:
    a = x(1, 512)
    parts = [a @ Tensor.input(f"w{i}", (512, n)) for i, n in enumerate((300, 7, 64))]
    made = plan(Tensor.cat(parts, axis=1))
    (kernel,) = made.launches
    assert len(kernel.bodies) == 3
    assert len(kernel.targets) == 1
    assert made.copies == []
    weights = 512 * (300 + 7 + 64)
    assert kernel.bytes_moved == 4 * (512 + weights + 371)


def test_a_pair_that_would_raise_the_peak_stays_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first result is consumed before the second is made; together both would be alive."""
    a = x(*LARGE)
    values = [a.exp().contiguous(), a.tanh().contiguous()]
    outputs = [v.flip(0).sum(1) for v in values]
    guarded = plan(*outputs)
    monkeypatch.setattr(FusionGraph, "peak", lambda _: 0)
    careless = plan(*outputs)
    assert len(guarded.launches) == 4
    assert len(careless.launches) == 3
    assert guarded.peak_bytes == careless.peak_bytes // 2


def test_fusion_is_deterministic() -> None:
    def build() -> list[tuple[str, ...]]:
        a, b = x(32, 32), x(32, 32, name="b")
        outputs = [a + b, (a * b).sum(1), a.exp(), b.max(0), (a - b).T]
        return [tuple(repr(t) for t in k.targets) for k in plan(*outputs).launches]

    assert build() == build()


def test_what_is_fused_is_not_larger_than_the_operations_limit() -> None:
    a = x(16)
    chains = []
    for i in range(6):
        value = a + float(i)
        for j in range(200):
            value = (value * 1.01 + float(j)).sin() if j % 2 else value + 0.5
        chains.append(value)
    kernels = plan(*chains).launches
    assert 1 < len(kernels) <= 6
    assert all(k.operations <= MAX_OPERATIONS for k in kernels)


@pytest.mark.opencl
def test_values_of_fused_programs() -> None:
    rng = np.random.default_rng(3)
    a, b, w = x(24, 40), x(40, name="b"), x(40, 5, name="w")
    state = Tensor.state("s", (24, 40))
    total = a.sum(1, keepdim=True)
    outputs = {
        "rows": a.sum(1),
        "cosines": a.cos(),
        "shares": a / (total + 100.0),
        "transposed": a.T * 2.0,
        "largest": a.max(),
        "twice": a.max() * 2.0,
        "join": Tensor.cat([a @ w, (a * b).sum(1, keepdim=True), a[:, :2]], axis=1),
        "old": state.sum(0),
    }
    given = {
        "x": rng.standard_normal((24, 40)).astype(np.float32),
        "b": rng.standard_normal(40).astype(np.float32),
        "w": rng.standard_normal((40, 5)).astype(np.float32),
    }
    push = state.assign(a + state)
    expected = evaluate([*outputs.values(), push], given)
    with load(outputs, [push]) as program:
        got = program.run(given)
        for (name, value), want in zip(got.items(), expected, strict=False):
            np.testing.assert_allclose(value, want, rtol=1e-5, atol=1e-5, err_msg=name)
        np.testing.assert_allclose(program.state("s"), expected[-1], rtol=1e-6)


@pytest.mark.opencl
@pytest.mark.parametrize("size", [1, 5, 16, 33, 64])
def test_states_that_read_each_other_are_one_nest_and_right_over_frames(size: int) -> None:
    a, b = Tensor.state("a", (size,)), Tensor.state("b", (size,))
    given = x(size)
    writes = [a.assign(b * 2.0 + given), b.assign(a * 3.0 - given)]
    outputs = {"sum": a + b}
    (kernel,) = plan(*outputs.values(), writes=(writes[0], writes[1])).launches
    assert stores(kernel) == [3]
    held = np.zeros((2, size), np.float32)
    rng = np.random.default_rng(size)
    with load(outputs, writes) as program:
        for _ in range(3):
            value = rng.integers(-4, 5, size).astype(np.float32)
            got = program.run({"x": value})["sum"]
            assert np.array_equal(got, held[0] + held[1])
            held = np.stack([held[1] * 2 + value, held[0] * 3 - value])
            assert np.array_equal(program.state("a"), held[0])
            assert np.array_equal(program.state("b"), held[1])


@pytest.mark.opencl
@pytest.mark.parametrize("columns", [4, 24, 40])
def test_a_stored_value_and_the_sums_of_its_rows_are_one_nest(columns: int) -> None:
    a, b = x(32, columns), x(32, columns, name="b")
    product = a * b
    outputs = {"p": product, "s": product.sum(1), "m": (product + 1.0).max(1)}
    (kernel,) = plan(*outputs.values()).launches
    assert len(kernel.bodies) == 1
    rng = np.random.default_rng(2)
    given = {n: rng.standard_normal((32, columns)).astype(np.float32) for n in ("x", "b")}
    want = given["x"] * given["b"]
    with load(outputs) as program:
        got = program.run(given)
        np.testing.assert_allclose(got["p"], want, rtol=1e-6)
        np.testing.assert_allclose(got["s"], want.sum(1), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(got["m"], want.max(1) + 1, rtol=1e-6)


def test_an_expensive_value_is_not_computed_again() -> None:
    value = (x(64, 64).exp() + 1.0).tanh().sin()
    counts = [stores(k) for k in plan(value, value.sum(1)).launches]
    assert counts == [[1], [1]]


def test_kernels_read_only_what_was_written_before() -> None:
    a = x(16, 16)
    outputs = [a.sum(i % 2) + a.exp().sum() for i in range(4)]
    written: set[Node] = set()
    for kernel in make_kernels([t.node for t in outputs], DEFAULT):
        assert {r for r in kernel.reads if r.op is not Op.BUFFER} <= written
        written.update(kernel.targets)
