"""Tensors that are run piece by piece, in threads, after errors: values and handles stay right."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from scheduler import CustomKernel, Tensor, custom_kernel
from scheduler.ir import dtype as dt
from tests.scheduler.support.programs import Array
from tests.scheduler.tensor.eager import equal, t

pytestmark = pytest.mark.opencl
BROKEN = CustomKernel("broken", "this is no C;", [((6,), dt.float32)], 6)
SIX = np.arange(6, dtype=np.float32)


def six() -> Tensor:
    return t(SIX)


@pytest.mark.parametrize("seen", [True, False])
def test_a_run_that_fails_leaves_every_tensor_what_it_was(*, seen: bool) -> None:
    """An old value, and a view that is written through."""
    a = six()
    before = [a + 1.0] if seen else []
    a.assign(a * 2.0)
    (b,) = custom_kernel(BROKEN, a * 1.0)
    with pytest.raises(Exception, match="broken"):
        b.realize(a, *before)
    if seen:
        equal((before[0], SIX + 1), (a, SIX * 2))
    a.realize()
    a[1:3].assign(t([100, 200]))
    equal((a, [0, 100, 200, 6, 8, 10]))


def test_a_fill_of_minus_zero_is_not_a_fill_of_zero() -> None:
    a = t([1])
    fills = [a.pad([(0, 1)], fill) for fill in (0.0, -0.0)]
    assert [bool(np.signbit(f.numpy()[1])) for f in fills] == [False, True]


def test_versions_of_a_buffer_are_told_apart_whatever_runs_first() -> None:
    now: Array = np.arange(16, dtype=np.float32)
    a, pairs = t(now), list[tuple[Tensor, Array]]()
    for i in range(6):
        odd = (a[::-1] * 2.0, now[::-1] * 2), (a[2:9] + 1.0, now[2:9] + 1)
        pairs.append(odd[0] if i % 2 else odd[1])
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
    equal(*pairs, (a, now))


def test_two_buffers_exchange_their_values() -> None:
    a, b = six(), t(-SIX)
    old = a[::-1] * 1.0
    a.assign(b.flip(0))
    b.assign(old)
    b.realize()
    equal((a, -SIX[::-1]), (b, SIX[::-1]))


@pytest.mark.parametrize("turns", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_threads_run_tensors_that_share_a_graph(turns: int) -> None:
    shared = t(np.ones((16, 16))) + 1.0

    def work(k: int) -> None:
        for j in range(turns):
            x = t(np.full((16, 16), k))
            u = shared.sum(1) + x * float(j)
            v = u.T + x
            x.assign(x + 1.0)
            v.realize(u)
            equal((v, np.full((16, 16), 32 + k * j + k)), (x, np.full((16, 16), k + 1)))

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(work, range(3)))


def rows(seed: int) -> Array:
    return np.random.default_rng(seed).integers(-3, 4, (6, 4)).astype(np.float32)


def test_a_write_whose_value_got_boundaries_is_one_version() -> None:
    (x, a), (y, b), (z, d) = ((rows(seed), t(rows(seed))) for seed in range(3))
    a[[3, 0]], x[[3, 0]] = d[[1, 2]], z[[1, 2]]
    a[2:5], x[2:5] = d[3:6], z[3:6]
    c, want = a + d, x + z
    c.kernelize()
    a[1:4], x[1:4] = b[2:5], y[2:5]
    equal((c + a, want + x))


def test_a_version_stays_the_newest_when_something_in_it_gets_a_boundary() -> None:
    (x, a), (y, b) = ((rows(seed), t(rows(seed))) for seed in range(2))
    old, doubled = Tensor.zeros(6, 4).assign(a), b * 2.0
    a.assign(doubled + 1.0)
    doubled.kernelize()
    old[1:], x[1:] = old[:-1], x[:-1].copy()
    equal((old + a, x + y * 2 + 1))


def test_a_part_of_a_reshaped_tensor_is_written() -> None:
    a = six()
    row = a.reshape(1, 6)
    row[0] = 7.0
    matrix = a.reshape(2, 3)
    matrix[1] = matrix[0]
    equal((row, np.full((1, 6), 7)), (a, np.full(6, 7)))
    column = a.reshape(6, 1)
    column[:, 0] = six()
    equal((a, SIX))


def test_a_result_that_only_turned_out_to_be_a_view_is_written_alone() -> None:
    a = six()
    view, same, twice = a[1:3], a * 1.0, a.reshape(6, 1)[[0, 0]]
    twice.realize(same)
    same.assign(0.0)
    twice[1:] = 5.0
    view.assign(9.0)
    equal((a, [0, 9, 9, 3, 4, 5]), (same, np.zeros(6)), (twice, [[0], [5]]))


def test_a_view_does_not_write_into_what_its_owner_became() -> None:
    a = six()
    other = Tensor.zeros(6).assign(a)  # the same buffer, under another name
    view = other[1:3]
    a.assign(a + 1.0)
    other.assign(other * 2.0)
    a.realize()
    del a
    view.assign(100.0)
    equal((other, SIX * 2), (view, [100, 100]))


def test_what_took_the_value_of_a_view_is_no_view() -> None:
    a = six()
    old = a[0:2]
    a.assign(a + 1.0)
    old.assign(a[2:4])
    old[0] = 100.0
    equal((a, SIX + 1), (old, [100, 4]))


def test_a_tensor_that_took_the_value_of_another_leaves_its_buffer_alone() -> None:
    a = six()
    view, same = a[1:3], Tensor.zeros(6).assign(a)
    same[0] = 7.0
    view.assign(9.0)
    equal((a, [0, 9, 9, 3, 4, 5]), (same, [7, 1, 2, 3, 4, 5]))


def test_the_same_value_assigned_twice_leaves_the_buffer_with_its_tensor() -> None:
    a, b = six(), six()
    a.assign(b + 1.0)
    a.assign(b + 1.0)
    a.reshape(2, 3).assign(0.0)
    equal((a, np.zeros(6)))
