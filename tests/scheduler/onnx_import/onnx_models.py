"""Small ONNX models, good and bad, and what becomes of them: refused, interpreted, compiled."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper, parser

from runtime import run_once
from scheduler.compile import compile_plain
from scheduler.errors import ModelError
from scheduler.onnx_import import from_proto, import_model
from scheduler.tensor.tensor import evaluate

Array = NDArray[Any]
FLOAT = TensorProto.FLOAT
Port = tuple[str, Sequence[int | str] | None]


def node(op: str, inputs: str, outputs: str, name: str = "", **attributes: Any) -> onnx.NodeProto:
    """Return a node; names are separated by blanks."""
    given = inputs.split(" ") if inputs else []
    return helper.make_node(op, given, outputs.split(" "), name, **attributes)


def model_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[Port] = (("x", [4]),),
    outputs: Sequence[Port] = (("y", [4]),),
    weights: dict[str, Any] | None = None,
    **options: Any,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info(n, FLOAT, s) for n, s in inputs],
        [helper.make_tensor_value_info(n, FLOAT, s) for n, s in outputs],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in (weights or {}).items()],
    )
    defaults = {"opset_imports": [helper.make_opsetid("", 17)], "ir_version": 8}
    return helper.make_model(graph, **(defaults | options))


def parsed(text: str, opset: int = 17, ir_version: int = 10, **weights: Any) -> onnx.ModelProto:
    """Return a model of ONNX's text syntax: `(float[4] x) => (float[4] y) { y = Relu(x) }`."""
    opsets = f'["" : {opset}, "vendor" : 1]'
    model = parser.parse_model(f"<ir_version: {ir_version}, opset_import: {opsets}> net {text}")
    tensors = [numpy_helper.from_array(np.asarray(a), n) for n, a in weights.items()]
    model.graph.initializer.extend(tensors)
    return model


def refused(what: onnx.ModelProto | Path | Callable[[], object], *parts: str) -> None:
    """Check that a model, or a call, is refused in one printable line with these parts."""
    with pytest.raises(ModelError) as caught:
        what() if callable(what) else import_model(what)
    text = str(caught.value)
    assert text.isprintable()
    assert len(text) <= 400
    assert all(part in text for part in parts), text


def results(model: onnx.ModelProto | Path, feeds: Mapping[str, Any], **how: Any) -> list[Array]:
    return evaluate(list(import_model(model, **how).outputs.values()), dict(feeds))


def values_of(model: onnx.ModelProto | Path, **feeds: Any) -> list[Array]:
    """Return its results for float32 inputs."""
    return results(model, {name: np.asarray(v, np.float32) for name, v in feeds.items()})


def compiled(model: onnx.ModelProto, **feeds: Any) -> dict[str, Array]:
    made = compile_plain(from_proto(model))
    given = {name: np.asarray(value, np.float32) for name, value in feeds.items()}
    return run_once(made.manifest, made.data, given)


def ort_session(model: onnx.ModelProto) -> ort.InferenceSession:
    """Return onnxruntime's session of a model, as the file says.

    Optimised, integer products saturate where the CPU has no VNNI.
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(model.SerializeToString(), options)


def ort_results(
    model: onnx.ModelProto, feeds: Mapping[str, Any], names: Sequence[str] | None = None
) -> list[Array]:
    """Return what onnxruntime makes of a model."""
    found: list[Array] = ort_session(model).run(names, dict(feeds))
    return [np.asarray(value) for value in found]


def agree(found: Iterable[Array], expected: Iterable[Array], tolerance: float) -> None:
    """Check shapes, types and values; those of floats relative, and to the largest of them."""
    for a, b in zip(found, expected, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        if b.dtype.kind != "f":
            np.testing.assert_array_equal(a, b)
            continue
        bound = max(tolerance, 2e-3) if b.dtype == np.float16 else tolerance
        scale = np.abs(b[np.isfinite(b)]).max(initial=0.0)
        np.testing.assert_allclose(a, b, rtol=bound, atol=bound * scale)
