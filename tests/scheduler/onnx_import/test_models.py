"""Whole graphs through the importer: shape arithmetic, bindings, constants, old exports."""

from typing import Any

import numpy as np
import onnx
import pytest

from scheduler.errors import DynamicInputError, ModelError
from scheduler.ir import dtype as dt
from scheduler.ir.node import toposort
from scheduler.ir.ops import Op
from scheduler.onnx_import import import_model
from scheduler.tensor.tensor import Tensor
from tests.scheduler.onnx_import.onnx_models import parsed, results

SHAPE = np.array([-1, 3], np.int64)
# x.view(x.shape[0], -1, x.shape[2] * 2) as a tracing exporter writes it
SHAPE_ARITHMETIC = """(float[batch,4,6] x) => (float[d0,d1,d2] y)
  <int64[1] axes = {0}, int64[1] axes_shape = {1}> {
    [shape] s = Shape(x)
    zero = Constant <value = int64 {0}> ()
    two = Constant <value = int64 {2}> ()
    [batch] batch = Gather <axis = 0> (s, zero)
    [last] last = Gather <axis = 0> (s, two)
    [wide] wide = Mul(last, two)
    b1 = Unsqueeze(batch, axes)
    wf = Cast <to = 1> (wide)
    wfl = Floor(wf)
    wi = Cast <to = 7> (wfl)
    w1 = Unsqueeze(wi, axes)
    minus = ConstantOfShape <value = int64[1] {-1}> (axes_shape)
    target = Concat <axis = 0> (b1, minus, w1)
    [view] y = Reshape(x, target)
  }"""


def reshaping() -> onnx.ModelProto:
    text = "(float[batch,3,size] x, int64[2] shape, float[?,3] z) => (float[n,m] y) {"
    return parsed(text + "[it] y = Reshape (x, shape) }", 18)


def test_shape_arithmetic_is_gone_after_import() -> None:
    imported = import_model(parsed(SHAPE_ARITHMETIC))
    assert imported.outputs["y"].shape == (1, 2, 12)
    order = toposort([imported.outputs["y"].node])
    assert [node.op for node in order] == [Op.BUFFER, Op.RESHAPE]


def test_given_input_binds_a_symbolic_dimension() -> None:
    x = Tensor.input("frames", (3, 4, 6), dt.float32)
    imported = import_model(parsed(SHAPE_ARITHMETIC), {"x": x})
    assert imported.inputs["x"] is x
    assert imported.outputs["y"].shape == (3, 2, 12)
    assert imported.notes == ()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"x": Tensor.input("x", (1, 5, 6))}, r'"x": expected float32 .*4, 6\], found .*1, 5, 6\]'),
        ({"x": Tensor.input("x", (1, 4))}, r'input "x": expected float32'),
        (
            {"x": Tensor.input("x", (1, 4, 6), dt.uint8)},
            r'input "x": expected float32 .* found uint8',
        ),
        ({"z": Tensor.input("z", (1,))}, r"has no input \['z'\]; found \['x'\]"),
    ],
    ids=["sizes", "rank", "type", "name"],
)
def test_given_input_must_fit_the_declaration(given: dict[str, Tensor], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        import_model(parsed(SHAPE_ARITHMETIC), given)


def test_weight_is_one_buffer_for_all_its_readers() -> None:
    text = "(float[2,2] x) => (float[2,2] y) <float[2] w = {2, 3}> { a = Add(x, w) y = Mul(a, w) }"
    order = toposort([import_model(parsed(text)).outputs["y"].node])
    assert len([n for n in order if n.op is Op.BUFFER and n.arg.kind == "weight"]) == 1


def test_operator_without_translator_is_evaluated_on_constants() -> None:
    # How often 2 and 3 occur in known words; it would need a translator if they were not known.
    model = parsed(
        """(float[2] x) => (float[2] y) <int64[3] words = {3, 1, 3}> {
          counts = TfIdfVectorizer <
            mode = "TF", max_gram_length = 1, min_gram_length = 1, max_skip_count = 0,
            ngram_counts = [0], ngram_indexes = [0, 1], pool_int64s = [2, 3]
          > (words)
          y = Sub(x, counts)
        }"""
    )
    np.testing.assert_array_equal(results(model, {"x": np.ones(2, np.float32)})[0], [1, -1])


def test_output_that_is_an_input_or_a_constant() -> None:
    text = "(float[2] x) => (float[2] x, float[2] z) <float[2] w = {1, 2}> { z = Identity(w) }"
    imported = import_model(parsed(text))
    assert imported.outputs["x"] is imported.inputs["x"]
    np.testing.assert_array_equal(imported.outputs["z"].interp(), [1, 2])


@pytest.mark.parametrize(("opset", "ir_version"), [(9, 8), (17, 3)])
def test_initializers_listed_as_inputs_are_weights_unless_given(
    opset: int, ir_version: int
) -> None:
    text = "(float[2,2] x, float[2] w) => (float[2,2] y) { y = Mul(x, w) }"
    model = parsed(text, opset, ir_version, w=np.array([2.0, 3.0], np.float32))
    x = np.ones((2, 2), np.float32)
    imported = import_model(model)
    assert list(imported.inputs) == ["x"]
    np.testing.assert_array_equal(imported.outputs["y"].interp({"x": x}), [[2, 3], [2, 3]])
    given = import_model(model, {"w": Tensor.input("w", (2,))})
    assert list(given.inputs) == ["x", "w"]
    found = given.outputs["y"].interp({"x": x, "w": np.array([5.0, 7.0], np.float32)})
    np.testing.assert_array_equal(found, [[5, 7], [5, 7]])


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (
            "[the_view] y = Reshape(x, shape)",
            r'net: node "the_view" \(Reshape, opset 17\): reshape: .*24.* does not fit',
        ),
        (
            "[the_conv] y = Conv <group = 3> (x, kernel)",
            r'net: node "the_conv" \(Conv, opset 17\): group=3 must divide the 4 input',
        ),
        (
            "y = Conv(flat, kernel)",
            r'"-> y" .*: inputs of shapes \[\[4\], \[2, 4, 3\]\] do not fit the operator',
        ),
        (
            "y = Transpose <perm = [0, 0, 1]> (x)",
            r'net: node "-> y" \(Transpose, opset 17\): perm \[0, 0, 1\] is not',
        ),
        ("y = Cast <to = 14> (x)", r"cannot cast to element type complex64"),
    ],
)
def test_node_that_cannot_be_translated_is_named(node: str, message: str) -> None:
    zeros = np.zeros((2, 4, 3), np.float32)
    weights: dict[str, Any] = {"shape": np.array([5, 5]), "kernel": zeros, "flat": zeros[0, :, 0]}
    with pytest.raises(ModelError, match=message) as caught:
        import_model(parsed(f"(float[1,4,6] x) => (float[a,b,c] y) {{ {node} }}", **weights))
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 4


