"""The import report: shapes, work and problems of models that compile and of those that do not."""

from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper

from scheduler.errors import ModelError
from scheduler.onnx_import import from_proto
from scheduler.onnx_import.report import ModelReport, report
from scheduler.onnx_import.work import flops
from tests.scheduler.onnx_import.onnx_models import parsed
from tests.scheduler.onnx_import.test_networks import SMALL
from tests.scheduler.onnx_import.tiny_models import slices_text

Array = NDArray[Any]
FLOAT = np.float32


def of(proto: onnx.ModelProto, **bind: int) -> ModelReport:
    return report(from_proto(proto, "m.onnx"), bind)


@pytest.mark.parametrize("name", ["resnet18", "unet", "swin", "espnet"])
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


def problems_of(found: ModelReport) -> list[tuple[str, str]]:
    return [(p.node or p.op, p.reason) for p in found.problems]


# Two operators that nobody has, one that is used wrongly, and good ones between them.
BROKEN = """(float[2,6] x) => (float[2,6] y) <int64[2] shape = {4, 3}, float[2,6] b, float[3,4] e> {
  [first] a = Relu(x)
  ["odd/1"] b = vendor.Frobnicate(a)
  [behind] c = Relu(b)
  [strings] s = StringNormalizer(x)
  [reshape] d = Reshape(c, shape)
  [turn] e = Transpose <perm = [0, 0]> (d)
  [last] y = Mul(a, a)
}"""


def test_all_problems_are_listed_at_once_and_the_rest_is_looked_at() -> None:
    proto = parsed(BROKEN)
    helper.set_model_props(proto, {"note": "kept", "output_slices": "not base64!"})
    found = of(proto)
    reasons = dict(problems_of(found))
    assert list(reasons) == ["odd/1", "strings", "turn", "metadata"]
    assert found.problems[0].op == "vendor:Frobnicate"
    assert "m.onnx" not in reasons["turn"]
    assert "not base64" in reasons["metadata"]
    shapes = {node.name: node.shape for node in found.nodes}
    # Behind an unknown operator shapes are what the file declares.
    assert shapes["behind"] == (2, 6)
    assert shapes["reshape"] == (4, 3)
    assert shapes["last"] == (2, 6)
    assert found.flops_by_operator["Relu"] == 24


def test_what_depends_on_unknown_shapes_is_counted_as_not_looked_at() -> None:
    nodes = "[odd] a = vendor.Frobnicate(x) [one] b = Relu(a) [two] y = Relu(b)"
    found = of(parsed(f"(float[2] x) => (float[n] y) {{ {nodes} }}"))
    assert [p.node for p in found.problems] == ["odd"]
    assert found.unchecked == 2
    assert found.uncounted == 3
    assert found.nodes[1].shape is None


def test_an_input_of_an_unsupported_type_is_a_problem_not_an_error() -> None:
    ports = "(string[2] s, string[2] c, float[3] x) => (string[2] t, string[2] z, float[n] y)"
    found = of(parsed(f"{ports} {{ t = Identity(s) y = Add(x, x) z = Identity(c) }}"))
    said = [("input", f'"{name}": unsupported element type string') for name in "sc"]
    assert problems_of(found) == said
    assert found.unchecked == 2
    assert found.nodes[1].shape == (3,)  # the other inputs are known all the same


def test_random_numbers_have_no_translation_even_where_inputs_are_known() -> None:
    nodes = "[random] noise = RandomNormal <shape = [3]> () [sum] y = Add(x, noise)"
    found = of(parsed(f"(float[3] x) => (float[3] y) {{ {nodes} }}"))
    assert problems_of(found) == [("random", "no translation")]
    assert found.nodes[1].shape == (3,)


def test_symbolic_dimensions_are_bound_and_noted() -> None:
    text = "(float[batch,4] x) => (float[batch,3] y) { y = MatMul(x, w) }"
    proto = parsed(text, w=np.ones((4, 3), FLOAT))
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
    nodes = "a = vendor.Frobnicate(x) y = Exp(a)"
    proto = parsed(f"(float[n,4] x) => (float[n,4] y) <float[n,4] a> {{ {nodes} }}")
    assert of(proto, n=7).nodes[1].shape == (7, 4)


def test_weights_types_and_what_is_known_while_compiling() -> None:
    text = """(float[2,8] x) => (float[2,4] y) {
      [widen] w = Cast <to = 1> (half)
      [product] y = MatMul(x, w)
      [shape] size = Shape(x)
      [float] z = Cast <to = 1> (size)
    }"""
    proto = parsed(text, half=np.ones((8, 4), np.float16), bias=np.ones(3, FLOAT))
    slices = slices_text({"left": slice(0, 2), "all": slice(None)})
    helper.set_model_props(proto, {"output_slices": slices})
    found = of(proto)
    assert (found.parameters, found.weight_bytes) == (35, 76)
    assert found.element_types == {"float16": 64, "float32": 12}
    assert {n.name for n in found.nodes if n.constant} == {"widen", "shape", "float"}
    assert [n.name for n in found.largest_activations] == ["product"]
    assert found.flops == 2 * 8 * 8
    assert found.output_slices == {"left": (0, 2), "all": (0, 4)}
    assert found.opsets == {"ai.onnx": 17, "vendor": 1}


def test_nodes_of_branches_are_counted_as_operators() -> None:
    then, other = (f"g () => (float[2] r) {{ r = {op}(x) }}" for op in ("Exp", "Tanh"))
    choose = f"y = If <then_branch = {then}, else_branch = {other}> (flag)"
    found = of(parsed(f"(float[2] x) => (float[2] y) <bool flag = {{1}}> {{ {choose} }}"))
    assert dict(found.operators) == {"If": 1, "Exp": 1, "Tanh": 1}
    assert found.uncounted == 1
