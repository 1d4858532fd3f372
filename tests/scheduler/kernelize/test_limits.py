"""Kernels over the limits are split, and still compute the same."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from scheduler import Tensor
from scheduler.context import CompileContext, context_for
from scheduler.device.spec import DEFAULT, LIMITS, MAX_OPERATIONS, Limits
from scheduler.errors import SchedulerError
from scheduler.ir.node import Node
from scheduler.ir.ops import ELEMENTWISE, Op
from scheduler.kernelize.store_plan import _fused, split_points, store_plan
from scheduler.pipeline import kernelize
from scheduler.tensor.tensor import evaluate
from tests.scheduler.support.programs import Array, artifact_of, floats, plan_of
from tests.scheduler.support.together import UNOPTIMIZED, Together
from tests.support.selection import quick_cases

Outputs = dict[str, Tensor]
MOST = LIMITS["cpu"].max_buffers


def sources(count: int, *shape: int, name: str = "a") -> list[Tensor]:
    return [Tensor.input(f"{name}{i}", shape or (24,)) for i in range(count)]


def total_of(tensors: Sequence[Tensor]) -> Tensor:
    return sum(tensors[1:], tensors[0])


def limited(target: str) -> CompileContext:
    """Return the row cpu with other limits, and the flags of the environment."""
    return context_for(replace(DEFAULT, limits=LIMITS[target]))


def arguments(outputs: Outputs, target: str = "cpu") -> list[list[int]]:
    """Return the buffers of each launch, as the artifact has it: these the device counts."""
    made = artifact_of(plan_of(outputs, context=limited(target)))
    return [kernel["args"] for kernel in made.manifest["kernels"]]


def most_buffers(tensor: Tensor, target: str = "cpu") -> int:
    return max(map(len, arguments({"y": tensor}, target)))


def several_results() -> Outputs:
    """Maxima of 80 values, a join of 40, and pieces of that beside the maxima."""
    total, *others = sources(80, 8)
    for other in others:
        total = total.maximum(other * 0.5)
    wide = Tensor.cat([t.exp() for t in sources(40, 3, name="b")])
    return {"total": total, "wide": wide, **{f"y{i}": wide[i : i + 8] + total for i in range(9)}}


def join_of_sums() -> Tensor:
    tensors = sources(90)
    return Tensor.cat([total_of(tensors[i : i + 6]) for i in range(0, 90, 6)], 0)


def matmul_chain() -> Tensor:
    total, *others = sources(9, 12, 12)
    for t in others:
        total = (total @ t * 0.3 + t).relu()
    return total


def sum_of_products() -> Tensor:
    tensors = sources(24, 6, 6)
    return total_of([a @ b for a, b in zip(tensors[::2], tensors[1::2], strict=True)])


def views_of_a_weight() -> Tensor:
    weight, total = Tensor.weight(floats(16, 16)), Tensor.input("x", (16, 16))
    for step in range(1, 16):
        moved = Tensor.cat([weight[step:], weight[:step]], 0)
        total = total * 0.5 + (moved if step % 2 else moved.permute(1, 0))
    return total


def selections() -> Tensor:
    tensors = sources(60)
    total = tensors[0]
    for a, b in zip(tensors[::2], tensors[1::2], strict=True):
        total = (a > b).where(total, a * b)
    return total


def product_of_a_wide_join() -> Tensor:
    return Tensor.cat([t.exp() for t in sources(130, 2, 4)], 0) @ Tensor.input("w", (4, 3))


def long_chain() -> Tensor:
    y = Tensor.input("x", (8,))
    for i in range(2 * MAX_OPERATIONS):
        y = y * 0.5 + float(i + 1) if i % 2 else y + 1.0
    return y


GRAPHS: dict[str, Callable[[], Outputs]] = {
    "wide sum": lambda: {"y": total_of(sources(200))},
    "wide join": lambda: {"y": Tensor.cat(sources(70), 0)},
    "wide stack": lambda: {"y": Tensor.stack([t * 2.0 + 1.0 for t in sources(100, 3, 5)], 1)},
    "join of sums": lambda: {"y": join_of_sums()},
    "chain of products": lambda: {"y": matmul_chain()},
    "sum of products": lambda: {"y": sum_of_products()},
    "views of a weight": lambda: {"y": views_of_a_weight()},
    "selections": lambda: {"y": selections()},
    "product of a wide join": lambda: {"y": product_of_a_wide_join()},
    "several results": several_results,
    "long chain": lambda: {"y": long_chain()},
}


@pytest.fixture(scope="module", params=quick_cases(sorted(LIMITS), "webgpu"))
def programs(request: pytest.FixtureRequest) -> Iterator[tuple[str, Together]]:
    """The graphs above, under the limits of a target."""
    context = limited(request.param)
    makers = {n: partial(lambda f: plan_of(f(), context=context), f) for n, f in GRAPHS.items()}
    with Together(makers, UNOPTIMIZED) as together:
        yield request.param, together


@pytest.mark.opencl
@pytest.mark.parametrize("name", GRAPHS)
def test_no_kernel_exceeds_what_its_device_takes(programs: tuple[str, Together], name: str) -> None:
    target, together = programs
    limits, outputs = LIMITS[target], GRAPHS[name]()
    for args in arguments(outputs, target):
        assert len(args) <= limits.max_buffers
        assert len(args) * limits.pointer_bytes <= limits.parameter_bytes
    buffers = together.plans[name].inputs
    given: dict[str, Array] = {
        b.name: floats(*b.shape, seed=i) for i, b in enumerate(buffers) if b.data is None
    }
    got = together.run(name, given)
    for output, want in zip(outputs, evaluate(list(outputs.values()), given), strict=True):
        np.testing.assert_allclose(got[output], want, rtol=1e-4, atol=1e-4, err_msg=output)


@pytest.mark.parametrize(("count", "target"), [(200, "cpu"), (512, "cpu"), (512, "webgpu")])
def test_a_sum_of_hundreds_is_split_and_the_result_counts_as_an_argument(
    count: int, target: str
) -> None:
    most = LIMITS[target].max_buffers
    found = arguments({"y": total_of(sources(count))}, target)
    assert max(map(len, found)) <= most
    assert len(found) <= count // (most - 2) + 1


def test_kernel_at_the_limit_stays_whole() -> None:
    tensors = sources(MOST)
    assert len(arguments({"y": total_of(tensors[:-1])})) == 1
    assert len(arguments({"y": total_of(tensors)})) == 2


def test_the_environment_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    total = total_of(sources(40))
    assert most_buffers(total) == 41
    monkeypatch.setenv("MAX_KERNEL_BUFFERS", "10")
    assert most_buffers(total) == 10
    assert most_buffers(total, "webgpu") == 10
    monkeypatch.setenv("MAX_KERNEL_BUFFERS", "200")  # whoever asks for more knows the device
    assert context_for().limits.max_buffers == 200


@pytest.mark.parametrize(
    ("text", "told"),
    [("many", "MAX_KERNEL_BUFFERS='many': expected a number"), ("3", "found 3"), ("-8", "'-8'")],
)
def test_senseless_limits_are_refused(
    text: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAX_KERNEL_BUFFERS", text)
    with pytest.raises(SchedulerError, match=told):
        (Tensor.input("x", (8,)) + 1.0).schedule()


def test_bytes_of_arguments_limit_too() -> None:
    assert LIMITS["cpu"].max_buffers == 64
    assert LIMITS["embedded"].max_buffers == 256 // 8
    assert Limits("t", 64, 256, "", pointer_bytes=4).max_buffers == 64
    assert Limits("t", 64, 128, "").max_buffers == 16


def test_results_count() -> None:
    limits = LIMITS["webgpu"]
    assert limits.fits(7)
    assert not limits.fits(8)
    assert not limits.fits(6, writes=3)


def test_every_row_says_where_it_comes_from() -> None:
    assert all(row.source and row.target == name for name, row in LIMITS.items())


def test_long_chain_is_split_by_operations() -> None:
    assert 3 <= len(kernelize({"y": long_chain().node})[1]) <= 4


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


@pytest.mark.parametrize("count", quick_cases([1000, 6131], 1000))
def test_a_stack_of_tensors_takes_kernels_in_proportion(count: int) -> None:
    """https://github.com/tinygrad/tinygrad/issues/8617: recursion, then minutes."""
    _, kernels = kernelize({"out": Tensor.stack([t * 2.0 for t in sources(count, 8)], 0).node})
    assert max(len(k.reads) for k in kernels) + 1 <= MOST
    assert len(kernels) <= count // (MOST // 2) + 10


