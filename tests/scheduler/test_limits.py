"""Kernels over the limits are split, and still compute the same."""

from __future__ import annotations

import numpy as np
import pytest

from scheduler import Tensor
from scheduler.kernelize.limits import MAX_BUFFERS, MAX_OPERATIONS
from scheduler.realize import run
from scheduler.schedule import schedule

RNG = np.random.default_rng(3)


def sources(count: int) -> tuple[list[Tensor], dict[str, np.ndarray]]:
    names = [f"a{i}" for i in range(count)]
    values = {n: RNG.standard_normal(24).astype(np.float32) for n in names}
    return [Tensor.input(n, (24,)) for n in names], values


def most_buffers(tensor: Tensor) -> int:
    kernels = schedule({"out": tensor.node}).kernels
    return max(1 + len(k.arguments) for k in kernels)


@pytest.mark.opencl
def test_sum_of_512_tensors_is_split_by_buffers() -> None:
    tensors, values = sources(512)
    total = tensors[0]
    for t in tensors[1:]:
        total = total + t
    assert most_buffers(total) <= MAX_BUFFERS
    assert len(schedule({"out": total.node}).kernels) <= 512 // (MAX_BUFFERS - 2) + 1
    got = run([total], values)[0]
    assert np.allclose(got, np.sum(list(values.values()), axis=0), atol=1e-4)


@pytest.mark.opencl
def test_wide_join_is_split() -> None:
    tensors, values = sources(100)
    joined = Tensor.cat(tensors, 0)
    assert most_buffers(joined) <= MAX_BUFFERS
    assert np.array_equal(run([joined], values)[0], np.concatenate(list(values.values())))


def test_kernel_at_the_limit_stays_whole() -> None:
    tensors, _ = sources(MAX_BUFFERS - 1)
    total = tensors[0]
    for t in tensors[1:]:
        total = total + t
    assert len(schedule({"out": total.node}).kernels) == 1


def test_long_chain_is_split_by_operations() -> None:
    x = Tensor.input("x", (8,))
    y = x
    for i in range(4 * MAX_OPERATIONS):
        y = y + float(i + 1)
    assert 4 <= len(schedule({"out": y.node}).kernels) <= 5


@pytest.mark.opencl
def test_shared_subexpressions_count_once() -> None:
    x = Tensor.input("x", (8,))
    y = x
    for _ in range(24):  # 2**24 leaves as a tree, 24 operations as a graph
        y = y + y
    assert len(schedule({"out": y.node}).kernels) == 1
    value = np.arange(8, dtype=np.float32)
    assert np.array_equal(run([y], {"x": value})[0], value * 2**24)
