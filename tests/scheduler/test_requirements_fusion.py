"""Requirements R11 to R23: what is computed where."""

from __future__ import annotations

from collections.abc import Callable
from math import erf, sin

import numpy as np
import pytest

from scheduler.ir import dtype as dt
from scheduler.passes.split_reduce import THRESHOLD
from scheduler.tensor.tensor import Tensor
from tests.scheduler.support.programs import Array, Made, floats, program_of, same, values_of, x

pytestmark = pytest.mark.opencl


def flops(made: Made) -> int:
    return made.table.totals.flops


# --- R11: what is recomputed across a broadcast -----------------------------------------------


def test_r11_a_cheap_value_is_recomputed_for_each_of_its_copies() -> None:
    """a*(1-w) + b*w with one w for all: one kernel."""
    a, b, w = x(64, 64, name="a"), x(64, 64, name="b"), x(1, 1, name="w")
    made = program_of(a * (1.0 - w) + b * w)
    assert made.launches == 1
    p, q, r = floats(64, 64), floats(64, 64, seed=1), floats(1, 1, seed=2)
    same(values_of(made, a=p, b=q, w=r)[0], p * (1 - r) + q * r)


def test_r11_a_reduction_is_never_recomputed() -> None:
    total = x(32, 64).sum(1, keepdim=True)
    made = program_of(total.broadcast_to((32, 48)) * x(32, 48, name="b"))
    assert flops(made) <= 32 * 64 + 32 * 48
    a, b = floats(32, 64), floats(32, 48, seed=1)
    same(values_of(made, x=a, b=b)[0], a.sum(1, keepdims=True) * b)


def test_r11_an_expensive_value_is_stored_before_it_is_repeated() -> None:
    """A column of values, each needed in 4096 columns: computed 4096 times it costs far more."""
    row = x(1, 4096, name="b")
    made = program_of((x(512, 1).exp().tanh().erf().sin() + 0.0 * row).maximum(row))
    assert flops(made) < 512 * 4096 * 8
    a, b = floats(512, 1), floats(1, 4096, seed=1)
    once = np.array([[sin(erf(v))] for v in np.tanh(np.exp(a))[:, 0].tolist()], np.float32)
    same(values_of(made, x=a, b=b)[0], np.maximum(once + 0 * b, b))


def test_r11_the_user_may_force_a_boundary() -> None:
    a = x(8, 1) + 1.0
    b = x(8, 8, name="b")
    assert program_of(a.contiguous() * b).stored == [("float32", (8, 1))]
    assert program_of(a * b).stored == []


# --- R12, R13: prologue and epilogue ----------------------------------------------------------


def test_r12_what_follows_a_reduction_is_part_of_its_kernel() -> None:
    made = program_of(((x(16, 32).sum(1) * 0.5 + x(16, name="b")).relu().exp() - 1.0).half())
    assert made.launches == 1
    a, b = floats(16, 32), floats(16, seed=1)
    want = (np.exp(np.maximum(a.sum(1) * 0.5 + b, 0)) - 1).astype(np.float16)
    same(values_of(made, x=a, b=b)[0], want, 2e-3)


def test_r12_a_convolution_takes_bias_activation_and_residual_along() -> None:
    w = floats(8, 8, 3, 3)
    image = x(1, 8, 10, 10)
    made = program_of(
        (image.conv2d(Tensor.weight(w), Tensor.weight(floats(8)), padding=1) + image).relu()
    )
    assert made.launches == 1


def test_r13_what_precedes_a_reduction_is_part_of_its_kernel() -> None:
    made = program_of(((x(16, 32) - 1.0).square() * x(32, name="b")).exp().T.max(0))
    assert made.launches == 1
    assert made.stored == []
    a, b = floats(16, 32), floats(32, seed=1)
    same(values_of(made, x=a, b=b)[0], np.exp((a - 1) ** 2 * b).max(1), 1e-4)


