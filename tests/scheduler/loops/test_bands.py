"""Kernels that hand rows to each other run band by band, where caches do not hold what they do."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from scheduler.context import FAST, STRICT, CompileContext
from scheduler.device.costs import LoopCosts
from scheduler.device.spec import SPECS
from scheduler.ir.ops import Op
from scheduler.lower import LoweredKernel
from scheduler.tensor.tensor import Tensor
from tests.fuzz.draw import Draw
from tests.scheduler.loops.jobs import check_apart, check_numbers, jobs_for, normal, weight
from tests.scheduler.support.programs import make_program, plan_of, x
from tests.support.selection import quick_cases

CACHE = 32 << 10
HEADS, WIDTH = 3, 20


COSTS = LoopCosts(min_bands=16)  # small programs have few bands


def small(row: str = "cpu") -> CompileContext:
    """A processor whose caches hold few scores."""
    return CompileContext(replace(SPECS[row], l2_bytes=CACHE, cores=1, loops=COSTS))


def split(tokens: int) -> list[Tensor]:
    """Queries, keys and values as a projection leaves them: all features of a token in a row."""
    rows = x(1, tokens, 3 * HEADS * WIDTH, name="rows")
    parts = rows.reshape(1, tokens, 3, HEADS, WIDTH).permute(2, 0, 3, 1, 4)
    return [parts[i] for i in range(3)]


def joined(heads: Tensor) -> Tensor:
    """Heads beside each other, as the next projection reads them."""
    _, count, tokens, width = heads.shape
    return heads.permute(0, 2, 1, 3).reshape(1, tokens, count * width)


def attention(tokens: int = 96) -> Tensor:
    """A range of the result is cut at heads."""
    q, k, v = split(tokens)
    return joined((q * 0.2 @ k.permute(0, 1, 3, 2)).softmax() @ v)


def masked() -> Tensor:
    """Bias and mask are read where scores are."""
    q, k, v = split(80)
    scores = q @ k.permute(0, 1, 3, 2) + weight(1, HEADS, 80, 80)
    hidden = x(1, 1, 80, 80, name="mask") < 0.0
    return joined(hidden.where(-1e4, scores).softmax() @ v)


def no_softmax() -> Tensor:
    """Two products, of batches; the second one has keys in another order."""
    a, b = x(4, 64, 32, name="a"), x(4, 48, 32, name="b")
    return (a @ b.permute(0, 2, 1)).relu() @ b.flip(1)


def one_head() -> Tensor:
    """Rows alone count bands."""
    a = x(240, 24, name="a")
    return (a @ a.T).softmax() @ a.flip(0)


def columns() -> Tensor:
    """A softmax of columns hands on columns."""
    a = x(240, 24, name="a")
    return (a @ a.T).softmax(0).T @ a.flip(0)


BANDS = (attention, masked, no_softmax, one_head, columns)


def chains(tensor: Tensor, context: CompileContext | None = None) -> list[LoweredKernel]:
    lowered = plan_of({"y": tensor}, context=context or small()).lowered
    return [k for k in lowered if k.kernel.scratch]


@pytest.mark.parametrize("tensor", BANDS, ids=lambda t: t.__name__)
def test_scores_of_a_band_stay_in_the_cache_of_a_core(tensor: Callable[[], Tensor]) -> None:
    (chain,) = chains(tensor())
    kept = [n.shape[1:] for n in chain.kernel.scratch]
    assert 0 < sum(4 * int(np.prod(shape)) for shape in kept) <= CACHE // COSTS.band_cache_part
    assert all(n.shape[0] == chain.items for n in chain.kernel.scratch)
    assert chain.items <= COSTS.max_items
    (result,) = [t for t in chain.kernel.targets if t not in chain.kernel.scratch]
    assert result.op is not Op.PACK
    assert len(chain.nests) >= 2


def test_a_result_takes_less_memory() -> None:
    whole = plan_of({"y": attention(192)}, context=CompileContext(SPECS["cpu"]))
    cut = plan_of({"y": attention(192)}, context=small())
    assert cut.peak_bytes < whole.peak_bytes / 2


def scores_are_a_result() -> list[Tensor]:
    q, k, v = split(96)
    scores = q @ k.permute(0, 1, 3, 2)
    return [scores.softmax() @ v, scores]


def a_third_kernel_reads_scores() -> list[Tensor]:
    q, k, v = split(96)
    scores = q @ k.permute(0, 1, 3, 2)
    return [scores.softmax() @ v, scores.sum(2)]


def weighted() -> Tensor:
    a = x(240, 24, name="a")
    return (a @ a.T).softmax() @ weight(240, 20)


def all_scores_first() -> Tensor:
    a = x(240, 24, name="a")
    scores = a @ a.T
    return (scores - scores.max((0, 1))).exp() @ a.flip(0)


def a_state_is_written() -> Tensor:
    """A later band would read what an earlier one has written."""
    state = Tensor.state("s", (240, 24))
    return state.assign((state @ state.T).softmax() @ state)


APART: dict[str, Callable[[], Tensor | list[Tensor]]] = {
    "rows cannot be cut evenly": lambda: attention(97),
    "a weight is a factor": weighted,
    "all scores are needed first": all_scores_first,
    "scores are a result": scores_are_a_result,
    "another kernel reads scores": a_third_kernel_reads_scores,
    "a state is written": a_state_is_written,
}


@pytest.mark.parametrize("reason", APART)
def test_kernels_run_one_after_the_other_where(reason: str) -> None:
    built = APART[reason]()
    outputs = built if isinstance(built, list) else [built]
    writes = [t for t in outputs if t.node.op is Op.ASSIGN]
    named = {f"y{i}": t for i, t in enumerate(outputs) if t not in writes}
    plan = plan_of(named, writes, small())
    assert not any(k.kernel.scratch for k in plan.lowered)


def test_kernels_run_one_after_the_other_where_caches_hold_the_scores() -> None:
    assert chains(attention(), CompileContext(SPECS["cpu"])) == []


def test_gpus_share_what_work_items_compute_in_other_ways() -> None:
    for row in ("gpu", "adreno"):
        assert chains(attention(), small(row)) == []


def test_tuning_leaves_loops_that_run_in_turn_alone() -> None:
    found = jobs_for({"y": attention()}, small())
    assert all(job.nest.body.stores[0].target.op is not Op.PACK for job in found)


@pytest.mark.opencl
@pytest.mark.parametrize("row", quick_cases(["cpu", "cpu-avx2", "cpu-sse", "cpu-neon"], "cpu"))
def test_numbers_are_those_of_the_interpreter(row: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNTIME_CHECK", "1")  # what is not written is NaN
    check_apart((tensor(), small(row)) for tensor in BANDS)


def drawn(draw: Draw, number: int) -> Tensor:
    """Some attention: heads apart or beside each other, masked, scaled, in any order of axes."""
    tokens, keys = draw.pick([32, 40, 48, 60, 64, 96]), draw.pick([17, 32, 33, 49, 64, 80])
    heads, width, wide = draw.integer(1, 4), draw.pick([8, 15, 16, 20, 32]), draw.pick([8, 16, 24])

    def operand(name: str, *shape: int) -> Tensor:
        order = draw.pick([(0, 1, 2), (1, 0, 2), (1, 2, 0), (2, 0, 1), (0, 2, 1)])
        stored = x(*(shape[a] for a in order), name=f"{name}{number}")
        return stored.permute(*np.argsort(order).tolist())

    q, k, v = (
        operand("q", heads, tokens, width),
        operand("k", heads, keys, width),
        operand("v", heads, keys, wide),
    )
    scores = q @ k.permute(0, 2, 1) * draw.pick([1.0, 0.3])
    if draw.flag():
        scores = scores + draw.pick([weight(heads, 1, keys), weight(1, tokens, keys)])
    between = draw.pick(["softmax", "softmax", "exp", "relu"])
    result: Tensor = getattr(scores, between)() @ v
    joins = draw.flag()
    return result.permute(1, 0, 2).reshape(tokens, heads * wide) if joins else result + 1.0


@pytest.mark.opencl
@pytest.mark.parametrize("programs", quick_cases([2, 40], 2))
def test_random_attentions_in_bands(programs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNTIME_CHECK", "1")
    cut = 0
    for seed in range(programs):
        draw = Draw(seed)
        costs = LoopCosts(
            min_bands=draw.pick([1, 4, 16]),
            min_band_rows=draw.pick([1, 2, 8]),
            max_items=draw.pick([2, 5, 32]),
        )
        row = draw.pick(["cpu", "cpu-avx2", "cpu-sse", "cpu-neon"])
        numerics = draw.pick([FAST, STRICT]) if SPECS[row].exact_steps else FAST
        cache = draw.pick([1 << 10, 1 << 13, 1 << 15])
        spec = replace(SPECS[row], l2_bytes=cache, cores=1, loops=costs)
        outputs = {f"y{i}": drawn(draw, i) for i in range(6)}
        context = CompileContext(spec, numerics=numerics)
        cut += sum(bool(k.kernel.scratch) for k in plan_of(outputs, context=context).lowered)
        check_numbers(outputs, context)
    assert cut >= programs


@pytest.mark.opencl
def test_bands_change_no_bit() -> None:
    found = []
    for context in (small(), CompileContext(SPECS["cpu"])):
        with make_program({"y": attention()}, context=context).load() as program:
            found.append(program.run({"rows": normal(1, 96, 3 * HEADS * WIDTH)})["y"])
    np.testing.assert_array_equal(found[0], found[1])
