"""The self-check finds what is wrong, passes what is right, and says what it could not tell."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper

from scheduler.check.outputs import Rounding, check_output, check_parts
from scheduler.check.references import Reference
from scheduler.check.sample_inputs import integer_roles, sample_inputs
from scheduler.check.self_check import Report, verify
from scheduler.compile import CompiledModel, compile_plain
from scheduler.errors import SelfCheckError
from scheduler.onnx_import import OnnxModel, from_proto
from tests.scheduler.onnx_import.onnx_models import parsed
from tests.scheduler.onnx_import.test_networks import SMALL
from tests.scheduler.onnx_import.tiny_models import slices_text
from tests.scheduler.support.values import rng

Array = NDArray[Any]
FLOAT = np.float32
W = np.random.default_rng(5).standard_normal((16, 12)).astype(FLOAT)


def dense(slices: dict[str, slice] | None = None) -> OnnxModel:
    """Return y = relu(x @ w), whose weights are the only data of the artifact."""
    proto = parsed("(float[4,16] x) => (float[4,12] y) { h = MatMul(x, w) y = Relu(h) }", w=W)
    helper.set_model_props(proto, {"output_slices": slices_text(slices)} if slices else {})
    return from_proto(proto, "m.onnx")


def check(proto: onnx.ModelProto, precision: str = "fp32", **bind: int) -> Report:
    model = from_proto(proto, "m.onnx")
    return verify(compile_plain(model, precision=precision, bind=bind), model)


def damaged(compiled: CompiledModel, at: int, data: bytes) -> CompiledModel:
    changed = bytearray(compiled.data)
    changed[at : at + len(data)] = data
    return replace(compiled, data=bytes(changed))


@pytest.mark.opencl
@pytest.mark.slow
@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-4), ("fp16", 2e-2)])
def test_a_network_passes(precision: str, tolerance: float) -> None:
    found = check(SMALL["resnet18"](0)[0], precision)
    assert found.failures == ()
    (output,) = found.outputs
    assert 0 < output.max_rel < output.tolerance == tolerance
    assert output.where is not None
    assert found.reference.startswith("onnxruntime")


@pytest.mark.opencl
def test_a_changed_weight_is_found_and_the_part_is_named() -> None:
    model = dense({"all": slice(0, None), "few": slice(4, 8)})
    compiled = compile_plain(model)
    assert verify(compiled, model).failures == ()
    # One weight, wherever packing put it: row 3 of column 5. It is there twice where the last block
    # of columns overlaps the one before it.
    broken = compiled
    for at in np.flatnonzero(np.frombuffer(compiled.data, FLOAT) == W[3, 5]):
        broken = damaged(broken, int(at) * 4, np.array(W[3, 5] + 10, FLOAT).tobytes())
    found = verify(broken, model)
    (output,) = found.outputs
    assert output.problem
    assert output.where is not None
    assert (output.where[1], output.part) == (5, "few")
    assert [part.name for part in found.parts] == ["y[few]", "y[all]"]
    assert found.parts[0].where is not None
    assert found.parts[0].where[1] == 5
    with pytest.raises(SelfCheckError, match=r'm.onnx: output "y" at \[\d, 5\] \(few\) is .* off'):
        found.require()
    assert found.plain()["failures"] == found.failures


@pytest.mark.opencl
def test_an_output_that_stopped_to_depend_on_its_input_is_found() -> None:
    model = dense()
    compiled = compile_plain(model)
    found = verify(damaged(compiled, 0, bytes(len(compiled.data))), model)
    assert any(
        '"y" is the same for all inputs, unlike in the reference' in f for f in found.failures
    )


@pytest.mark.opencl
def test_outputs_that_cannot_or_do_not_change_are_named() -> None:
    proto = parsed(
        """(float[n,3] x) => (float[n,3] y, int64[2] size, float[2] fixed, bool[n,3] never)
        { size = Shape(x) fixed = Add(w, w) y = Tanh(x) never = Greater(y, two) }""",
        w=np.ones(2, FLOAT),
        two=np.array(2, FLOAT),
    )
    found = check(proto, n=5)
    assert found.failures == ()
    assert set(found.constant) == {"size", "fixed"}
    assert found.unchanged == ("never",)
    assert found.seeds == 4


@pytest.mark.opencl
def test_indices_stay_in_range_and_integers_agree() -> None:
    proto = parsed(
        """(int64[6] index, bool[40] flag, uint8[5,5] image)
        => (int64[6] best, bool[40] other, uint8[5,5] sum)
        { rows = Gather(table, index) best = ArgMax<axis = 1, keepdims = 0>(rows)
          other = Not(flag) sum = Add(image, image) }""",
        table=rng().standard_normal((3, 8)).astype(FLOAT),
    )
    found = check(proto)
    assert found.failures == ()
    assert all(output.max_abs == 0 for output in found.outputs)


@pytest.mark.opencl
def test_nan_and_infinity_at_the_places_of_the_reference_are_fine() -> None:
    text = "(float[50] x) => (float[50] log, float[50] inf) { log = Log(x) inf = Div(x, zero) }"
    assert check(parsed(text, zero=np.zeros(1, FLOAT))).failures == ()


@pytest.mark.opencl
def test_halves_that_cancel_fail_the_check_of_fp16() -> None:
    a = rng().standard_normal((64, 64)).astype(FLOAT)
    text = "(float[4,64] x) => (float[4,64] y) { p = MatMul(x, a) q = MatMul(x, b) y = Sub(p, q) }"
    with pytest.raises(SelfCheckError, match="try --precision fp32"):
        check(parsed(text, a=a, b=a * FLOAT(1 + 1e-4)), "fp16").require()


@pytest.mark.opencl
def test_bfloat16_goes_to_the_evaluator_of_onnx() -> None:
    found = check(parsed("(bfloat16[30] x) => (bfloat16[30] y) { y = Mul(x, x) }"))
    assert found.failures == ()
    assert found.reference.startswith(f"onnx {onnx.__version__} reference evaluator (")


@pytest.mark.parametrize(
    ("found", "expected", "half", "problem"),
    [
        ([1, 2, 3.0002], [1, 2, 3], False, ""),
        ([1, 2, 3.0004], [1, 2, 3], False, "1.3e-04 of the largest value 3 off, expected 1e-04"),
        ([1, 2, 3.05], [1, 2, 3], True, ""),
        ([0, np.nan, 1], [0, np.nan, 1], False, ""),
        ([0, 0, 1], [0, np.nan, 1], False, "1 NaN and 0 infinities in the reference, 0 NaN"),
        ([0, np.inf, 1], [0, -np.inf, 1], False, "NaN or infinity at different positions"),
        ([0, np.inf, 1], [0, 2, 1], False, "NaN or infinity at different positions"),
        ([0, 0, 0], [0, 0, 0], False, ""),
        ([1e-3, 0, 0], [0, 0, 0], False, "off"),
    ],
    ids=str,
)
def test_floats(found: list[float], expected: list[float], half: bool, problem: str) -> None:
    rounding = Rounding.HALF if half else Rounding.FLOAT
    result = check_output("y", np.array(found, FLOAT), np.array(expected, FLOAT), rounding=rounding)
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


@pytest.mark.parametrize(
    ("kind", "tolerance"), [(ml_dtypes.float8_e4m3fn, 3e-1), (ml_dtypes.bfloat16, 1e-1)]
)
def test_short_float_types_are_floats(kind: Any, tolerance: float) -> None:
    values = np.array([1, 2], kind)
    assert check_output("y", values, values).tolerance == tolerance


def inputs_of(model: OnnxModel) -> tuple[dict[str, int], dict[str, Array]]:
    """Return how large integer inputs may get, and values drawn for all inputs."""
    inputs = model.proto.graph.input
    shapes = {v.name: tuple(d.dim_value for d in v.type.tensor_type.shape.dim) for v in inputs}
    limits = dict(integer_roles(model, shapes).limits)
    return limits, sample_inputs(model, shapes, np.random.default_rng(0))


def test_divisors_and_labels_are_told_from_other_integers() -> None:
    proto = parsed(
        """(int8[500] n, int8[500] d, bool[500] flag, float[40,3] scores, int64[40] labels)
        => (int8[500] q, float loss)
        { chosen = Where(flag, d, d) q = Div(n, chosen)
          loss = NegativeLogLikelihoodLoss(scores, labels) }"""
    )
    _, made = inputs_of(from_proto(proto))
    assert 0 in made["n"]
    assert 0 not in made["d"]
    assert made["d"].min() < -100
    assert set(made["labels"].tolist()) == {0, 1, 2}


def test_index_limits_follow_movement_and_take_the_smallest() -> None:
    proto = parsed(
        """(float[5,9] x, int32[4] i, int64[3,2] pairs, int64[2] hot, int64[2] late, int64[2] free)
        => (int64[2] f)
        { wide = Cast<to = 7>(i) column = Unsqueeze(wide, axes)
          a = Gather<axis = 1>(x, column) b = GatherElements<axis = -2>(x, column)
          c = GatherND(x, pairs) d = OneHot(hot, depth, values)
          r = Relu(x) e = Gather<axis = 1>(r, late) f = Add(free, free) }""",
        axes=np.array([1]),
        depth=np.array(7),
        values=np.array([0, 1], FLOAT),
    )
    limits, made = inputs_of(from_proto(proto))
    assert limits == {"i": 5, "pairs": 5, "hot": 7, "late": 9}
    assert made["i"].dtype == np.int32
    assert made["free"].max() < 16
    assert made["x"].std() > 0.5


def test_a_reference_of_its_own_for_what_onnxruntime_lacks(tmp_path: Path) -> None:
    assert Reference(dense()).name.startswith("onnxruntime")
    # A kernel that onnxruntime's CPU provider does not have.
    proto = parsed("(uint16[3] x) => (uint16[3] y) { y = Max(x, x) }")
    path = tmp_path / "m.onnx"
    onnx.save(proto, path)
    for source in (path, from_proto(proto)):
        other = Reference(source)
        found = other.run({"x": np.array([1, 2, 3], np.uint16)})
        assert found["y"].tolist() == [1, 2, 3]
        assert other.name.startswith("onnx ")
        assert "Max" in other.why_not
