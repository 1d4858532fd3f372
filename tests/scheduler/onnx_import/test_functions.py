"""Functions: those of a model, and the bodies that ONNX gives to operators."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import parser
from onnx.reference import ReferenceEvaluator

from scheduler.errors import ModelError, UnsupportedOpError
from scheduler.onnx_import import TRANSLATORS, import_model
from scheduler.onnx_import.functions import has_schema_body
from scheduler.tensor.tensor import evaluate

X = np.random.default_rng(4).standard_normal((2, 6)).astype(np.float32)

LOCAL = """<ir_version: 9, opset_import: ["" : 18, "mine" : 1]>
g (float[2,6] x) => (float[2,6] y) {
  h = mine.scaled <factor = 3.0> (x)
  y = mine.both (h)
}
<domain: "mine", opset_import: ["" : 18]>
scaled <factor> (a) => (b) {
  f = Constant <value_float: float = @factor> ()
  b = Mul(a, f)
}
<domain: "mine", opset_import: ["" : 18, "mine" : 1]>
both (a) => (b) {
  c = mine.scaled <factor = 0.5> (a)
  x = Neg(c)
  b = LeakyRelu <alpha = 0.25> (x)
}"""


def test_functions_of_a_model_are_called_with_their_attributes() -> None:
    proto = parser.parse_model(LOCAL)
    (found,) = evaluate(list(import_model(proto).outputs.values()), {"x": X})
    (want,) = ReferenceEvaluator(proto).run(None, {"x": X})
    np.testing.assert_allclose(found, np.asarray(want), rtol=1e-6)


def test_node_that_misses_an_attribute_of_its_function_is_named() -> None:
    proto = parser.parse_model(LOCAL.replace("<factor = 3.0>", ""))
    with pytest.raises(ModelError, match=r'node "-> h/-> f" .Constant.*found nothing'):
        import_model(proto)


def test_function_that_calls_itself_ends_in_an_error() -> None:
    text = LOCAL.replace("c = mine.scaled <factor = 0.5> (a)", "c = mine.both (a)")
    with pytest.raises(ModelError, match='function "both" calls itself'):
        import_model(parser.parse_model(text))


def test_operators_inside_functions_are_looked_at() -> None:
    text = LOCAL.replace("x = Neg(c)", "x = Nonsense(c)")
    with pytest.raises(UnsupportedOpError, match="Nonsense"):
        import_model(parser.parse_model(text))


def test_a_function_may_replace_an_operator() -> None:
    proto = parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 18]>
        g (float[2,6] x) => (float[2,6] y) { y = Softsign (x) }
        <domain: "", opset_import: ["" : 18]>
        Softsign (a) => (b) { b = Neg(a) }"""
    )
    (found,) = evaluate(list(import_model(proto).outputs.values()), {"x": X})
    np.testing.assert_array_equal(found, -X)


def test_operators_without_translator_use_the_body_that_onnx_gives() -> None:
    newest = onnx.defs.onnx_opset_version()
    names = {s.name for s in onnx.defs.get_all_schemas() if s.domain == ""}
    by_body = sorted(n for n in names - set(TRANSLATORS) if has_schema_body(n, newest))
    assert by_body, "no operator is left to bodies: this test, and the mechanism, can go"


def test_initializers_of_inner_graphs_shadow_nothing() -> None:
    proto = parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 18]>
        g (float[2,6] x, bool c) => (float[2,6] y) {
          y = If (c) <
            then_branch = t () => (float[2,6] a) <float[1] w = {2.0}> { a = Mul(x, w) },
            else_branch = e () => (float[2,6] b) <float[1] v = {5.0}> { b = Mul(x, v) }
          >
        }"""
    )
    imported = import_model(proto)
    for condition, factor in ((True, 2), (False, 5)):
        (found,) = evaluate(list(imported.outputs.values()), {"x": X, "c": np.array(condition)})
        np.testing.assert_array_equal(found, X * factor)