def test_r13_unless_that_multiplies_the_work() -> None:
    """The exponential of an image is computed once per pixel, not once per tap of a filter."""
    image = x(1, 16, 32, 32).exp().tanh().erf()
    made = program_of(image.conv2d(Tensor.weight(floats(16, 16, 3, 3)), padding=1))
    taps = 2 * 16 * 32 * 32 * 16 * 9
    assert flops(made) < taps + 16 * 32 * 32 * 100


# --- R14: several reductions ------------------------------------------------------------------

SEVERAL: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Array], Array]]] = {
    "rows and columns": (lambda a: a.sum(0) + a.sum(1), lambda a: a.sum(0) + a.sum(1)),
    "two kinds": (lambda a: a.max(1) - a.min(1), lambda a: a.max(1) - a.min(1)),
    "other lengths": (
        lambda a: a.sum(1) + a[:, :7].max(1) * a.reshape(16, 2, 8).sum((1, 2)),
        lambda a: a.sum(1) + a[:, :7].max(1) * a.sum(1),
    ),
    "three": (
        lambda a: a.sum(1) * a.max(1) + a.square().sum(1),
        lambda a: a.sum(1) * a.max(1) + (a * a).sum(1),
    ),
}


@pytest.mark.parametrize("name", SEVERAL)
def test_r14_reductions_for_the_same_results_share_a_kernel(name: str) -> None:
    ours, theirs = SEVERAL[name]
    made = program_of(ours(x(16, 16)))
    assert made.launches == 1
    same(values_of(made, x=floats(16, 16))[0], theirs(floats(16, 16)), 1e-4)


# --- R15: reductions of reductions by rows ----------------------------------------------------


def _softmax(a: Array) -> Array:
    e = np.exp(a - a.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def _norm(a: Array) -> Array:
    d = a - a.mean(-1, keepdims=True)
    return np.asarray(d / np.sqrt((d * d).mean(-1, keepdims=True) + 1e-5))


ROWS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Array], Array]]] = {
    "softmax": (lambda a: a.softmax(), _softmax),
    "layernorm": (lambda a: a.layernorm(), _norm),
    "centred sum": (
        lambda a: (a - a.max(-1, keepdim=True)).sum(-1),
        lambda a: (a - a.max(-1, keepdims=True)).sum(-1),
    ),
    "softmax of a layernorm": (lambda a: a.layernorm().softmax(), lambda a: _softmax(_norm(a))),
}


@pytest.mark.parametrize("name", ROWS)
def test_r15_reductions_of_one_row_stay_in_its_kernel(name: str) -> None:
    ours, theirs = ROWS[name]
    made = program_of(ours(x(24, 48)))
    assert made.launches == 1
    assert made.stored == []
    same(values_of(made, x=floats(24, 48))[0], theirs(floats(24, 48)), 1e-4)


def test_r15_attention_is_one_kernel_and_stores_no_scores() -> None:
    q, k, v = (x(2, 4, 16, 8, name=n) for n in "qkv")
    made = program_of((q @ k.transpose() * 0.25).softmax() @ v)
    assert made.launches == 1
    assert made.stored == []
    a, b, c = (floats(2, 4, 16, 8, seed=i) for i in range(3))
    want = _softmax(a @ b.transpose(0, 1, 3, 2) * 0.25) @ c
    same(values_of(made, q=a, k=b, v=c)[0], want)


def test_r15_a_row_beyond_the_budget_is_still_right() -> None:
    made = program_of(x(4, 5000).softmax())
    same(values_of(made, x=floats(4, 5000))[0], _softmax(floats(4, 5000)))


# --- R17, R18: where to cut -------------------------------------------------------------------


