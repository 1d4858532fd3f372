"""Models in double precision: the evaluator is double inside, and has the operators right."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from scheduler.check.float64_evaluator import DoubleEvaluator, widen
from scheduler.errors import ModelError
from scheduler.onnx_import import from_proto, import_model
from scheduler.tensor.tensor import evaluate
from tests.scheduler.onnx_import.onnx_cases import CASES
from tests.scheduler.onnx_import.onnx_cases.case import Case
from tests.scheduler.onnx_import.test_ops import build
from tests.scheduler.onnx_import.tiny_models import model_of, value

Array = NDArray[Any]
FLOAT = np.float32
# Our importer computes these in float32 inside, or rounds an attribute to it, and onnx's evaluator
# does not: normalisations by stash_type, weights of interpolation, slopes.
WE_ROUND = frozenset(
    {"Attention", "GroupNormalization", "HardSigmoid", "HardSwish", "LayerNormalization", "Resize"}
)
# At least so many cases are evaluated, and so many operators.
CASES_EVALUATED, OPERATORS_EVALUATED = 600, 130


def distance(case: Case) -> float | None:
    """Return how far the evaluator is from our interpreter, both double; None: one refuses."""
    proto, feeds = build(case, folded=False)
    wide = onnx.ModelProto()
    wide.CopyFrom(proto)
    try:
        found = DoubleEvaluator(from_proto(proto, "case")).run(feeds)
        widen(wide)
        imported = import_model(wide)
    except ModelError:
        return None
    doubles = {n: a.astype(np.float64) if a.dtype.kind == "f" else a for n, a in feeds.items()}
    ours = evaluate(list(imported.outputs.values()), doubles)
    worst = 0.0
    for one, other in zip(found.values(), ours, strict=True):
        if one.shape != other.shape or not other.size:
            continue
        a, b = one.astype(np.float64), other.astype(np.float64)
        finite = np.isfinite(b)
        peak = np.abs(b[finite]).max(initial=0.0) or 1.0
        with np.errstate(all="ignore"):
            off = np.where(finite, np.abs(a - b) / peak, 0.0)
        worst = max(worst, float(np.where(np.isnan(off), np.inf, off).max()))
    return worst


def test_every_operator_is_double_inside_or_refused() -> None:
    off: dict[str, float] = {}
    evaluated = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of numpy's, about what special values give
        for case in CASES:
            found = distance(case)
            if found is None:
                continue
            evaluated.append(case.op)
            # A result rounded to float32 once is 3e-8 off.
            if found > (2e-6 if case.op in WE_ROUND else 1e-9):
                off[case.label] = found
    assert off == {}
    assert len(evaluated) > CASES_EVALUATED
    assert len(set(evaluated)) > OPERATORS_EVALUATED


def run(proto: onnx.ModelProto, **feeds: Array) -> dict[str, Array]:
    return DoubleEvaluator(from_proto(proto, "m.onnx")).run(feeds)


def test_constants_casts_graphs_and_functions_are_widened() -> None:
    # 1 + 1e-12 is 1 in float32: each part of the model must keep the difference.
    tiny = np.array(1e-12)
    branch = helper.make_graph(
        [
            helper.make_node("Constant", [], ["k"], value_float=1.0),
            helper.make_node("Cast", ["x"], ["c"], to=TensorProto.FLOAT),
            helper.make_node("Add", ["c", "k"], ["b"]),
        ],
        "branch",
        [],
        [value("b", ())],
    )
    nodes = [
        helper.make_node("If", ["yes"], ["h"], then_branch=branch, else_branch=branch),
        helper.make_node("ConstantOfShape", ["none"], ["nought"]),
        helper.make_node("Keep", ["h"], ["p"], domain="com.example"),
        helper.make_node("Add", ["p", "nought"], ["q"]),
        helper.make_node("Sub", ["q", "one"], ["y"]),
    ]
    weights: dict[str, Array] = {
        "yes": np.array(True),
        "none": np.array([], np.int64),
        "one": np.array(1, np.float16),
    }
    proto = model_of(nodes, [value("x", ())], [value("y", ())], weights)
    keep = [
        helper.make_node("Cast", ["a"], ["b"], to=TensorProto.FLOAT16),
        helper.make_node("Identity", ["b"], ["c"]),
    ]
    opset = [helper.make_opsetid("", 17)]
    proto.functions.append(helper.make_function("com.example", "Keep", ["a"], ["c"], keep, opset))
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    widen(copy)
    from onnx.reference import ReferenceEvaluator

    (found,) = ReferenceEvaluator(copy).run(None, {"x": tiny})
    assert np.asarray(found).dtype == np.float64
    assert found == pytest.approx(1e-12, rel=1e-3)
    # The model is left as it was.
    assert numpy_helper.to_array(proto.graph.initializer[2]).dtype == np.float16


def test_inputs_of_halves_become_doubles() -> None:
    half = TensorProto.FLOAT16
    nodes = [helper.make_node("Mul", ["x", "x"], ["y"])]
    proto = model_of(nodes, [value("x", (2,), half)], [value("y", (2,), half)])
    found = run(proto, x=np.array([1.0009765625, 300], np.float16))["y"]
    assert found.tolist() == [1.0009765625**2, 90000.0]


@pytest.mark.parametrize(
    ("node", "why"),
    [
        (helper.make_node("LRN", ["x"], ["y"], size=3), "no LRN in double precision"),
        (helper.make_node("LSTM", ["x", "x", "x"], ["y"], clip=0.5), "no LSTM in double"),
        (helper.make_node("Gelu", ["x"], ["y"], domain="com.microsoft"), "does not take it"),
        (helper.make_node("HannWindow", ["n"], ["y"]), "narrows the result of HannWindow"),
        (helper.make_node("Concat", ["x", "n"], ["y"], axis=0), "cannot run it"),
    ],
)
def test_what_has_no_double_is_refused_with_a_reason(node: onnx.NodeProto, why: str) -> None:
    weights = {"n": np.array(4)}
    proto = model_of([node], [value("x", (1, 4, 2, 2))], [value("y", ())], weights)
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    # onnx's checker would refuse some of these before we are asked.
    model = from_proto(model_of([], [value("x", (1,))], [value("x", (1,))]), "m.onnx")
    model.proto.CopyFrom(proto)
    with pytest.raises(ModelError, match=why):
        DoubleEvaluator(model).run({"x": np.ones((1, 4, 2, 2), FLOAT)})
