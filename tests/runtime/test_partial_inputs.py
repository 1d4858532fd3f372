"""Inputs of which a run gives the first bytes only: what is copied, what stays, what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest

from runtime.artifact import from_memory
from runtime.device import choose_device
from runtime.errors import InputError
from runtime.executor import Program
from runtime.program_cache import shared_cache
from scheduler.cache.schedules import EntryGraph, ScheduleCache
from scheduler.context import DEFAULT_CONTEXT
from scheduler.errors import ModelError
from scheduler.ir import dtype as dt
from scheduler.ir.digest import graph_digest
from scheduler.ir.interp import evaluate
from scheduler.tensor.tensor import Tensor
from tests.runtime import tiny

pytestmark = pytest.mark.opencl
Array = np.ndarray[Any, Any]


@pytest.fixture(params=[{}, {"platform": "another"}], ids=["views", "commands"])
def program(request: pytest.FixtureRequest) -> Iterator[Program]:
    """The tiny program, whose frame of 100 bytes is partial."""
    changes = {f"buffers/{tiny.FRAME}/partial": True}
    with tiny.on_cpu(tiny.altered(tiny.megakernel_manifest(), changes), **request.param) as loaded:
        yield loaded


def counted(program: Program, frame: Array) -> int:
    """Return the sum of the first 50 bytes that the device holds after a run with this frame."""
    return int(program.run({**tiny.inputs(), "frame": frame})["count"][0])


def test_only_the_bytes_given_are_copied(program: Program) -> None:
    ones = np.ones(100, np.uint8)
    assert counted(program, ones[:7]) == 7  # zeros behind them, from loading
    assert counted(program, ones) == 50
    assert counted(program, 3 * ones[:10]) == 30 + 40
    assert counted(program, 5 * ones[:1]) == 5 + 27 + 40
    program.reset()
    assert counted(program, ones[:10]) == 10 + 40  # no state: a reset leaves it


def test_the_neighbours_of_a_partial_input_keep_their_values(program: Program) -> None:
    for length, value in product((1, 33, 100), (0, 255)):
        frame = np.full(length, value, np.uint8)
        program.reset()
        y = program.run({**tiny.inputs(2.0), "frame": frame})["y"]
        np.testing.assert_array_equal(y, 4 * np.array([1, 2, 3, 4]) + tiny.WEIGHT)


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (np.zeros(0, np.uint8), r"expected uint8\[1 to 100\], found uint8\[0\]"),
        (np.zeros(101, np.uint8), r"expected uint8\[1 to 100\], found uint8\[101\]"),
        (np.zeros((1, 50), np.uint8), r"expected uint8\[1 to 100\], found uint8\[1, 50\]"),
        (np.zeros((), np.uint8), r"expected uint8\[1 to 100\], found uint8\[\]"),
        (np.zeros(50, np.int8), r"expected uint8\[1 to 100\], found int8\[50\]"),
        (np.zeros(100, np.uint8)[::2], "C-contiguous; use numpy.ascontiguousarray"),
    ],
)
def test_what_is_no_part_is_refused(program: Program, frame: Array, message: str) -> None:
    with pytest.raises(InputError, match=f"entry 'run', input 'frame': .*{message}"):
        counted(program, frame)


def test_other_inputs_are_whole(program: Program) -> None:
    assert [spec.partial for spec in program.inputs] == [False, True]
    assert program.inputs[1].shape == (100,)
    with pytest.raises(InputError, match=r"input 'x': expected float32\[4\], found float32\[3\]"):
        program.run({**tiny.inputs(), "x": np.zeros(3, np.float32)})


# --- from the graph -----------------------------------------------------------------------------


def row(*, partial: bool) -> Tensor:
    return Tensor.input("row", (64,), dt.uint8, partial=partial)


def test_a_graph_marks_its_inputs() -> None:
    part, whole = row(partial=True), Tensor.input("whole", (64,), dt.uint8)
    total = (part.cast(dt.int32) + whole.cast(dt.int32)).sum()
    graph = EntryGraph({"total": total.node}, inputs=[part.node, whole.node])
    made = ScheduleCache().emitted({"run": graph}, DEFAULT_CONTEXT, name="parts", kind="plain")
    marks = {b["name"]: b.get("partial") for b in made.manifest["buffers"] if b["kind"] == "input"}
    assert marks == {"row": True, "whole": None}
    device = choose_device(None)
    artifact = from_memory(made.manifest, made.data)
    with Program(artifact, device, shared_cache(device)) as program:
        given = {"row": np.full(9, 2, np.uint8), "whole": np.ones(64, np.uint8)}
        assert program.run(given)["total"] == 9 * 2 + 64
    (expected,) = evaluate(
        [total.node], {t.node.arg: given[t.node.arg.name] for t in (part, whole)}
    )
    assert expected == 9 * 2 + 64


def test_partial_inputs_are_part_of_the_key_of_a_schedule() -> None:
    keys = {graph_digest({"y": (row(partial=p) + 1).node}) for p in (True, False, True)}
    assert len(keys) == 2


@pytest.mark.parametrize(("shape", "dtype"), [((4, 4), dt.uint8), ((16,), dt.int8), ((), dt.uint8)])
def test_only_rows_of_bytes_can_be_partial(shape: tuple[int, ...], dtype: dt.DType) -> None:
    with pytest.raises(ModelError, match='input "row": expected uint8 with one axis'):
        Tensor.input("row", shape, dtype, partial=True)
