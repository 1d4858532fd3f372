"""The self-check finds what is wrong, passes what is right, and says what it could not tell."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from scheduler.check.outputs import Rounding, check_output, check_parts
from scheduler.check.reference_runner import Reference
from scheduler.check.sample_inputs import integer_roles, sample_inputs
from scheduler.check.self_check import Report, verify
from scheduler.compile import CompiledModel, compile_plain
from scheduler.errors import SelfCheckError
from scheduler.onnx_import import from_proto
from tests.scheduler.onnx_import.test_networks import SMALL
from tests.scheduler.onnx_import.tiny_models import model_of, slices_text, value
from tests.scheduler.support.values import rng

Array = NDArray[Any]
FLOAT = np.float32
FLOAT32, HALF = Rounding.FLOAT, Rounding.HALF


def dense(**more: Any) -> onnx.ModelProto:
    """Return y = relu(x @ w), whose weights are the only data of the artifact."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Relu", ["h"], ["y"]),
    ]
    w = np.random.default_rng(5).standard_normal((16, 12)).astype(FLOAT)
    return model_of(nodes, [value("x", (4, 16))], [value("y", (4, 12))], {"w": w}, **more)


def check(proto: onnx.ModelProto, precision: str = "fp32", **bind: int) -> Report:
    model = from_proto(proto, "m.onnx")
    return verify(compile_plain(model, precision=precision, bind=bind), model)


def damaged(compiled: CompiledModel, at: int, data: bytes) -> CompiledModel:
    changed = bytearray(compiled.data)
    changed[at : at + len(data)] = data
    return replace(compiled, data=bytes(changed))


# --- whole checks -----------------------------------------------------------------------------


@pytest.mark.opencl
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_network_passes(precision: str) -> None:
    found = check(SMALL["resnet18"](0)[0], precision)
    assert found.failures == ()
    (output,) = found.outputs
    assert 0 < output.max_rel < output.tolerance
    assert output.tolerance == (1e-4 if precision == "fp32" else 2e-2)
    assert output.where is not None
    assert found.reference.startswith("onnxruntime")


@pytest.mark.opencl
def test_a_changed_weight_is_found_and_the_part_is_named() -> None:
    proto = dense(props={"output_slices": slices_text({"all": slice(0, None), "few": slice(4, 8)})})
    model = from_proto(proto, "m.onnx")
    compiled = compile_plain(model)
    assert verify(compiled, model).failures == ()
    stored = np.frombuffer(compiled.data, FLOAT)
    # One weight, wherever packing put it: row 3 of column 5.
    weight = next(t for t in proto.graph.initializer if t.name == "w")
    wanted = onnx.numpy_helper.to_array(weight)[3, 5]
    # It is there twice where the last block of columns overlaps the one before it.
    wrong = np.array(wanted + 10, FLOAT).tobytes()
    broken = compiled
    for at in np.flatnonzero(stored == wanted):
        broken = damaged(broken, int(at) * 4, wrong)
    found = verify(broken, model)
    (output,) = found.outputs
    assert output.problem
    assert output.where is not None
    assert output.where[1] == 5
    assert output.part == "few"
    assert [part.name for part in found.parts] == ["y[few]", "y[all]"]
    assert found.parts[0].where is not None
    assert found.parts[0].where[1] == 5
    with pytest.raises(SelfCheckError, match=r'm.onnx: output "y" at \[\d, 5\] \(few\) is .* off'):
        found.require()
    assert found.plain()["failures"] == found.failures


@pytest.mark.opencl
def test_an_output_that_stopped_to_depend_on_its_input_is_found() -> None:
    model = from_proto(dense(), "m.onnx")
    compiled = compile_plain(model)
    found = verify(damaged(compiled, 0, bytes(len(compiled.data))), model)
    assert any('"y" is the same for all inputs, not in the reference' in f for f in found.failures)


@pytest.mark.opencl
def test_outputs_that_cannot_or_do_not_change_are_named() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["size"]),
        helper.make_node("Add", ["w", "w"], ["fixed"]),
        helper.make_node("Tanh", ["x"], ["y"]),
        helper.make_node("Greater", ["y", "two"], ["never"]),
    ]
    outputs = [
        value("y", ("n", 3)),
        value("size", (2,), TensorProto.INT64),
        value("fixed", (2,)),
        value("never", ("n", 3), TensorProto.BOOL),
    ]
    weights = {"w": np.ones(2, FLOAT), "two": np.array(2, FLOAT)}
    found = check(model_of(nodes, [value("x", ("n", 3))], outputs, weights), n=5)
    assert found.failures == ()
    assert set(found.constant) == {"size", "fixed"}
    assert found.unchanged == ("never",)
    assert found.seeds == 4


