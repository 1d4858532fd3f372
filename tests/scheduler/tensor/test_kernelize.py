"""The eager contract of Tensor: schedule, kernelize, realize."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from scheduler import Tensor
from scheduler.errors import ModelError
from scheduler.ir.node import Node
from scheduler.ir.ops import Op
from scheduler.tensor.eager_plan import base_of

Array = NDArray[Any]


def floats(*shape: int, seed: int = 1) -> Array:
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


def f(*shape: int, seed: int = 1) -> Tensor:
    return Tensor(floats(*shape, seed=seed))


def counts(*tensors: Tensor) -> tuple[int, int]:
    """Return compute kernels and copies."""
    plan = tensors[0].schedule(*tensors[1:])
    assert len(plan.kernels) + len(plan.copies) == len(plan.launches)
    return len(plan.kernels), len(plan.copies)


def base(tensor: Tensor) -> Node:
    return base_of(tensor.node)


def one(value: int) -> Tensor:
    return Tensor(np.array([value], np.int32))


# --- kernelize ---------------------------------------------------------------------------------


def test_before_anything_the_roots_are_operations() -> None:
    a, b, c = one(1), one(2), one(3)
    mul = a * b
    out = mul + c
    assert [x.node.op for x in (a, b, c)] == [Op.BUFFER] * 3
    assert (mul.node.op, out.node.op) == (Op.MUL, Op.ADD)


def test_kernelize_pins_the_output_and_leaves_what_was_fused() -> None:
    a, b, c = one(1), one(2), one(3)
    mul = a * b
    out = mul + c
    assert out.kernelize() is out
    assert mul.node.op is Op.MUL
    assert out.node.op is Op.ASSIGN
    buffer, value = out.node.src
    assert buffer.op is Op.BUFFER
    assert buffer.arg.data is None
    assert value.op is Op.ADD
    (kernel,) = out.schedule().kernels
    assert len(kernel.reads) == 3  # with its output the four arguments


@pytest.mark.opencl
def test_a_kernelized_tensor_is_loaded_and_its_buffer_filled() -> None:
    out = one(1) * one(2) + one(3)
    out.kernelize()
    pending = out.node.src[0]
    child = out + 2
    child.kernelize()
    assert child.node.op is Op.ASSIGN
    assert child.node.src[1].src[0] is out.node
    out.realize()
    assert out.node is pending
    assert pending.arg.data.tolist() == [5]
    assert out.item() == 5
    (kernel,) = child.schedule().kernels
    assert len(kernel.reads) == 1
    assert child.item() == 7


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


@pytest.mark.opencl
def test_views_of_a_sum_share_its_new_base() -> None:
    x = floats(8, 8)
    total = Tensor(x).sum(1)
    first, second = total.reshape(4, 2), total.reshape(2, 4)
    total.kernelize()
    assert base(total).op is Op.ASSIGN
    assert base(first) is base(second) is base(total)
    first.realize()
    assert base(second).op is Op.BUFFER
    assert counts(second) == (0, 0)
    np.testing.assert_allclose(second.numpy(), x.sum(1).reshape(2, 4), rtol=1e-5)


@pytest.mark.opencl
def test_a_chain_of_sums_is_one_kernel_here_and_two_if_the_inner_is_pinned() -> None:
    x = floats(8, 8)
    inner = Tensor(x).sum(1)
    outer = inner.sum(0)
    outer.kernelize()
    assert base(outer).op is Op.ASSIGN
    assert base(inner).op is Op.REDUCE  # one kernel computes both sums: see ADR 0033
    again = Tensor(x).sum(1)
    last = again.sum(0)
    again.kernelize()
    last.kernelize()
    assert base(again).op is base(last).op is Op.ASSIGN
    assert counts(last) == (2, 0)
    np.testing.assert_allclose(last.numpy(), x.sum(), rtol=1e-5)
    np.testing.assert_allclose(outer.numpy(), x.sum(), rtol=1e-5)


@pytest.mark.opencl
def test_what_is_fused_between_two_sums_keeps_its_nodes() -> None:
    x = floats(8, 8)
    inner = Tensor(x).sum(1)
    more = inner + 1.0
    outer = more.sum(0)
    more.kernelize()
    outer.kernelize()
    assert base(inner).op is Op.REDUCE
    assert base(more).op is base(outer).op is Op.ASSIGN
    np.testing.assert_allclose(outer.numpy(), (x.sum(1) + 1).sum(), rtol=1e-5)


@pytest.mark.opencl
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


# --- what is realized -------------------------------------------------------------------------


@pytest.mark.opencl
def test_a_clone_is_a_copy_and_no_kernel() -> None:
    made = f(4).clone()
    kernels, copies = counts(made)
    assert (kernels, copies) == (0, 1)
    np.testing.assert_array_equal(made.numpy(), floats(4))


@pytest.mark.opencl
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


@pytest.mark.opencl
def test_equal_outputs_are_computed_once_and_stay_two_tensors() -> None:
    a = f(4)
    x, y = a + 1.0, a + 1.0
    assert counts(x, y) == (1, 0)
    x.realize(y)
    x.assign(x * 2.0)
    np.testing.assert_allclose(y.numpy(), floats(4) + 1, rtol=1e-6)
    np.testing.assert_allclose(x.numpy(), (floats(4) + 1) * 2, rtol=1e-6)
    np.testing.assert_allclose((a + 1.0).numpy(), floats(4) + 1, rtol=1e-6)


@pytest.mark.opencl
def test_a_view_is_put_on_a_flat_base() -> None:
    made = (f(4, 4) + 1.0).reshape(8, 2).realize()
    assert made.shape == (8, 2)
    assert base(made).shape == (4, 4)
    spread = (f(4, 1) * 2.0).expand(4, 4)
    whole = spread.contiguous()
    spread.realize(whole)
    assert base(spread).shape == (4, 1)
    assert base(whole).shape == (4, 4)
    np.testing.assert_allclose(spread.numpy(), whole.numpy())


@pytest.mark.opencl
def test_other_tensors_read_what_was_computed() -> None:
    x = f(16, 16)
    shared = (x @ x).relu()
    child, view = shared.sum(0), shared.T[2:5]
    shared.realize()
    assert base(view) is shared.node
    (kernel,) = child.schedule().kernels
    assert kernel.reads[0].shape == (16, 16)
    assert len(kernel.reads) == 1
    want = np.maximum(floats(16, 16) @ floats(16, 16), 0)
    np.testing.assert_allclose(child.numpy(), want.sum(0), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(view.numpy(), want.T[2:5], rtol=1e-4, atol=1e-5)


def test_a_realized_buffer_is_no_weight() -> None:
    w, x = floats(4, 4), Tensor.input("x", (4, 4))
    assert Tensor(w).node.arg.kind == "input"
    assert Tensor.weight(w).node.arg.kind == "weight"
    assert len((x @ (Tensor(w) * Tensor(w))).schedule().inputs) == 3
    assert len((x @ (Tensor.weight(w) * Tensor.weight(w))).schedule().inputs) == 1


@pytest.mark.opencl
def test_a_tensor_over_inputs_is_run_once_and_stays_as_it_is() -> None:
    x = Tensor.input("x", (3,))
    y = x * Tensor(floats(3))
    root = y.node
    np.testing.assert_allclose(y.numpy({"x": np.ones(3, np.float32)}), floats(3))
    assert y.node is root
    with pytest.raises(ModelError, match="has no value of its own"):
        y.realize()


def test_buffers_of_one_program_have_names_of_their_own() -> None:
    b0 = Tensor.input("b0", (4,))
    plan = (b0 + f(4) + f(4, seed=2)).schedule()
    names = [b.name for b in plan.inputs]
    assert len(set(names)) == 3
    assert "b0" in names
    twice = Tensor.variable("n", 0, 9, 1) + Tensor.variable("n", 0, 9, 2)
    with pytest.raises(ModelError, match='two variables have the same name: "n"'):
        twice.schedule()


@pytest.mark.opencl
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
