"""Weights of 8 bits are found where they are exact, kept as such, and computed with as they are."""

from __future__ import annotations

import numpy as np
import pytest

from runtime.artifact import from_memory
from runtime.device import choose_device
from runtime.executor import Program
from runtime.program_cache import shared_cache
from scheduler.context import CompileContext
from scheduler.emit.artifact import emit
from scheduler.emit.schedule import Schedule
from scheduler.ir import dtype as dt
from scheduler.ir import interp
from scheduler.ir.build import new_weight
from scheduler.ir.node import is_weight, toposort
from scheduler.passes.eight_bits import eight_bit_weight
from scheduler.pipeline import schedule
from scheduler.tensor.tensor import Tensor
from tests.scheduler.support.programs import Array
from tools.lib.describe_precision import describe_precision

HALVES = CompileContext(precision="fp16")


def quantised(*shape: int, axes: tuple[int, ...] = (0,), seed: int = 0) -> Array:
    """Return a weight of numbers of 8 bits times scales, the largest number of each being 127."""
    rng = np.random.default_rng(seed)
    others = tuple(axis for axis in range(len(shape)) if axis not in axes)
    weight = rng.normal(size=shape).astype(np.float32)
    scale = (np.abs(weight).max(axis=others, keepdims=True) / 127).astype(np.float32)
    return np.asarray(np.rint(weight / scale).astype(np.float32) * scale)


def found_in(data: Array) -> tuple[Array, Array] | None:
    """Return the numbers of a weight and the value that is computed of them."""
    node = eight_bit_weight(new_weight(data, dt.float32))
    if node is None:
        return None
    (numbers,) = (n for n in toposort([node]) if is_weight(n) and n.dtype is dt.int8)
    return numbers.arg.data, interp.evaluate([node])[0]


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((64, 32), (0,)),
        ((64, 32), (1,)),
        ((24, 16, 3, 3), (0,)),
        ((3, 32, 40), (0, 1)),
    ],
)
def test_numbers_times_scales_are_found_and_give_every_bit_back(
    shape: tuple[int, ...], axes: tuple[int, ...]
) -> None:
    for seed in range(8):
        data = quantised(*shape, axes=axes, seed=seed)
        found = found_in(data)
        assert found is not None
        assert found[0].dtype == np.int8
        assert np.abs(found[0]).max() == 127
        np.testing.assert_array_equal(found[1], data)


def test_what_is_not_exact_stays() -> None:
    rng = np.random.default_rng(0)
    assert found_in(rng.normal(size=(64, 64)).astype(np.float32)) is None
    data = quantised(64, 64)
    data[5, 7] = np.nextafter(data[5, 7], np.float32(9))
    assert found_in(data) is None
    data[5, 7] = np.nan
    assert found_in(data) is None
    # Scales for fewer values than this would not pay.
    assert found_in(quantised(64, 8)) is None


def test_an_output_of_zeros_is_exact() -> None:
    data = quantised(32, 32)
    data[3] = 0.0
    found = found_in(data)
    assert found is not None
    np.testing.assert_array_equal(found[1], data)


def network() -> Tensor:
    """Return two layers, one of 8 bits and one of any numbers."""
    x = Tensor.input("x", (1, 256))
    first = Tensor.of(new_weight(quantised(256, 192, axes=(1,)), dt.float32))
    rng = np.random.default_rng(1)
    second = Tensor.of(new_weight(rng.normal(size=(192, 64)).astype(np.float32), dt.float32))
    return (x @ first).relu() @ second


def types_of(plan: Schedule) -> dict[str, int]:
    """Return how many weights there are of each type."""
    kinds = [n.dtype.name for n in toposort(plan.outputs.values()) if is_weight(n)]
    return {kind: kinds.count(kind) for kind in sorted(set(kinds))}


def test_they_are_kept_with_half_storage_only_and_in_as_many_launches() -> None:
    outputs = {"y": network().node}
    plain, plan = schedule(outputs), schedule(outputs, context=HALVES)
    assert types_of(plain) == {"float32": 2}
    assert types_of(plan) == {"float16": 1, "float32": 1, "int8": 1}
    assert len(plan.launches) == len(plain.launches)
    report = plan.precision
    assert report is not None
    assert (report.halves[0], report.eight_bits) == (2, 1)
    assert report.weight_bytes == (4 * (256 * 192 + 192 * 64), 256 * 192 + 2 * 192 * 64)
    lines = list(describe_precision({"run": report.plain()}))
    assert "run: 1 weight of them as 8 bits, exactly" in lines


@pytest.mark.opencl
def test_device_computes_what_the_graph_says() -> None:
    plan = schedule({"y": network().node}, context=HALVES)
    x = np.random.default_rng(2).normal(size=(1, 256)).astype(np.float32)
    (wanted,) = interp.evaluate(list(plan.outputs.values()), {plan.inputs[0]: x})
    made = emit({"run": plan}, name="eight", kind="plain")
    device = choose_device(None)
    source = from_memory(made.manifest, made.data)
    with Program(source, device, shared_cache(device)) as program:
        found = program.run({"x": x})["y"].copy()
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).max())