def test_shape_that_depends_on_data_is_refused() -> None:
    text = "(float[1] x) => (float[n] y) { s = Cast <to = 7> (x) [view] y = Reshape(w, s) }"
    with pytest.raises(ModelError, match=r'"view" .* shape \("s"\) depends on run-time data'):
        import_model(parsed(text, w=np.zeros(6, np.float32)))


def test_a_type_that_nodes_contradict_is_said_by_node() -> None:
    """The usual converter to halves leaves such casts; onnxruntime refuses the model."""
    nodes = "[widen] c = Cast<to = 1>(x) [add] y = Add(c, w) z = Identity(y)"
    text = f"(float16[4] x) => (float16[4] z) <float16[4] c, float16[4] y> {{ {nodes} }}"
    imported = import_model(parsed(text, w=np.ones(4, np.float32)))
    first, *others = imported.notes
    assert first == (
        'node "widen" computes "c" as float32, but declares float16; using float32, export the '
        "model again if that is wrong"
    )
    assert [note.partition(" as ")[0] for note in others] == [
        'node "add" computes "y"',
        'node "-> z" computes "z"',
    ]
    same = text.replace("float16[4]", "float[4]")
    assert import_model(parsed(same, w=np.ones(4, np.float32))).notes == ()


def test_open_dimensions_are_1_with_a_note_each() -> None:
    imported = import_model(reshaping(), constants={"shape": SHAPE})
    assert {n: t.shape for n, t in imported.inputs.items()} == {"x": (1, 3, 1), "z": (1, 3)}
    assert imported.notes == (
        'input "x": batch, size bound to 1; other sizes: --bind batch=SIZE --bind size=SIZE',
        'input "z": z:0 bound to 1; other sizes: --bind z:0=SIZE',
    )


def test_bound_dimensions_have_their_sizes_and_no_note() -> None:
    bind = {"batch": 4, "size": 5, "z:0": 2}
    imported = import_model(reshaping(), bind=bind, constants={"shape": SHAPE})
    assert {n: t.shape for n, t in imported.inputs.items()} == {"x": (4, 3, 5), "z": (2, 3)}
    assert imported.notes == ()
    x = np.arange(60, dtype=np.float32).reshape(4, 3, 5)
    np.testing.assert_array_equal(imported.outputs["y"].interp({"x": x}), x.reshape(-1, 3))


@pytest.mark.parametrize(
    ("bind", "message"),
    [
        ({"bach": 4}, r'no input has a dimension "bach"; found \[.batch., .size., .*z:0'),
        ({"batch": -1}, "batch=-1: expected a size >= 0"),
        ({"x:1": 3}, 'no input has a dimension "x:1"'),
    ],
)
def test_what_cannot_be_bound_is_refused(bind: dict[str, int], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        import_model(reshaping(), bind=bind, constants={"shape": SHAPE})


COMPUTED = """(float[6] x, int64[2] a, int64[2] b) => (float[n,m] y) {
  s = Add (a, b)
  t = Abs (s)
  y = Reshape (x, t)
}"""


def test_a_shape_from_inputs_names_node_and_inputs() -> None:
    with pytest.raises(DynamicInputError, match=r'Reshape.*its shape \("shape"\)') as caught:
        import_model(reshaping())
    assert (caught.value.value, caught.value.inputs) == ("shape", ("shape",))
    with pytest.raises(DynamicInputError) as computed:
        import_model(parsed(COMPUTED))
    assert set(computed.value.inputs) == {"a", "b"}


def test_constants_replace_inputs_and_given_tensors_keep_theirs() -> None:
    x = Tensor.input("mine", (2, 3, 7))
    imported = import_model(reshaping(), {"x": x}, constants={"shape": SHAPE})
    assert imported.inputs["x"] is x
    assert imported.outputs["y"].shape == (14, 3)
    unknown: dict[str, Any] = {"w": SHAPE}
    with pytest.raises(ModelError, match=r"has no input \['w'\]"):
        import_model(reshaping(), constants=unknown)
