"""Results without lanes of their own: their register tile, and the end of their sums."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.cache.schedules import EntryGraph
from scheduler.context import CompileContext
from scheduler.device.choice import HEURISTIC
from scheduler.device.spec import SPECS
from scheduler.loops import schedule as schedules
from scheduler.loops.in_place import is_exact
from scheduler.loops.tile import ISSUE, LATENCY, dot_tile
from scheduler.tensor.tensor import Tensor, evaluate
from scheduler.tuning.jobs import Job, jobs_of
from tests.scheduler.support.programs import load
from tests.scheduler.support.values import rng

Array = np.ndarray[Any, Any]
CPUS = ("cpu", "cpu-avx2", "cpu-sse", "cpu-neon")


def floats(*shape: int) -> Array:
    return rng().standard_normal(shape).astype(np.float32)


def dots(heads: int, rows: int, columns: int, depth: int) -> Tensor:
    """Return the products of rows with rows, as of queries with keys."""
    a = Tensor.input("a", (heads, rows, depth))
    b = Tensor.input("b", (heads, columns, depth))
    return a @ b.permute((0, 2, 1))


def window(size: int = 24, channels: int = 5) -> Tensor:
    """Return a depthwise convolution of planes, whose padding differs by lane."""
    x = Tensor.input("x", (1, channels, size, size))
    return x.conv2d(Tensor.weight(floats(channels, 1, 5, 5)), padding=2, groups=channels)


def job_of(context: CompileContext, tensor: Tensor) -> Job:
    (job,) = jobs_of([EntryGraph({"y": tensor.node})], context)
    return job


def cut(job: Job) -> list[int]:
    return [t.unroll for t in job.nest.schedule.tiles if t.unroll > 1]


@pytest.fixture(params=CPUS)
def context(request: pytest.FixtureRequest) -> CompileContext:
    return CompileContext(SPECS[request.param])


# --- the tile -----------------------------------------------------------------------------------


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
    if min(rows, columns) >= ISSUE * LATENCY and sums == 1:
        assert r * c >= ISSUE * LATENCY


def test_products_of_rows_share_what_they_load(context: CompileContext) -> None:
    job = job_of(context, dots(2, 64, 48, 96))
    rows, columns = cut(job)
    (loop,) = [part for part in job.render(HEURISTIC).text.split("for (int i") if "m_fma" in part]
    body = loop[: loop.index("}")]
    assert body.count("m_fma") % (rows * columns) == 0
    assert body.count("M_LOAD") * rows * columns == body.count("m_fma") * (rows + columns)


def test_neighbours_of_a_window_share_what_they_load(context: CompileContext) -> None:
    job = job_of(context, window())
    assert job.nest.schedule.lanes == 1
    assert cut(job) == [8]


def test_sums_of_private_rows_are_not_cut(context: CompileContext) -> None:
    """Of a row that is kept there is one array, not one per result."""
    x = Tensor.input("x", (7, 33))
    job = job_of(context, x.softmax().sum(1))
    assert not cut(job)


def test_what_is_overwritten_is_computed_once(context: CompileContext) -> None:
    """13 and 11 are no multiples of a block; the last one may not overlap the one before."""
    nest = job_of(context, dots(1, 13, 11, 64)).nest
    loops = nest.schedule
    assert not is_exact(loops)
    once = schedules.choose_schedule(nest.body, None, loops.lanes, nest.spec, exact=True)
    assert is_exact(once)


# --- numbers ------------------------------------------------------------------------------------

SIZES = [(1, 13, 11, 64), (3, 9, 10, 37), (2, 2, 31, 16), (1, 1, 5, 130), (2, 64, 64, 32)]


@pytest.mark.opencl
@pytest.mark.parametrize("size", SIZES)
def test_dot_products_are_the_interpreters(
    context: CompileContext, size: tuple[int, int, int, int]
) -> None:
    tensor = dots(*size) * 0.5
    inputs = {"a": floats(*size[:2], size[3]), "b": floats(size[0], size[2], size[3])}
    (expected,) = evaluate([tensor], inputs)
    with load({"y": tensor}, context=context) as program:
        got = program.run(inputs)["y"]
    assert np.abs(got - expected).max() <= 1e-5 * np.abs(expected).max()


@pytest.mark.opencl
def test_sums_that_share_vectors_at_their_end_have_the_bits_of_sums_alone(
    context: CompileContext,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tensor, inputs = dots(1, 21, 26, 64), {"a": floats(1, 21, 64), "b": floats(1, 26, 64)}
    found = []
    for tiled in (True, False):
        if not tiled:
            monkeypatch.setattr(schedules, "scalar_tile", lambda *_: {})
        with load({"y": tensor}, context=context) as program:
            found.append(program.run(inputs)["y"])
    assert (found[0] == found[1]).all()


@pytest.mark.opencl
@pytest.mark.parametrize("size", [7, 8, 19])
def test_windows_without_lanes_are_the_interpreters(context: CompileContext, size: int) -> None:
    tensor, inputs = window(size), {"x": floats(1, 5, size, size)}
    (expected,) = evaluate([tensor], inputs)
    with load({"y": tensor}, context=context) as program:
        got = program.run(inputs)["y"]
    assert np.abs(got - expected).max() <= 1e-5 * np.abs(expected).max()


@pytest.mark.opencl
@pytest.mark.parametrize("kind", ["max", "sum", "int"])
def test_other_reductions_of_two_operands(context: CompileContext, kind: str) -> None:
    """Every reduction ends in lanes that are combined, not only sums of products of floats."""
    a, b = Tensor.input("a", (9, 1, 40)), Tensor.input("b", (1, 14, 40))
    values = {"a": floats(9, 1, 40), "b": floats(1, 14, 40)}
    if kind == "max":
        tensor = (a + b).max(2)
    elif kind == "sum":
        tensor = (a - b).abs().sum(2)
    else:
        tensor = (a > b).sum(2)
    (expected,) = evaluate([tensor], values)
    with load({"y": tensor}, context=context) as program:
        got = program.run(values)["y"]
    np.testing.assert_allclose(got, expected, rtol=1e-5)
