"""What the operator cases cannot say: accuracy, cost, refusals of elementwise ONNX operators."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from scheduler.errors import ModelError
from scheduler.ir import dtype as dt
from scheduler.ir.node import toposort
from scheduler.ir.ops import Op
from scheduler.onnx_import import import_model
from scheduler.tensor.tensor import evaluate
from tests.scheduler.onnx_import.onnx_cases.case import Const, case
from tests.scheduler.onnx_import.test_ops import build

Array = NDArray[Any]


def run(op: str, *inputs: Any, opset: int = 17, outputs: int = 1, **attributes: Any) -> list[Array]:
    proto, feeds = build(
        case(op, *inputs, opset=opset, outputs=outputs, **attributes), folded=False
    )
    return evaluate(list(import_model(proto).outputs.values()), feeds)


FUNCTIONS = {
    "Acos": np.arccos,
    "Acosh": np.arccosh,
    "Asin": np.arcsin,
    "Asinh": np.arcsinh,
    "Atan": np.arctan,
    "Atanh": np.arctanh,
    "Cosh": np.cosh,
    "Sinh": np.sinh,
    "Tan": np.tan,
}


@pytest.mark.parametrize("kind", [dt.float16, dt.float32, dt.float64], ids=str)
@pytest.mark.parametrize("op", FUNCTIONS)
def test_functions_are_accurate_near_0_far_out_and_at_the_ends(op: str, kind: dt.DType) -> None:
    rng = np.random.default_rng(1)
    low, high = {"float16": (-7.0, 4.8), "float32": (-44.0, 38.5)}.get(kind.name, (-300.0, 308.0))
    positive = np.concatenate(
        [
            10 ** rng.uniform(low, high, 1500),
            rng.uniform(0, 12, 1500),
            1 - 10 ** rng.uniform(-16, 0, 500),
            1 + 10 ** rng.uniform(-16, 0, 500),
            [0, 1, np.inf, np.nan],
        ]
    )
    x = np.concatenate([positive, -positive]).astype(kind.np)
    if op == "Tan":
        x = x[np.isfinite(x)]
    found = run(op, x, opset=22)[0]
    with np.errstate(all="ignore"):
        exact = FUNCTIONS[op](x.astype(np.longdouble))
        want = exact.astype(kind.np)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(want))
    np.testing.assert_array_equal(np.isinf(found), np.isinf(want))
    finite = np.isfinite(want)
    error = np.abs(found[finite] - exact[finite]) / np.spacing(np.abs(want[finite]))
    assert error.max() <= (0.51 if kind is dt.float16 else 6.0)


@pytest.mark.parametrize("n", [64, 1000, 1 << 20])
def test_a_cumulative_sum_costs_a_constant_per_element(n: int) -> None:
    proto, _ = build(
        case("CumSum", np.broadcast_to(np.float32(1), (n,)), Const(np.array(0))), folded=False
    )
    order = toposort([next(iter(import_model(proto).outputs.values())).node])
    work = sum(math.prod(node.src[0].shape) for node in order if node.op is Op.REDUCE)
    assert work <= 70 * n
    assert len(order) < 120


def test_slopes_of_channels_of_old_exporters() -> None:
    x = -np.ones((1, 3, 4, 5), np.float32)
    slope = np.array([1, 2, 3], np.float32)
    found = run("PRelu", x, slope, opset=7)[0]
    np.testing.assert_array_equal(found, x * slope.reshape(3, 1, 1))


@pytest.mark.parametrize("inputs", [(), (np.float32(0.3),)])
def test_random_dropout_is_refused(inputs: tuple[Any, ...]) -> None:
    ratio = Const(np.array(*inputs)) if inputs else None
    with pytest.raises(ModelError, match="drops at random"):
        run("Dropout", np.ones(3, np.float32), ratio, Const(np.array(True)))


def constant(kind: int, shape: list[int], **attributes: Any) -> onnx.ModelProto:
    node = helper.make_node("Constant", [], ["y"], "the_node", **attributes)
    graph = helper.make_graph([node], "g", [], [helper.make_tensor_value_info("y", kind, shape)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def sparse(indices: Any) -> onnx.SparseTensorProto:
    return helper.make_sparse_tensor(
        helper.make_tensor("v", TensorProto.FLOAT, (2,), [1.5, -2.0]),
        numpy_helper.from_array(np.array(indices, np.int64), "i"),
        (2, 3),
    )


@pytest.mark.parametrize("indices", [[1, 5], [[0, 1], [1, 2]]], ids=["flat", "per axis"])
def test_a_sparse_constant_is_written_out(indices: Any) -> None:
    model = import_model(constant(TensorProto.FLOAT, [2, 3], sparse_value=sparse(indices)))
    found = evaluate(list(model.outputs.values()))[0]
    np.testing.assert_array_equal(found, np.array([[0, 1.5, 0], [0, 0, -2]], np.float32))


@pytest.mark.parametrize("attributes", [{"value_string": "a"}, {"value_strings": ["a", "b"]}])
def test_strings_are_refused(attributes: dict[str, Any]) -> None:
    shape = [2] if "value_strings" in attributes else []
    with pytest.raises(ModelError, match="strings are not supported"):
        import_model(constant(TensorProto.STRING, shape, **attributes))
