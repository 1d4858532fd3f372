"""If, Loop, Scan, sequences, functions: against onnxruntime; what cannot be resolved is refused."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from scheduler.errors import DynamicInputError, ModelError, UnsupportedOpError
from scheduler.ir.node import toposort
from scheduler.onnx_import import TRANSLATORS, import_model
from scheduler.onnx_import.ops import control
from scheduler.onnx_import.support import has_schema_body
from scheduler.tensor.tensor import evaluate
from tests.scheduler.onnx_import.onnx_models import ort_results, parsed, results
from tests.scheduler.support.programs import load
from tests.support.selection import quick_cases

X = np.random.default_rng(3).standard_normal((2, 3)).astype(np.float32)
YES, NO, ONE = np.array(True), np.array(False), np.array(1, np.float32)


def model(text: str, **weights: Any) -> onnx.ModelProto:
    return parsed(text, 18, **weights)


IF = """(float[2,3] x, bool c) => (float[2,3] y) {
  k = Constant <value = float {3.0}> ()
  y = If (c) <
    then_branch = t () => (float[2,3] a) { a = Mul(x, k) },
    else_branch = e () => (float[2,3] b) { b = Sub(x, k) }
  >
}"""
LOOP = """(float[2,3] x, int64 n) => (float[2,3] y, float[k,2,3] all) {
  yes = Constant <value = bool {1}> ()
  y, all = Loop (n, yes, x) <
    body = b (int64 i, bool go, float[2,3] v) => (bool on, float[2,3] w, float[2,3] out) {
      f = Cast <to = 1> (i)
      w = Add(v, f)
      out = Mul(w, x)
      on = Identity(go)
    }
  >
}"""
WHILE = """(float x, float limit) => (float y) {
  n = Constant <value = int64 {5}> ()
  start = Less(x, limit)
  y = Loop (n, start, x) <
    body = b (int64 i, bool go, float v) => (bool on, float w) {
      one = Constant <value = float {1.0}> ()
      w = Add(v, one)
      on = Less(w, limit)
    }
  >
}"""
SCAN = """(float[2,3] x, float[2] s) => (float[2] last, float[2,3] sums, float[3,2] back) {
  last, sums, back = Scan <num_scan_inputs = 1, scan_input_axes = [1],
    scan_input_directions = [1], scan_output_axes = [1, 0], scan_output_directions = [0, 1],
    body = b (float[2] a, float[2] v) => (float[2] c, float[2] d, float[2] e) {
      c = Add(a, v)
      d = Identity(c)
      e = Mul(c, v)
    }
  > (s, x)
}"""
SEQUENCES = """(float[4,3] x) => (float[4,3] y, float[2,2,3] z, int64 n) <int64 two = {2}> {
  s = SplitToSequence <axis = 0> (x, two)
  i = Constant <value = int64 {-1}> ()
  last = SequenceAt(s, i)
  t = SequenceInsert(s, last, i)
  u = SequenceErase(t, i)
  n = SequenceLength(t)
  y = ConcatFromSequence <axis = 0> (u)
  z = ConcatFromSequence <axis = 0, new_axis = 1> (s)
}"""


COUNTING = np.arange(12, dtype=np.float32).reshape(4, 3)
# Text, inputs, and those that are fixed while compiling.
GRAPHS: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "if": (IF, {"x": X, "c": YES}, ()),
    "if known": (IF, {"x": X, "c": YES}, ("c",)),
    "else": (IF, {"x": X, "c": NO}, ()),
    "else known": (IF, {"x": X, "c": NO}, ("c",)),
    "once": (LOOP, {"x": X, "n": np.array(1)}, ("n",)),
    "four times": (LOOP, {"x": X, "n": np.array(4)}, ("n",)),
    "not begun": (WHILE, {"x": ONE, "limit": np.array(0.5, np.float32)}, ()),
    "ended early": (WHILE, {"x": ONE, "limit": np.array(2.5, np.float32)}, ()),
    "never false": (WHILE, {"x": ONE, "limit": np.array(99, np.float32)}, ()),
    "scan": (SCAN, {"x": X, "s": np.ones(2, np.float32)}, ()),
    "sequences": (SEQUENCES, {"x": COUNTING}, ()),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_graphs_inside_of_nodes_agree_with_onnxruntime(name: str) -> None:
    text, feeds, known = GRAPHS[name]
    imported = import_model(model(text), constants={n: feeds[n] for n in known})
    assert set(imported.inputs) == set(feeds) - set(known)
    expected = ort_results(model(text), feeds)
    given = {n: feeds[n] for n in imported.inputs}
    for a, b in zip(evaluate(list(imported.outputs.values()), given), expected, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


@pytest.mark.opencl
@pytest.mark.parametrize("name", quick_cases(GRAPHS, "else", "four times", "ended early", "scan"))
def test_graphs_inside_of_nodes_are_compiled(name: str) -> None:
    text, feeds, known = GRAPHS[name]
    imported = import_model(model(text), constants={n: feeds[n] for n in known})
    expected = ort_results(model(text), feeds)
    with load(imported.outputs) as program:
        run = program.run({n: feeds[n] for n in imported.inputs})
        for output, want in zip(imported.outputs, expected, strict=True):
            np.testing.assert_allclose(run[output], want, rtol=1e-6, atol=1e-6)


def test_if_computes_only_the_branch_of_a_known_condition() -> None:
    imported = import_model(model(IF), constants={"c": YES})
    ops = {node.op.name for node in toposort([imported.outputs["y"].node])}
    assert "MUL" in ops
    assert not ops & {"SUB", "WHERE"}


def test_if_with_branches_of_two_shapes_needs_a_known_condition() -> None:
    text = """(float[2,3] x, bool c) => (float[n] y) <int64[1] s = {6}, int64[2] r = {1, 6}> {
      y = If (c) <
        then_branch = t () => (float[6] a) { a = Reshape(x, s) },
        else_branch = e () => (float[1,6] b) { b = Reshape(x, r) }
      >
    }"""
    with pytest.raises(DynamicInputError, match="expected one shape and type") as caught:
        import_model(model(text))
    assert caught.value.inputs == ("c",)
    imported = import_model(model(text), constants={"c": YES})
    assert imported.outputs["y"].shape == (6,)


def test_loop_without_iterations_gives_its_start_and_nothing() -> None:
    imported = import_model(model(LOOP), constants={"n": np.array(0, np.int64)})
    assert imported.outputs["all"].shape == (0, 2, 3)
    np.testing.assert_array_equal(evaluate([imported.outputs["y"]], {"x": X})[0], X)


def test_loop_with_a_count_from_data_is_refused_by_name() -> None:
    with pytest.raises(DynamicInputError, match=r'Loop, opset 18.*trip count \("n"\)') as caught:
        import_model(model(LOOP))
    assert caught.value.inputs == ("n",)


def test_loop_with_too_many_iterations_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "MAX_ITERATIONS", 8)
    import_model(model(LOOP), constants={"n": np.array(8, np.int64)})
    with pytest.raises(ModelError, match="more than 8 iterations"):
        import_model(model(LOOP), constants={"n": np.array(9, np.int64)})


def test_loop_ends_at_a_known_condition() -> None:
    text = """(float[2,3] x) => (float[2,3] y) <bool yes = {1}, int64 two = {2}> {
      y = Loop (, yes, x) <
        body = b (int64 i, bool go, float[2,3] v) => (bool on, float[2,3] w) {
          w = Add(v, x)
          on = Less(i, two)
        }
      >
    }"""
    np.testing.assert_allclose(results(model(text), {"x": X})[0], 4 * X, rtol=1e-6)


def test_sequence_as_an_output_is_refused() -> None:
    text = "(float[4,3] x) => (seq(float[1,3]) y) { y = SplitToSequence <axis = 0> (x) }"
    with pytest.raises(ModelError, match="is a sequence or an optional; expected a tensor"):
        import_model(model(text))


LOCAL = """<ir_version: 9, opset_import: ["" : 18, "mine" : 1]>
g (float[2,3] x) => (float[2,3] y) {
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
    proto = onnx.parser.parse_model(LOCAL)
    (want,) = ReferenceEvaluator(proto).run(None, {"x": X})
    np.testing.assert_allclose(results(proto, {"x": X})[0], np.asarray(want), rtol=1e-6)


@pytest.mark.parametrize(
    ("old", "new", "error", "message"),
    [
        ("<factor = 3.0>", "", ModelError, r'node "-> h/-> f" .Constant.*found nothing'),
        ("mine.scaled <factor = 0.5> (a)", "mine.both (a)", ModelError, '"both" calls itself'),
        ("Neg(c)", "Nonsense(c)", UnsupportedOpError, "Nonsense"),
    ],
    ids=["missing attribute", "calls itself", "unknown operator inside"],
)
def test_a_function_that_cannot_be_called_is_named(
    old: str, new: str, error: type[ModelError], message: str
) -> None:
    assert old in LOCAL
    with pytest.raises(error, match=message):
        import_model(onnx.parser.parse_model(LOCAL.replace(old, new)))


def test_a_function_may_replace_an_operator() -> None:
    proto = model(
        """(float[2,3] x) => (float[2,3] y) { y = Softsign (x) }
        <domain: "", opset_import: ["" : 18]>
        Softsign (a) => (b) { b = Neg(a) }"""
    )
    np.testing.assert_array_equal(results(proto, {"x": X})[0], -X)


def test_operators_without_translator_use_the_body_that_onnx_gives() -> None:
    newest = onnx.defs.onnx_opset_version()
    names = {s.name for s in onnx.defs.get_all_schemas() if s.domain == ""}
    by_body = sorted(n for n in names - set(TRANSLATORS) if has_schema_body(n, newest))
    assert by_body, "no operator is left to bodies: this test, and the mechanism, can go"
