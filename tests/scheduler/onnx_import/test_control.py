"""If, Loop, Scan and sequences against onnxruntime; what cannot be resolved is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, parser

from scheduler.errors import DynamicInputError, ModelError
from scheduler.onnx_import import import_model
from scheduler.onnx_import.ops import control
from scheduler.tensor.tensor import evaluate
from tests.scheduler.support.programs import load

Array = NDArray[Any]
HEAD = '<ir_version: 9, opset_import: ["" : 18]>\n'
X = np.random.default_rng(3).standard_normal((2, 3)).astype(np.float32)


def model(text: str) -> onnx.ModelProto:
    return parser.parse_model(HEAD + text)


def quiet_options() -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return options


def agree(proto: onnx.ModelProto, feeds: Mapping[str, Array], known: tuple[str, ...] = ()) -> None:
    """Compare with onnxruntime, interpreted and compiled; `known` are fixed while compiling."""
    imported = import_model(proto, constants={n: feeds[n] for n in known})
    assert set(imported.inputs) == set(feeds) - set(known)
    session = ort.InferenceSession(proto.SerializeToString(), quiet_options())
    expected = session.run(None, dict(feeds))
    given = {n: feeds[n] for n in imported.inputs}
    found = evaluate(list(imported.outputs.values()), given)
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == np.asarray(b).dtype
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)
    if not given:
        return
    with load(imported.outputs) as program:
        results = program.run(given)
        for name, want in zip(imported.outputs, expected, strict=True):
            np.testing.assert_allclose(results[name], want, rtol=1e-6, atol=1e-6)


IF = """g (float[2,3] x, bool c) => (float[2,3] y) {
  k = Constant <value = float {3.0}> ()
  y = If (c) <
    then_branch = t () => (float[2,3] a) { a = Mul(x, k) },
    else_branch = e () => (float[2,3] b) { b = Sub(x, k) }
  >
}"""


@pytest.mark.opencl
@pytest.mark.parametrize("condition", [True, False])
@pytest.mark.parametrize("known", [(), ("c",)], ids=["run", "known"])
def test_if_takes_the_branch_of_its_condition(condition: bool, known: tuple[str, ...]) -> None:
    agree(model(IF), {"x": X, "c": np.array(condition)}, known)


def test_if_computes_only_the_branch_of_a_known_condition() -> None:
    imported = import_model(model(IF), constants={"c": np.array(True)})
    ops = {node.op.name for node in _nodes(imported.outputs["y"])}
    assert "MUL" in ops
    assert "SUB" not in ops
    assert "WHERE" not in ops


def test_if_with_branches_of_two_shapes_needs_a_known_condition() -> None:
    text = """g (float[2,3] x, bool c) => (float[n] y) {
      y = If (c) <
        then_branch = t () => (float[6] a) { s = Constant <value_ints = [6]> () a = Reshape(x, s) },
        else_branch = e () => (float[1,6] b) { r = Constant <value_ints = [1, 6]> () b = Reshape(x, r) }
      >
    }"""  # noqa: E501  # one line of the model
    with pytest.raises(DynamicInputError, match="expected one shape and type") as caught:
        import_model(model(text))
    assert caught.value.inputs == ("c",)
    imported = import_model(model(text), constants={"c": np.array(True)})
    assert imported.outputs["y"].shape == (6,)


LOOP = """g (float[2,3] x, int64 n) => (float[2,3] y, float[k,2,3] all) {
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


@pytest.mark.opencl
@pytest.mark.parametrize("count", [1, 4])
def test_loop_is_written_out(count: int) -> None:
    agree(model(LOOP), {"x": X, "n": np.array(count, np.int64)}, ("n",))


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


@pytest.mark.opencl
@pytest.mark.parametrize("limit", [0.5, 2.5, 99.0])
def test_loop_stops_at_a_run_time_condition(limit: float) -> None:
    text = """g (float x, float limit) => (float y) {
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
    agree(model(text), {"x": np.array(1, np.float32), "limit": np.array(limit, np.float32)})


def test_loop_ends_at_a_known_condition() -> None:
    text = """g (float[2,3] x) => (float[2,3] y) {
      yes = Constant <value = bool {1}> ()
      y = Loop (, yes, x) <
        body = b (int64 i, bool go, float[2,3] v) => (bool on, float[2,3] w) {
          two = Constant <value = int64 {2}> ()
          w = Add(v, x)
          on = Less(i, two)
        }
      >
    }"""
    (found,) = evaluate(list(import_model(model(text)).outputs.values()), {"x": X})
    np.testing.assert_allclose(found, 4 * X, rtol=1e-6)


@pytest.mark.opencl
def test_scan_runs_over_slices_both_ways() -> None:
    text = """g (float[2,3] x, float[2] s) => (float[2] last, float[2,3] sums, float[3,2] back) {
      last, sums, back = Scan <num_scan_inputs = 1, scan_input_axes = [1],
        scan_input_directions = [1], scan_output_axes = [1, 0], scan_output_directions = [0, 1],
        body = b (float[2] a, float[2] v) => (float[2] c, float[2] d, float[2] e) {
          c = Add(a, v)
          d = Identity(c)
          e = Mul(c, v)
        }
      > (s, x)
    }"""
    agree(model(text), {"x": X, "s": np.ones(2, np.float32)})


@pytest.mark.opencl
def test_sequences_are_resolved_while_importing() -> None:
    text = """g (float[4,3] x) => (float[4,3] y, float[2,2,3] z, int64 n) {
      s = SplitToSequence <axis = 0> (x, two)
      i = Constant <value = int64 {-1}> ()
      last = SequenceAt(s, i)
      t = SequenceInsert(s, last, i)
      u = SequenceErase(t, i)
      n = SequenceLength(t)
      y = ConcatFromSequence <axis = 0> (u)
      z = ConcatFromSequence <axis = 0, new_axis = 1> (s)
    }"""
    proto = model(text)
    two = onnx.helper.make_tensor("two", TensorProto.INT64, [], [2])
    proto.graph.initializer.append(two)
    agree(proto, {"x": np.arange(12, dtype=np.float32).reshape(4, 3)})


def test_sequence_as_an_output_is_refused() -> None:
    text = "g (float[4,3] x) => (seq(float[1,3]) y) { y = SplitToSequence <axis = 0> (x) }"
    with pytest.raises(ModelError, match="is a sequence or an optional; expected a tensor"):
        import_model(model(text))


def _nodes(tensor: Any) -> Any:
    from scheduler.ir.node import toposort  # only one test looks into the graph

    return toposort([tensor.node])
