"""Kernels whose code cannot be generated are computed as several, in the real pipeline."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from scheduler import lower as lowered
from scheduler.context import CompileContext
from scheduler.device.spec import SPECS, Images
from scheduler.emit.artifact import emit
from scheduler.emit.limit_checks import check_limits
from scheduler.errors import DeviceLimitError, LoweringError
from scheduler.ir.origin import Origins
from scheduler.kernelize.splits import Refused, Splits
from scheduler.pipeline import schedule
from scheduler.tensor.tensor import Tensor, evaluate
from tests.scheduler.support.programs import load, loaded


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
@pytest.mark.parametrize("operations", [6, 3, 2, 1])
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
        schedule({"y": y.node}, origins=origins)


def test_what_works_is_not_split(
    at_most: Callable[[int], None], caplog: pytest.LogCaptureFixture
) -> None:
    at_most(1000)
    schedule({"y": attention(Tensor.input("x", (12, 16))).node})
    assert not caplog.messages


def test_rounds_of_splitting_come_to_an_end(at_most: Callable[[int], None]) -> None:
    at_most(1)
    y, origins = Tensor.input("x", (8,)), Origins()
    for _ in range(200):
        y = y.sin()
    origins.name([y.node], ("/long",))
    with pytest.raises(LoweringError, match=r"/long: .*still refused after"):
        schedule({"y": y.node}, origins=origins)


def test_merged_kernels_are_taken_apart_before_anything_is_stored(
    caplog: pytest.LogCaptureFixture,
) -> None:
    x = Tensor.input("x", (8,))
    both = ((x.sin() + 1.0).node, (x.cos() + 1.0).node)
    refused = Refused(both, frozenset(both), "/both", "too complex")
    assert Splits().with_split(refused) == Splits(frozenset(), frozenset(both))
    assert caplog.messages == ["kernel of /both: too complex; computing it as 2 kernels"]
    again = Splits(frozenset(), frozenset(both)).with_split(refused)
    assert again is not None
    assert again.pins == {x.sin().node, x.cos().node}


@pytest.mark.opencl
def test_a_kernel_that_breaks_a_limit_of_its_device_is_split(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Three images are read by one sum; a device that takes two gets two sums."""
    x = Tensor.input("x", (1, 8, 10, 12))
    weights = np.random.default_rng(2).standard_normal((3, 8, 8, 3, 3)).astype(np.float32)
    parts = [x.conv2d(Tensor.weight(w), padding=1).relu().contiguous() for w in weights]
    y = (parts[0] + parts[1] * parts[2]).tanh().contiguous()
    y = y.conv2d(Tensor.weight(weights[0]), padding=1)
    adreno = SPECS["adreno"]
    poor = replace(adreno, images=Images(16384, 16384, 2, 64))
    plain = schedule({"y": y.node}, context=CompileContext(adreno))
    with pytest.raises(DeviceLimitError, match=r"images read: expected at most 2 .* found 3"):
        check_limits(emit({"run": plain}, name="t", kind="plain").manifest, poor)
    plan = schedule({"y": y.node}, context=CompileContext(poor))
    assert len(plan.launches) == len(plain.launches) + 1
    assert "images read: expected at most 2 on target adreno, found 3" in caplog.text
    made = emit({"run": plan}, name="t", kind="plain")
    check_limits(made.manifest, poor)
    given = {"x": np.random.default_rng(1).standard_normal(x.shape).astype(np.float32)}
    with loaded(made.manifest, made.data) as program:
        np.testing.assert_allclose(program.run(given)["y"], y.interp(given), rtol=1e-4, atol=1e-4)
