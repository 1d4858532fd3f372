"""Kernels over the limits are split, and still compute the same."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from scheduler import Tensor
from scheduler.context import CompileContext, context_for
from scheduler.device.limits import MAX_OPERATIONS, TABLE, Limits
from scheduler.device.spec import DEFAULT
from scheduler.emit.artifact import emit
from scheduler.errors import SchedulerError
from scheduler.ir.node import Node
from scheduler.ir.ops import ELEMENTWISE, Op
from scheduler.kernelize.limits import _fused, split_points
from scheduler.kernelize.realize import realize
from scheduler.pipeline import kernelize, schedule
from tests.scheduler.support.values import rng

Array = NDArray[Any]
Values = dict[str, Array]
MOST = TABLE["cpu"].max_buffers


def sources(count: int, shape: tuple[int, ...] = (24,)) -> tuple[list[Tensor], Values]:
    values = {f"a{i}": rng().standard_normal(shape).astype(np.float32) for i in range(count)}
    return [Tensor.input(n, shape) for n in values], values


def total_of(tensors: Sequence[Tensor]) -> Tensor:
    total = tensors[0]
    for t in tensors[1:]:
        total = total + t
    return total


def limited(target: str) -> CompileContext:
    """Return the row cpu with other limits, and the flags of the environment."""
    return context_for(replace(DEFAULT, limits=TABLE[target]))


def launches(tensor: Tensor, target: str = "cpu") -> list[Any]:
    """Return what is launched, as the artifact has it: arguments are what the device counts."""
    plan = schedule({"out": tensor.node}, context=limited(target))
    kernels: list[Any] = emit({"run": plan}, name="n", kind="plain").manifest["kernels"]
    return kernels


def most_buffers(tensor: Tensor, target: str = "cpu") -> int:
    return max(len(kernel["args"]) for kernel in launches(tensor, target))


# --- buffers --------------------------------------------------------------------------------------


def wide_sum() -> tuple[Tensor, Values]:
    tensors, values = sources(200)
    return total_of(tensors), values


def wide_join() -> tuple[Tensor, Values]:
    tensors, values = sources(70)
    return Tensor.cat(tensors, 0), values


def join_of_sums() -> tuple[Tensor, Values]:
    tensors, values = sources(90)
    return Tensor.cat([total_of(tensors[i : i + 6]) for i in range(0, 90, 6)], 0), values


def wide_stack() -> tuple[Tensor, Values]:
    tensors, values = sources(100, (3, 5))
    return Tensor.stack([t * 2.0 + 1.0 for t in tensors], 1), values


def matmul_chain() -> tuple[Tensor, Values]:
    tensors, values = sources(9, (12, 12))
    total = tensors[0]
    for t in tensors[1:]:
        total = (total @ t * 0.3 + t).relu()
    return total, values


def sum_of_products() -> tuple[Tensor, Values]:
    tensors, values = sources(24, (6, 6))
    return total_of([a @ b for a, b in zip(tensors[::2], tensors[1::2], strict=True)]), values


def views_of_a_weight() -> tuple[Tensor, Values]:
    weight = Tensor.weight(rng().standard_normal((16, 16)).astype(np.float32))
    x = rng().standard_normal((16, 16)).astype(np.float32)
    total = Tensor.input("x", (16, 16))
    for step in range(1, 16):
        moved = Tensor.cat([weight[step:], weight[:step]], 0)
        total = total * 0.5 + (moved if step % 2 else moved.permute(1, 0))
    return total, {"x": x}


def selections() -> tuple[Tensor, Values]:
    tensors, values = sources(60)
    total = tensors[0]
    for a, b in zip(tensors[::2], tensors[1::2], strict=True):
        total = (a > b).where(total, a * b)
    return total, values


GRAPHS = (
    wide_sum,
    wide_join,
    join_of_sums,
    wide_stack,
    matmul_chain,
    sum_of_products,
    views_of_a_weight,
    selections,
)


@pytest.mark.opencl
@pytest.mark.parametrize("target", ["cpu", "metal", "webgpu"])
@pytest.mark.parametrize("graph", GRAPHS)
def test_no_kernel_has_more_buffers_than_the_target_takes(
    graph: Callable[[], tuple[Tensor, Values]], target: str
) -> None:
    tensor, values = graph()
    assert most_buffers(tensor, target) <= TABLE[target].max_buffers
    got = tensor.numpy(values, limited(target))
    assert np.allclose(got, tensor.interp(values), rtol=1e-4, atol=1e-4)


def test_sum_of_512_tensors_has_few_partial_sums() -> None:
    tensors, _ = sources(512)
    total = total_of(tensors)
    assert len(launches(total)) <= 512 // (MOST - 2) + 1
    assert len(launches(total, "webgpu")) <= 512 // 6 + 1


def test_kernel_at_the_limit_stays_whole() -> None:
    tensors, _ = sources(MOST)
    assert len(launches(total_of(tensors[:-1]))) == 1
    assert len(launches(total_of(tensors))) == 2


@pytest.mark.opencl
def test_shared_subexpressions_count_once() -> None:
    x = Tensor.input("x", (8,))
    y = x
    for _ in range(24):  # 2**24 leaves as a tree, 24 operations as a graph
        y = y + y
    assert len(launches(y)) == 1
    value = np.arange(8, dtype=np.float32)
    assert np.array_equal(y.numpy({"x": value}), value * 2**24)


def test_the_environment_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors, _ = sources(40)
    total = total_of(tensors)
    assert most_buffers(total) == 41
    monkeypatch.setenv("MAX_KERNEL_BUFFERS", "10")
    assert most_buffers(total) == 10
    assert most_buffers(total, "webgpu") == 10
    monkeypatch.setenv("MAX_KERNEL_BUFFERS", "200")  # whoever asks for more knows the device
    assert context_for().limits.max_buffers == 200


@pytest.mark.parametrize(("text", "told"), [("many", "'many'"), ("3", "found 3"), ("-8", "'-8'")])
def test_senseless_limits_are_refused(
    text: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAX_KERNEL_BUFFERS", text)
    with pytest.raises(SchedulerError, match=told):
        (Tensor.input("x", (8,)) + 1.0).schedule()


# --- the table ------------------------------------------------------------------------------------


def test_bytes_of_arguments_limit_too() -> None:
    assert TABLE["cpu"].max_buffers == 64
    assert TABLE["embedded"].max_buffers == 256 // 8
    assert Limits("t", 64, 256, 8, "", pointer_bytes=4).max_buffers == 64
    assert Limits("t", 64, 128, 8, "").max_buffers == 16


def test_results_count() -> None:
    limits = TABLE["webgpu"]
    assert limits.fits(7)
    assert not limits.fits(8)
    assert not limits.fits(6, writes=3)


def test_every_row_says_where_it_comes_from() -> None:
    assert all(row.source and row.target == name for name, row in TABLE.items())


# --- size -----------------------------------------------------------------------------------------


def test_long_chain_is_split_by_operations() -> None:
    y = Tensor.input("x", (8,))
    for i in range(4 * MAX_OPERATIONS):
        y = y + float(i + 1)
    assert 4 <= len(launches(y)) <= 5


def test_a_kernel_is_cut_where_few_values_are_needed_later() -> None:
    x = Tensor.input("x", (8,))
    narrow = []
    for block in range(6):
        wide = [x * float(block + i + 2) for i in range(40)]
        wide = [(w.sin() + 1.0) * v for w, v in zip(wide, reversed(wide), strict=True)]
        x = total_of([w.exp() for w in wide])
        narrow.append(x.node)
    _, kernels = kernelize({"out": x.node})
    # 240 operations a block: two blocks a kernel, cut between blocks and not inside one.
    assert len(kernels) == 3
    assert {t for k in kernels for t in k.targets} <= set(narrow)


def test_a_reduction_weighs_more_than_an_operation() -> None:
    y = Tensor.input("x", (16, 16))
    for _ in range(200):
        y = (y - y.sum(1, keepdim=True) * 0.01).tanh()
    _, kernels = kernelize({"out": y.node})
    assert 200 * 11 // 512 <= len(kernels) <= 200 * 11 // 256


def test_values_needed_everywhere_are_stored_rather_than_computed_again() -> None:
    rng = np.random.default_rng(1)
    values = [Tensor.input("x", (64,)), Tensor.input("y", (64,))]
    for _ in range(700):
        a, b = rng.integers(max(0, len(values) - 50), len(values), 2)
        values.append(values[a] * 0.5 + values[b])
    _, kernels = kernelize({"out": values[-1].node})
    assert len(kernels) <= 150


def stack_of(count: int) -> tuple[float, int, int]:
    """Return seconds, kernels and the most buffers of a kernel for a wide stack."""
    tensors = [Tensor.input(f"x{i}", (8,)) for i in range(count)]
    node = Tensor.stack([t * 2.0 for t in tensors], 0).node
    started = time.process_time()
    _, kernels = kernelize({"out": node})
    return time.process_time() - started, len(kernels), max(len(k.reads) for k in kernels) + 1


def test_stack_of_6131_tensors_takes_time_in_proportion() -> None:
    """https://github.com/tinygrad/tinygrad/issues/8617: recursion, then minutes."""
    few = min(stack_of(1000)[0] for _ in range(3))
    seconds, kernels, buffers = stack_of(6131)
    assert buffers <= MOST
    assert kernels <= 6131 // (MOST // 2) + 10
    assert seconds < 2.5 * few * 6131 / 1000


