"""Where a kernel comes from is told wherever kernels are shown."""

from __future__ import annotations

import pytest

from scheduler.ir.node import origin
from scheduler.tensor.tensor import Tensor
from tests.scheduler.support.programs import (
    floats,
    program_of,
    x,
)


@pytest.mark.opencl
def test_source_manifest_and_profile_name_the_nodes_of_the_model() -> None:
    with origin("/encoder/MatMul"):
        y = x(8, 8) @ Tensor.weight(floats(8, 8))
    with origin("/encoder/Relu"):
        y = y.relu().contiguous()
    with origin("/head/Softmax"):
        y = y.softmax()
    made = program_of(y)
    first, second = made.manifest["kernels"]
    assert first["origin"] == ["/encoder/MatMul", "/encoder/Relu"]
    assert second["origin"] == ["/head/Softmax"]
    assert "/* /encoder/MatMul, /encoder/Relu */" in made.source
    with made.load() as program:
        times = program.profile({"x": floats(8, 8)}, iterations=1)
    assert [time.origin for time in times] == [
        ("/encoder/MatMul", "/encoder/Relu"),
        ("/head/Softmax",),
    ]
