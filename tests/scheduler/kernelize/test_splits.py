"""Kernels whose code cannot be generated are computed as several, in the real pipeline."""

import logging
from collections.abc import Callable
from dataclasses import replace

import pytest

from scheduler import lower as lowered
from scheduler.context import CompileContext
from scheduler.device.spec import DEFAULT, SPECS, Images
from scheduler.emit.limit_checks import check_limits
from scheduler.errors import DeviceLimitError, LoweringError
from scheduler.ir.origin import Origins
from scheduler.kernelize.kernel import Kernel
from scheduler.kernelize.store_plan import Refused, split, store_plan
from scheduler.tensor.tensor import Tensor, evaluate
from tests.scheduler.support.programs import (
    floats,
    plan_for,
    plan_of,
    program_of,
    same,
    values_of,
    x,
)
from tests.support.selection import quick_cases


@pytest.fixture
def at_most(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Let the code generator refuse kernels of more than some operations."""
    generate = lowered._lower

    def install(operations: int) -> None:
        def refusing(
            program: lowered._Program, position: int, kernel: Kernel
        ) -> lowered.LoweredKernel:
            found = kernel.operations
            if found > operations:
                raise LoweringError(f"{found} operations, at most {operations} here")
            return generate(program, position, kernel)

        monkeypatch.setattr(lowered, "_lower", refusing)

    return install


def attention(a: Tensor) -> Tensor:
    return ((a @ a.T) * 0.25).softmax() @ a + a


@pytest.mark.opencl
@pytest.mark.parametrize("operations", quick_cases([6, 3, 2, 1], 3))
def test_refused_kernels_are_split_and_still_right(
    at_most: Callable[[int], None], operations: int, caplog: pytest.LogCaptureFixture
) -> None:
    y = attention(x(12, 16))
    outputs = [y, y.relu().sum(1)]
    whole = len(plan_for(*outputs).launches)
    at_most(operations)
    with caplog.at_level(logging.WARNING, "scheduler"):
        made = program_of(*outputs)
    assert len(made.plan.lowered) == len(made.plan.launches) > whole
    assert all(k.operations <= operations for k in made.plan.launches)
    assert any("computing it as" in r.getMessage() for r in caplog.records)
    given = {"x": floats(12, 16)}
    for value, want in zip(values_of(made, **given), evaluate(outputs, given), strict=True):
        same(value, want)


def test_an_operation_that_cannot_be_split_is_an_error_that_names_it(
    at_most: Callable[[int], None],
) -> None:
    at_most(0)
    y, origins = x(8).exp(), Origins()
    origins.name([y.node], ("/encoder/Exp",))
    with pytest.raises(LoweringError, match=r"/encoder/Exp.*cannot be split"):
        plan_of({"y": y}, origins=origins)


def test_what_works_is_not_split(
    at_most: Callable[[int], None], caplog: pytest.LogCaptureFixture
) -> None:
    at_most(1000)
    plan_for(attention(x(12, 16)))
    assert not caplog.messages


def test_rounds_of_splitting_come_to_an_end(at_most: Callable[[int], None]) -> None:
    at_most(1)
    y, origins = x(8), Origins()
    for _ in range(200):
        y = y.sin()
    origins.name([y.node], ("/long",))
    with pytest.raises(LoweringError, match=r"/long: .*still refused after"):
        plan_of({"y": y}, origins=origins)


def test_merged_kernels_are_taken_apart_before_anything_is_stored(
    caplog: pytest.LogCaptureFixture,
) -> None:
    a = x(8)
    both = ((a.sin() + 1.0).node, (a.cos() + 1.0).node)
    kernel = Kernel((), both, (), ("/both",))
    refused = Refused(kernel, "too complex")
    apart = split(store_plan(both, DEFAULT), refused, [kernel])
    assert apart is not None
    assert (apart.requested, apart.alone) == ({}, frozenset(both))
    assert caplog.messages == ["kernel of /both: too complex; computing it as 2 kernels"]
    stored = split(apart, refused, [kernel])
    assert stored is not None
    assert stored.requested.keys() == {a.sin().node, a.cos().node}
    assert stored.reasons[a.sin().node] == "a kernel was refused: too complex"
    assert split(stored, refused, [kernel]) is None


def test_what_was_stored_before_and_fused_again_is_taken_out() -> None:
    """A value that a limit stored may have been fused into its only reader."""
    value = x(8).sin()
    inner, outer = value.node, (value + 1.0).sqrt().node
    kernel = Kernel((), (outer,), (), ("/outer",))
    plan = store_plan([outer], DEFAULT, {inner: "its kernel would do too many operations"})
    again = split(plan, Refused(kernel, "too complex"), [kernel])
    assert again is not None
    assert again.requested == plan.requested
    assert again.alone == {inner, outer}
    assert split(again, Refused(kernel, "too complex"), [kernel]) is None


@pytest.mark.opencl
def test_a_kernel_that_breaks_a_limit_of_its_device_is_split(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Three images are read by one sum; a device that takes two gets two sums."""
    weights = [Tensor.weight(floats(8, 8, 3, 3, seed=i)) for i in range(3)]
    image = x(1, 8, 10, 12)
    parts = [image.conv2d(w, padding=1).relu().contiguous() for w in weights]
    y = (parts[0] + parts[1] * parts[2]).tanh().contiguous().conv2d(weights[0], padding=1)
    adreno = SPECS["adreno"]
    poor = replace(adreno, images=Images(16384, 16384, 2, 64))
    plain = program_of(y, context=CompileContext(adreno))
    with pytest.raises(DeviceLimitError, match=r"images read: expected at most 2 .* found 3"):
        check_limits(plain.manifest, poor)
    made = program_of(y, context=CompileContext(poor))
    assert len(made.plan.launches) == len(plain.plan.launches) + 1
    assert "images read: expected at most 2 on target adreno, found 3" in caplog.text
    check_limits(made.manifest, poor)
    given = {"x": floats(*image.shape)}
    same(values_of(made, **given)[0], y.interp(given), 1e-4)
