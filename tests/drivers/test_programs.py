"""Programs of every row of the device table, on the driver at hand, against the interpreter."""

from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from runtime.opencl.device import choose_device
from scheduler.context import CompileContext
from scheduler.device.spec import SPECS, DeviceSpec
from scheduler.device.targets import spec_of_device
from scheduler.tensor.tensor import Tensor, evaluate
from tests.drivers.cases import CASES, Feed
from tests.scheduler.support.programs import load

pytestmark = pytest.mark.opencl
Array = NDArray[Any]
# "elsewhere": code for PoCL, as a file has it that was compiled on another machine.
ROWS = ("here", "cpu", "cpu-avx2", "gpu", "adreno", "elsewhere")
# oclgrind's (21.10) check for values that nobody wrote fails there: it ends the process, and with
# convolutions it reports a weight that is an image, with states (rows alone) it reports in some
# runs only. Races and bounds are checked all the same.
CHECK_FAILS: set[tuple[str, ...]] = {("cpu-avx2",), ("gpu",), ("elsewhere",)}
CHECK_FAILS |= {("five_layers", "gpu"), ("five_layers", "adreno"), ("convolutions", "adreno")}
CHECK_FAILS |= {("halves", "gpu"), ("halves", "adreno")}


def row_of(name: str) -> DeviceSpec:
    here = spec_of_device(choose_device(None))
    if name == "here":
        return here
    if name == "elsewhere":
        return SPECS["cpu-avx2"]
    row = SPECS[name]
    return replace(row, host_clang=row.host_clang and here.host_clang)


def check(got: Mapping[str, Array], wanted: Mapping[str, Array], tolerance: float) -> None:
    for name, value in wanted.items():
        if value.dtype.kind != "f":
            np.testing.assert_array_equal(got[name], value, err_msg=name)
            continue
        worst = np.abs(got[name].astype(np.float64) - value).max() / np.abs(value).max()
        assert worst < tolerance, (name, worst)


def apart(driver: str, test: Callable[..., None], *arguments: str) -> None:
    """Call a test, under oclgrind in a new process.

    It (21.10) takes values for unwritten that a second program of a process writes where the first
    one had memory; see docs/drivers.md.
    """
    if driver != "oclgrind":
        test(*arguments)
        return
    with (
        pytest.MonkeyPatch.context() as patch,
        ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool,
    ):
        if arguments[:2] in CHECK_FAILS:
            patch.delenv("OCLGRIND_UNINITIALIZED")
        pool.submit(test, *arguments).result()


def agrees(case: str, row: str, precision: str) -> None:
    feed = Feed()
    outputs = CASES[case](feed)
    wanted = dict(zip(outputs, evaluate(list(outputs.values()), feed.inputs), strict=True))
    context = CompileContext(row_of(row), precision=precision)
    with load(outputs, context=context) as program:
        check(program.run(feed.inputs), wanted, 2e-5 if precision == "fp32" else 5e-3)


def queue_moves(row: str) -> None:
    """Run a queue that moves on with each run, and a sum that is updated in place."""
    x, queue = Tensor.input("x", (1, 20)), Tensor.state("queue", (3, 20))
    total = Tensor.state("total", (20,))
    moved = queue.assign(Tensor.cat([queue[1:], x], 0))
    added = total.assign(total + x[0])
    writes, context = [moved, added], CompileContext(row_of(row))
    with load({"mean": moved.mean(0)}, writes, context) as program:
        for turn in range(1, 5):
            value = np.full((1, 20), float(turn), np.float32)
            got = program.run({"x": value})["mean"].copy()
            seen = [max(0, turn - back) for back in range(3)]
            np.testing.assert_allclose(got, np.full(20, sum(seen) / 3), rtol=1e-6)
        np.testing.assert_array_equal(program.state("total"), np.full(20, 10.0, np.float32))


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("case", CASES)
def test_loop_nests(case: str, row: str, driver: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if driver == "oclgrind" and (case == "winograd" or case.startswith("stack")):
        pytest.skip("minutes in an interpreter")
    if driver == "oclgrind" and row in ("here", "cpu", "elsewhere"):
        pytest.skip("row gpu; row cpu-avx2 with more lanes; row cpu-avx2 behind a macro")
    if driver == "rusticl" and (case, row) == ("winograd", "elsewhere"):
        pytest.skip("minutes in its compiler (docs/drivers.md)")
    if driver != "oclgrind":  # which sees itself what nobody wrote, unless it is filled
        monkeypatch.setenv("RUNTIME_CHECK", "1")
    apart(driver, agrees, case, row, "fp32")


@pytest.mark.parametrize("row", ["cpu-avx2", "gpu", "adreno"])
def test_halves(row: str, driver: str) -> None:
    """Stored halves: buffers and, on adreno, images."""
    apart(driver, agrees, "halves", row, "fp16")


@pytest.mark.parametrize("row", ["cpu-avx2", "gpu", "elsewhere"])
def test_states(row: str, driver: str) -> None:
    apart(driver, queue_moves, row)
