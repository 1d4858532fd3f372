"""The eager contract of Tensor: schedule, kernelize, realize, and what becomes of handles."""

import gc
import os
import subprocess
import sys

import numpy as np
import pytest

from scheduler import Tensor
from scheduler.errors import ModelError
from scheduler.ir.node import Node, toposort
from scheduler.ir.ops import Op
from scheduler.tensor.eager import base_of
from tests.scheduler.support.programs import floats, same

pytestmark = pytest.mark.opencl


def f(*shape: int, seed: int = 0) -> Tensor:
    return Tensor(floats(*shape, seed=seed))


def counts(*tensors: Tensor) -> tuple[int, int]:
    plan = tensors[0].schedule(*tensors[1:])
    assert len(plan.kernels) + len(plan.copies) == len(plan.launches)
    return len(plan.kernels), len(plan.copies)


def base(tensor: Tensor) -> Node:
    return base_of(tensor.node)


def test_kernelize_pins_a_boundary_and_runs_nothing() -> None:
    a, b, c = (Tensor(np.array([n], np.int32)) for n in (1, 2, 3))
    product = a * b
    total = product + c
    later = total * 10
    assert [t.node.op for t in (a, product, total)] == [Op.BUFFER, Op.MUL, Op.ADD]
    assert total.kernelize() is total
    assert product.node.op is Op.MUL  # it was fused, so nothing became of it
    assert total.node.op is Op.ASSIGN
    pending, value = total.node.src
    assert (pending.op, pending.arg.data, value.op) == (Op.BUFFER, None, Op.ADD)
    assert total.node in later.node.src
    (kernel,) = total.schedule().kernels
    assert len(kernel.reads) == 3  # with its output the four arguments
    pinned = total.node
    total.kernelize()
    assert total.node is pinned
    child = (total + 2).kernelize()
    assert child.node.op is Op.ASSIGN
    assert child.node.src[1].src[0] is pinned
    assert len(child.schedule().kernels) == 2  # the pinned one, and one that loads it
    total.realize()
    assert total.node is pending
    assert pending.arg.data.tolist() == [5]
    (kernel,) = child.schedule().kernels
    assert len(kernel.reads) == 1
    assert (total.item(), child.item(), later.item()) == (5, 7, 50)


def test_kernelize_is_repeatable_and_incremental() -> None:
    x = f(64, 64)
    inner = (x @ x).relu()
    outer = (inner @ x) + 1.0
    inner.kernelize()
    pinned = inner.node
    outer.kernelize()
    assert inner.node is pinned
    roots = inner.node, outer.node
    outer.kernelize(inner)
    assert (inner.node, outer.node) == roots
    assert counts(outer) == (2, 0)


def test_views_of_a_sum_share_its_new_base() -> None:
    x = floats(8, 8, 8)
    total = Tensor(x).sum(2)
    first, second = total.reshape(64), total.T
    total.kernelize()
    assert base(total).op is Op.ASSIGN
    assert base(first) is base(second) is base(total)
    first.realize()
    assert base(second).op is Op.BUFFER
    assert counts(second) == (0, 0)
    same(first.numpy().reshape(8, 8), x.sum(2))
    same(second.numpy(), x.sum(2).T)


def test_a_chain_of_sums_is_one_kernel_here_and_two_if_the_inner_is_pinned() -> None:
    x = floats(8, 8)
    inner = Tensor(x).sum(1)
    outer = inner.sum(0)
    outer.kernelize()
    assert base(outer).op is Op.ASSIGN
    assert base(inner).op is Op.REDUCE  # one kernel computes both sums: see ADR 0032
    again = Tensor(x).sum(1)
    last = again.sum(0)
    again.kernelize()
    last.kernelize()
    assert base(again).op is base(last).op is Op.ASSIGN
    assert counts(last) == (2, 0)
    between = Tensor(x).sum(1)
    more = between + 1.0
    end = more.sum(0)
    more.kernelize()
    end.kernelize()
    assert base(between).op is Op.REDUCE  # what is fused between two sums keeps its nodes
    assert base(more).op is base(end).op is Op.ASSIGN
    last.realize(outer, end)
    for found, want in ((last, x.sum()), (outer, x.sum()), (end, (x.sum(1) + 1).sum())):
        np.testing.assert_allclose(found.numpy(), want, rtol=1e-5)


def test_a_boundary_the_compiler_chooses_is_pinned_too() -> None:
    x = floats(64, 64, 64)
    inner = Tensor(x).sum(2)
    outer = (inner + inner.sum(1, keepdim=True)).sum(0)
    before = counts(outer)
    outer.kernelize()
    assert base(inner).op is Op.ASSIGN
    assert counts(outer) == before
    np.testing.assert_allclose(
        outer.numpy(), (x.sum(2) + x.sum((1, 2))[:, None]).sum(0), rtol=1e-4, atol=1e-3
    )