# --- a kernel that cannot be generated ------------------------------------------------------------


def operations(root: Node, stored: Mapping[Node, object] | frozenset[Node]) -> list[Node]:
    wanted = ELEMENTWISE | {Op.REDUCE}
    fused = _fused(root, stored)
    return [n for n in fused if n.op in wanted and (n is root or n not in stored)]


def split_of(tensor: Tensor) -> set[Node]:
    return split_points(tensor.node, realize([tensor.node], DEFAULT).regions)


def test_a_reduction_inside_is_stored() -> None:
    x = Tensor.input("x", (64, 64))
    scores = x.exp().sum(1, keepdim=True)
    (cut,) = split_of((scores * 2.0 + 1.0).sqrt())
    assert cut is scores.node


def test_what_a_movement_reads_is_stored() -> None:
    a, b = Tensor.input("a", (6, 4)), Tensor.input("b", (4, 6))
    inner = (a + 1.0).exp()
    (cut,) = split_of((inner.permute(1, 0) * b + 3.0).sqrt())
    assert cut is inner.node


def test_a_chain_is_halved() -> None:
    x = Tensor.input("x", (8,))
    y = x
    for _ in range(64):
        y = y.sin()
    stored = realize([y.node], DEFAULT).regions
    (cut,) = split_points(y.node, stored)
    assert len(operations(cut, stored)) == 32


def test_a_single_operation_cannot_be_split() -> None:
    a, b = Tensor.input("a", (6, 4)), Tensor.input("b", (4, 6))
    assert split_of(a.permute(1, 0) + b) == set()
    assert split_of(a.sum(1)) == set()
    assert split_of(a.permute(1, 0).contiguous()) == set()


def test_a_cut_does_not_store_what_memory_cannot_hold() -> None:
    a, b = Tensor.input("a", (4096, 4096)), Tensor.input("b", (4096, 4096))
    assert split_of(a @ b) == set()  # a * b over all three axes would be 256 GiB
