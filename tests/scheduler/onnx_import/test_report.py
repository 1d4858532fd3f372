"""The import report: shapes, work and problems of models that compile and of those that do not."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from scheduler.errors import ModelError
from scheduler.onnx_import import from_proto
from scheduler.onnx_import.report import ModelReport, report
from scheduler.onnx_import.work import flops
from tests.scheduler.onnx_import.test_networks import SMALL
from tests.scheduler.onnx_import.tiny_models import Sizes, model_of, slices_text, value

Array = NDArray[Any]
FLOAT = np.float32


def of(proto: onnx.ModelProto, **bind: int) -> ModelReport:
    return report(from_proto(proto, "m.onnx"), bind)


@pytest.mark.parametrize("name", ["resnet18", "unet", "mobilenetv3_large"])
def test_products_of_a_network_are_counted_as_its_builder_counts(name: str) -> None:
    model, multiply_adds = SMALL[name](0)
    found = of(model)
    work = found.flops_by_operator
    products = sum(work.get(op, 0) for op in ("Conv", "ConvTranspose", "Gemm", "MatMul"))
    # Biases are not counted by either; pooling and activations are counted by one.
    assert products == 2 * multiply_adds
    assert products < found.flops < 1.1 * products
    assert found.problems == ()
    assert found.unchecked == 0
    assert all(node.shape is not None for node in found.nodes)


def node(op: str, outputs: int = 1, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, list("abcd"), [f"y{i}" for i in range(outputs)], **attributes)


@pytest.mark.parametrize(
    ("made", "inputs", "output", "expected"),
    [
        (node("Conv"), [(1, 6, 8, 8), (4, 3, 3, 3)], (1, 4, 6, 6), 2 * 4 * 36 * 27),
        (node("ConvTranspose"), [(1, 4, 5, 5), (4, 3, 2, 2)], (1, 3, 10, 10), 2 * 100 * 12),
        (node("QLinearConv"), [(1, 2, 4, 4), (), (), (3, 2, 1, 1)], (1, 3, 4, 4), 2 * 48 * 2),
        (node("MatMul"), [(2, 3, 5), (5, 7)], (2, 3, 7), 2 * 42 * 5),
        (node("Gemm", transA=1), [(5, 3), (5, 7)], (3, 7), 2 * 21 * 5),
        (node("Einsum", equation="bij,bjk->bik"), [(2, 3, 5), (2, 5, 7)], (2, 3, 7), 420),
        (node("Einsum", equation="...ij,jk"), [(2, 3, 5), (5, 7)], (2, 3, 7), 420),
        (node("LSTM"), [(4, 2, 3), (1, 20, 3), (1, 20, 5)], (4, 1, 2, 5), 2 * 8 * 160),
        (node("Attention"), [(1, 2, 3, 4), (1, 2, 6, 4), (1, 2, 6, 4)], (1, 2, 3, 4), 2 * 288),
        (node("MaxPool", kernel_shape=[2, 3]), [(1, 1, 4, 6)], (1, 1, 2, 2), 24),
        (node("ReduceSum"), [(3, 50)], (3,), 150),
        (node("Softmax"), [(3, 50)], (3, 50), 600),
        (node("Tanh"), [(3, 50)], (3, 50), 150),
        (node("Transpose"), [(3, 50)], (50, 3), 0),
        (node("Resize", mode="linear"), [(1, 1, 2, 2)], (1, 1, 4, 4), 2 * 4 * 16),
        (node("Resize", mode="nearest"), [(1, 1, 2, 2)], (1, 1, 4, 4), 0),
        (node("Loop"), [(1,)], (1,), None),
        (node("MatMul"), [None, (5, 7)], (3, 7), None),
        (node("Tanh"), [(3,)], None, None),
    ],
    ids=lambda v: v.op_type if isinstance(v, onnx.NodeProto) else None,
)
def test_work_of_an_operator(
    made: onnx.NodeProto,
    inputs: list[tuple[int, ...] | None],
    output: tuple[int, ...] | None,
    expected: int | None,
) -> None:
    assert flops(made, inputs, [output]) == expected


def broken() -> onnx.ModelProto:
    """Two operators that nobody has, one that is used wrongly, and good ones between them."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="first"),
        helper.make_node("Frobnicate", ["a"], ["b"], name="odd/1", domain="com.example"),
        helper.make_node("Relu", ["b"], ["c"], name="behind"),
        helper.make_node("StringNormalizer", ["x"], ["s"], name="strings"),
        helper.make_node("Reshape", ["c", "shape"], ["d"], name="reshape"),
        helper.make_node("Transpose", ["d"], ["e"], name="turn", perm=[0, 0]),
        helper.make_node("Mul", ["a", "a"], ["y"], name="last"),
    ]
    shapes: dict[str, Sizes] = {"b": (2, 6), "e": (3, 4)}
    proto = model_of(
        nodes,
        [value("x", (2, 6))],
        [value("y", (2, 6))],
        {"shape": np.array([4, 3])},
        {"note": "kept", "output_slices": "not base64!"},
    )
    proto.graph.value_info.extend(value(name, shape) for name, shape in shapes.items())
    return proto


def test_all_problems_are_listed_at_once_and_the_rest_is_looked_at() -> None:
    found = of(broken())
    by_node = {p.node or p.op: p for p in found.problems}
    assert list(by_node) == ["odd/1", "strings", "turn", "metadata"]
    assert by_node["odd/1"].op == "com.example:Frobnicate"
    assert "m.onnx" not in by_node["turn"].reason
    assert "not base64" in by_node["metadata"].reason
    shapes = {node.name: node.shape for node in found.nodes}
    # Behind an unknown operator shapes are what the file declares.
    assert shapes["behind"] == (2, 6)
    assert shapes["reshape"] == (4, 3)
    assert shapes["last"] == (2, 6)
    assert found.flops_by_operator["Relu"] == 24


