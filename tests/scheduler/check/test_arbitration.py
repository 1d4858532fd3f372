"""Where a program and its reference differ, float64 decides: for us, and against us."""

from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from scheduler.check.outputs import (
    Arbiter,
    Dispute,
    OutputCheck,
    Rounding,
    agreeing,
    check_output,
    rounding_of,
)
from scheduler.check.sample_inputs import Kind, special_floats, units_of, unsuited
from scheduler.check.self_check import Report, verify
from scheduler.compile import compile_plain
from scheduler.onnx_import import from_proto, import_model
from tests.scheduler.onnx_import.onnx_models import parsed
from tests.support.selection import quick_cases

Array = NDArray[Any]
FLOAT = np.float32


def report(compiled: onnx.ModelProto, source: onnx.ModelProto) -> Report:
    """Verify one model as if it were what became of the other."""
    return verify(compile_plain(from_proto(compiled, "m.onnx")), from_proto(source, "m.onnx"))


def settle(proto: onnx.ModelProto, x: Array, ours: Array, theirs: Array) -> OutputCheck:
    """Ask who is right about y = f(x)."""
    check = check_output("y", ours, theirs)
    assert check.problem, "there is nothing to decide"
    arbiter = Arbiter(from_proto(proto, "m.onnx"), Rounding.FLOAT)
    return arbiter.settle(check, Dispute("y", {"x": x}, ours, theirs))


def numbers(note: str) -> list[float]:
    """Return how far float64 is from us, and from the reference."""
    return [float(word) for word in note.split() if word[0].isdigit()]


MEAN_OF_THREE = parsed(
    "(float[2,3] x) => (float[2] y) { y = ReduceMean<axes = [1], keepdims = 0>(x) }"
)
# The sum of the first row is 1 and not 0, which is what adding from the left gives in float32.
CANCELS = np.array([[1e8, 1, -1e8], [0.5, 0.25, 0.75]], FLOAT)


@pytest.mark.parametrize(
    ("ours", "passes"),
    [
        ([1 / 3, 0.5], True),
        # As the reference where that is right; at the element in dispute we are wrong.
        ([0.6, 0.5], False),
        # The reference is off elsewhere, which is no excuse.
        ([0.0, 0.51], False),
        ([np.nan, 0.5], False),
    ],
)
def test_a_reference_that_is_off_does_not_decide(ours: list[float], passes: bool) -> None:
    found = settle(MEAN_OF_THREE, CANCELS, np.array(ours, FLOAT), np.array([0, 0.5], FLOAT))
    assert (found.problem == "") == passes
    if passes:
        assert found.note == "float64 is 2.0e-08 from ours, 6.7e-01 from the reference"
    else:
        assert "of the largest value" in found.problem or "NaN" in found.problem
        assert found.note in found.problem


def long_sums(weight: float = 1.0) -> onnx.ModelProto:
    """Sums of 600 000 squares down the rows: onnxruntime adds them one after the other."""
    return parsed(
        """(float[600000,2] x) => (float[2] y)
        { h = Mul(x, x) s = ReduceSum<keepdims = 0>(h, axis) y = Mul(s, w) }""",
        axis=np.array([0]),
        w=np.array(weight, FLOAT),
    )


@pytest.mark.opencl
@pytest.mark.slow
def test_a_reference_that_adds_one_after_the_other_is_overruled() -> None:
    found = report(long_sums(), long_sums())
    assert found.failures == ()
    (output,) = found.outputs
    assert output.max_rel > output.tolerance
    ours, theirs = numbers(output.note)
    assert ours < 1e-5
    assert theirs > 1e-4
    (output,) = report(long_sums(weight=1.002), long_sums()).outputs
    assert "of the largest value" in output.problem
    assert "from the reference" in output.problem


TERMS = 512


