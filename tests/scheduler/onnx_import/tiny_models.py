"""ONNX models of a few nodes, with the inputs and outputs that a test asks for."""

import base64
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Sizes = Sequence[int | str | None]


def value(name: str, shape: Sizes, code: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    """Return a declared input or output."""
    return helper.make_tensor_value_info(name, code, shape)


def model_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    weights: Mapping[str, NDArray[Any]] | None = None,
    props: Mapping[str, str] | None = None,
    opset: int = 17,
) -> onnx.ModelProto:
    initializers = [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()]
    graph = helper.make_graph(list(nodes), "tiny", list(inputs), list(outputs), initializers)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.example", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8, producer_name="tests")
    helper.set_model_props(model, dict(props or {}))
    return model


def slices_text(slices: Mapping[str, slice]) -> str:
    """Return output slices as exporters store them."""
    return base64.b64encode(pickle.dumps(dict(slices))).decode()


def mixer(
    inputs: Mapping[str, Sequence[int]],
    width: int,
    slices: Mapping[str, slice] | None = None,
    codes: Mapping[str, int] | None = None,
) -> onnx.ModelProto:
    """Return a model whose outputs (1, width) are different mixes of the means of all inputs.

    `inputs` are shapes, `codes` the element types of those that are not float.
    """
    nodes, means = [], []
    for i, name in enumerate(inputs):
        nodes += [
            helper.make_node("Cast", [name], [f"f{i}"], to=TensorProto.FLOAT),
            helper.make_node("ReduceMean", [f"f{i}"], [f"m{i}"], keepdims=0),
            helper.make_node("Reshape", [f"m{i}", "one"], [f"r{i}"]),
        ]
        means.append(f"r{i}")
    nodes.append(helper.make_node("Concat", means, ["all"], axis=1))
    nodes.append(helper.make_node("MatMul", ["all", "w"], ["outputs"]))
    mix = np.random.default_rng(0).standard_normal((len(inputs), width)).astype(np.float32)
    declared = [value(n, s, (codes or {}).get(n, TensorProto.FLOAT)) for n, s in inputs.items()]
    props = {"output_slices": slices_text(slices)} if slices else None
    outputs = [value("outputs", (1, width))]
    return model_of(nodes, declared, outputs, {"one": np.array([1, 1]), "w": mix}, props)