def test_what_depends_on_unknown_shapes_is_counted_as_not_looked_at() -> None:
    nodes = [
        helper.make_node("Frobnicate", ["x"], ["a"], name="odd", domain="com.example"),
        helper.make_node("Relu", ["a"], ["b"], name="one"),
        helper.make_node("Relu", ["b"], ["y"], name="two"),
    ]
    found = of(model_of(nodes, [value("x", (2,))], [value("y", ("n",))]))
    assert [p.node for p in found.problems] == ["odd"]
    assert found.unchecked == 2
    assert found.uncounted == 3
    assert found.nodes[1].shape is None


def test_an_input_of_an_unsupported_type_is_a_problem_not_an_error() -> None:
    nodes = [
        helper.make_node("Identity", ["s"], ["t"]),
        helper.make_node("Add", ["x", "x"], ["y"]),
        helper.make_node("Identity", ["c"], ["z"]),
    ]
    inputs = [
        *(value(name, (2,), TensorProto.STRING) for name in ("s", "c")),
        value("x", (3,)),
    ]
    outputs = [
        *(value(name, (2,), TensorProto.STRING) for name in ("t", "z")),
        value("y", ("n",)),
    ]
    found = of(model_of(nodes, inputs, outputs))
    assert [p.op for p in found.problems] == ["input", "input"]
    for name, problem in zip("sc", found.problems, strict=True):
        assert problem.reason == f'"{name}": unsupported element type string'
    assert found.unchecked == 2
    assert found.nodes[1].shape == (3,)  # the other inputs are known all the same


def test_random_numbers_have_no_translation_even_where_inputs_are_known() -> None:
    nodes = [
        helper.make_node("RandomNormal", [], ["noise"], name="random", shape=[3]),
        helper.make_node("Add", ["x", "noise"], ["y"], name="sum"),
    ]
    found = of(model_of(nodes, [value("x", (3,))], [value("y", (3,))]))
    assert [(p.node, p.reason) for p in found.problems] == [("random", "no translation")]
    assert found.nodes[1].shape == (3,)


def test_symbolic_dimensions_are_bound_and_noted() -> None:
    proto = model_of(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        [value("x", ("batch", 4))],
        [value("y", ("batch", 3))],
        {"w": np.ones((4, 3), FLOAT)},
    )
    assert of(proto).flops == 2 * 3 * 4
    (note,) = of(proto).notes
    assert "batch" in note
    found = of(proto, batch=5)
    assert (found.flops, found.notes) == (5 * 2 * 3 * 4, ())
    assert found.inputs[0].shape == ("batch", 4)
    assert found.inputs[0].bound == (5, 4)
    assert found.outputs[0].bound == (5, 3)
    with pytest.raises(ModelError, match="bath"):
        of(proto, bath=5)


def test_bound_sizes_reach_inference_behind_an_unknown_operator() -> None:
    nodes = [
        helper.make_node("Frobnicate", ["x"], ["a"], domain="com.example"),
        helper.make_node("Exp", ["a"], ["y"]),
    ]
    proto = model_of(nodes, [value("x", ("n", 4))], [value("y", ("n", 4))])
    proto.graph.value_info.append(value("a", ("n", 4)))
    assert of(proto, n=7).nodes[1].shape == (7, 4)


def test_weights_types_and_what_is_known_while_compiling() -> None:
    nodes = [
        helper.make_node("Cast", ["half"], ["w"], to=TensorProto.FLOAT, name="widen"),
        helper.make_node("MatMul", ["x", "w"], ["y"], name="product"),
        helper.make_node("Shape", ["x"], ["size"], name="shape"),
        helper.make_node("Cast", ["size"], ["z"], to=TensorProto.FLOAT, name="float"),
    ]
    weights: dict[str, Array] = {"half": np.ones((8, 4), np.float16), "bias": np.ones(3, FLOAT)}
    slices = slices_text({"left": slice(0, 2), "all": slice(None)})
    proto = model_of(
        nodes, [value("x", (2, 8))], [value("y", (2, 4))], weights, {"output_slices": slices}
    )
    found = of(proto)
    assert (found.parameters, found.weight_bytes) == (35, 76)
    assert found.element_types == {"float16": 64, "float32": 12}
    assert {n.name for n in found.nodes if n.constant} == {"widen", "shape", "float"}
    assert [n.name for n in found.largest_activations] == ["product"]
    assert found.flops == 2 * 8 * 8
    assert found.output_slices == {"left": (0, 2), "all": (0, 4)}
    assert found.opsets == {"ai.onnx": 17, "com.example": 1}


def test_nodes_of_branches_are_counted_as_operators() -> None:
    def branch(op: str) -> onnx.GraphProto:
        return helper.make_graph([helper.make_node(op, ["x"], ["r"])], op, [], [value("r", (2,))])

    choose = helper.make_node(
        "If", ["flag"], ["y"], then_branch=branch("Exp"), else_branch=branch("Tanh")
    )
    proto = model_of([choose], [value("x", (2,))], [value("y", (2,))], {"flag": np.array(True)})
    found = of(proto)
    assert dict(found.operators) == {"If": 1, "Exp": 1, "Tanh": 1}
    assert found.uncounted == 1
