"""Whole graphs through the importer: example models, shape arithmetic, old exports, bindings."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from scheduler.errors import ModelError
from scheduler.ir import dtype as dt
from scheduler.ir.node import toposort
from scheduler.ir.ops import Op
from scheduler.onnx_import import import_model
from scheduler.tensor.tensor import Tensor, evaluate
from tools.example_models import build_example

Array = NDArray[Any]
FLOAT = TensorProto.FLOAT


def random_inputs(session: ort.InferenceSession, seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {
        i.name: rng.integers(0, 256, i.shape).astype(np.uint8)
        if i.type == "tensor(uint8)"
        else rng.standard_normal(i.shape).astype(np.float32)
        for i in session.get_inputs()
    }


@pytest.mark.parametrize("name", ["vision", "policy"])
def test_example_model_agrees_with_onnxruntime(name: str) -> None:
    data = build_example(name).data
    session = ort.InferenceSession(data)
    imported = import_model(onnx.load_model_from_string(data))
    for seed in (1, 2):
        feeds = random_inputs(session, seed)
        (expected,) = session.run(None, feeds)
        (found,) = evaluate([imported.outputs["outputs"]], feeds)
        assert found.dtype == np.float32
        assert found.shape == expected.shape
        assert np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max()


def test_nodes_carry_the_onnx_names_they_come_from() -> None:
    imported = import_model(onnx.load_model_from_string(build_example("policy").data))
    order = toposort([imported.outputs["outputs"].node])
    origins = {name for n in order for name in imported.origins.of(n)}
    assert "/blocks.1/attn/Softmax" in origins
    assert "/heads.plan.1/Gemm" in origins


def graph_model(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, list[int | str]],
    weights: dict[str, Array] | None = None,
    opset: int = 17,
    rank: int = 3,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info(n, FLOAT, s) for n, s in inputs.items()],
        [helper.make_tensor_value_info("y", FLOAT, [f"d{i}" for i in range(rank)])],
        [numpy_helper.from_array(a, n) for n, a in (weights or {}).items()],
    )
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def shape_arithmetic() -> onnx.ModelProto:
    """Return x.view(x.shape[0], -1, x.shape[2] * 2) as a tracing exporter writes it."""
    n = helper.make_node
    nodes = [
        n("Shape", ["x"], ["s"], "shape"),
        n("Constant", [], ["zero"], value=numpy_helper.from_array(np.array(0))),
        n("Constant", [], ["two"], value=numpy_helper.from_array(np.array(2))),
        n("Gather", ["s", "zero"], ["batch"], "batch", axis=0),
        n("Gather", ["s", "two"], ["last"], "last", axis=0),
        n("Mul", ["last", "two"], ["wide"], "wide"),
        n("Unsqueeze", ["batch", "axes"], ["b1"]),
        n("Cast", ["wide"], ["wf"], to=FLOAT),
        n("Floor", ["wf"], ["wfl"]),
        n("Cast", ["wfl"], ["wi"], to=TensorProto.INT64),
        n("Unsqueeze", ["wi", "axes"], ["w1"]),
        n("ConstantOfShape", ["axes_shape"], ["minus"], value=_int64_tensor(-1)),
        n("Concat", ["b1", "minus", "w1"], ["target"], axis=0),
        n("Reshape", ["x", "target"], ["y"], "view"),
    ]
    weights = {"axes": np.array([0]), "axes_shape": np.array([1])}
    return graph_model(nodes, {"x": ["batch", 4, 6]}, weights)


def _int64_tensor(value: int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array([value], np.int64))


def test_shape_arithmetic_is_gone_after_import() -> None:
    imported = import_model(shape_arithmetic())
    assert imported.outputs["y"].shape == (1, 2, 12)
    order = toposort([imported.outputs["y"].node])
    assert [node.op for node in order] == [Op.BUFFER, Op.RESHAPE]


def test_symbolic_dimension_is_bound_to_one_with_a_note() -> None:
    imported = import_model(shape_arithmetic())
    assert imported.inputs["x"].shape == (1, 4, 6)
    assert imported.notes == ('input "x": batch bound to 1; other sizes: --bind batch=SIZE',)


def test_given_input_binds_a_symbolic_dimension() -> None:
    x = Tensor.input("frames", (3, 4, 6), dt.float32)
    imported = import_model(shape_arithmetic(), {"x": x})
    assert imported.inputs["x"] is x
    assert imported.outputs["y"].shape == (3, 2, 12)
    assert imported.notes == ()


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (Tensor.input("x", (1, 5, 6)), r'input "x": expected float32 .*4, 6\], found .*1, 5, 6\]'),
        (Tensor.input("x", (1, 4)), r'input "x": expected float32'),
        (Tensor.input("x", (1, 4, 6), dt.uint8), r'input "x": expected float32 .* found uint8'),
    ],
)
def test_given_input_must_fit_the_declaration(tensor: Tensor, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        import_model(shape_arithmetic(), {"x": tensor})


def test_unknown_given_input_is_refused() -> None:
    with pytest.raises(ModelError, match=r"has no input \['z'\]; found \['x'\]"):
        import_model(shape_arithmetic(), {"z": Tensor.input("z", (1,))})


def test_initializers_listed_as_inputs_are_weights_unless_given() -> None:
    nodes = [helper.make_node("Mul", ["x", "w"], ["y"])]
    inputs: dict[str, list[int | str]] = {"x": [2, 2], "w": [2]}
    model = graph_model(nodes, inputs, {"w": np.array([2.0, 3.0], np.float32)}, opset=9, rank=2)
    x = np.ones((2, 2), np.float32)
    imported = import_model(model)
    assert list(imported.inputs) == ["x"]
    np.testing.assert_array_equal(imported.outputs["y"].interp({"x": x}), [[2, 3], [2, 3]])

    given = import_model(model, {"w": Tensor.input("w", (2,))})
    assert list(given.inputs) == ["x", "w"]
    found = given.outputs["y"].interp({"x": x, "w": np.array([5.0, 7.0], np.float32)})
    np.testing.assert_array_equal(found, [[5, 7], [5, 7]])


def test_weight_is_one_buffer_for_all_its_readers() -> None:
    nodes = [
        helper.make_node("Add", ["x", "w"], ["a"]),
        helper.make_node("Mul", ["a", "w"], ["y"]),
    ]
    model = graph_model(nodes, {"x": [2, 2]}, {"w": np.array([2.0, 3.0], np.float32)}, rank=2)
    order = toposort([import_model(model).outputs["y"].node])
    weights = [n for n in order if n.op is Op.BUFFER and n.arg.kind == "weight"]
    assert len(weights) == 1


def test_operator_without_translator_is_evaluated_on_constants() -> None:
    # NonZero has no translator; on known values it is part of weight arithmetic.
    nodes = [
        helper.make_node("NonZero", ["mask"], ["where"]),
        helper.make_node("Squeeze", ["where", "axes"], ["index"]),
        helper.make_node("Gather", ["x", "index"], ["y"], axis=1),
    ]
    weights = {"mask": np.array([1, 0, 0, 1]), "axes": np.array([0])}
    imported = import_model(graph_model(nodes, {"x": [1, 4]}, weights, rank=2))
    found = imported.outputs["y"].interp({"x": np.array([[5.0, 6, 7, 8]], np.float32)})
    np.testing.assert_array_equal(found, [[5, 8]])


def test_output_that_is_an_input_or_a_constant() -> None:
    graph = helper.make_graph(
        [helper.make_node("Identity", ["w"], ["z"])],
        "net",
        [helper.make_tensor_value_info("x", FLOAT, [2])],
        [helper.make_tensor_value_info(n, FLOAT, [2]) for n in ("x", "z")],
        [numpy_helper.from_array(np.array([1.0, 2.0], np.float32), "w")],
    )
    imported = import_model(helper.make_model(graph, ir_version=8))
    assert imported.outputs["x"] is imported.inputs["x"]
    np.testing.assert_array_equal(imported.outputs["z"].interp(), [1, 2])


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (
            helper.make_node("Reshape", ["x", "shape"], ["y"], "the_view"),
            r'net: node "the_view" \(Reshape, opset 17\): reshape: .*24.* does not fit',
        ),
        (
            helper.make_node("Conv", ["x", "kernel"], ["y"], "the_conv", group=3),
            r'net: node "the_conv" \(Conv, opset 17\): group=3 must divide the 4 input',
        ),
        (
            helper.make_node("Conv", ["flat", "kernel"], ["y"]),
            r'"-> y" .*: inputs of shapes \[\[4\], \[2, 4, 3\]\] do not fit the operator',
        ),
        (
            helper.make_node("Transpose", ["x"], ["y"], perm=[0, 0, 1]),
            r'net: node "-> y" \(Transpose, opset 17\): perm \[0, 0, 1\] is not',
        ),
        (
            helper.make_node("Cast", ["x"], ["y"], to=TensorProto.COMPLEX64),
            r"cannot cast to element type complex64",
        ),
    ],
)
def test_node_that_cannot_be_translated_is_named(node: onnx.NodeProto, message: str) -> None:
    zeros = np.zeros((2, 4, 3), np.float32)
    weights = {"shape": np.array([5, 5]), "kernel": zeros, "flat": zeros[0, :, 0]}
    with pytest.raises(ModelError, match=message) as caught:
        import_model(graph_model([node], {"x": [1, 4, 6]}, weights))
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 4


def test_shape_that_depends_on_data_is_refused() -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["s"], to=TensorProto.INT64),
        helper.make_node("Reshape", ["w", "s"], ["y"], "view"),
    ]
    model = graph_model(nodes, {"x": [1]}, {"w": np.zeros(6, np.float32)}, rank=1)
    with pytest.raises(ModelError, match=r'"view" .* shape \("s"\) depends on run-time data'):
        import_model(model)