def test_r17_the_epilogue_is_stored_and_not_the_bare_reduction() -> None:
    """Two reductions over different axes need r; r is stored with its addition, once."""
    r = x(4, 4, 4).sum(0) + 6.0
    made = program_of(r.sum(0) * 4.0, r.sum(1) * 2.0)
    assert made.launches <= 3
    assert made.stored == [("float32", (4, 4))]
    assert flops(made) <= 4 * 4 * 4 + 4 * 4 + 2 * (4 * 4 + 4)
    a = floats(4, 4, 4).sum(0) + 6
    for got, want in zip(
        values_of(made, x=floats(4, 4, 4)), (a.sum(0) * 4, a.sum(1) * 2), strict=True
    ):
        same(got, want)


def test_r17_a_movement_that_drops_elements_is_stored_behind_it() -> None:
    """Of two values that could be stored, the one of fewer bytes is."""
    total = x(64, 64).sum(1, keepdim=True).broadcast_to((64, 64))
    made = program_of(total.sum(0) + 0.0, (total @ x(64, 4, name="w")))
    assert all(np.prod(shape) <= 64 for _, shape in made.stored)


def test_r18_of_two_types_the_narrower_one_is_stored() -> None:
    """A widening conversion behind the stored value belongs to its readers."""
    narrow = x(64, 64, 8).sum(2).half()
    made = program_of(narrow.float().sum(0) * 2.0, narrow.float() @ x(64, 3, name="w"))
    assert made.stored == [("float16", (64, 64))]
    a, w = floats(64, 64, 8), floats(64, 3, seed=1)
    n = a.sum(2).astype(np.float16).astype(np.float32)
    got = values_of(made, x=a, w=w)
    same(got[0], n.sum(0) * 2, 1e-2)
    same(got[1], n @ w, 1e-2)


# --- R19, R20: limits -------------------------------------------------------------------------


def test_r19_a_sum_of_hundreds_is_split_and_the_result_counts_as_an_argument() -> None:
    names = [f"a{i}" for i in range(200)]
    total = Tensor.input(names[0], (24,))
    for name in names[1:]:
        total = total + Tensor.input(name, (24,))
    made = program_of(total)
    most = max(len(k["args"]) for k in made.manifest["kernels"])
    assert most <= 64
    assert made.launches <= 200 // (most - 2) + 1
    given = {n: floats(24, seed=i) for i, n in enumerate(names)}
    same(values_of(made, **given)[0], np.sum(list(given.values()), 0), 1e-4)


def test_r19_a_matrix_product_of_a_wide_join_is_split() -> None:
    names = [f"a{i}" for i in range(130)]
    joined = Tensor.cat([Tensor.input(n, (2, 4)).exp() for n in names], 0)
    made = program_of(joined @ x(4, 3, name="w"))
    assert max(len(k["args"]) for k in made.manifest["kernels"]) <= 64
    given = {n: floats(2, 4, seed=i) for i, n in enumerate(names)}
    want = np.exp(np.concatenate(list(given.values()))) @ floats(4, 3)
    same(values_of(made, **given, w=floats(4, 3))[0], want, 1e-4)


def test_r20_a_kernel_has_a_largest_size() -> None:
    y = x(32)
    want = floats(32)
    for i in range(1300):
        y = (y + float(i % 5)) * 0.5
        want = (want + np.float32(i % 5)) * np.float32(0.5)
    made = program_of(y)
    assert 3 <= made.launches <= 8
    longest = max(made.source.split("__kernel"), key=len)
    assert longest.count("\n") < 2000
    same(values_of(made, x=floats(32))[0], want)


# --- R21: long reductions ---------------------------------------------------------------------


@pytest.mark.parametrize(("size", "launches"), [(THRESHOLD, 2), (THRESHOLD - 1, 1), (65537, 1)])
def test_r21_a_long_reduction_has_two_stages(size: int, launches: int) -> None:
    """65537 is prime: it cannot be split evenly, so it stays whole."""
    assert THRESHOLD == 32768
    made = program_of(
        x(size).max(),
    )
    assert made.launches == launches
    same(values_of(made, x=floats(size))[0], floats(size).max())


