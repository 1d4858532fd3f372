"""Fusion of finished kernels: what becomes one, what must not, and that values stay right."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np
import pytest

from scheduler.context import CompileContext
from scheduler.device.spec import DEFAULT, MAX_OPERATIONS
from scheduler.emit.schedule import Schedule
from scheduler.ir.index import leaves
from scheduler.ir.ops import Op
from scheduler.kernelize.fusion_graph import FusionGraph
from scheduler.kernelize.kernel import Kernel
from scheduler.tensor.tensor import Tensor
from tests.scheduler.support.programs import make_program, plan_for, plan_of
from tests.scheduler.support.programs import x as new_input

x = cache(new_input)  # equal texts are one graph
LARGE = (1024, 512)  # work beyond a launch: such kernels do not go side by side
CELLS = 1024 * 512


def stores(plan: Schedule) -> list[list[int]]:
    """Return the number of stores of each loop nest of each launch."""
    return [[len(body.stores) for body in kernel.bodies] for kernel in plan.launches]


@dataclass(frozen=True)
class Case:
    """A program, the stores of each loop nest of each launch, and the values that one moves."""

    make: Callable[[], list[Tensor]]
    stores: list[list[int]]
    moved: int = 0


def of_large(make: Callable[[Tensor], list[Tensor]]) -> Callable[[], list[Tensor]]:
    return lambda: make(x(*LARGE))


def stored_then_transposed() -> list[Tensor]:
    """Across a boundary the value is loaded."""
    b = (x(*LARGE) + 1.0).contiguous()
    return [b, b.T * 2.0]


def both(make: Callable[[Tensor, Tensor], list[Tensor]], *shape: int) -> list[Tensor]:
    return make(x(*shape), x(*shape, name="b"))


def square_product() -> Tensor:
    return x(256, 256) @ x(256, 256, name="v")


def value_sums_and_maxima(columns: int) -> list[Tensor]:
    """Their values are rows of the table of fusion."""
    product = x(32, columns) * x(32, columns, name="b")
    return [product, product.sum(1), (product + 1.0).max(1)]


def expensive() -> Tensor:
    return (x(64, 64).exp() + 1.0).tanh().sin()


def joined_products() -> list[Tensor]:
    parts = [x(1, 512) @ x(512, n, name=f"w{i}") for i, n in enumerate((300, 7, 64))]
    return [Tensor.cat(parts, axis=1)]


CASES = {
    "results of one reduction": Case(
        lambda: [x(64, 64).sum() + 2.0, x(64, 64).sum() * 3.0], [[2]], 64 * 64 + 2
    ),
    "a sum over a stored sum": Case(
        of_large(lambda a: [a.sum(1, keepdim=True).contiguous().sum(0)]), [[1], [1]]
    ),
    "a value that only the pair reads": Case(
        of_large(lambda a: [a.sum(1).exp(), a.sum(1).tanh()]), [[2]], CELLS + 2 * 1024
    ),
    "a row and its sum": Case(of_large(lambda a: [a.sum(1), a.cos()]), [[2]], CELLS * 2 + 1024),
    "a stored value turned": Case(stored_then_transposed, [[1], [1]]),
    "a value turned": Case(of_large(lambda a: [a.exp(), a.exp().T * 2.0]), [[2]]),
    "readers of one input": Case(
        lambda: both(lambda a, b: [a + b, a * 2.0 - b], *LARGE), [[2]], 4 * CELLS
    ),
    "large kernels that share nothing": Case(
        lambda: both(lambda a, b: [a.exp(), b.exp()], *LARGE), [[1], [1]]
    ),
    "small kernels that share nothing": Case(
        lambda: [x(4, 4).exp(), x(7, name="b").exp()], [[1, 1]]
    ),
    "small heads": Case(
        lambda: [x(1, 64) @ x(64, 8 * i, name=f"w{i}") for i in range(1, 5)], [[1] * 4]
    ),
    "products with register tiles": Case(
        lambda: [square_product(), x(256, 256) @ x(256, 256, name="w")], [[1], [1]]
    ),
    "an epilogue of a stored product": Case(
        lambda: [square_product(), square_product().relu()], [[2]]
    ),
    "a join of products": Case(joined_products, [[1, 1, 1]], 512 + 512 * 371 + 371),
    **{
        f"a value, its row sums and maxima, {columns} columns": Case(
            partial(value_sums_and_maxima, columns), [[3]]
        )
        for columns in (4, 24, 40)
    },
    "an expensive value": Case(lambda: [expensive(), expensive().sum(1)], [[1], [1]]),
}


@pytest.mark.parametrize("name", CASES)
def test_stores_of_each_loop_nest(name: str) -> None:
    case = CASES[name]
    plan = plan_for(*case.make())
    assert stores(plan) == case.stores
    assert plan.copies == []
    if case.moved:
        (kernel,) = plan.launches
        assert kernel.bytes_moved == 4 * case.moved


def only(plan: Schedule) -> Kernel:
    (kernel,) = plan.launches
    return kernel


def test_a_reduction_with_two_results_is_computed_once() -> None:
    assert only(plan_for(*CASES["results of one reduction"].make())).reductions == 1
    kernel = only(plan_for(*CASES["a value that only the pair reads"].make()))
    assert [t.op for t in kernel.targets] == [Op.EXP, Op.TANH]


def test_the_sum_of_a_row_is_stored_once_per_row() -> None:
    (body,) = only(plan_for(*CASES["a row and its sum"].make())).bodies
    assert len(body.ranges) == 2
    loops = [{a for ix in s.index for a in leaves(ix)} for s in body.stores]
    assert sorted(map(len, loops)) == [1, 2]


def test_a_join_is_one_target() -> None:
    assert len(only(plan_for(*joined_products())).targets) == 1


def test_a_row_whose_launches_cost_more_stores_less_and_launches_less() -> None:
    y = x(64, 96).exp() + 1.0  # two products need it
    products = [y @ x(96, 40, name="w"), y.permute(1, 0) @ x(64, 33, name="v")]
    others = [x(*LARGE, name="a").exp(), x(*LARGE, name="b").sqrt()]
    costly = replace(DEFAULT, costs=replace(DEFAULT.costs, launch=1 << 40))
    for tensors, launches in ((products, 3), (others, 2)):
        outputs = {f"y{i}": tensor for i, tensor in enumerate(tensors)}
        found = [plan_of(outputs, context=CompileContext(s)) for s in (DEFAULT, costly)]
        assert [len(plan.launches) for plan in found] == [launches, 1]


def test_a_launch_has_a_bounded_number_of_loop_nests() -> None:
    counts = [*map(len, stores(plan_for(*(x(i + 8, name=f"x{i}").exp() for i in range(40)))))]
    assert sum(counts) == 40
    assert max(counts) <= DEFAULT.costs.max_bodies
    assert len(counts) <= 5


def test_a_pair_that_would_raise_the_peak_stays_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first result is consumed before the second is made; together both would be alive."""
    a = x(*LARGE)
    values = [a.exp().contiguous(), a.tanh().contiguous()]
    outputs = [v.flip(0).sum(1) for v in values]
    guarded = plan_for(*outputs)
    monkeypatch.setattr(FusionGraph, "peak", lambda _: 0)
    careless = plan_for(*outputs)
    assert len(guarded.launches) == 4
    assert len(careless.launches) == 3
    assert guarded.peak_bytes == careless.peak_bytes // 2