@pytest.mark.opencl
def test_indices_stay_in_range_and_integers_agree() -> None:
    nodes = [
        helper.make_node("Gather", ["table", "index"], ["rows"]),
        helper.make_node("ArgMax", ["rows"], ["best"], axis=1, keepdims=0),
        helper.make_node("Not", ["flag"], ["other"]),
        helper.make_node("Add", ["image", "image"], ["sum"]),
    ]
    inputs = [
        value("index", (6,), TensorProto.INT64),
        value("flag", (40,), TensorProto.BOOL),
        value("image", (5, 5), TensorProto.UINT8),
    ]
    outputs = [
        value("best", (6,), TensorProto.INT64),
        value("other", (40,), TensorProto.BOOL),
        value("sum", (5, 5), TensorProto.UINT8),
    ]
    found = check(
        model_of(nodes, inputs, outputs, {"table": rng().standard_normal((3, 8)).astype(FLOAT)})
    )
    assert found.failures == ()
    assert all(output.max_abs == 0 for output in found.outputs)


@pytest.mark.opencl
def test_nan_and_infinity_at_the_places_of_the_reference_are_fine() -> None:
    nodes = [
        helper.make_node("Log", ["x"], ["log"]),
        helper.make_node("Div", ["x", "zero"], ["inf"]),
    ]
    outputs = [value("log", (50,)), value("inf", (50,))]
    proto = model_of(nodes, [value("x", (50,))], outputs, {"zero": np.zeros(1, FLOAT)})
    assert check(proto).failures == ()


@pytest.mark.opencl
def test_halves_that_cancel_fail_the_check_of_fp16() -> None:
    w = rng().standard_normal((64, 64)).astype(FLOAT)
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["p"]),
        helper.make_node("MatMul", ["x", "b"], ["q"]),
        helper.make_node("Sub", ["p", "q"], ["y"]),
    ]
    weights = {"a": w, "b": w * FLOAT(1 + 1e-4)}
    proto = model_of(nodes, [value("x", (4, 64))], [value("y", (4, 64))], weights)
    found = check(proto, "fp16")
    with pytest.raises(SelfCheckError, match="try --precision fp32"):
        found.require()


@pytest.mark.opencl
def test_bfloat16_goes_to_the_evaluator_of_onnx() -> None:
    bfloat = TensorProto.BFLOAT16
    proto = model_of(
        [helper.make_node("Mul", ["x", "x"], ["y"])],
        [value("x", (30,), bfloat)],
        [value("y", (30,), bfloat)],
    )
    found = check(proto)
    assert found.failures == ()
    assert found.reference.startswith(f"onnx {onnx.__version__} reference evaluator (")


# --- its parts --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "expected", "half", "problem"),
    [
        ([1, 2, 3.0002], [1, 2, 3], False, ""),
        ([1, 2, 3.0004], [1, 2, 3], False, "1.3e-04 of the largest value 3 off, expected 1e-04"),
        ([1, 2, 3.05], [1, 2, 3], True, ""),
        ([0, np.nan, 1], [0, np.nan, 1], False, ""),
        ([0, 0, 1], [0, np.nan, 1], False, "1 NaN and 0 infinities in the reference, 0 NaN"),
        ([0, np.inf, 1], [0, -np.inf, 1], False, "NaN or infinity at other places"),
        ([0, np.inf, 1], [0, 2, 1], False, "NaN or infinity at other places"),
        ([0, 0, 0], [0, 0, 0], False, ""),
        ([1e-3, 0, 0], [0, 0, 0], False, "off"),
    ],
    ids=str,
)
def test_floats(found: list[float], expected: list[float], half: bool, problem: str) -> None:
    result = check_output(
        "y", np.array(found, FLOAT), np.array(expected, FLOAT), rounding=HALF if half else FLOAT32
    )
    assert problem in result.problem
    assert bool(problem) == bool(result.problem)
    assert (result.excess > 1) == bool(problem)


@pytest.mark.parametrize(
    ("dtype", "off", "wrong", "problem"),
    [
        (np.int64, 1, 1, ""),
        (np.int64, 1, 3, "3 of 2000 elements differ"),
        (np.uint8, 1, 2000, ""),
        (np.uint8, 2, 3, "3 of 2000 elements differ"),
        (np.bool_, 1, 2, ""),
        (np.bool_, 1, 3, "3 of 2000 elements differ"),
    ],
)
def test_integers(dtype: type, off: int, wrong: int, problem: str) -> None:
    expected: Array = np.zeros(2000, dtype)
    found = expected.copy()
    found[-wrong:] += np.array(off, dtype)
    assert check_output("y", found, expected).problem == problem