def test_r21_the_threshold_is_per_result() -> None:
    assert program_of(x(64, 4096).sum(1)).launches == 1
    made = program_of(x(4, 65536).sum(1) * 2.0)
    assert made.launches == 2
    assert 8 <= made.stored[0][1][1] <= 256
    same(values_of(made, x=floats(4, 65536))[0], floats(4, 65536).sum(1) * 2, 1e-2)


# --- R22: gathers -----------------------------------------------------------------------------


def test_r22_a_gather_is_an_indexed_load() -> None:
    index = Tensor.input("i", (3,), dt.int32)
    made = program_of((x(10, 4) * 2.0).gather(index) + 1.0)
    assert (made.launches, len(made.loops)) == (1, 0)
    at = np.array([9, -1, 4], np.int32)
    same(values_of(made, x=floats(10, 4), i=at)[0], floats(10, 4)[at] * 2 + 1)


def test_r22_a_ramp_is_computed_and_not_stored() -> None:
    made = program_of((Tensor.arange(10) + 1).gather(Tensor.input("i", (3,), dt.int32)))
    assert (made.launches, len(made.loops), made.stored) == (1, 0, [])
    assert values_of(made, i=np.array([0, 9, 3], np.int32))[0].tolist() == [1, 10, 4]


@pytest.mark.parametrize("turned", [False, True])
def test_r22_a_choice_summed_over_a_ramp_is_an_indexed_load(turned: bool) -> None:
    """sum over r of (r == i ? X[r] : 0) is X[i], and 0 where i is none of them: exact."""
    index, ramp = Tensor.input("i", (3, 1), dt.int32), Tensor.arange(10).reshape(1, 10)
    hot = (index.eq(ramp) if turned else ramp.eq(index)).unsqueeze(2)
    check_one_hot(program_of(hot.where(x(10, 4), 0.0).sum(1)))


def test_r22_a_one_hot_product_is_an_indexed_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same as a product: infinities of other rows would be NaN, hence only with the switch."""
    monkeypatch.setenv("FLOAT_UNSAFE", "1")
    hot = Tensor.arange(10).reshape(1, 10).eq(Tensor.input("i", (3, 1), dt.int32)).float()
    check_one_hot(program_of(hot @ x(10, 4)))


def check_one_hot(made: Made) -> None:
    """Compare one launch without loops with numpy; row 12 is outside."""
    at = np.array([[9], [0], [12]], np.int32)
    want = np.stack([floats(10, 4)[9], floats(10, 4)[0], np.zeros(4, np.float32)])
    same(values_of(made, x=floats(10, 4), i=at)[0], want)
    assert (made.launches, len(made.loops)) == (1, 0)


# --- R23: chained reductions ------------------------------------------------------------------

CHAINED: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Array], Array]]] = {
    "sums": (lambda a: a.sum(2).sum(1), lambda a: a.sum((1, 2))),
    "maxima": (lambda a: a.max(2).max(0), lambda a: a.max((0, 2))),
    "through a reshape": (lambda a: a.sum(2).reshape(20).sum(0), lambda a: a.sum()),
    "through a permute": (lambda a: a.min(0).T.min(0), lambda a: a.min((0, 2))),
}


@pytest.mark.parametrize("name", CHAINED)
def test_r23_chained_reductions_of_one_kind_are_one(name: str) -> None:
    ours, theirs = CHAINED[name]
    made = program_of(ours(x(4, 5, 6)))
    assert made.launches == 1
    assert len(made.loops) == 1
    same(values_of(made, x=floats(4, 5, 6))[0], theirs(floats(4, 5, 6)), 1e-4)


def test_r23_other_chains_are_not_merged() -> None:
    made = program_of(x(4, 5, 6).sum(2).max(1))
    same(values_of(made, x=floats(4, 5, 6))[0], floats(4, 5, 6).sum(2).max(1), 1e-4)
