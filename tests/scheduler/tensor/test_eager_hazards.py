"""Tensors that are run piece by piece, in threads, after errors: values and handles stay right."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from scheduler import CustomKernel, Tensor, custom_kernel
from scheduler.ir import dtype as dt

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


def rows(seed: int) -> Array:
    return np.random.default_rng(seed).integers(-3, 4, (6, 4)).astype(F32)


@pytest.mark.opencl
def test_a_write_whose_value_got_boundaries_is_one_version() -> None:
    (x, a), (y, b), (z, d) = ((v, Tensor(v)) for v in map(rows, range(3)))
    x = x.copy()
    a[[3, 0]] = d[[1, 2]]
    x[[3, 0]] = z[[1, 2]]
    a[2:5] = d[3:6]
    x[2:5] = z[3:6]
    c, want = a + d, x + z
    c.kernelize()
    a[1:4] = b[2:5]
    x[1:4] = y[2:5]
    np.testing.assert_array_equal((c + a).numpy(), want + x)


@pytest.mark.opencl
def test_a_version_stays_the_newest_when_something_in_it_gets_a_boundary() -> None:
    (x, a), (y, b) = ((v, Tensor(v)) for v in map(rows, range(2)))
    old, doubled = Tensor.zeros(6, 4).assign(a), b * 2.0
    a.assign(doubled + 1.0)
    doubled.kernelize()
    old[1:] = old[:-1]
    x[1:] = x[:-1].copy()
    np.testing.assert_array_equal((old + a).numpy(), x + y * 2 + 1)


@pytest.mark.opencl
def test_a_part_of_a_reshaped_tensor_is_written() -> None:
    a = Tensor(six())
    row = a.reshape(1, 6)
    row[0] = 7.0
    matrix = a.reshape(2, 3)
    matrix[1] = matrix[0]
    np.testing.assert_array_equal(row.numpy(), np.full((1, 6), 7, F32))
    np.testing.assert_array_equal(a.numpy(), np.full(6, 7, F32))
    column = a.reshape(6, 1)
    column[:, 0] = Tensor(six())
    np.testing.assert_array_equal(a.numpy(), six())


@pytest.mark.opencl
def test_a_result_that_only_turned_out_to_be_a_view_is_written_alone() -> None:
    a = Tensor(six())
    view, same, twice = a[1:3], a * 1.0, a.reshape(6, 1)[[0, 0]]
    twice.realize(same)
    same.assign(0.0)
    twice[1:] = 5.0
    view.assign(9.0)
    np.testing.assert_array_equal(a.numpy(), [0, 9, 9, 3, 4, 5])
    np.testing.assert_array_equal(same.numpy(), np.zeros(6))
    np.testing.assert_array_equal(twice.numpy(), [[0], [5]])


@pytest.mark.opencl
def test_a_view_does_not_write_into_what_its_owner_became() -> None:
    a = Tensor(six())
    other = Tensor.zeros(6).assign(a)  # the same buffer, under another name
    view = other[1:3]
    a.assign(a + 1.0)
    other.assign(other * 2.0)
    a.realize()
    del a
    view.assign(100.0)
    np.testing.assert_array_equal(other.numpy(), six() * 2)
    np.testing.assert_array_equal(view.numpy(), [100, 100])


@pytest.mark.opencl
def test_what_took_the_value_of_a_view_is_no_view() -> None:
    a = Tensor(six())
    old = a[0:2]
    a.assign(a + 1.0)
    old.assign(a[2:4])
    old[0] = 100.0
    np.testing.assert_array_equal(a.numpy(), six() + 1)
    np.testing.assert_array_equal(old.numpy(), [100, 4])


@pytest.mark.opencl
def test_a_tensor_that_took_the_value_of_another_leaves_its_buffer_alone() -> None:
    a = Tensor(six())
    view = a[1:3]
    same = Tensor.zeros(6).assign(a)
    same[0] = 7.0
    view.assign(9.0)
    np.testing.assert_array_equal(a.numpy(), [0, 9, 9, 3, 4, 5])
    np.testing.assert_array_equal(same.numpy(), [7, 1, 2, 3, 4, 5])


@pytest.mark.opencl
def test_the_same_value_assigned_twice_leaves_the_buffer_with_its_tensor() -> None:
    a, b = Tensor(six()), Tensor(six())
    a.assign(b + 1.0)
    a.assign(b + 1.0)
    a.reshape(2, 3).assign(0.0)
    np.testing.assert_array_equal(a.numpy(), np.zeros(6))
