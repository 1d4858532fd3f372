"""Programs that the code generator once got wrong: one small program for each mistake.

All values are small whole numbers where sums are compared: whatever their order, they are exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from scheduler.tensor.tensor import Tensor, evaluate
from tests.scheduler.support.programs import emitted, load
from tests.scheduler.support.values import rng

pytestmark = pytest.mark.opencl
Array = NDArray[Any]


def ints(*shape: int) -> Array:
    return rng().integers(-4, 5, shape).astype(np.float32)


def check(outputs: Mapping[str, Tensor], **inputs: Array) -> None:
    """Compare a program on the device with the interpreter."""
    want = evaluate(list(outputs.values()), inputs)
    with load(outputs) as program:
        got = program.run(inputs)
        for name, expected in zip(outputs, want, strict=True):
            np.testing.assert_allclose(got[name], expected, rtol=1e-5, atol=1e-5, err_msg=name)


def source_of(tensor: Tensor) -> str:
    programs = emitted({"y": tensor}).manifest["programs"]
    return "\n".join(p["source"] for p in programs)


def test_loads_that_differ_by_their_fill_value_only_do_not_share_a_pointer() -> None:
    x = Tensor.input("x", (1, 6, 32))
    around = ((0, 0), (1, 1), (0, 0))
    check({"y": x.pad(around, 0) + x.pad(around, 1) * 2}, x=ints(1, 6, 32))


def test_a_pointer_to_few_fill_values_is_not_used_for_a_longer_row() -> None:
    """What lies behind the few is the weight."""
    x = Tensor.input("x", (8, 600))
    long = x.pad(((1, 1), (0, 0)), 3)
    few = (long[:, :16] * Tensor.weight(ints(16))).sum(-1, keepdim=True)
    check({"y": (long * 2 - few).sum(-1)}, x=ints(8, 600))


def test_a_row_stored_above_the_inner_loops_may_be_long_to_compute() -> None:
    x = Tensor.input("x", (10, 64))
    row = x.sum(-1, keepdim=True) * 0.01
    long = row
    for _ in range(8):  # long enough to be computed in a loop over the tile
        long = long.gelu() + long.erf()
    check({"row": long, "y": x * row, "z": x - long}, x=ints(10, 64))


def test_the_bounds_of_a_loop_do_not_differ_by_lane() -> None:
    """Lanes run over the padded axis, and the kernel is too long to be unrolled."""
    x, z = Tensor.input("x", (1, 1, 64)), Tensor.input("z", (100, 64))
    padded = x.conv2d(Tensor.weight(ints(1, 1, 11)), None, padding=5).reshape(64)
    y = padded + (z * Tensor.weight(ints(100, 1))).sum(0)
    assert "lane" not in source_of(y).replace("lanes", "")
    check({"y": y}, x=ints(1, 1, 64), z=ints(100, 64))


def test_narrow_vectors_do_not_read_beyond_a_weight_that_is_not_packed() -> None:
    """Windows of a weight repeat it too often to be packed; 10 results fill a vector of 16."""
    image = Tensor.weight(ints(1, 1, 5, 20))
    y = image.conv2d(Tensor.input("k", (8, 1, 5, 11)))
    assert "M_LOAD(float, 16, p" not in source_of(y)
    check({"y": y}, k=ints(8, 1, 5, 11))
