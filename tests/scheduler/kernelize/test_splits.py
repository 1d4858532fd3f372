"""Kernels whose code cannot be generated are computed as several, in the real pipeline."""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np
import pytest

from scheduler import lower as lowered
from scheduler.emit.artifact import emit
from scheduler.errors import LoweringError
from scheduler.ir.origin import Origins
from scheduler.pipeline import schedule
from scheduler.tensor.tensor import Tensor, evaluate
from tests.scheduler.support.programs import load


@pytest.fixture
def at_most(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Let the code generator refuse kernels of more than some operations."""
    generate = lowered._lower

    def install(operations: int) -> None:
        def refusing(program: lowered._Program, position: int) -> lowered.LoweredKernel:
            found = program.kernels[position].operations
            if found > operations:
                raise LoweringError(f"{found} operations, at most {operations} here")
            return generate(program, position)

        monkeypatch.setattr(lowered, "_lower", refusing)

    return install


def attention(x: Tensor) -> Tensor:
    return ((x @ x.T) * 0.25).softmax() @ x + x


@pytest.mark.opencl
@pytest.mark.parametrize("operations", [6, 3, 2])
def test_refused_kernels_are_split_and_still_right(
    at_most: Callable[[int], None], operations: int, caplog: pytest.LogCaptureFixture
) -> None:
    x = Tensor.input("x", (12, 16))
    outputs = {"y": attention(x), "z": attention(x).relu().sum(1)}
    given = {"x": np.random.default_rng(1).standard_normal((12, 16)).astype(np.float32)}
    whole = len(schedule({n: t.node for n, t in outputs.items()}).launches)
    at_most(operations)
    with caplog.at_level(logging.WARNING, "scheduler"):
        plan = schedule({n: t.node for n, t in outputs.items()})
        assert len(plan.lowered) == len(plan.launches) > whole
    assert all(k.operations <= operations for k in plan.launches)
    assert any("computing it as" in r.getMessage() for r in caplog.records)
    assert emit({"run": plan}, name="t", kind="plain").manifest["kernels"]
    with load(outputs) as program:
        got = program.run(given)
        for (name, value), want in zip(
            got.items(), evaluate(list(outputs.values()), given), strict=True
        ):
            np.testing.assert_allclose(value, want, rtol=1e-5, atol=1e-5, err_msg=name)


def test_an_operation_that_cannot_be_split_is_an_error_that_names_it(
    at_most: Callable[[int], None],
) -> None:
    at_most(0)
    y, origins = Tensor.input("x", (8,)).exp(), Origins()
    origins.name([y.node], ("/encoder/Exp",))
    with pytest.raises(LoweringError, match=r"/encoder/Exp.*cannot be split"):
        _ = schedule({"y": y.node}, origins=origins).lowered


def test_what_is_split_is_done_without_when_it_is_asked_for_again(
    at_most: Callable[[int], None],
) -> None:
    """Splitting belongs to a schedule: it is stored there, so that tables show what runs."""
    at_most(2)
    plan = schedule({"y": attention(Tensor.input("x", (12, 16))).node})
    first = plan.lowered
    assert plan.lowered is first
    assert [k.kernel for k in first] == plan.launches