def split_of(tensor: Tensor) -> set[Node]:
    return split_points(tensor.node, store_plan([tensor.node], DEFAULT).regions, DEFAULT.costs)


A, B = Tensor.input("a", (6, 4)), Tensor.input("b", (4, 6))
WIDE = Tensor.input("x", (4096, 4096))
INSIDE: dict[str, tuple[Tensor, Callable[[Tensor], Tensor]]] = {
    "a reduction": (A.exp().sum(1, keepdim=True), lambda t: (t * 2.0 + 1.0).sqrt()),
    "what a movement reads": ((A + 1.0).exp(), lambda t: (t.permute(1, 0) * B + 3.0).sqrt()),
}
WHOLE = {
    "a sum": A.permute(1, 0) + B,
    "a reduction": A.sum(1),
    "a copy": A.permute(1, 0).contiguous(),
    "what memory cannot hold": WIDE @ WIDE.flip(0),  # the products are 256 GiB
}


@pytest.mark.parametrize("what", INSIDE)
def test_what_is_inside_is_stored(what: str) -> None:
    inner, outer = INSIDE[what]
    assert split_of(outer(inner)) == {inner.node}


@pytest.mark.parametrize("what", WHOLE)
def test_a_single_operation_cannot_be_split(what: str) -> None:
    assert split_of(WHOLE[what]) == set()


