"""Where a kernel comes from is told wherever kernels are shown."""

from __future__ import annotations

import pytest

from scheduler.ir.origin import Origins
from scheduler.tensor.tensor import Tensor
from tests.scheduler.support.programs import (
    floats,
    make_program,
    x,
)


@pytest.mark.opencl
def test_source_manifest_and_profile_name_the_nodes_of_the_model() -> None:
    y = x(8, 8) @ Tensor.weight(floats(8, 8))
    relu = y.relu().contiguous()
    probabilities, origins = relu.softmax(), Origins()
    origins.name([y.node], ("/encoder/MatMul",))
    origins.name([relu.node], ("/encoder/Relu",))
    origins.name([probabilities.node], ("/head/Softmax",))
    made = make_program({"y": probabilities}, origins=origins)
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
