"""Every translator against onnxruntime: one node, seeded inputs, given at run time and folded."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from scheduler.onnx_import import TRANSLATORS, import_model
from scheduler.pipeline import schedule
from scheduler.tensor.tensor import evaluate
from tests.scheduler.onnx_import.onnx_cases import CASES
from tests.scheduler.onnx_import.onnx_cases.case import Case, Const, array_of

Array = NDArray[Any]


def build(case: Case, *, folded: bool) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """Return a one-node model; `folded` makes every input an initializer."""
    node_inputs, infos, weights, feeds = [], [], [], {}
    for i, value in enumerate(case.inputs):
        node_inputs.append("" if value is None else f"x{i}")
        if value is None:
            continue
        array = np.asarray(array_of(value))
        if folded or isinstance(value, Const):
            weights.append(numpy_helper.from_array(array, f"x{i}"))
        else:
            kind = helper.np_dtype_to_tensor_dtype(array.dtype)
            infos.append(helper.make_tensor_value_info(f"x{i}", kind, array.shape))
            feeds[f"x{i}"] = array
    outputs = [f"y{i}" for i in range(case.outputs)]
    node = helper.make_node(
        case.op, node_inputs, outputs, "the_node", domain=case.domain, **case.attributes
    )
    graph = helper.make_graph(
        [node], "case", infos, [onnx.ValueInfoProto(name=o) for o in outputs], weights
    )
    opsets = [helper.make_opsetid("", case.opset)]
    if case.domain:
        opsets.append(helper.make_opsetid(case.domain, 1))
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return typed(case, onnx.shape_inference.infer_shapes(model), feeds), feeds


def typed(case: Case, model: onnx.ModelProto, feeds: dict[str, Array]) -> onnx.ModelProto:
    """Return the model with the types of its outputs, which onnx knows of its own domain only."""
    if all(o.type.tensor_type.HasField("shape") for o in model.graph.output):
        return model
    for info, array in zip(model.graph.output, reference(case, model, feeds), strict=True):
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        info.CopyFrom(helper.make_tensor_value_info(info.name, kind, array.shape))
    return model


def reference(case: Case, model: onnx.ModelProto, feeds: dict[str, Array]) -> list[Array]:
    if case.reference == "onnx":
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of means over nothing
            return list(ReferenceEvaluator(model).run(None, feeds))
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options)
    found: list[Array] = session.run(None, feeds)
    return found


@pytest.mark.parametrize("folded", [False, True], ids=["run", "fold"])
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.label)
def test_translator_agrees_with_onnxruntime(case: Case, folded: bool) -> None:
    model, feeds = build(case, folded=folded)
    expected = reference(case, model, feeds)
    imported = import_model(model)
    assert list(imported.inputs) == list(feeds)
    found = evaluate(list(imported.outputs.values()), feeds)
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        if a.dtype.kind == "f":
            tolerance = 2e-3 if a.dtype == np.float16 else 1e-5
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * _scale(b))
        else:
            np.testing.assert_array_equal(a, b)


def _scale(values: Array) -> float:
    finite = np.abs(values[np.isfinite(values)])
    return float(finite.max()) if finite.size else 1.0


# Operators on graphs and sequences: test_control.py has them in whole models.
WITH_GRAPHS = {
    *("If", "Loop", "Scan", "Optional", "OptionalGetElement", "OptionalHasElement"),
    *("SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert"),
    *("SequenceLength", "SplitToSequence", "ConcatFromSequence"),
}


# ONNX's own function of these gives the same kernels and values as a translator would.
BY_BODY = {
    *("CenterCropPad", "GreaterOrEqual", "LessOrEqual", "SwiGLU", "Swish", "ThresholdedRelu"),
}


def test_every_translator_has_a_case() -> None:
    assert not BY_BODY & set(TRANSLATORS)
    cases = {f"{c.domain}:{c.op}" if c.domain else c.op for c in CASES}
    assert cases == BY_BODY | set(TRANSLATORS) - WITH_GRAPHS


def _model_of(op: str, dtype: Any, opset: int) -> onnx.ModelProto:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    node = helper.make_node(op, ["x"], ["y"])
    x, y = (helper.make_tensor_value_info(name, kind, [64]) for name in ("x", "y"))
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(helper.make_graph([node], "g", [x], [y]), opset_imports=opsets)


@pytest.mark.parametrize("opset", [10, 17, 18, 22])
def test_a_body_serves_the_opsets_before_it_was_written(opset: int) -> None:
    # ThresholdedRelu has been what it is since opset 10, and a function since 18.
    x = np.linspace(-3, 3, 64, dtype=np.float32)
    imported = import_model(_model_of("ThresholdedRelu", np.float32, opset))
    (found,) = evaluate(list(imported.outputs.values()), {"x": x})
    np.testing.assert_array_equal(found, np.where(x > 1, x, 0))


def test_a_body_rounds_halves_once() -> None:
    x = np.linspace(-4, 4, 64, dtype=np.float16)
    imported = import_model(_model_of("Swish", np.float16, 24))
    (found,) = evaluate(list(imported.outputs.values()), {"x": x})
    wide = x.astype(np.float32)
    expected = (wide / (1 + np.exp(-wide))).astype(np.float16)
    assert found.dtype == np.float16
    assert np.mean(found == expected) > 0.95  # rounded at each step, 4 in 5 are equal


@pytest.mark.parametrize("op", ["CenterCropPad", "Swish", "ThresholdedRelu"])
def test_a_body_is_one_kernel(op: str) -> None:
    one = next(c for c in CASES if c.op == op)
    model, _ = build(one, folded=False)
    plan = schedule({name: t.node for name, t in import_model(model).outputs.items()})
    assert len(plan.launches) == 1