def test_a_chain_is_halved() -> None:
    y = Tensor.input("x", (8,))
    for _ in range(64):
        y = y.sin()
    stored = store_plan([y.node], DEFAULT).regions
    (cut,) = split_points(y.node, stored, DEFAULT.costs)
    wanted = ELEMENTWISE | {Op.REDUCE}
    assert sum(n.op in wanted and (n is cut or n not in stored) for n in _fused(cut, stored)) == 32


# --- reasons --------------------------------------------------------------------------------------

ROW = Tensor.input("r", (512, 512))
REASONS: dict[str, Callable[[], Tensor]] = {
    "contiguous() was requested": lambda: (A + 1.0).contiguous().permute(1, 0) * 2.0,
    "its reduction would be repeated": lambda: (ROW @ ROW).flip(0) @ ROW,
    "computing it again costs more than memory": lambda: ROW.exp().sin() @ ROW,
    "its kernel would have too many buffers": lambda: total_of(sources(70)),
    "its kernel would do too many operations": long_chain,
}


@pytest.mark.parametrize("reason", REASONS)
def test_a_plan_has_the_reason_of_each_stored_node(reason: str) -> None:
    sink = REASONS[reason]().node
    plan = store_plan([sink], DEFAULT)
    assert plan.reasons.keys() == plan.regions.keys()
    assert plan.reasons[sink] == "an output"
    assert {why for node, why in plan.reasons.items() if node is not sink} == {reason}


def test_the_new_value_of_a_state_is_its_own_reason() -> None:
    write = Tensor.state("s", (24,)).assign(Tensor.input("x", (24,)))
    assert store_plan([write.node], DEFAULT).reasons == {write.node: "the new value of a state"}