def test_noise_is_no_error_and_an_error_is_not_noise() -> None:
    """The terms of each sum cancel but for 1e-4 of them, and a logarithm makes that large."""
    proto = parsed(
        f"""(float[64,{2 * TERMS}] x) => (float[64] y)
        {{ s = ReduceSum<keepdims = 0>(x, axis) a = Abs(s) y = Log(a) }}""",
        axis=np.array([1]),
    )
    rng = np.random.default_rng(3)
    half = rng.standard_normal((64, TERMS)).astype(FLOAT)
    x = np.concatenate([half, -half[:, rng.permutation(TERMS)] + FLOAT(2e-5)], 1)
    # Two float32 evaluations of equal quality: from the left, and in 8 lanes.
    left, lanes = np.zeros(64, FLOAT), np.zeros((64, 8), FLOAT)
    for column in x.T:
        left = left + column
    for start in range(0, 2 * TERMS, 8):
        lanes = lanes + x[:, start : start + 8]
    ours, theirs = np.log(np.abs(lanes.sum(1))), np.log(np.abs(left))
    found = settle(proto, x, ours, theirs)
    assert found.problem == ""
    off = [number for number in numbers(found.note) if 0 < number < 1]
    assert min(off) > 1e-5
    # One wrong element, ten times as far as the noise.
    wrong = ours.copy()
    wrong[7] += FLOAT(20 * off[1] * np.abs(theirs).max())
    assert settle(proto, x, wrong, theirs).problem
    # All elements a little off: none is farther than the worst of the reference.
    exact = np.log(np.abs(x.astype(np.float64).sum(1)))
    shifted = (exact + 0.9 * off[1] * np.abs(exact).max()).astype(FLOAT)
    assert settle(proto, x, shifted, theirs).problem


def test_float64_that_means_something_else_decides_nothing() -> None:
    proto = parsed("(float[3] x) => (float[3] y) { y = Sin(x) }")
    x = np.array([1, 2, 3], FLOAT)
    # Both far off, ours a little less: a reference like this says nothing.
    found = settle(proto, x, np.sin(x) + FLOAT(0.4), np.sin(x) + FLOAT(0.5))
    assert "float64 is 4.4e-01 from ours, 5.5e-01 from the reference" in found.problem


def test_what_float64_cannot_tell_stays_refused() -> None:
    proto = parsed("(float[1,4,2,2] x) => (float[1,4,2,2] y) { y = LRN<size = 3>(x) }")
    x = np.ones((1, 4, 2, 2), FLOAT)
    problem = settle(proto, x, x, x + 1).problem
    assert "it cannot be arbitrated: onnx's evaluator has no LRN in double precision" in problem


def test_integers_are_compared_by_how_many_differ() -> None:
    proto = parsed("(float[4,2] x) => (int64[4] y) { y = ArgMax<axis = 1, keepdims = 0>(x) }")
    x = np.array([[1, 2], [2, 1], [1, 2], [2, 1]], FLOAT)
    right, wrong = np.array([1, 0, 1, 0]), np.array([1, 0, 1, 1])
    assert settle(proto, x, right, wrong).problem == ""
    assert "1 of 4 elements differ" in settle(proto, x, wrong, right).problem


def quantised(weight: float = 1.0, nudge: float = 1.0) -> onnx.ModelProto:
    """So many computed values that some lie within a few units of a rounding tie."""
    return parsed(
        """(float[100,1000] x) => (float[100,1000] y)
        { s = Mul(x, n) h = Tanh(s) q, scale, zero = DynamicQuantizeLinear(h)
          d = DequantizeLinear(q, scale, zero) y = Mul(d, w) }""",
        w=np.array(weight, FLOAT),
        n=np.array(nudge, FLOAT),
    )


@pytest.mark.opencl
@pytest.mark.slow
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


@pytest.mark.parametrize(
    ("source", "rounding", "of_halves"),
    [("w", Rounding.FLOAT, Rounding.HALF), ("x", Rounding.QUANTISED, Rounding.QUANTISED)],
)
def test_what_is_quantised_beforehand_has_the_usual_tolerance(
    source: str, rounding: Rounding, of_halves: Rounding
) -> None:
    proto = parsed(
        f"""(float[3] x) => (float[3] y)
        {{ q = QuantizeLinear({source}, s, z) d = DequantizeLinear(q, s, z) y = Mul(x, d) }}""",
        w=np.ones(3, FLOAT),
        s=np.array(0.1, FLOAT),
        z=np.array(0, np.int8),
    )
    found, why = rounding_of(from_proto(proto), stores_halves=False)
    assert (found, bool(why)) == (rounding, rounding is Rounding.QUANTISED)
    assert rounding_of(from_proto(proto), stores_halves=True)[0] is of_halves


