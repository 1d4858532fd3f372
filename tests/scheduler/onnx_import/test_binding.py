"""Sizes of symbolic dimensions, and inputs whose values are known while compiling."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import parser

from scheduler.errors import DynamicInputError, ModelError
from scheduler.onnx_import import import_model
from scheduler.tensor.tensor import Tensor, evaluate

MODEL = """<ir_version: 9, opset_import: ["" : 18]>
g (float[batch,3,size] x, int64[2] shape, float[?,3] z) => (float[n,m] y) {
  y = Reshape (x, shape)
}"""
SHAPE = np.array([-1, 3], np.int64)


def model() -> onnx.ModelProto:
    proto = parser.parse_model(MODEL)
    proto.graph.input[2].type.tensor_type.shape.dim[0].ClearField("dim_param")
    return proto


def test_open_dimensions_are_1_with_a_note_each() -> None:
    imported = import_model(model(), constants={"shape": SHAPE})
    assert {n: t.shape for n, t in imported.inputs.items()} == {"x": (1, 3, 1), "z": (1, 3)}
    assert imported.notes == (
        'input "x": batch, size bound to 1; other sizes: --bind batch=SIZE --bind size=SIZE',
        'input "z": z:0 bound to 1; other sizes: --bind z:0=SIZE',
    )


def test_bound_dimensions_have_their_sizes_and_no_note() -> None:
    bind = {"batch": 4, "size": 5, "z:0": 2}
    imported = import_model(model(), bind=bind, constants={"shape": SHAPE})
    assert {n: t.shape for n, t in imported.inputs.items()} == {"x": (4, 3, 5), "z": (2, 3)}
    assert imported.notes == ()
    x = np.arange(60, dtype=np.float32).reshape(4, 3, 5)
    (found,) = evaluate([imported.outputs["y"]], {"x": x})
    np.testing.assert_array_equal(found, x.reshape(-1, 3))


@pytest.mark.parametrize(
    ("bind", "message"),
    [
        ({"bach": 4}, r'no input has a dimension "bach"; found \[.batch., .size., .*z:0'),
        ({"batch": -1}, "batch=-1: expected a size from 0"),
        ({"x:1": 3}, 'no input has a dimension "x:1"'),
    ],
)
def test_what_cannot_be_bound_is_refused(bind: dict[str, int], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        import_model(model(), bind=bind, constants={"shape": SHAPE})


def test_a_shape_from_an_input_names_node_and_input() -> None:
    with pytest.raises(DynamicInputError, match=r'Reshape.*its shape \("shape"\)') as caught:
        import_model(model())
    assert (caught.value.value, caught.value.inputs) == ("shape", ("shape",))


def test_a_computed_shape_names_the_inputs_it_comes_from() -> None:
    proto = parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 18]>
        g (float[6] x, int64[2] a, int64[2] b) => (float[n,m] y) {
          s = Add (a, b)
          t = Abs (s)
          y = Reshape (x, t)
        }"""
    )
    with pytest.raises(DynamicInputError) as caught:
        import_model(proto)
    assert set(caught.value.inputs) == {"a", "b"}


def test_constants_replace_inputs_and_given_tensors_keep_theirs() -> None:
    x = Tensor.input("mine", (2, 3, 7))
    imported = import_model(model(), {"x": x}, constants={"shape": SHAPE})
    assert imported.inputs["x"] is x
    assert imported.outputs["y"].shape == (14, 3)
    with pytest.raises(ModelError, match=r"has no input \['w'\]"):
        import_model(model(), constants={"w": SHAPE})