def test_what_is_fused_is_not_larger_than_the_operations_limit() -> None:
    a = x(16)
    chains = []
    for i in range(6):
        value = a + float(i)
        for j in range(200):
            value = (value * 1.01 + float(j)).sin() if j % 2 else value + 0.5
        chains.append(value)
    kernels = plan_for(*chains).launches
    assert 1 < len(kernels) <= 6
    assert all(k.operations <= MAX_OPERATIONS for k in kernels)


@pytest.mark.opencl
@pytest.mark.parametrize("size", [1, 5, 16, 33, 64])
def test_states_that_read_each_other_are_one_nest_and_right_over_frames(size: int) -> None:
    a, b = Tensor.state("a", (size,)), Tensor.state("b", (size,))
    writes = [a.assign(b * 2.0 + x(size)), b.assign(a * 3.0 - x(size))]
    made = make_program({"sum": a + b}, writes)
    assert stores(made.plan) == [[3]]
    held = np.zeros((2, size), np.float32)
    rng = np.random.default_rng(size)
    with made.load() as program:
        for _ in range(3):
            value = rng.integers(-4, 5, size).astype(np.float32)
            got = program.run({"x": value})["sum"]
            assert np.array_equal(got, held[0] + held[1])
            held = np.stack([held[1] * 2 + value, held[0] * 3 - value])
            assert np.array_equal([program.state("a"), program.state("b")], held)
