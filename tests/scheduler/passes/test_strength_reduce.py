"""Cheaper operations: what is rewritten, what is left alone, and that values stay."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from scheduler.ir import dtype as dt
from scheduler.ir.node import toposort
from scheduler.ir.ops import Op
from scheduler.ir.origin import Origins
from scheduler.passes.strength_reduce import strength_reduce
from scheduler.tensor.tensor import Tensor
from tests.scheduler.passes.pass_check import one, ops
from tests.scheduler.support.programs import compute

ROOT_HALF, ROOT_TWO = math.sqrt(0.5), math.sqrt(2.0)


def x() -> Tensor:
    return Tensor.input("x", (3, 4))


def raw_power(exponent: float) -> Tensor:
    """POW as a graph may hold it: the front end writes known exponents otherwise."""
    base = x().abs() + 1.0
    return base.binary(Op.POW, Tensor.full((3, 4), exponent))


@pytest.mark.parametrize(
    "gelu",
    [
        lambda x: x * ((x / 1.4142135).erf() + 1.0) * 0.5,
        lambda x: x * 0.5 * (1.0 + (x * ROOT_HALF).erf()),
        lambda x: x * (((x / ROOT_TWO).erf() + 1.0) * 0.5),
        lambda x: (1.0 + (x * 0.7071068).erf()) * (0.5 * x),
        lambda x: 0.5 * (x * (1.0 + (x / ROOT_TWO).erf())),
        lambda x: x.gelu(),
        lambda x: (x * 3.0).gelu(),
    ],
)
def test_every_form_of_gelu_is_one_operation(gelu: Callable[[Tensor], Tensor]) -> None:
    found = one(strength_reduce, gelu(x()))
    assert found.op is Op.GELU
    assert Op.ERF not in ops(found)


@pytest.mark.parametrize(
    "other",
    [
        lambda x: x * ((x / 1.5).erf() + 1.0) * 0.5,
        lambda x: x * ((x / ROOT_TWO).erf() + 2.0) * 0.5,
        lambda x: (x + 1.0) * ((x / ROOT_TWO).erf() + 1.0) * 0.5,
        lambda x: x * ((x / ROOT_TWO).erf() + 1.0) * 0.25,
        lambda x: x.cast(dt.float64).gelu(),
        lambda x: x.half().gelu(),
    ],
)
def test_what_only_looks_like_gelu_stays(other: Callable[[Tensor], Tensor]) -> None:
    assert Op.GELU not in ops(one(strength_reduce, other(x())))


def test_gelu_bears_the_names_of_all_it_replaces() -> None:
    tensor = Tensor.input("named", (7,)).gelu()
    origins = Origins()
    for i, node in enumerate(n for n in toposort([tensor.node]) if n.op in (Op.ERF, Op.MUL)):
        origins.name([node], (f"/n{i}",))
    new = strength_reduce([tensor.node])
    origins.follow(new)
    assert set(origins.of(new[tensor.node])) == {"/n0", "/n1", "/n2", "/n3"}


def test_gelu_runs_on_the_device() -> None:
    given = np.linspace(-8, 8, 77, dtype=np.float32)
    tensor = Tensor.input("x", (77,))
    got = compute(tensor.gelu(), x=given)
    exact = 0.5 * given * (1 + np.vectorize(math.erf)(given.astype(np.float64) / ROOT_TWO))
    assert (np.abs(got - exact) <= 3e-7 * np.abs(given)).all()


def test_a_division_by_a_constant_is_a_multiplication_within_one_unit() -> None:
    assert Op.DIV not in ops(one(strength_reduce, x() / 3.0))
    assert Op.DIV not in ops(one(strength_reduce, x().cast(dt.float64) / 3.0))
    assert Op.DIV in ops(one(strength_reduce, x().half() / 3.0))
    assert Op.DIV in ops(one(strength_reduce, x() / 1e-39))  # 1/c is infinite
    assert Op.DIV in ops(one(strength_reduce, x() / x().exp()))
    rng = np.random.default_rng(0)
    given = rng.uniform(1, 2, 50_000).astype(np.float32)
    for divisor in rng.uniform(1, 2, 40).astype(np.float32):
        exact = given / divisor
        got = given * np.float32(1 / float(divisor))
        assert (np.abs(got - exact) <= np.spacing(exact)).all()


@pytest.mark.parametrize(
    "step",
    [
        lambda y: y.floor(),
        lambda y: (y + 0.5).trunc(),
        lambda y: y.reshape(-1).cast(dt.int32),
        lambda y: (y * 1.0).exp() > 1.0,
        lambda y: Tensor.cat([y, y]).contiguous().round(),
        lambda y: y.max(0, keepdim=True).floor(),
        lambda y: (-y.min(1, keepdim=True)).ceil(),
        lambda y: y.gather(Tensor.input("i", (2,), dt.int32), 1).maximum(0).trunc(),
        lambda y: y.reshape(1, 1, -1, 4).max_pool2d((1, 2)).clip(0, 9).cast(dt.int32),
        lambda y: (y > 1e9).where(0.0, y).pad(((1, 1), (0, 0))).abs() < 1.0,
        lambda y: y.half(),
    ],
)
def test_what_decides_about_steps_keeps_its_last_place(step: Callable[[Tensor], Tensor]) -> None:
    found = ops(one(strength_reduce, step(x() / 49.0)))
    assert Op.DIV in found
    assert Op.DIV not in ops(one(strength_reduce, step((x() / 49.0).sum(0, keepdim=True))))


def test_whole_quotients_stay_whole_on_the_device() -> None:
    n = np.arange(1, 400, dtype=np.float32)
    assert np.array_equal(compute((Tensor.input("x", n.shape) / 49.0).floor(), x=n * 49), n)


def test_a_state_is_followed_to_what_the_next_run_reads() -> None:
    state = Tensor.state("s", (3, 4))
    seen, kept = (state * 1.0).floor().node, state.assign(x() / 49.0).node
    new = strength_reduce([seen, kept])
    assert Op.DIV in ops(new[kept])
    alone = strength_reduce([kept])
    assert Op.DIV not in ops(alone[kept])


@pytest.mark.parametrize(
    ("step", "want"),
    [
        (lambda y: y.max(1).floor(), [2, 4, 6, 8]),
        (lambda y: (-y).min(1).ceil(), [-2, -4, -6, -8]),
        (lambda y: y.gather(Tensor.input("i", (2,), dt.int32), 0).floor().max(1), [8, 2]),
        (lambda y: y.reshape(1, 1, 4, 2).max_pool2d((1, 2)).floor().reshape(4), [2, 4, 6, 8]),
    ],
)
def test_whole_quotients_stay_whole_whatever_passes_them_on(
    step: Callable[[Tensor], Tensor], want: list[int]
) -> None:
    given = np.arange(1, 9, dtype=np.float32).reshape(4, 2) * 41
    made = step(Tensor.input("x", (4, 2)) / 41.0)
    named = {n.arg.name for n in toposort([made.node]) if n.op is Op.BUFFER}
    more = {"i": np.array([3, 0], np.int32)} if "i" in named else {}
    assert compute(made, x=given, **more).tolist() == want


@pytest.mark.parametrize(("kind", "count"), [(dt.float32, 41), (dt.float64, 49)])
def test_means_of_whole_multiples_are_whole(kind: dt.DType, count: int) -> None:
    given = np.repeat(np.arange(1, 9), count).reshape(8, count).astype(kind.np)
    rows = Tensor.input("x", (8, count), kind)
    assert compute(rows.mean(1).floor(), x=given).tolist() == list(range(1, 9))
    images = rows.reshape(1, 8, 1, count).avg_pool2d((1, count)).reshape(8)
    assert compute(images.floor(), x=given).tolist() == list(range(1, 9))


def test_factors_merge_unless_the_product_is_no_normal_number() -> None:
    assert ops(one(strength_reduce, x() * 3.0 * 0.7)).count(Op.MUL) == 1
    assert ops(one(strength_reduce, 3.0 * (0.1 * (x() / 3.0)))).count(Op.MUL) == 1
    assert ops(one(strength_reduce, x() * 1e-30 * 1e-30)).count(Op.MUL) == 2
    assert ops(one(strength_reduce, x() * 1e30 * 1e30)).count(Op.MUL) == 2


@pytest.mark.parametrize("exponent", [-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0, 7.0, 8.0])
def test_powers_that_need_no_pow(exponent: float) -> None:
    assert Op.POW not in ops(one(strength_reduce, raw_power(exponent)))


@pytest.mark.parametrize("exponent", [-3.0, 0.3, 2.5, 9.0, math.inf])
def test_other_powers_stay(exponent: float) -> None:
    assert Op.POW in ops(one(strength_reduce, raw_power(exponent)))


def test_one_over_y_is_a_reciprocal() -> None:
    assert one(strength_reduce, 1.0 / (x() + 9.5)).op is Op.RECIP
