"""Transposed convolution: no product with zeros, on the device, what is refused.

Random geometries are compared with onnxruntime in tests/fuzz/test_programs.py.
"""

import numpy as np
import pytest

from scheduler.errors import ModelError
from scheduler.pipeline import schedule
from scheduler.tensor.tensor import Tensor
from tests.scheduler.support.programs import load


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
