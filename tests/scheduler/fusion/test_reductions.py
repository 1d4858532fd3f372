"""Reductions that are split or merged, and sums that become indexed loads."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from scheduler.ir import dtype as dt
from scheduler.passes.split_reduce import THRESHOLD
from scheduler.tensor.tensor import Tensor
from tests.scheduler.fusion.plain import Plain
from tests.scheduler.support.programs import Made, floats, program_of, same, values_of, x


def check(shape: tuple[int, ...], function: Callable[..., Tensor], tolerance: float = 1e-5) -> Made:
    """Compare a function of one tensor with the same of an array of numpy."""
    made = program_of(function(x(*shape)))
    want = np.asarray(function(Plain(floats(*shape))))
    same(values_of(made, x=floats(*shape))[0], want, tolerance)
    return made


@pytest.mark.opencl
def test_a_row_beyond_the_budget_is_still_right() -> None:
    check((4, 5000), lambda a: a.softmax())


@pytest.mark.opencl
@pytest.mark.parametrize(("size", "launches"), [(THRESHOLD, 2), (THRESHOLD - 1, 1), (65537, 1)])
def test_a_long_reduction_has_two_stages(size: int, launches: int) -> None:
    """65537 is prime: it cannot be split evenly, so it stays whole."""
    assert THRESHOLD == 32768
    assert check((size,), lambda a: a.max()).launches == launches


@pytest.mark.opencl
def test_the_threshold_is_per_result() -> None:
    assert program_of(x(64, 4096).sum(1)).launches == 1
    made = check((4, 65536), lambda a: a.sum(1) * 2.0, 1e-2)
    assert made.launches == 2
    assert 8 <= made.stored[0][1][1] <= 256


@pytest.mark.opencl
def test_a_gather_is_an_indexed_load() -> None:
    index = Tensor.input("i", (3,), dt.int32)
    made = program_of((x(10, 4) * 2.0).gather(index) + 1.0)
    assert (made.launches, len(made.loops)) == (1, 0)
    at = np.array([9, -1, 4], np.int32)
    same(values_of(made, x=floats(10, 4), i=at)[0], floats(10, 4)[at] * 2 + 1)


@pytest.mark.opencl
def test_counted_steps_are_computed_and_not_stored() -> None:
    made = program_of((Tensor.arange(10) + 1).gather(Tensor.input("i", (3,), dt.int32)))
    assert (made.launches, len(made.loops), made.stored) == (1, 0, [])
    assert values_of(made, i=np.array([0, 9, 3], np.int32))[0].tolist() == [1, 10, 4]


def check_one_hot(made: Made) -> None:
    """Compare one launch without loops with numpy; row 12 is outside."""
    at = np.array([[9], [0], [12]], np.int32)
    want = np.stack([floats(10, 4)[9], floats(10, 4)[0], np.zeros(4, np.float32)])
    same(values_of(made, x=floats(10, 4), i=at)[0], want)
    assert (made.launches, len(made.loops)) == (1, 0)


@pytest.mark.opencl
@pytest.mark.parametrize("turned", [False, True])
def test_a_choice_summed_over_counted_steps_is_an_indexed_load(turned: bool) -> None:
    """sum over r of (r == i ? X[r] : 0) is X[i], and 0 where i is none of them: exact."""
    index, steps = Tensor.input("i", (3, 1), dt.int32), Tensor.arange(10).reshape(1, 10)
    hot = (index.eq(steps) if turned else steps.eq(index)).unsqueeze(2)
    check_one_hot(program_of(hot.where(x(10, 4), 0.0).sum(1)))


@pytest.mark.opencl
def test_a_one_hot_product_is_an_indexed_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same as a product: infinities of other rows would be NaN, hence only with the switch."""
    monkeypatch.setenv("FLOAT_UNSAFE", "1")
    hot = Tensor.arange(10).reshape(1, 10).eq(Tensor.input("i", (3, 1), dt.int32)).float()
    check_one_hot(program_of(hot @ x(10, 4)))


CHAINED: dict[str, Callable[[Tensor], Tensor]] = {
    "sums": lambda a: a.sum(2).sum(1),
    "maxima": lambda a: a.max(2).max(0),
    "through a reshape": lambda a: a.sum(2).reshape(20).sum(0),
    "through a permute": lambda a: a.min(0).T.min(0),
}


@pytest.mark.opencl
@pytest.mark.parametrize("name", CHAINED)
def test_chained_reductions_of_one_kind_are_one(name: str) -> None:
    made = check((4, 5, 6), CHAINED[name], 1e-4)
    assert made.launches == 1
    assert len(made.loops) == 1


@pytest.mark.opencl
def test_other_chains_are_not_merged() -> None:
    check((4, 5, 6), lambda a: a.sum(2).max(1), 1e-4)