def rows_of(nodes: str, outputs: str = "16,6") -> onnx.ModelProto:
    return parsed(
        f"(float[16,6] x) => (float[{outputs}] y) {{ {nodes} }}",
        c=np.array(41, FLOAT),
        r=np.array(1 / 41, FLOAT),
        half=np.array(0.5, FLOAT),
        one=np.array(1, FLOAT),
        nought=np.array(0, FLOAT),
        w=np.ones((6, 6), FLOAT),
    )


LARGEST = "m = ReduceMax<axes = [1], keepdims = 0>(h) y = Floor(m)"
# What a program could have become of a model, and the model.
WRONG = {
    "x/c as x*(1/c)": (
        rows_of(f"h = Mul(x, r) {LARGEST}", "16"),
        rows_of(f"h = Div(x, c) {LARGEST}", "16"),
        "like [0-9]+ of 16|of the largest value",
    ),
    "halves away from even": (
        rows_of("m = Add(x, half) y = Floor(m)"),
        rows_of("y = Round(x)"),
        "of the largest value",
    ),
    "zero without its sign": (
        rows_of("h = Add(x, nought) y = Div(one, h)"),
        rows_of("y = Div(one, x)"),
        "NaN or infinity at different positions",
    ),
    "squares that overflow": (
        rows_of("h = Mul(x, x) y = Sqrt(h)"),
        rows_of("y = Abs(x)"),
        "is inf, where the reference and float64 have .*e[+]",
    ),
    "root of infinity": (
        rows_of("y = Sqrt(x)"),
        rows_of("y = Pow(x, half)"),
        "is nan, where the reference and float64 have inf",
    ),
}


@pytest.mark.opencl
@pytest.mark.parametrize("name", quick_cases(WRONG, "halves away from even", "root of infinity"))
def test_special_inputs_find_what_noise_does_not(name: str) -> None:
    program, model, problem = WRONG[name]
    found = report(program, model)
    assert found.kinds == ("whole numbers and halves", "extreme values", "infinities")
    with pytest.raises(Exception, match=problem):
        found.require()
    assert report(program, program).failures == ()


@pytest.mark.opencl
def test_what_is_not_defined_is_not_tried() -> None:
    proto = parsed("(float[4,8] x) => (int32[4,8] y) { y = Cast<to = 6>(x) }")
    found = report(proto, proto)
    assert found.failures == ()
    assert found.kinds == ("whole numbers and halves",)
    why = "their conversion to integers is undefined"
    assert found.left_out == (f"extreme values ({why})", f"infinities ({why})")


ORDER = "extreme values (overflow depends on summation order)"
ZEROS = "infinities (sums of products may skip terms with 0)"


@pytest.mark.parametrize(
    ("nodes", "left_out"),
    [
        ("h = Mul(x, c) y = Add(h, half)", ()),
        ("y = Softmax(x)", (ORDER,)),
        ("y = Sub(x, x)", (ORDER,)),
        ("y = MatMul(x, w)", (ORDER, ZEROS)),
        ("y = Mod<fmod = 1>(x, c)", ("extreme values (Mod is exact",)),
    ],
)
def test_which_special_values_a_model_is_given(nodes: str, left_out: tuple[str, ...]) -> None:
    proto = rows_of(nodes)
    outputs = [output.node for output in import_model(from_proto(proto)).outputs.values()]
    kinds = (Kind.GRID, Kind.EXTREME, Kind.INFINITE)
    operators = {node.op_type for node in proto.graph.node}
    why = [unsuited(kind, operators, outputs, half=False, flops=0) for kind in kinds]
    found = [f"{kind.value} ({text})" for kind, text in zip(kinds, why, strict=True) if text]
    assert [text[: len(left_out[i])] for i, text in enumerate(found)] == list(left_out)
    assert unsuited(Kind.GRID, operators, outputs, half=True, flops=10**12) == ""
    assert all(unsuited(kind, operators, outputs, half=True, flops=10**12) for kind in kinds[1:])


@pytest.mark.opencl
def test_the_sign_of_a_zero_that_a_maximum_gave_is_nobodys_fault() -> None:
    proto = rows_of("h = Relu(x) y = Div(one, h)")
    assert report(proto, proto).failures == ()


def test_values_of_each_kind() -> None:
    proto = parsed(
        "(float[3] x) => (float[3] y) { k = Constant<value_float = 0.25>() y = Div(x, scale) }",
        scale=np.array([41], FLOAT),
        epsilon=np.array(1e-5, FLOAT),
        table=np.ones(100, FLOAT) * 7,
    )
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
