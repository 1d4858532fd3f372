"""Tensors that are run piece by piece, in threads, after errors: values and handles stay right."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from scheduler import CustomKernel, Tensor, custom_kernel
from scheduler import dtype as dt

Array = NDArray[Any]
F32 = np.float32

BROKEN = CustomKernel("broken", "this is no C;", [((6,), dt.float32)], 6)


def six() -> Array:
    return np.arange(6, dtype=F32)


@pytest.mark.opencl
def test_a_run_that_fails_leaves_every_tensor_what_it_was() -> None:
    a = Tensor(six())
    before = a + 1.0
    a.assign(a * 2.0)
    (b,) = custom_kernel(BROKEN, a * 1.0)
    with pytest.raises(Exception, match="broken"):
        b.realize(a, before)
    np.testing.assert_array_equal(before.numpy(), six() + 1)
    np.testing.assert_array_equal(a.numpy(), six() * 2)


@pytest.mark.opencl
def test_a_view_writes_through_after_a_run_that_failed() -> None:
    a = Tensor(six())
    a.assign(a * 2.0)
    (b,) = custom_kernel(BROKEN, a * 1.0)
    with pytest.raises(Exception, match="broken"):
        b.realize(a)
    a.realize()
    a[1:3].assign(Tensor(np.array([100.0, 200.0], F32)))
    np.testing.assert_array_equal(a.numpy(), [0, 100, 200, 6, 8, 10])


@pytest.mark.opencl
def test_a_fill_of_minus_zero_is_not_a_fill_of_zero() -> None:
    a = Tensor(np.ones(1, F32))
    fills = [a.pad([(0, 1)], 0.0), a.pad([(0, 1)], -0.0)]
    assert [bool(np.signbit(f.numpy()[1])) for f in fills] == [False, True]


@pytest.mark.opencl
def test_versions_of_a_buffer_are_told_apart_whatever_runs_first() -> None:
    a, now = Tensor(np.arange(16, dtype=F32)), np.arange(16, dtype=F32)
    pairs = []
    for i in range(6):
        if i % 2:
            pairs.append((a[::-1] * 2.0, now[::-1] * 2))
        else:
            pairs.append((a[2:9] + 1.0, now[2:9] + 1))
        if i % 3 == 0:
            now = now.copy()
            a[i : i + 4], now[i : i + 4] = a[i + 4 : i + 8], now[i + 4 : i + 8]
        elif i % 3 == 1:
            a.assign(a.flip(0) + 1.0)
            now = now[::-1] + 1
        else:
            a.realize()
    pairs[3][0].kernelize()
    pairs[1][0].realize(pairs[4][0])
    for tensor, want in [*pairs, (a, now)]:
        np.testing.assert_array_equal(tensor.numpy(), want)


@pytest.mark.opencl
def test_two_buffers_exchange_their_values() -> None:
    a, b = Tensor(six()), Tensor(-six())
    old = a[::-1] * 1.0
    a.assign(b.flip(0))
    b.assign(old)
    b.realize()
    np.testing.assert_array_equal(a.numpy(), -six()[::-1])
    np.testing.assert_array_equal(b.numpy(), six()[::-1])


@pytest.mark.opencl
def test_threads_run_tensors_that_share_a_graph() -> None:
    shared = Tensor(np.ones((16, 16), F32)) + 1.0
    wrong: list[object] = []

    def work(k: int) -> None:
        try:
            for j in range(4):
                t = Tensor(np.full((16, 16), k, F32))
                u = shared.sum(1) + t * float(j)
                v = u.T + t
                t.assign(t + 1.0)
                v.realize(u)
                wrong.extend((k, j) for _ in range(bool((v.numpy() != 32 + k * j + k).any())))
                wrong.extend((k, j) for _ in range(bool((t.numpy() != k + 1).any())))
        except Exception as error:  # noqa: BLE001  # shown by the assertion below
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
