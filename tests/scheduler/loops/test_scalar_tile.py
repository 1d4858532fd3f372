"""Results without lanes of their own: their register tile, and the end of their sums."""

from collections.abc import Callable, Iterator
from functools import partial
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.context import CompileContext
from scheduler.device.spec import DEFAULT, SPECS
from scheduler.device.tuned_table import HEURISTIC
from scheduler.emit.schedule import Schedule
from scheduler.loops import schedule as schedules
from scheduler.loops.choose import is_exact
from scheduler.loops.tile import dot_tile
from scheduler.tensor.tensor import Tensor, evaluate
from scheduler.tuning.variants import Job
from tests.scheduler.loops.jobs import CPUS, close, job_of, normal, weight
from tests.scheduler.support.programs import Array, plan_of
from tests.scheduler.support.together import Together
from tests.support.selection import quick_cases

# Products of vectors that one core computes at a time.
IN_FLIGHT = DEFAULT.loops.issue * DEFAULT.loops.latency


def dots(heads: int, rows: int, columns: int, depth: int) -> Tensor:
    """Return the products of rows with rows, as of queries with keys."""
    a = Tensor.input("a", (heads, rows, depth))
    return a @ Tensor.input("b", (heads, columns, depth)).permute((0, 2, 1))


def window(size: int = 24, channels: int = 5) -> Tensor:
    """Return a depthwise convolution of planes, whose padding differs by lane."""
    x = Tensor.input("x", (1, channels, size, size))
    return x.conv2d(weight(channels, 1, 5, 5), padding=2, groups=channels)


def cut(job: Job) -> list[int]:
    return [t.unroll for t in job.nest.schedule.tiles if t.unroll > 1]


@given(
    st.integers(1, 300),
    st.integers(1, 300),
    st.integers(1, 64),
    st.integers(1, 3),
    st.sampled_from(CPUS),
)
def test_a_tile_of_dot_products_fits_its_registers(
    rows: int, columns: int, steps: int, sums: int, name: str
) -> None:
    spec = SPECS[name]
    r, c = dot_tile(rows, columns, steps, spec.lanes, spec, sums)
    assert 1 <= r <= rows
    assert 1 <= c <= columns
    assert (r, c) == (1, 1) or sums * (r * c + c + 1) <= spec.vector_registers
    if min(rows, columns) >= IN_FLIGHT and sums == 1:
        assert r * c >= IN_FLIGHT


@pytest.mark.parametrize("cpu", CPUS)
def test_products_of_rows_share_what_they_load(cpu: str) -> None:
    job = job_of(dots(2, 64, 48, 96), cpu)
    rows, columns = cut(job)
    (loop,) = [part for part in job.render(HEURISTIC).text.split("for (int i") if "m_fma" in part]
    body = loop[: loop.index("}")]
    assert body.count("m_fma") % (rows * columns) == 0
    assert body.count("M_LOAD") * rows * columns == body.count("m_fma") * (rows + columns)


@pytest.mark.parametrize("cpu", CPUS)
def test_neighbours_of_a_window_share_what_they_load(cpu: str) -> None:
    job = job_of(window(), cpu)
    assert job.nest.schedule.lanes == 1
    assert cut(job) == [8]


@pytest.mark.parametrize("cpu", CPUS)
def test_sums_of_private_rows_are_not_cut(cpu: str) -> None:
    """Of a row that is kept there is one array, not one per result."""
    assert not cut(job_of(Tensor.input("x", (7, 33)).softmax().sum(1), cpu))


@pytest.mark.parametrize("cpu", CPUS)
def test_what_is_overwritten_is_computed_once(cpu: str) -> None:
    """13 and 11 are no multiples of a block; the last one may not overlap the one before."""
    nest = job_of(dots(1, 13, 11, 64), cpu).nest
    loops = nest.schedule
    assert not is_exact(loops)
    once = schedules.choose_schedule(nest.body, None, loops.lanes, nest.spec, exact=True)
    assert is_exact(once)


def pairs(combined: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Reduce what two operands make: every reduction ends in lanes that are combined."""
    return combined(Tensor.input("a", (9, 1, 40)), Tensor.input("b", (1, 14, 40)))


NETWORKS: dict[str, Callable[[], Tensor]] = {
    "dots 1": lambda: dots(1, 13, 11, 64) * 0.5,
    "dots 2": lambda: dots(3, 9, 10, 37) * 0.5,
    "dots 3": lambda: dots(2, 2, 31, 16) * 0.5,
    "dots 4": lambda: dots(1, 1, 5, 130) * 0.5,
    "dots 5": lambda: dots(2, 64, 64, 32) * 0.5,
    "window 7": lambda: window(7),
    "window 8": lambda: window(8),
    "window 19": lambda: window(19),
    "maximum": lambda: pairs(lambda a, b: (a + b).max(2)),
    "sum": lambda: pairs(lambda a, b: (a - b).abs().sum(2)),
    "count": lambda: pairs(lambda a, b: (a > b).sum(2)),
}


def plan(name: str, context: CompileContext) -> Schedule:
    if name in NETWORKS:
        return plan_of({"y": NETWORKS[name]()}, context=context)
    made = {"y": dots(1, 21, 26, 64)}
    if name == "tiled":
        return plan_of(made, context=context)
    with mock.patch.object(schedules, "scalar_tile", return_value={}):
        return plan_of(made, context=context)


@pytest.fixture(scope="module", params=quick_cases(CPUS, "cpu", "cpu-sse"))
def programs(request: pytest.FixtureRequest) -> Iterator[Together]:
    context = CompileContext(SPECS[request.param])
    names = [*NETWORKS, "tiled", "alone"]
    with Together({name: partial(plan, name, context) for name in names}) as together:
        yield together


def given_to(programs: Together, name: str) -> dict[str, Array]:
    return {b.name: normal(*b.shape) for b in programs.plans[name].inputs if b.data is None}


@pytest.mark.opencl
@pytest.mark.parametrize("name", NETWORKS)
def test_numbers_are_the_interpreters(programs: Together, name: str) -> None:
    inputs = given_to(programs, name)
    (expected,) = evaluate([NETWORKS[name]()], inputs)
    close(programs.run(name, inputs)["y"], expected)


@pytest.mark.opencl
def test_sums_that_share_vectors_at_their_end_have_the_bits_of_sums_alone(
    programs: Together,
) -> None:
    inputs = given_to(programs, "tiled")
    tiled, alone = (programs.run(name, inputs)["y"] for name in ("tiled", "alone"))
    texts = [programs.plans[name].lowered[0].text for name in ("tiled", "alone")]
    assert texts[0] != texts[1]
    assert (tiled == alone).all()