def test_a_wrong_shape_is_a_problem() -> None:
    result = check_output("y", np.zeros((1, 2), FLOAT), np.zeros((2,), FLOAT))
    assert result.problem == "expected shape [2], found [1, 2]"
    assert check_output("y", np.zeros(2), np.zeros(2, FLOAT)).problem


def test_a_part_is_compared_with_its_own_largest_value() -> None:
    expected = np.array([[1000, 1, 0.5, 0]], FLOAT)
    found = expected + np.array([[0, 0.01, 0, 0]], FLOAT)
    assert check_output("y", found, expected).problem == ""
    big, small = check_parts("y", found, expected, {"big": (0, 1), "small": (1, 3)})
    assert (big.name, big.max_rel, big.where) == ("y[big]", 0, None)
    assert small.max_rel == pytest.approx(0.01, rel=1e-3)
    assert small.where == (0, 1)


def test_float_types_of_eight_bits_are_floats() -> None:
    values = np.array([1, 2], ml_dtypes.float8_e4m3fn)
    assert check_output("y", values, values).tolerance == 3e-1
    assert (
        check_output(
            "y", values.astype(ml_dtypes.bfloat16), values.astype(ml_dtypes.bfloat16)
        ).tolerance
        == 1e-1
    )


def test_divisors_and_labels_are_told_from_other_integers() -> None:
    nodes = [
        helper.make_node("Where", ["flag", "d", "d"], ["chosen"]),
        helper.make_node("Div", ["n", "chosen"], ["q"]),
        helper.make_node("NegativeLogLikelihoodLoss", ["scores", "labels"], ["loss"]),
    ]
    inputs = [
        value("n", (500,), TensorProto.INT8),
        value("d", (500,), TensorProto.INT8),
        value("flag", (500,), TensorProto.BOOL),
        value("scores", (40, 3)),
        value("labels", (40,), TensorProto.INT64),
    ]
    outputs = [value("q", (500,), TensorProto.INT8), value("loss", ())]
    model = from_proto(model_of(nodes, inputs, outputs))
    shapes = {v.name: tuple(d.dim_value for d in v.type.tensor_type.shape.dim) for v in inputs}
    made = sample_inputs(model, shapes, np.random.default_rng(0))
    assert 0 in made["n"]
    assert 0 not in made["d"]
    assert made["d"].min() < -100
    assert set(made["labels"].tolist()) == {0, 1, 2}


def test_index_limits_follow_movement_and_take_the_smallest() -> None:
    nodes = [
        helper.make_node("Cast", ["i"], ["wide"], to=TensorProto.INT64),
        helper.make_node("Unsqueeze", ["wide", "axes"], ["column"]),
        helper.make_node("Gather", ["x", "column"], ["a"], axis=1),
        helper.make_node("GatherElements", ["x", "column"], ["b"], axis=-2),
        helper.make_node("GatherND", ["x", "pairs"], ["c"]),
        helper.make_node("OneHot", ["hot", "depth", "values"], ["d"]),
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Gather", ["r", "late"], ["e"], axis=1),
        helper.make_node("Add", ["free", "free"], ["f"]),
    ]
    int64 = TensorProto.INT64
    inputs = [
        value("x", (5, 9)),
        value("i", (4,), TensorProto.INT32),
        value("pairs", (3, 2), int64),
        value("hot", (2,), int64),
        value("late", (2,), int64),
        value("free", (2,), int64),
    ]
    weights: dict[str, Array] = {
        "axes": np.array([1]),
        "depth": np.array(7),
        "values": np.array([0, 1], FLOAT),
    }
    model = from_proto(model_of(nodes, inputs, [value("f", (2,), int64)], weights))
    shapes = {v.name: tuple(d.dim_value for d in v.type.tensor_type.shape.dim) for v in inputs}
    assert integer_roles(model, shapes).limits == {"i": 5, "pairs": 5, "hot": 7, "late": 9}
    made = sample_inputs(model, shapes, np.random.default_rng(0))
    assert made["i"].dtype == np.int32
    assert made["free"].max() < 16
    assert made["x"].std() > 0.5


def test_a_reference_of_its_own_for_what_onnxruntime_lacks(tmp_path: Path) -> None:
    reference = Reference(from_proto(dense()))
    assert reference.name.startswith("onnxruntime")
    # A kernel that onnxruntime's CPU provider does not have.
    nodes = [helper.make_node("Max", ["x", "x"], ["y"])]
    types = TensorProto.UINT16
    proto = model_of(nodes, [value("x", (3,), types)], [value("y", (3,), types)])
    path = tmp_path / "m.onnx"
    onnx.save(proto, path)
    for source in (path, from_proto(proto)):
        other = Reference(source)
        found = other.run({"x": np.array([1, 2, 3], np.uint16)})
        assert found["y"].tolist() == [1, 2, 3]
        assert other.name.startswith("onnx ")
        assert "Max" in other.why_not
