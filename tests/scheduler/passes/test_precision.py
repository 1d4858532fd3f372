"""Half storage: what is rounded, what is not and why, and that the device computes just that.

Weights of 8 bits are found where they are exact, kept as such, and computed with as they are.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from scheduler.context import CompileContext
from scheduler.device.spec import DEFAULT, Half
from scheduler.emit.schedule import Schedule
from scheduler.errors import SchedulerError
from scheduler.ir import dtype as dt
from scheduler.ir import interp
from scheduler.ir.build import new_weight
from scheduler.ir.node import is_weight, toposort
from scheduler.ir.ops import Op
from scheduler.passes.eight_bits.byte_products import eight_bit_weight
from scheduler.passes.halves.precision import PrecisionReport
from scheduler.tensor.tensor import Tensor
from tests.fuzz.networks import stack
from tests.scheduler.passes.pass_check import weight
from tests.scheduler.support.programs import Array, artifact_of, loaded, plan_of
from tests.support.selection import quick_cases
from tools.describe.compilation import describe_precision

HALVES = CompileContext(precision="fp16")
# A device like this one on which conversions cost nothing.
EASY = CompileContext(replace(DEFAULT, half=Half(storage=True, arithmetic=True)), precision="fp16")


def report(plan: Schedule) -> PrecisionReport:
    """Return what half storage did."""
    assert plan.precision is not None
    return plan.precision


def halved(tensor: Tensor, *writes: Tensor) -> Schedule:
    """Return the schedule with half storage of everything that may be."""
    return plan_of({"y": tensor}, writes, EASY)


def kept(tensor: Tensor) -> list[str]:
    """Return why values stay float32."""
    return [k.reason for k in report(halved(tensor)).kept]


def square(seed: int = 0) -> Tensor:
    return weight(64, 64, seed=seed)


def network() -> Tensor:
    """Return two layers with a stored value of 48 x 64 between them."""
    hidden = (Tensor.input("x", (48, 64)) @ (square(1) * 0.125) + weight(64, seed=2)).relu()
    return hidden @ (square(3) * 0.125)


def test_weights_and_intermediates_are_halves_and_nothing_else() -> None:
    plan = halved(network())
    assert report(plan).halves == (2, 1)
    assert kept(network()) == ["a bias or a scale"]
    assert report(plan).weight_bytes == (4 * (2 * 64 * 64 + 64), 2 * 2 * 64 * 64 + 4 * 64)
    assert report(plan).value_bytes == (4 * 48 * 64, 2 * 48 * 64)
    stored = [t.dtype for kernel in plan.launches for t in kernel.targets]
    assert stored == [dt.float16, dt.float32]  # the output keeps its type
    inputs = [n for n in toposort(plan.outputs.values()) if n.op is Op.BUFFER]
    assert {n.dtype for n in inputs if n.arg.kind == "input"} == {dt.float32}
    lines = list(describe_precision({"run": report(plan).plain()}, in_full=False))
    assert lines[0].startswith("run: 2 weights stored as fp16: 32.2 KiB -> 16.2 KiB")
    assert lines[2] == "stay float32: 1 bias or scale"
    assert list(describe_precision({}, in_full=True)) == []


def test_what_stays_float32_is_one_line_unless_it_is_asked_for() -> None:
    kept = [
        {"what": "weight", "name": f"w{n}", "shape": [2, 3], "reason": "it decides"} for n in "ab"
    ]
    nothing = {"halves": [0, 0], "weight_bytes": [0, 0], "value_bytes": [8, 8]}
    plain = {"run": {**nothing, "biases": 3, "kept": kept}}
    short = "stay float32: 3 biases and scales, 2 other values"
    assert list(describe_precision(plain, in_full=False)) == [f"{short} (-v names them)"]
    wanted = [short, "  weight wa (2x3): it decides", "  weight wb (2x3): it decides"]
    assert list(describe_precision(plain, in_full=True)) == wanted


def test_without_it_nothing_changes() -> None:
    plan = plan_of({"y": network()})
    assert plan.precision is None
    assert all(n.dtype is not dt.float16 for n in toposort(plan.outputs.values()))


def test_the_number_of_kernels_stays_also_of_a_concat_that_is_written_in_parts() -> None:
    outputs = {"y": (network().relu() @ square(5)).softmax(-1)}
    assert len(plan_of(outputs, context=HALVES).launches) == len(plan_of(outputs).launches)
    x = Tensor.input("x", (64, 64))
    y = Tensor.cat([x @ square(i) for i in range(2)], 0) @ square(7)
    plan = halved(y)
    assert len(plan.launches) == len(plan_of({"y": y}).launches)
    assert {t.dtype for k in plan.launches[:-1] for t in k.targets} == {dt.float16}


def _hidden() -> Tensor:
    return Tensor.input("x", (64, 64)) @ square(1)


def _copied() -> Tensor:
    y = _hidden()
    return Tensor.cat([y.reshape(2, 2048), y.reshape(2, 2048)], 0)


def _and_more(value: Callable[[Tensor], Tensor]) -> Tensor:
    """Return what reads a value of a stored tensor, and the tensor itself."""
    hidden = _hidden().contiguous()
    return value(hidden) @ square(2) + hidden @ square(3)


def _masked() -> Tensor:
    scores = (Tensor.input("m", (64, 64)) > 0).where(_hidden(), -1e9).contiguous()
    return scores @ square(2) + scores.relu() @ square(3)


def _filled(value: float) -> Tensor:
    data = np.full((64, 64), 0.5, np.float32)
    data[3] = value
    return Tensor.input("x", (64, 64)) @ Tensor.weight(data)


REASONS: dict[str, tuple[str, Callable[[], Tensor]]] = {
    "rounded": ("a test depends on it", lambda: _and_more(lambda h: h.floor())),
    "compared": ("a test depends on it", lambda: _and_more(lambda h: (h > 0.5).where(h, 0.0))),
    "layernorm": ("a variance", lambda: _and_more(lambda h: h.layernorm(-1))),
    "softmax": ("sum of exponentials", lambda: _and_more(lambda h: h.softmax(0))),
    "copied": ("is a copy of it", _copied),
    "masked": ("it reaches 1e+09", _masked),
    "large weight": ("it holds 1e+05", lambda: _filled(1e5)),
    "tiny weight": ("changes a row", lambda: _filled(2e-7)),
}


@pytest.mark.parametrize("name", REASONS)
def test_what_rounding_would_harm_stays_float32(name: str) -> None:
    reason, build = REASONS[name]
    found = kept(build())
    assert any(reason in why for why in found), found


@pytest.mark.parametrize("name", ["sigmoid", "relu", "elu", "gelu"])
def test_activations_are_stored_as_halves(name: str) -> None:
    assert kept(_and_more(lambda h: getattr(h, name)())) == []


def test_where_conversions_cost_time_only_large_weights_are_halves() -> None:
    image = Tensor.input("x", (1, 8, 64, 64)).conv2d(weight(8, 8, 3, 3, seed=1)).relu()
    outputs = {"y": image.conv2d(weight(8, 8, 3, 3, seed=2))}
    found = report(plan_of(outputs | {"z": Tensor.input("v", (1, 64)) @ square()}, context=HALVES))
    assert found.halves == (1, 0)
    reasons = [k.reason for k in found.kept]
    assert len(reasons) == 3
    assert all("would convert it" in r for r in reasons)


def test_states_and_small_values_keep_their_type() -> None:
    state = Tensor.state("s", (8, 256))
    fresh = Tensor.input("x", (1, 256)) @ weight(256, 256)
    write = state.assign(Tensor.cat([state[1:], fresh], 0))
    assert report(halved(write @ weight(256, 256, seed=3), write)).halves == (2, 0)


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(SchedulerError, match="expected one of fp32, fp16"):
        plan_of({"y": network()}, context=CompileContext(precision="fp8"))


def run(plan: Schedule, inputs: dict[str, Array]) -> dict[str, Array]:
    made = artifact_of(plan)
    with loaded(made.manifest, made.data) as program:
        return {name: value.copy() for name, value in program.run(inputs).items()}


def interpreted(plan: Schedule, inputs: dict[str, Array]) -> dict[str, Array]:
    nodes = list(plan.outputs.values())
    given = {buffer: inputs[buffer.name] for buffer in plan.inputs}
    return dict(zip(plan.outputs, interp.evaluate(nodes, given), strict=True))


@pytest.mark.opencl
@pytest.mark.parametrize("seed", quick_cases([3, 11], 3))
def test_the_device_computes_what_the_interpreter_says(seed: int) -> None:
    outputs, inputs = stack(seed)
    plan = plan_of(outputs, context=EASY)
    found = run(plan, inputs)
    for name, expected in interpreted(plan, inputs).items():
        # A sum in another order may round a half the other way: 2**-11 of a value.
        scale = max(1.0, np.abs(expected).max())
        np.testing.assert_allclose(found[name], expected, rtol=2e-3, atol=1e-3 * scale)


def quantised(*shape: int, axes: tuple[int, ...] = (0,), seed: int = 0) -> Array:
    """Return a weight of numbers of 8 bits times scales, the largest number of each being 127."""
    others = tuple(axis for axis in range(len(shape)) if axis not in axes)
    drawn = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    scale = (np.abs(drawn).max(axis=others, keepdims=True) / 127).astype(np.float32)
    return np.asarray(np.rint(drawn / scale).astype(np.float32) * scale)


def found_in(data: Array) -> Array | None:
    """Return the numbers of a weight, if that is exact: what is computed of them is the weight."""
    node = eight_bit_weight(new_weight(data, dt.float32))
    if node is None:
        return None
    (numbers,) = (n for n in toposort([node]) if is_weight(n) and n.dtype is dt.int8)
    np.testing.assert_array_equal(interp.evaluate([node])[0], data)
    return np.asarray(numbers.arg.data)


@pytest.mark.parametrize(
    ("shape", "axes"),
    [((64, 32), (0,)), ((64, 32), (1,)), ((24, 16, 3, 3), (0,)), ((3, 32, 40), (0, 1))],
)
def test_numbers_times_scales_are_found_and_give_every_bit_back(
    shape: tuple[int, ...], axes: tuple[int, ...]
) -> None:
    for seed in range(8):
        numbers = found_in(quantised(*shape, axes=axes, seed=seed))
        assert numbers is not None
        assert numbers.dtype == np.int8
        assert np.abs(numbers).max() == 127


def test_what_is_not_exact_stays_and_zeros_are_exact() -> None:
    assert found_in(weight(64, 64).interp()) is None
    data = quantised(64, 64)
    for other in (np.nextafter(data[5, 7], np.float32(9)), np.nan):
        data[5, 7] = other
        assert found_in(data) is None
    # Scales for fewer values than this would not pay.
    assert found_in(quantised(64, 8)) is None
    data = quantised(32, 32)
    data[3] = 0.0
    assert found_in(data) is not None


@pytest.mark.opencl
def test_they_are_kept_with_half_storage_only_and_in_as_many_launches() -> None:
    first = Tensor.of(new_weight(quantised(256, 192, axes=(1,)), dt.float32))
    outputs = {"y": (Tensor.input("x", (1, 256)) @ first).relu() @ weight(192, 64, seed=1)}
    plain, plan = plan_of(outputs), plan_of(outputs, context=HALVES)
    for made, types in ((plain, ["float32"] * 2), (plan, ["float16", "float32", "int8"])):
        weights = [n for n in toposort(made.outputs.values()) if is_weight(n)]
        assert sorted(n.dtype.name for n in weights) == types
    assert len(plan.launches) == len(plain.launches)
    assert (report(plan).halves[0], report(plan).eight_bits) == (2, 1)
    assert report(plan).weight_bytes == (4 * (256 * 192 + 192 * 64), 256 * 192 + 2 * 192 * 64)
    lines = describe_precision({"run": report(plan).plain()}, in_full=False)
    assert "run: 1 weight of them as 8 bits, exactly" in lines
    inputs = {"x": np.random.default_rng(2).normal(size=(1, 256)).astype(np.float32)}
    wanted = interpreted(plan, inputs)["y"]
    limit = 1e-5 * np.abs(wanted).max()
    np.testing.assert_allclose(run(plan, inputs)["y"], wanted, rtol=1e-5, atol=limit)
