"""Models in double precision: the evaluator is double inside, and has the operators right."""

import warnings

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper, parser

from scheduler.check.references import DoubleEvaluator, widen
from scheduler.errors import ModelError
from scheduler.onnx_import import from_proto, import_model
from scheduler.tensor.tensor import evaluate
from tests.scheduler.onnx_import.onnx_cases import CASES
from tests.scheduler.onnx_import.onnx_cases.case import Case
from tests.scheduler.onnx_import.onnx_models import model_of, node, parsed
from tests.scheduler.onnx_import.test_ops import build

FLOAT = np.float32
# Our importer computes these in float32 inside, or rounds an attribute to it, and onnx's evaluator
# does not: normalisations by stash_type, weights of interpolation, slopes.
WE_ROUND = frozenset(
    {"Attention", "GroupNormalization", "HardSigmoid", "HardSwish", "LayerNormalization", "Resize"}
)
# At least this share of the cases is evaluated, and so many operators.
SHARE_EVALUATED, OPERATORS_EVALUATED = 0.7, 130


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
    assert len(evaluated) > SHARE_EVALUATED * len(CASES)
    assert len(set(evaluated)) > OPERATORS_EVALUATED


def test_constants_casts_graphs_and_functions_are_widened() -> None:
    # 1 + 1e-12 is 1 in float32: each part of the model must keep the difference.
    steps = "k = Constant<value_float = 1.0>() c = Cast<to = 1>(x) b = Add(c, k)"
    branch = f"branch () => (float b) {{ {steps} }}"
    proto = parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17, "com.example" : 1]>
        net (float x) => (float y)
        {{ h = If<then_branch = {branch}, else_branch = {branch}>(yes)
           nought = ConstantOfShape(none) p = com.example.Keep(h) q = Add(p, nought)
           y = Sub(q, one) }}
        <domain: "com.example", opset_import: ["" : 17]>
        Keep (a) => (c) {{ b = Cast<to = 10>(a) c = Identity(b) }}"""
    )
    weights = {
        "yes": np.array(True),
        "none": np.array([], np.int64),
        "one": np.array(1, np.float16),
    }
    proto.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in weights.items())
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    widen(copy)
    from onnx.reference import ReferenceEvaluator

    (found,) = ReferenceEvaluator(copy).run(None, {"x": np.array(1e-12)})
    assert np.asarray(found).dtype == np.float64
    assert found == pytest.approx(1e-12, rel=1e-3)
    # The model is left as it was.
    assert numpy_helper.to_array(proto.graph.initializer[2]).dtype == np.float16


def test_inputs_of_halves_become_doubles() -> None:
    proto = parsed("(float16[2] x) => (float16[2] y) { y = Mul(x, x) }")
    given = {"x": np.array([1.0009765625, 300], np.float16)}
    found = DoubleEvaluator(from_proto(proto, "m.onnx")).run(given)["y"]
    assert found.tolist() == [1.0009765625**2, 90000.0]


@pytest.mark.parametrize(
    ("node", "why"),
    [
        (node("LRN", "x", "y", size=3), "no LRN in double precision"),
        (node("LSTM", "x x x", "y", clip=0.5), "no LSTM in double"),
        (node("Gelu", "x", "y", domain="com.microsoft"), "cannot load it"),
        (node("HannWindow", "n", "y"), "computes HannWindow in lower precision"),
        (node("Concat", "x n", "y", axis=0), "cannot run it"),
    ],
)
def test_what_has_no_double_is_refused_with_a_reason(node: onnx.NodeProto, why: str) -> None:
    proto = model_of([node], [("x", (1, 4, 2, 2))], [("y", ())], {"n": np.array(4)})
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    # onnx's checker would refuse some of these before we are asked.
    model = from_proto(model_of([], [("x", (1,))], [("x", (1,))]), "m.onnx")
    model.proto.CopyFrom(proto)
    with pytest.raises(ModelError, match=why):
        DoubleEvaluator(model).run({"x": np.ones((1, 4, 2, 2), FLOAT)})
