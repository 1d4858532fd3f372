"""Where a program and its reference differ, float64 decides: for us, and against us."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from scheduler.check.adversarial_inputs import Kind, special_floats, units_of, unsuited
from scheduler.check.arbitration import Arbiter, Dispute, agreeing
from scheduler.check.outputs import OutputCheck, Rounding, check_output
from scheduler.check.self_check import Report, verify
from scheduler.compile import compile_plain
from scheduler.onnx_import import from_proto, import_model
from tests.scheduler.onnx_import.tiny_models import model_of, value

Array = NDArray[Any]
FLOAT = np.float32
node = helper.make_node


def report(compiled: onnx.ModelProto, source: onnx.ModelProto) -> Report:
    """Verify one model as if it were what became of the other."""
    return verify(compile_plain(from_proto(compiled, "m.onnx")), from_proto(source, "m.onnx"))


def settle(proto: onnx.ModelProto, x: Array, ours: Array, theirs: Array) -> OutputCheck:
    """Ask who is right about y = f(x)."""
    check = check_output("y", ours, theirs)
    assert check.problem, "there is nothing to decide"
    arbiter = Arbiter(from_proto(proto, "m.onnx"), Rounding.FLOAT)
    return arbiter.settle(check, Dispute("y", {"x": x}, ours, theirs))


# --- the reference is off ---------------------------------------------------------------------


def mean_of_three() -> onnx.ModelProto:
    nodes = [node("ReduceMean", ["x"], ["y"], axes=[1], keepdims=0)]
    return model_of(nodes, [value("x", (2, 3))], [value("y", (2,))])


# The sum of the first row is 1 and not 0, which is what adding from the left gives in float32.
CANCELS = np.array([[1e8, 1, -1e8], [0.5, 0.25, 0.75]], FLOAT)
RIGHT = np.array([1 / 3, 0.5], FLOAT)


@pytest.mark.parametrize(
    ("ours", "passes"),
    [
        (RIGHT, True),
        # As the reference where that is right; at the element in dispute we are wrong.
        (np.array([0.6, 0.5], FLOAT), False),
        # The reference is off elsewhere, which is no excuse.
        (np.array([0.0, 0.51], FLOAT), False),
        (np.array([np.nan, 0.5], FLOAT), False),
    ],
)
def test_a_reference_that_is_off_does_not_decide(ours: Array, passes: bool) -> None:
    found = settle(mean_of_three(), CANCELS, ours, np.array([0, 0.5], FLOAT))
    assert (found.problem == "") == passes
    if passes:
        assert found.note == "float64 is 2.0e-08 from ours, 6.7e-01 from the reference"
    else:
        assert "of the largest value" in found.problem or "NaN" in found.problem
        assert found.note in found.problem


def long_sums(weight: float = 1.0) -> onnx.ModelProto:
    """Sums of 600 000 squares down the rows: onnxruntime adds them one after the other."""
    nodes = [
        node("Mul", ["x", "x"], ["h"]),
        node("ReduceSum", ["h", "axis"], ["s"], keepdims=0),
        node("Mul", ["s", "w"], ["y"]),
    ]
    weights: dict[str, Array] = {"axis": np.array([0]), "w": np.array(weight, FLOAT)}
    return model_of(nodes, [value("x", (600_000, 2))], [value("y", (2,))], weights)


@pytest.mark.opencl
def test_a_reference_that_adds_one_after_the_other_is_overruled() -> None:
    found = report(long_sums(), long_sums())
    assert found.failures == ()
    (output,) = found.outputs
    assert output.max_rel > output.tolerance
    ours, theirs = (float(word) for word in output.note.split() if word[0].isdigit())
    assert ours < 1e-5
    assert theirs > 1e-4
    (output,) = report(long_sums(weight=1.002), long_sums()).outputs
    assert "of the largest value" in output.problem
    assert "from the reference" in output.problem


# --- noise ------------------------------------------------------------------------------------

TERMS = 512


def log_of_a_small_sum() -> onnx.ModelProto:
    """The terms of each sum cancel but for 1e-4 of them, and a logarithm makes that large."""
    nodes = [
        node("ReduceSum", ["x", "axis"], ["s"], keepdims=0),
        node("Abs", ["s"], ["a"]),
        node("Log", ["a"], ["y"]),
    ]
    size = (64, 2 * TERMS)
    weights = {"axis": np.array([1])}
    return model_of(nodes, [value("x", size)], [value("y", (64,))], weights)


def small_sums() -> tuple[Array, Array, Array]:
    """Return x, and two float32 evaluations of equal quality: from the left, and in 8 lanes."""
    rng = np.random.default_rng(3)
    half = rng.standard_normal((64, TERMS)).astype(FLOAT)
    rest = -half[:, rng.permutation(TERMS)] + FLOAT(2e-5)
    x = np.concatenate([half, rest], 1)
    left = np.zeros(64, FLOAT)
    for column in x.T:
        left = left + column
    lanes = np.zeros((64, 8), FLOAT)
    for start in range(0, 2 * TERMS, 8):
        lanes = lanes + x[:, start : start + 8]
    return x, np.log(np.abs(lanes.sum(1))), np.log(np.abs(left))


def test_noise_is_no_error_and_an_error_is_not_noise() -> None:
    x, ours, theirs = small_sums()
    found = settle(log_of_a_small_sum(), x, ours, theirs)
    assert found.problem == ""
    off = [float(word) for word in found.note.split() if word[0].isdigit() and "e-" in word]
    assert min(off) > 1e-5
    # One wrong element, ten times as far as the noise.
    wrong = ours.copy()
    wrong[7] += FLOAT(20 * off[1] * np.abs(theirs).max())
    assert settle(log_of_a_small_sum(), x, wrong, theirs).problem
    # All elements a little off: none is farther than the worst of the reference.
    exact = np.log(np.abs(x.astype(np.float64).sum(1)))
    shifted = (exact + 0.9 * off[1] * np.abs(exact).max()).astype(FLOAT)
    assert settle(log_of_a_small_sum(), x, shifted, theirs).problem


def test_float64_that_means_something_else_decides_nothing() -> None:
    nodes = [node("Sin", ["x"], ["y"])]
    proto = model_of(nodes, [value("x", (3,))], [value("y", (3,))])
    x = np.array([1, 2, 3], FLOAT)
    # Both far off, ours a little less: a reference like this says nothing.
    found = settle(proto, x, np.sin(x) + FLOAT(0.4), np.sin(x) + FLOAT(0.5))
    assert "float64 is 4.4e-01 from ours, 5.5e-01 from the reference" in found.problem


def test_what_float64_cannot_tell_stays_refused() -> None:
    nodes = [node("LRN", ["x"], ["y"], size=3)]
    proto = model_of(nodes, [value("x", (1, 4, 2, 2))], [value("y", (1, 4, 2, 2))])
    x = np.ones((1, 4, 2, 2), FLOAT)
    found = settle(proto, x, x, x + 1)
    assert "it cannot be arbitrated: onnx's evaluator has no LRN in double precision" in (
        found.problem
    )


def test_integers_are_compared_by_how_many_differ() -> None:
    nodes = [node("ArgMax", ["x"], ["y"], axis=1, keepdims=0)]
    outputs = [value("y", (4,), TensorProto.INT64)]
    proto = model_of(nodes, [value("x", (4, 2))], outputs)
    x = np.array([[1, 2], [2, 1], [1, 2], [2, 1]], FLOAT)
    right, wrong = np.array([1, 0, 1, 0]), np.array([1, 0, 1, 1])
    assert settle(proto, x, right, wrong).problem == ""
    assert "1 of 4 elements differ" in settle(proto, x, wrong, right).problem


# --- quantised while it runs ------------------------------------------------------------------


def quantised(weight: float = 1.0, nudge: float = 1.0) -> onnx.ModelProto:
    """So many computed values that some lie within a few units of a rounding tie."""
    nodes = [
        node("Mul", ["x", "n"], ["s"]),
        node("Tanh", ["s"], ["h"]),
        node("DynamicQuantizeLinear", ["h"], ["q", "scale", "zero"]),
        node("DequantizeLinear", ["q", "scale", "zero"], ["d"]),
        node("Mul", ["d", "w"], ["y"]),
    ]
    size = (100, 1000)
    weights = {"w": np.array(weight, FLOAT), "n": np.array(nudge, FLOAT)}
    return model_of(nodes, [value("x", size)], [value("y", size)], weights)


@pytest.mark.opencl
def test_a_tie_of_dynamic_quantisation_has_a_tolerance_and_its_reason() -> None:
    # A program whose values are a few units of the last place off, as any two programs may be.
    found = report(quantised(nudge=1 + 2e-6), quantised())
    assert found.failures == ()
    (output,) = found.outputs
    # A step of 2 / 255 went the other way.
    assert output.max_rel == pytest.approx(2 / 255, rel=0.05)
    assert output.tolerance == 5e-2
    assert found.reason.startswith("DynamicQuantizeLinear rounds computed values to 8 bits")
    assert found.plain()["reason"] == found.reason
    assert report(quantised(weight=1.1), quantised()).failures


def test_what_is_quantised_beforehand_has_the_usual_tolerance() -> None:
    from scheduler.check.model_rounding import rounding_of

    scale, zero = np.array(0.1, FLOAT), np.array(0, np.int8)
    nodes = [
        node("QuantizeLinear", ["w", "s", "z"], ["q"]),
        node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        node("Mul", ["x", "d"], ["y"]),
    ]
    weights: dict[str, Array] = {"w": np.ones(3, FLOAT), "s": scale, "z": zero}
    proto = model_of(nodes, [value("x", (3,))], [value("y", (3,))], weights)
    assert rounding_of(from_proto(proto), stores_halves=False) == (Rounding.FLOAT, "")
    assert rounding_of(from_proto(proto), stores_halves=True)[0] is Rounding.HALF
    nodes[0].input[0] = "x"
    proto = model_of(nodes, [value("x", (3,))], [value("y", (3,))], weights)
    assert rounding_of(from_proto(proto), stores_halves=True)[0] is Rounding.QUANTISED


# --- special values ---------------------------------------------------------------------------


def rows_of(*nodes: onnx.NodeProto, outputs: tuple[int, ...] = (16, 6)) -> onnx.ModelProto:
    weights: dict[str, Array] = {
        "c": np.array(41, FLOAT),
        "r": np.array(1 / 41, FLOAT),
        "half": np.array(0.5, FLOAT),
        "one": np.array(1, FLOAT),
        "nought": np.array(0, FLOAT),
    }
    return model_of(list(nodes), [value("x", (16, 6))], [value("y", outputs)], weights)


LARGEST = node("ReduceMax", ["h"], ["m"], axes=[1], keepdims=0)
FLOOR = node("Floor", ["m"], ["y"])
# What a program could have become of a model, and the model.
WRONG = {
    "x/c as x*(1/c)": (
        rows_of(node("Mul", ["x", "r"], ["h"]), LARGEST, FLOOR, outputs=(16,)),
        rows_of(node("Div", ["x", "c"], ["h"]), LARGEST, FLOOR, outputs=(16,)),
        "like [0-9]+ of 16|of the largest value",
    ),
    "halves away from even": (
        rows_of(node("Add", ["x", "half"], ["m"]), FLOOR),
        rows_of(node("Round", ["x"], ["y"])),
        "of the largest value",
    ),
    "zero without its sign": (
        rows_of(node("Add", ["x", "nought"], ["h"]), node("Div", ["one", "h"], ["y"])),
        rows_of(node("Div", ["one", "x"], ["y"])),
        "NaN or infinity at other places",
    ),
    "squares that overflow": (
        rows_of(node("Mul", ["x", "x"], ["h"]), node("Sqrt", ["h"], ["y"])),
        rows_of(node("Abs", ["x"], ["y"])),
        "is inf, where the reference and float64 have .*e[+]",
    ),
    "root of infinity": (
        rows_of(node("Sqrt", ["x"], ["y"])),
        rows_of(node("Pow", ["x", "half"], ["y"])),
        "is nan, where the reference and float64 have inf",
    ),
}


@pytest.mark.opencl
@pytest.mark.parametrize("case", WRONG.values(), ids=list(WRONG))
def test_special_inputs_find_what_noise_does_not(
    case: tuple[onnx.ModelProto, onnx.ModelProto, str],
) -> None:
    program, model, problem = case
    found = report(program, model)
    assert found.kinds == ("whole numbers and halves", "extremes", "infinities")
    with pytest.raises(Exception, match=problem):
        found.require()
    assert report(program, program).failures == ()


@pytest.mark.opencl
def test_what_is_not_defined_is_not_tried() -> None:
    nodes = [node("Cast", ["x"], ["y"], to=TensorProto.INT32)]
    proto = model_of(nodes, [value("x", (4, 8))], [value("y", (4, 8), TensorProto.INT32)])
    found = report(proto, proto)
    assert found.failures == ()
    assert found.kinds == ("whole numbers and halves",)
    why = "what becomes an integer of them is not defined"
    assert found.left_out == (f"extremes: {why}", f"infinities: {why}")


SCALED = [node("Mul", ["x", "c"], ["h"]), node("Add", ["h", "half"], ["y"])]
ORDER = "extremes: where sums overflow depends on their order"
ZEROS = "infinities: sums of products may leave out those with 0"


@pytest.mark.parametrize(
    ("nodes", "left_out"),
    [
        (SCALED, ()),
        ([node("Softmax", ["x"], ["y"])], (ORDER,)),
        ([node("Sub", ["x", "x"], ["y"])], (ORDER,)),
        ([node("MatMul", ["x", "w"], ["y"])], (ORDER, ZEROS)),
        ([node("Mod", ["x", "c"], ["y"], fmod=1)], ("extremes: Mod is exact",)),
    ],
)
def test_which_special_values_a_model_is_given(
    nodes: list[onnx.NodeProto], left_out: tuple[str, ...]
) -> None:
    proto = rows_of(*nodes)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((6, 6), FLOAT), "w"))
    outputs = [output.node for output in import_model(from_proto(proto)).outputs.values()]
    kinds = (Kind.GRID, Kind.EXTREME, Kind.INFINITE)
    operators = {node.op_type for node in nodes}
    why = [unsuited(kind, operators, outputs, half=False, flops=0) for kind in kinds]
    found = [f"{kind.value}: {text}" for kind, text in zip(kinds, why, strict=True) if text]
    assert [text[: len(left_out[i])] for i, text in enumerate(found)] == list(left_out)
    assert unsuited(Kind.GRID, operators, outputs, half=True, flops=10**12) == ""
    assert all(unsuited(kind, operators, outputs, half=True, flops=10**12) for kind in kinds[1:])


@pytest.mark.opencl
def test_the_sign_of_a_zero_that_a_maximum_gave_is_nobodys_fault() -> None:
    nodes = (node("Relu", ["x"], ["h"]), node("Div", ["one", "h"], ["y"]))
    found = report(rows_of(*nodes), rows_of(*nodes))
    assert found.failures == ()


def test_values_of_each_kind() -> None:
    weights: dict[str, Array] = {
        "scale": np.array([41], FLOAT),
        "epsilon": np.array(1e-5, FLOAT),
        "table": np.ones(100, FLOAT) * 7,
    }
    nodes = [
        node("Constant", [], ["k"], value_float=0.25),
        node("Div", ["x", "scale"], ["y"]),
    ]
    proto = model_of(nodes, [value("x", (3,))], [value("y", (3,))], weights)
    assert units_of(from_proto(proto)) == (1.0, 41.0, 1 / 41, 0.25, 4.0)
    rng = np.random.default_rng(0)
    grid = special_floats(Kind.GRID, (40, 50), (1.0, 41.0), rng)
    assert np.array_equal(grid * 2, np.round(grid * 2))
    assert (np.signbit(grid) & (grid == 0)).any()
    assert any((abs(row) >= 41).any() and not (row % 20.5).any() for row in grid)
    assert np.isfinite(special_floats(Kind.EXTREME, (99,), (), rng)).all()
    assert np.isinf(special_floats(Kind.INFINITE, (2, 2), (), rng)).sum() >= 2
    assert special_floats(Kind.INFINITE, (), (), rng).shape == ()


def test_agreement_is_of_each_element() -> None:
    one = np.array([1e30, 1e-30, np.nan, np.inf, np.inf, 1], FLOAT)
    other = np.array([1e30 * (1 + 1e-6), 0, np.nan, np.inf, -np.inf, 1.1], FLOAT)
    assert agreeing(one, other, 1e-4).tolist() == [True, True, True, True, False, False]
    small = np.array([1, 5], np.uint8)
    assert agreeing(small, small + np.array([1, 2], np.uint8), 1e-4).tolist() == [True, False]
