"""Transposed convolution: any geometry against onnxruntime, and no product with zeros."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from scheduler.errors import ModelError
from scheduler.pipeline import schedule
from scheduler.tensor.tensor import Tensor
from tests.scheduler.onnx_import.onnx_cases.case import case
from tests.scheduler.onnx_import.onnx_models import Array, ort_results
from tests.scheduler.onnx_import.test_ops import build
from tests.scheduler.support.programs import load

Geometry = dict[str, Any]


def random_case(seed: int) -> tuple[Array, Array, Geometry]:
    rng = np.random.default_rng(seed)
    rank = int(rng.integers(1, 3))
    stride, dilation, kernel, size = (rng.integers(1, high, rank).tolist() for high in (5, 4, 6, 6))
    padding = []
    for n, s, d, k in zip(size, stride, dilation, kernel, strict=True):
        room = (n - 1) * s + d * (k - 1)  # one output stays
        before = int(rng.integers(0, min(room, 6) + 1))
        padding.append((before, int(rng.integers(0, min(room - before, 6) + 1))))
    groups = int(rng.choice([1, 2]))
    x = rng.standard_normal((2, 2 * groups, *size)).astype(np.float32)
    w = rng.standard_normal((2 * groups, 3, *kernel)).astype(np.float32)
    how = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    return x, w, how | {"output_padding": [int(rng.integers(0, s)) for s in stride]}


def by_onnxruntime(x: Array, w: Array, how: Geometry) -> Array:
    attributes: Geometry = {
        "strides": how["stride"],
        "pads": [side for ends in zip(*how["padding"], strict=True) for side in ends],
        "output_padding": how["output_padding"],
        "dilations": how["dilation"],
        "group": how["groups"],
    }
    return ort_results(*build(case("ConvTranspose", x, w, **attributes), folded=False))[0]


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_any_geometry_is_what_onnxruntime_says(first: int) -> None:
    for seed in range(first, first + 50):
        x, w, how = random_case(seed)
        found = Tensor.input("x", x.shape).conv_transpose2d(Tensor.weight(w), **how)
        expected = by_onnxruntime(x, w, how)
        assert found.shape == expected.shape, (seed, how)
        np.testing.assert_allclose(
            found.interp({"x": x}), expected, rtol=1e-4, atol=1e-4, err_msg=f"{seed}: {how}"
        )


def products(channels: int, kernel: int, stride: int, pad: int) -> tuple[int, int]:
    """Return multiply-adds of the sums in a schedule of (1, channels, 9, 16), and launches."""
    weight = Tensor.weight(np.ones((channels, 16, kernel, kernel), np.float32))
    y = Tensor.input("x", (1, channels, 9, 16)).conv_transpose2d(weight, stride=stride, padding=pad)
    plan = schedule({"y": y.node})
    return sum(k.flops for k in plan.lowered) // 2, len(plan.launches)


@pytest.mark.parametrize(
    ("channels", "kernel", "stride", "pad", "launches"),
    [(32, 2, 2, 0, 1), (32, 4, 2, 1, 5), (32, 4, 2, 0, 1), (32, 3, 2, 1, 5), (32, 8, 4, 0, 1)],
)
def test_no_product_with_inserted_zeros(
    channels: int, kernel: int, stride: int, pad: int, launches: int
) -> None:
    found, launched = products(channels, kernel, stride, pad)
    needed = 16 * channels * kernel**2 * 9 * 16
    # Indices and the parts that padding cuts off: far from the stride^2 of inserted zeros.
    assert 0.5 * needed < found < 1.3 * needed
    assert launched == launches


def test_geometry_that_leaves_nothing_is_refused() -> None:
    x, weight = Tensor.input("x", (1, 2, 1, 1)), Tensor.weight(np.ones((2, 2, 2, 2), np.float32))
    with pytest.raises(ModelError, match="padding 1, 1 leaves nothing"):
        x.conv_transpose2d(weight, stride=2, padding=1)
    with pytest.raises(ModelError, match="do not fit groups=3"):
        x.conv_transpose2d(weight, groups=3)


@pytest.mark.opencl
def test_compiled_phases_give_what_the_interpreter_gives() -> None:
    rng, channels = np.random.default_rng(3), 16
    x = rng.standard_normal((1, channels, 5, 6)).astype(np.float32)
    image, outputs = Tensor.input("x", x.shape), {}
    for name, kernel, stride, pads in (
        ("aligned", 4, 2, ((2, 0), (0, 1))),
        ("shifted", 4, 2, ((1, 1), (1, 2))),
        ("uneven", 3, 2, ((1, 0), (0, 0))),
        ("sparse", 2, 3, ((0, 0), (1, 1))),
    ):
        weight = rng.standard_normal((channels, 3, kernel, kernel)).astype(np.float32)
        outputs[name] = image.conv_transpose2d(Tensor.weight(weight), stride=stride, padding=pads)
    with load(outputs) as program:
        got = program.run({"x": x})
        for name, tensor in outputs.items():
            want = tensor.interp({"x": x})
            assert np.abs(got[name] - want).max() <= 2e-6 * np.abs(want).max(), name
