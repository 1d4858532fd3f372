"""Nodes whose defects random models have found: each keeps the model that showed it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from scheduler.onnx_import import import_model
from scheduler.tensor.tensor import evaluate
from tests.scheduler.onnx_import.onnx_cases.case import Case, Const, case
from tests.scheduler.onnx_import.onnx_models import node
from tests.scheduler.onnx_import.test_ops import build, reference

Array = NDArray[Any]


def agree(found: Iterable[Array], expected: Iterable[Array], tolerance: float, seed: str) -> None:
    for a, b in zip(found, expected, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype), seed
        if b.dtype.kind != "f":
            np.testing.assert_array_equal(a, b, seed)
            continue
        bound = max(tolerance, 2e-3) if b.dtype == np.float16 else tolerance
        scale = max(1.0, float(np.abs(b[np.isfinite(b)]).max(initial=0.0)))
        np.testing.assert_allclose(a, b, rtol=bound, atol=bound * scale, err_msg=seed)


@pytest.mark.parametrize("known", [False, True], ids=["run-time", "known"])
def test_branches_with_weights_of_one_name_keep_their_own(known: bool) -> None:
    x, test = np.array([1, 2, 3], np.float32), np.array(True)
    total = np.concatenate([x + i for i in range(20)])
    nodes = [
        node("If", "test", f"r{i}", then_branch=_adds(i), else_branch=_adds(-100 - i))
        for i in range(20)
    ]
    nodes.append(node("Concat", " ".join(f"r{i}" for i in range(20)), "y", axis=0))
    info = helper.make_tensor_value_info
    inputs = [info("x", TensorProto.FLOAT, [3])]
    weights = [numpy_helper.from_array(test, "test")] if known else []
    inputs += [] if known else [info("test", TensorProto.BOOL, [])]
    outputs = [info("y", TensorProto.FLOAT, [60])]
    graph = helper.make_graph(nodes, "net", inputs, outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    feeds = {"x": x} if known else {"x": x, "test": test}
    np.testing.assert_array_equal(
        evaluate(list(import_model(model).outputs.values()), feeds)[0], total
    )


def _adds(number: float) -> onnx.GraphProto:
    """Return the graph x + w with a weight of its own."""
    weight = numpy_helper.from_array(np.array(number, np.float32), "w")
    result = helper.make_tensor_value_info("o", TensorProto.FLOAT, [3])
    return helper.make_graph([node("Add", "x w", "o")], "branch", [], [result], [weight])


def test_bfloat16_outputs_are_the_nearest_values() -> None:
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s).astype(ml_dtypes.bfloat16) for s in ((16, 32), (32, 8)))
    info, kind = helper.make_tensor_value_info, TensorProto.BFLOAT16
    graph = helper.make_graph(
        [node("MatMul", "x w", "y")],
        "net",
        [info("x", kind, x.shape)],
        [info("y", kind, [16, 8])],
        [numpy_helper.from_array(w, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    found = evaluate(list(import_model(model).outputs.values()), {"x": x.view(np.uint16)})[0]
    exact = x.astype(np.float64) @ w.astype(np.float64)
    np.testing.assert_array_equal(found.view(ml_dtypes.bfloat16), exact.astype(ml_dtypes.bfloat16))


def test_eye_like_takes_types_that_are_carried() -> None:
    info, kind = helper.make_tensor_value_info, TensorProto.BFLOAT16
    graph = helper.make_graph(
        [node("EyeLike", "x", "y", dtype=kind)],
        "net",
        [info("x", TensorProto.FLOAT, [2, 3])],
        [info("y", kind, [2, 3])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    found = evaluate(list(import_model(model).outputs.values()), {"x": np.zeros((2, 3))})[0]
    np.testing.assert_array_equal(found.view(ml_dtypes.bfloat16).astype(int), np.eye(2, 3))


HALF = np.float16
LARGE = (np.random.default_rng(1).standard_normal((1, 3, 40, 40)) * 300).astype(HALF)


@pytest.mark.parametrize(
    "made",
    [
        case("GlobalAveragePool", np.abs(LARGE)),
        case("GlobalLpPool", LARGE),
        case("AveragePool", np.abs(LARGE), kernel_shape=[30, 30], pads=[1, 0, 2, 3]),
        case("LpPool", LARGE, kernel_shape=[3, 3], opset=18),
        case("LRN", LARGE, size=3, opset=13),
        case("Mean", np.full(3, 6e4, HALF), np.full(3, 5e4, HALF)),
    ],
    ids=lambda c: c.op,
)
def test_sums_of_halves_are_wider_than_halves(made: Case) -> None:
    wide = Case(made.op, tuple(i.astype(np.float32) for i in made.inputs), made.attributes, 18)
    model, feeds = build(made, folded=False)
    expected = reference(wide, *build(wide, folded=False))
    found = evaluate(list(import_model(model).outputs.values()), feeds)
    agree(found, [e.astype(HALF) for e in expected], 2e-3, made.label)


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_grid_positions_that_are_no_numbers_read_nothing_outside(mode: str, padding: str) -> None:
    image = np.arange(1, 10, dtype=np.float32).reshape(1, 1, 3, 3)
    rows = [[np.nan, 0], [0, np.nan], [np.inf, 0], [0, -np.inf], [0, 0]]
    grid = np.array([[rows]], np.float32)
    made = case("GridSample", image, grid, mode=mode, padding_mode=padding)
    model, feeds = build(made, folded=False)
    found = evaluate(list(import_model(model).outputs.values()), feeds)[0]
    assert found[0, 0, 0, 4] == 5


def test_nearest_of_opset_10_reads_the_later_element_where_an_axis_shrinks() -> None:
    image = np.arange(1, 9, dtype=np.float32).reshape(1, 1, 2, 4)
    scales = Const(np.array([1, 1, 0.6, 0.6], np.float32))
    made = case("Resize", image, scales, mode="nearest", opset=10)
    model, feeds = build(made, folded=False)
    found = evaluate(list(import_model(model).outputs.values()), feeds)
    np.testing.assert_array_equal(found[0], [[[[1, 3]]]])
    agree(found, reference(made, model, feeds), 1e-6, made.label)
