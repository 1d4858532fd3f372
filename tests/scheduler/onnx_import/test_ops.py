"""Every translator against onnxruntime: one node, seeded inputs, given at run time and folded."""

import warnings
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from scheduler.ir.node import Node, toposort
from scheduler.onnx_import import TRANSLATORS, import_model
from scheduler.onnx_import.importer import ImportedModel
from scheduler.pipeline import schedule
from scheduler.tensor.tensor import evaluate
from tests.scheduler.onnx_import.onnx_cases import CASES
from tests.scheduler.onnx_import.onnx_cases.case import Case, Const, array_of
from tests.scheduler.onnx_import.onnx_models import agree, ort_results, parsed, results

Array = NDArray[Any]


def build(case: Case, *, folded: bool) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """Return a one-node model and its feeds; `folded` makes every input an initializer."""
    infos, weights, feeds = [], [], {}
    for i, value in enumerate(case.inputs):
        if value is None:
            continue
        array = np.asarray(array_of(value))
        if folded or isinstance(value, Const):
            weights.append(numpy_helper.from_array(array, f"x{i}"))
        else:
            infos.append(_info(f"x{i}", array))
            feeds[f"x{i}"] = array
    given = ["" if value is None else f"x{i}" for i, value in enumerate(case.inputs)]
    outputs = [f"y{i}" for i in range(case.outputs)]
    made = helper.make_node(
        case.op, given, outputs, "the_node", domain=case.domain, **case.attributes
    )
    untyped = [onnx.ValueInfoProto(name=o) for o in outputs]
    graph = helper.make_graph([made], "case", infos, untyped, weights)
    opsets = [helper.make_opsetid("", case.opset)]
    if case.domain:
        opsets.append(helper.make_opsetid(case.domain, 1))
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return _typed(case, onnx.shape_inference.infer_shapes(model), feeds), feeds


def _info(name: str, array: Array) -> onnx.ValueInfoProto:
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    return helper.make_tensor_value_info(name, kind, array.shape)


def _typed(case: Case, model: onnx.ModelProto, feeds: dict[str, Array]) -> onnx.ModelProto:
    """Return the model with the types of its outputs, which onnx knows of its own domain only."""
    if all(o.type.tensor_type.HasField("shape") for o in model.graph.output):
        return model
    for info, array in zip(model.graph.output, reference(case, model, feeds), strict=True):
        info.CopyFrom(_info(info.name, array))
    return model


def reference(case: Case, model: onnx.ModelProto, feeds: dict[str, Array]) -> list[Array]:
    if case.reference == "onnx":
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of means over nothing
            return list(ReferenceEvaluator(model).run(None, feeds))
    return ort_results(model, feeds)


def imported(case: Case) -> tuple[ImportedModel, dict[str, Array], list[Array]]:
    model, feeds = build(case, folded=False)
    return import_model(model), feeds, reference(case, model, feeds)


def interpreted(case: Case) -> list[Array]:
    return results(*build(case, folded=False))


def graph_of(case: Case) -> list[Node]:
    outputs = import_model(build(case, folded=False)[0]).outputs.values()
    return toposort([t.node for t in outputs])


@pytest.mark.parametrize("folded", [False, True], ids=["run", "fold"])
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.label)
def test_translator_agrees_with_onnxruntime(case: Case, folded: bool) -> None:
    model, feeds = build(case, folded=folded)
    expected = reference(case, model, feeds)
    found = import_model(model)
    assert list(found.inputs) == list(feeds)
    agree(evaluate(list(found.outputs.values()), feeds), expected, 1e-5)


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


@pytest.mark.parametrize("opset", [10, 17, 18, 22])
def test_a_body_serves_the_opsets_before_it_was_written(opset: int) -> None:
    # ThresholdedRelu has been what it is since opset 10, and a function since 18.
    x = np.linspace(-3, 3, 64, dtype=np.float32)
    model = parsed("(float[64] x) => (float[64] y) { y = ThresholdedRelu(x) }", opset)
    np.testing.assert_array_equal(results(model, {"x": x})[0], np.where(x > 1, x, 0))


def test_a_body_rounds_halves_once() -> None:
    x = np.linspace(-4, 4, 64, dtype=np.float16)
    model = parsed("(float16[64] x) => (float16[64] y) { y = Swish(x) }", 24)
    (found,) = results(model, {"x": x})
    wide = x.astype(np.float32)
    expected = (wide / (1 + np.exp(-wide))).astype(np.float16)
    assert found.dtype == np.float16
    assert np.mean(found == expected) > 0.95  # rounded at each step, 4 in 5 are equal


@pytest.mark.parametrize("op", ["CenterCropPad", "Swish", "ThresholdedRelu"])
def test_a_body_is_one_kernel(op: str) -> None:
    model, _, _ = imported(next(c for c in CASES if c.op == op))
    plan = schedule({name: t.node for name, t in model.outputs.items()})
    assert len(plan.launches) == 1
