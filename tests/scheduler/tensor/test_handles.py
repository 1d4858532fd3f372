"""Handles: what becomes of Tensors that are realized, pinned, bound or moved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from scheduler.errors import ModelError
from scheduler.ir.node import toposort
from scheduler.ir.ops import Op
from scheduler.tensor.tensor import Tensor
from tests.scheduler.support.programs import floats, program_of, same, x


@pytest.mark.opencl
def test_every_handle_follows_what_became_of_its_value() -> None:
    a, b = Tensor(floats(4, 4)), Tensor(floats(4, 4, seed=1))
    product = a @ b
    view, child, other = product.T, product * 2.0, a + b
    product.realize()
    (buffer,) = [n for n in toposort([product.node]) if n.op is Op.BUFFER]
    assert buffer.arg.is_realized
    for handle, follows in ((product, True), (view, True), (child, True), (other, False)):
        assert (buffer in toposort([handle.node])) is follows
    assert not any(n.op is Op.REDUCE for n in toposort([child.node, view.node]))
    assert product.schedule().launches == []
    want = floats(4, 4) @ floats(4, 4, seed=1)
    for got, expected in ((view, want.T), (child, want * 2), (product, want)):
        same(got.numpy(), expected)


@pytest.mark.opencl
def test_a_bound_variable_is_a_scalar_argument_and_never_a_size() -> None:
    v = Tensor.variable("n", 0, 10, 3)
    assert (v + 2).item() == 5
    uses: list[Callable[[Any], Tensor]] = [
        Tensor.zeros,
        lambda n: x(4)[:n],
        lambda n: x(12).reshape(n, 4),
    ]
    for use in uses:
        with pytest.raises(ModelError, match="used as a size") as error:
            use(v)
        assert "\n" not in str(error.value)
    with pytest.raises(ModelError, match=r'variable "n": 11 is outside \[0, 10\]'):
        Tensor.variable("n", 0, 10, 11)


@pytest.mark.opencl
def test_a_variable_bound_anew_needs_no_other_kernels() -> None:
    texts = {program_of(x(4) * Tensor.variable("n", 0, 10, n).float()).source for n in (2, 5)}
    assert len(texts) == 1


@pytest.mark.opencl
def test_a_graph_over_two_devices_is_refused() -> None:
    here, there = Tensor([1.0, 2.0]), Tensor([1.0, 2.0]).to("first")
    other = Tensor([3.0, 4.0], device="second")
    assert here.to(here.device) is here
    assert there.schedule().kernels == []
    with pytest.raises(ModelError, match=r'one device.*"first".*"second"') as error:
        (there + other).numpy()
    assert "\n" not in str(error.value)


def test_backward_markers_are_erased() -> None:
    a = x(8)
    marked = (a * 2.0).detach().contiguous_backward().exp().detach()
    assert marked.node is (a * 2.0).exp().node
    with pytest.raises(ModelError, match="gradients are not supported"):
        marked.backward()
    with pytest.raises(ModelError, match="gradients are not supported"):
        Tensor([1.0], requires_grad=True)


@pytest.mark.opencl
def test_kernelize_pins_a_boundary_and_runs_nothing() -> None:
    a, b, c = (Tensor([n]) for n in (1, 2, 3))
    product = a * b
    total = product + c
    later = total * 10
    total.kernelize()
    assert product.node.op is Op.MUL  # it was fused, so nothing became of it
    assert total.node.op is Op.ASSIGN
    assert total.node.src[0].arg.data is None
    assert total.node in later.node.src
    pinned = total.node
    total.kernelize()
    assert total.node is pinned
    child = (total + 2).kernelize()
    assert child.node.op is Op.ASSIGN
    assert Op.MUL not in {n.op for n in (child.node.src[1], *child.node.src[1].src)}
    assert len(child.schedule().kernels) == 2  # the pinned one, and one that loads it
    assert (total.item(), child.item(), later.item()) == (5, 7, 50)


@pytest.mark.opencl
def test_chained_reductions_are_pinned_where_the_compiler_would_cut() -> None:
    a = Tensor(floats(8, 8, 8))
    inner = a.sum(2)
    first, second = inner.reshape(64), inner.T
    inner.kernelize()
    assert inner.node.op is Op.ASSIGN or inner.node.src[0].op is Op.ASSIGN
    assert any(n.op is Op.ASSIGN for n in toposort([first.node]))
    assert any(n.op is Op.ASSIGN for n in toposort([second.node]))
    same(first.numpy().reshape(8, 8), floats(8, 8, 8).sum(2), 1e-4)
    same(second.numpy(), floats(8, 8, 8).sum(2).T, 1e-4)
