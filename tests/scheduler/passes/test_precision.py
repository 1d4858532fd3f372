"""Half storage: what is rounded, what is not and why, and that the device computes just that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from runtime.artifact import from_memory
from runtime.device import choose_device
from runtime.executor import Program
from runtime.program_cache import shared_cache
from scheduler.cache.schedules import EntryGraph, ScheduleCache
from scheduler.context import CompileContext
from scheduler.device.spec import DEFAULT, DeviceSpec, Half
from scheduler.emit.artifact import emit
from scheduler.emit.schedule import Schedule
from scheduler.errors import SchedulerError
from scheduler.ir import dtype as dt
from scheduler.ir import interp
from scheduler.ir.node import toposort
from scheduler.ir.ops import Op
from scheduler.passes.precision import PrecisionReport
from scheduler.pipeline import schedule
from scheduler.tensor.tensor import Tensor
from tests.fuzz.networks import stack
from tests.scheduler.passes.pass_check import weight
from tests.scheduler.support.programs import Array
from tools.lib.describe_precision import describe_precision

HALVES = CompileContext(precision="fp16")


def computes_halves() -> DeviceSpec:
    """Return a device like this one on which conversions cost nothing."""
    return replace(DEFAULT, half=Half(storage=True, arithmetic=True))


def halved(*tensors: Tensor, writes: tuple[Tensor, ...] = ()) -> Schedule:
    """Return the schedule with half storage of everything that may be."""
    outputs = {f"y{i}": t.node for i, t in enumerate(tensors)}
    context = CompileContext(computes_halves(), precision="fp16")
    return schedule(outputs, [w.node for w in writes], context=context)


def report(*tensors: Tensor) -> PrecisionReport:
    """Return what half storage did."""
    found = halved(*tensors).precision
    assert found is not None
    return found


def network(rows: int = 48, width: int = 64) -> Tensor:
    """Return two layers with a stored value of rows x width between them."""
    x = Tensor.input("x", (rows, width))
    hidden = (x @ (weight(width, width, seed=1) * 0.125) + weight(width, seed=2)).relu()
    return hidden @ (weight(width, width, seed=3) * 0.125)


def test_weights_and_intermediates_are_halves_and_nothing_else() -> None:
    plan = halved(network())
    assert plan.precision is not None
    assert plan.precision.halves == (2, 1)
    assert [k.reason for k in plan.precision.kept] == ["a bias or a scale"]
    assert plan.precision.weight_bytes == (4 * (2 * 64 * 64 + 64), 2 * 2 * 64 * 64 + 4 * 64)
    assert plan.precision.value_bytes == (4 * 48 * 64, 2 * 48 * 64)
    stored = [t.dtype for kernel in plan.launches for t in kernel.targets]
    assert stored == [dt.float16, dt.float32]  # the output keeps its type
    inputs = [n for n in toposort(plan.outputs.values()) if n.op is Op.BUFFER]
    assert {n.dtype for n in inputs if n.arg.kind == "input"} == {dt.float32}


def test_without_it_nothing_changes() -> None:
    plan = schedule({"y": network().node})
    assert plan.precision is None
    assert all(n.dtype is not dt.float16 for n in toposort(plan.outputs.values()))


def test_the_number_of_kernels_stays() -> None:
    outputs = {"y": (network().relu() @ weight(64, 64, seed=5)).softmax(-1).node}
    assert len(schedule(outputs, context=HALVES).launches) == len(schedule(outputs).launches)


def test_a_concat_of_reductions_is_still_written_in_parts() -> None:
    x = Tensor.input("x", (64, 64))
    parts = [x @ weight(64, 64, seed=i) for i in range(2)]
    concat = Tensor.cat(parts, 0)
    y = concat @ weight(64, 64, seed=7)
    plan = halved(y)
    assert len(plan.launches) == len(schedule({"y": y.node}).launches)
    assert {t.dtype for k in plan.launches[:-1] for t in k.targets} == {dt.float16}


def _hidden() -> Tensor:
    return Tensor.input("x", (64, 64)) @ weight(64, 64, seed=1)


def _state_copy() -> Tensor:
    y = _hidden()
    return Tensor.cat([y.reshape(2, 2048), y.reshape(2, 2048)], 0)


def _and_more(value: Callable[[Tensor], Tensor]) -> Tensor:
    """Return what reads a value of a stored tensor, and the tensor itself."""
    hidden = _hidden().contiguous()
    return value(hidden) @ weight(64, 64, seed=2) + hidden @ weight(64, 64, seed=3)


def _masked() -> Tensor:
    mask = Tensor.input("m", (64, 64)) > 0
    scores = mask.where(_hidden(), -1e9).contiguous()
    return scores @ weight(64, 64, seed=2) + scores.relu() @ weight(64, 64, seed=3)


REASONS: dict[str, tuple[str, Callable[[], Tensor]]] = {
    "rounded": ("a test comes of it", lambda: _and_more(lambda h: h.floor())),
    "compared": ("a test comes of it", lambda: _and_more(lambda h: (h > 0.5).where(h, 0.0))),
    "layernorm": ("a variance", lambda: _and_more(lambda h: h.layernorm(-1))),
    "softmax": ("sum of exponentials", lambda: _and_more(lambda h: h.softmax(0))),
    "copied": ("is a copy of it", _state_copy),
    "masked": ("it reaches 1e+09", _masked),
    "large weight": ("it holds 1e+05", lambda: Tensor.input("x", (64, 64)) @ _filled(1e5)),
    "tiny weight": ("changes a row", lambda: Tensor.input("x", (64, 64)) @ _filled(2e-7)),
}


def _filled(value: float) -> Tensor:
    data = np.full((64, 64), 0.5, np.float32)
    data[3] = value
    return Tensor.weight(data)


@pytest.mark.parametrize("name", REASONS)
def test_what_rounding_would_harm_stays_float32(name: str) -> None:
    reason, build = REASONS[name]
    kept = report(build()).kept
    assert any(reason in k.reason for k in kept), [k.reason for k in kept]


@pytest.mark.parametrize(
    "build",
    [
        lambda: _and_more(lambda h: h.sigmoid()),
        lambda: _and_more(lambda h: h.relu()),
        lambda: _and_more(lambda h: h.elu()),
        lambda: _and_more(lambda h: h.gelu()),
    ],
    ids=["sigmoid", "relu", "elu", "gelu"],
)
def test_activations_are_stored_as_halves(build: Callable[[], Tensor]) -> None:
    assert [k.reason for k in report(build()).kept] == []


def test_where_conversions_cost_time_only_large_weights_are_halves() -> None:
    x = Tensor.input("x", (1, 8, 64, 64))
    image = x.conv2d(weight(8, 8, 3, 3, seed=1)).relu().conv2d(weight(8, 8, 3, 3, seed=2))
    plan = schedule(
        {"y": image.node, "z": (Tensor.input("v", (1, 64)) @ weight(64, 64)).node},
        context=HALVES,
    )
    assert plan.precision is not None
    assert plan.precision.halves == (1, 0)
    reasons = [k.reason for k in plan.precision.kept]
    assert len(reasons) == 3
    assert all("would convert it" in r for r in reasons)


def test_states_and_small_values_keep_their_type() -> None:
    state = Tensor.state("s", (8, 256))
    x = Tensor.input("x", (1, 256))
    fresh = x @ weight(256, 256)
    write = state.assign(Tensor.cat([state[1:], fresh], 0))
    plan = halved(write @ weight(256, 256, seed=3), writes=(write,))
    assert plan.precision is not None
    assert plan.precision.halves == (2, 0)


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(SchedulerError, match="expected one of fp32, fp16"):
        schedule({"y": network().node}, context=CompileContext(precision="fp8"))


def test_the_cache_tells_precisions_apart() -> None:
    graph = EntryGraph({"y": (Tensor.input("x", (1, 64)) @ weight(64, 64)).node})
    sizes, cache = [], ScheduleCache()
    for precision in ("fp32", "fp16", "fp32"):
        context = CompileContext(precision=precision)
        made = cache.emitted({"run": graph}, context, name="m", kind="plain")
        assert ("precision" in made.manifest["metadata"]) == (precision == "fp16")
        sizes.append(len(made.data))
    assert sizes == [4 * 64 * 64, 2 * 64 * 64, 4 * 64 * 64]


def test_the_report_says_what_stays_and_why() -> None:
    lines = list(describe_precision({"run": report(network()).plain()}))
    assert lines[0].startswith("run: as halves 2 weights: 32.2 KiB -> 16.2 KiB")
    assert lines[2] == "stay float32: 1 bias or scale"
    assert list(describe_precision({})) == []


def _run(plan: Schedule, inputs: dict[str, Array]) -> dict[str, Array]:
    made = emit({"run": plan}, name="half", kind="plain")
    device = choose_device(None)
    source = from_memory(made.manifest, made.data)
    with Program(source, device, shared_cache(device)) as program:
        return {name: value.copy() for name, value in program.run(inputs).items()}


@pytest.mark.opencl
@pytest.mark.parametrize("seed", [3, 11])
def test_the_device_computes_what_the_interpreter_says(seed: int) -> None:
    outputs, inputs = stack(seed)
    context = CompileContext(computes_halves(), precision="fp16")
    plan = schedule({n: t.node for n, t in outputs.items()}, context=context)
    found = _run(plan, inputs)
    nodes = list(plan.outputs.values())
    given = {
        n.arg: inputs[n.arg.name]
        for n in toposort(nodes)
        if n.op is Op.BUFFER and n.arg.kind == "input"
    }
    for name, expected in zip(plan.outputs, interp.evaluate(nodes, given), strict=True):
        # A sum in another order may round a half the other way: 2**-11 of a value.
        scale = max(1.0, np.abs(expected).max())
        np.testing.assert_allclose(found[name], expected, rtol=2e-3, atol=1e-3 * scale)


@pytest.mark.opencl
def test_half_storage_stays_close_to_float32() -> None:
    y = (network() + Tensor.input("r", (48, 64))).layernorm(-1).gelu() @ weight(64, 64, seed=9)
    drawn = np.random.default_rng(4)
    inputs = {
        "x": drawn.standard_normal((48, 64)).astype(np.float32),
        "r": drawn.standard_normal((48, 64)).astype(np.float32),
    }
    plan = halved(y)
    assert plan.precision is not None
    assert plan.precision.halves[0] == 3
    assert any(t.dtype is dt.float16 for kernel in plan.launches for t in kernel.targets)
    found = _run(plan, inputs)["y0"]
    exact = _run(schedule({"y": y.node}), inputs)["y"]
    assert 0 < np.abs(found - exact).max() < 2e-2 * np.abs(exact).max()
