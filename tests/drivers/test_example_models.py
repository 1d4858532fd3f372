"""The example models on the driver at hand against onnxruntime."""

from collections.abc import Callable

import numpy as np
import onnx
import pytest

from runtime import run_once
from scheduler.compile import compile_plain
from scheduler.onnx_import import from_proto
from tests.drivers.test_programs import row_of
from tools.example_models.driving import build_policy, build_vision

pytestmark = pytest.mark.opencl
MODELS: dict[str, Callable[[], tuple[onnx.ModelProto, int]]] = {
    "vision": lambda: build_vision(0),
    "policy": lambda: build_policy(0),
}


def agrees(name: str, target: str) -> None:
    """Compile a model, run it on values of its types and compare."""
    model, _ = MODELS[name]()
    values = np.random.default_rng(5)
    inputs = {}
    for value in model.graph.input:
        shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
        whole = value.type.tensor_type.elem_type == onnx.TensorProto.UINT8
        drawn = values.integers(0, 256, shape) if whole else values.standard_normal(shape)
        inputs[value.name] = drawn.astype(np.uint8 if whole else np.float32)
    ort = pytest.importorskip("onnxruntime", reason="the self-test of both says the same")
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), options)
    (wanted,) = session.run(None, inputs)
    compiled = compile_plain(from_proto(model), target=row_of(target))
    (got,) = run_once(compiled.manifest, compiled.data, inputs).values()
    assert np.abs(got - wanted).max() <= 1e-3 * np.abs(wanted).max()


@pytest.mark.parametrize("target", ["here", "adreno"])
@pytest.mark.parametrize("name", MODELS)
def test_model(name: str, target: str, driver: str) -> None:
    if driver == "oclgrind":
        pytest.skip("hours in an interpreter; their kinds of layers are in cases.py")
    agrees(name, target)