def test_a_clone_is_a_copy_and_no_kernel() -> None:
    made = f(4).clone()
    assert counts(made) == (0, 1)
    np.testing.assert_array_equal(made.numpy(), floats(4))


def test_an_equal_sum_is_loaded_as_long_as_its_buffer_lives() -> None:
    a, b = f(4), f(4, seed=2)
    c = (a + b).realize()
    deeper = (a + b) * 2.0
    (kernel,) = deeper.schedule().kernels
    assert len(kernel.reads) == 1, "the sum is loaded"
    del c, kernel
    gc.collect()
    (kernel,) = deeper.schedule().kernels
    assert len(kernel.reads) == 2


def test_equal_outputs_are_computed_once_and_stay_two_tensors() -> None:
    a = f(4)
    x, y = a + 1.0, a + 1.0
    assert counts(x, y) == (1, 0)
    x.realize(y)
    x.assign(x * 2.0)
    same(y.numpy(), floats(4) + 1, 1e-6)
    same(x.numpy(), (floats(4) + 1) * 2, 1e-6)
    same((a + 1.0).numpy(), floats(4) + 1, 1e-6)


def test_a_view_is_put_on_a_flat_base() -> None:
    made = (f(4, 4) + 1.0).reshape(8, 2)
    spread = (f(4, 1) * 2.0).expand(4, 4)
    whole = spread.contiguous()
    made.realize(spread, whole)
    assert made.shape == (8, 2)
    assert [base(t).shape for t in (made, spread, whole)] == [(4, 4), (4, 1), (4, 4)]
    np.testing.assert_allclose(spread.numpy(), whole.numpy())


def test_other_tensors_read_what_was_computed() -> None:
    """Every handle follows what became of its value."""
    a, b = f(16, 16), f(16, 16, seed=1)
    product = a @ b
    shared = product.relu()
    child, view, other = shared.sum(0), shared.T[2:5], a + b
    shared.realize()
    assert base(view) is shared.node
    assert shared.node.arg.is_realized
    for handle, follows in ((shared, True), (view, True), (child, True), (other, False)):
        assert (shared.node in toposort([handle.node])) is follows
    assert shared.schedule().launches == []
    (kernel,) = child.schedule().kernels
    assert [read.shape for read in kernel.reads] == [(16, 16)]
    want = np.maximum(floats(16, 16) @ floats(16, 16, seed=1), 0)
    for got, expected in ((shared, want), (view, want.T[2:5]), (child, want.sum(0))):
        same(got.numpy(), expected)


def test_a_realized_buffer_is_no_weight() -> None:
    w, x = floats(4, 4), Tensor.input("x", (4, 4))
    assert Tensor(w).node.arg.kind == "input"
    assert Tensor.weight(w).node.arg.kind == "weight"
    assert len((x @ (Tensor(w) * Tensor(w))).schedule().inputs) == 3
    assert len((x @ (Tensor.weight(w) * Tensor.weight(w))).schedule().inputs) == 1


def test_a_tensor_over_inputs_is_run_once_and_stays_as_it_is() -> None:
    y = Tensor.input("x", (3,)) * f(3)
    root = y.node
    np.testing.assert_allclose(y.numpy({"x": np.ones(3, np.float32)}), floats(3))
    assert y.node is root
    with pytest.raises(ModelError, match="has no value; use numpy"):
        y.realize()


def test_buffers_of_one_program_have_names_of_their_own() -> None:
    plan = (Tensor.input("b0", (4,)) + f(4) + f(4, seed=2)).schedule()
    names = {b.name for b in plan.inputs}
    assert len(names) == len(plan.inputs) == 3
    assert "b0" in names
    twice = Tensor.variable("n", 0, 9, 1) + Tensor.variable("n", 0, 9, 2)
    with pytest.raises(ModelError, match='two variables have the same name: "n"'):
        twice.schedule()


def test_an_empty_tensor_and_nothing_at_all() -> None:
    none = f(0, 3) + 1.0
    assert counts(none) == (0, 0)
    assert none.numpy().shape == (0, 3)
    assert (f(0, 3).sum(0) + 2.0).tolist() == [2, 2, 2]


def test_scheduling_needs_no_device() -> None:
    program = """
import numpy as np
from runtime import NoDeviceError
from scheduler import Tensor
x = Tensor(np.ones((64, 64), np.float32))
y = (x @ x).relu().kernelize()
x.assign(y + x)
plan = x.schedule(y)
assert len(plan.launches) == 2 and plan.peak_bytes == 0 and plan.bytes_moved > 3 * 64 * 64 * 4
try:
    y.realize()
except NoDeviceError:
    assert y.node.op.name == "ASSIGN"
    print("scheduled")
"""
    nowhere = {"OCL_ICD_VENDORS": "/nowhere", "OCL_ICD_FILENAMES": "", "POCL_DEVICES": "none"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **nowhere},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "scheduled", done.stderr
