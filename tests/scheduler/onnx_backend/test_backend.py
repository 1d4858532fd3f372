"""ONNX's backend interface: shapes and values a model is compiled for, types, devices, refusals."""

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto

from runtime.errors import InputError, NoDeviceError, RuntimeFault
from scheduler.errors import ModelError
from scheduler.onnx_backend import backend as backends
from scheduler.onnx_backend.backend import MAX_PROGRAMS, OnnxBackend
from tests.scheduler.onnx_import.onnx_models import node, parsed
from tests.support.selection import quick_cases

pytestmark = pytest.mark.opencl

NEG = "(float[n] x) => (float[n] y) { y = Neg(x) }"
# exp(x) in the shape [a, b, -1], where a and b are inputs too.
RESHAPED = """(float[n,m] x, int64[1] b, int64[1] a) => (float[?,?,?] y) {
  e = Exp(x)
  rest = Constant <value_ints = [-1]> ()
  shape = Concat <axis = 0> (a, b, rest)
  y = Reshape(e, shape)
}"""


def grid(*shape: int) -> NDArray[np.float32]:
    return np.linspace(-2, 2, int(np.prod(shape)), dtype=np.float32).reshape(shape)


def int64s(*values: int) -> NDArray[np.int64]:
    return np.array(values, np.int64)


def test_a_model_is_compiled_once_for_each_set_of_shapes() -> None:
    with OnnxBackend.prepare(parsed("(float[n,3] x) => (float[?,3] y) { y = Exp(x) }")) as backend:
        (first,) = backend.run([grid(2, 3)])
        program = backend.last
        (other,) = backend.run({"x": grid(5, 3)})
        assert backend.last is not program
        backend.run([-grid(2, 3)])
        assert backend.last is program
    # The arrays are the caller's: later runs of the same program left them alone.
    np.testing.assert_allclose(first, np.exp(grid(2, 3)), rtol=1e-6)
    np.testing.assert_allclose(other, np.exp(grid(5, 3)), rtol=1e-6)


def test_what_a_shape_is_computed_from_is_bound_and_nothing_else() -> None:
    x = grid(4, 6)
    with OnnxBackend.prepare(parsed(RESHAPED)) as backend:
        (y,) = backend.run([x, int64s(3), int64s(2)])
        assert backend.last is not None
        assert backend.last.bound == ("b", "a")
        assert list(backend.last.live) == ["x"]
        assert not backend.last.folded
        np.testing.assert_allclose(y, np.exp(x).reshape(2, 3, 4), rtol=1e-6)
        (y,) = backend.run({"x": x, "a": int64s(4), "b": int64s(2)})
        np.testing.assert_allclose(y, np.exp(x).reshape(4, 2, 3), rtol=1e-6)


def test_outputs_that_depend_on_no_input_are_said_to_be_folded() -> None:
    text = "(int64 first, int64 end, int64 step) => (int64[?] y) { y = Range(first, end, step) }"
    with OnnxBackend.prepare(parsed(text)) as backend:
        (y,) = backend.run([np.int64(1), np.int64(9), np.int64(3)])
        assert backend.last is not None
        assert backend.last.folded
    assert y.tolist() == [1, 4, 7]


def test_outputs_without_elements_come_beside_others() -> None:
    text = """(float[2,3] x, int64[2] sizes) => (float[2,?] empty, float[2,?] y) {
      empty, rest = Split <axis = 1> (x, sizes)
      y = Neg(rest)
    }"""
    empty, y = OnnxBackend.run_model(parsed(text), [grid(2, 3), int64s(0, 3)])
    assert empty.shape == (2, 0)
    assert empty.dtype == np.float32
    np.testing.assert_array_equal(y, -grid(2, 3))


def test_an_initializer_is_a_default_that_can_be_replaced() -> None:
    text = "(float[3] x, float[3] w) => (float[3] y) { y = Sub(x, w) }"
    model = parsed(text, w=np.array([1, 2, 3], np.float32))
    x, w = np.array([5, 5, 5], np.float32), np.array([0, 1, 0], np.float32)
    with OnnxBackend.prepare(model) as backend:
        assert backend.run([x])[0].tolist() == [4, 3, 2]
        assert backend.run([x, w])[0].tolist() == [5, 4, 5]
        assert backend.run({"x": x})[0].tolist() == [4, 3, 2]


def test_the_oldest_program_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_PROGRAMS == 4
    monkeypatch.setattr(backends, "MAX_PROGRAMS", 2)
    with OnnxBackend.prepare(parsed(NEG)) as backend:
        backend.run([grid(1)])
        oldest = backend.last
        assert oldest is not None
        backend.run([grid(2)])
        oldest.run({"x": grid(1)})
        backend.run([grid(3)])
        with pytest.raises(RuntimeFault, match="closed"):
            oldest.run({"x": grid(1)})
        assert backend.run([grid(1)])[0].tolist() == [2.0]


TYPES = {
    "bfloat16": ml_dtypes.bfloat16,
    "float8e4m3fn": ml_dtypes.float8_e4m3fn,
    "float4e2m1": ml_dtypes.float4_e2m1fn,
    "int4": ml_dtypes.int4,
    "uint2": ml_dtypes.uint2,
}


@pytest.mark.parametrize("name", quick_cases(TYPES, "bfloat16", "int4"))
def test_types_without_a_numpy_type_are_those_of_ml_dtypes(name: str) -> None:
    """Among them reordered and converted on the device; an int4 of -1 stays -1."""
    dtype: Any = TYPES[name]
    values = np.array([-2, -1, 0, 1, 1, 0], np.float32)
    x = (np.abs(values) if name == "uint2" else values).astype(dtype).reshape(2, 3)
    nodes = "y = Transpose(x) z = Cast <to = 1> (x)"
    model = parsed(f"({name}[2,3] x) => ({name}[3,2] y, float[2,3] z) {{ {nodes} }}", 25)
    y, z = OnnxBackend.run_model(model, [x])
    assert y.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(y.astype(np.float32), x.T.astype(np.float32))
    np.testing.assert_array_equal(z, x.astype(np.float32))


@pytest.mark.parametrize(
    ("kind", "says"),
    [("string[1]", 'input "x"'), ("seq(float[1])", "expected a tensor, found: sequence")],
)
def test_inputs_that_are_no_tensors_of_numbers_are_refused(kind: str, says: str) -> None:
    with pytest.raises(ModelError, match=says):
        OnnxBackend.prepare(parsed(f"({kind} x) => ({kind} y) {{ y = Identity(x) }}"))


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        ([], "missing: \\['x', 'w'\\]"),
        ({"x": grid(2, 2)}, "missing: \\['w'\\]"),
        ({"x": grid(2, 2), "w": grid(2), "v": grid(1)}, "unknown: \\['v'\\]"),
        ([grid(2, 2), grid(2), grid(2)], "found 3 arrays"),
        ([grid(2, 2).astype(np.float64), grid(2)], 'input "x": expected float, found float64'),
        ([grid(2, 2, 1), grid(2)], 'input "x": expected shape'),
        ([grid(2, 3), grid(2)], 'input "w": expected shape \\[3\\], found \\[2\\]'),
        ([grid(2, 2), [1.0, 2.0]], 'input "w": expected an array, found list'),
    ],
)
def test_arrays_that_do_not_fit_are_refused_by_name(inputs: Any, says: str) -> None:
    model = parsed("(float[2,n] x, float[n] w) => (float[2,n] y) { y = Add(x, w) }")
    with OnnxBackend.prepare(model) as backend, pytest.raises(InputError, match=says):
        backend.run(inputs)


def test_devices_are_found_by_kind_name_and_number() -> None:
    for name in ("CPU", "CPU:0", "POCL"):
        assert OnnxBackend.supports_device(name)
    for name in ("CPU:99", "ABACUS", "", "CPU:x"):
        assert not OnnxBackend.supports_device(name)
    with pytest.raises(NoDeviceError, match="ABACUS"):
        OnnxBackend.prepare(parsed(NEG), "ABACUS")


def test_a_model_with_an_unknown_operator_is_not_compatible() -> None:
    assert OnnxBackend.is_compatible(parsed(NEG))
    assert not OnnxBackend.is_compatible(parsed(NEG), "ABACUS")
    assert not OnnxBackend.is_compatible(parsed(NEG.replace("Neg", "vendor.Frobnicate")))
    assert not OnnxBackend.is_compatible(onnx.ModelProto())


def test_an_opset_from_the_future_is_not_supported() -> None:
    model = parsed(NEG)
    assert OnnxBackend.is_opset_supported(model) == (True, "")
    model.opset_import[0].version = 999
    supported, why = OnnxBackend.is_opset_supported(model)
    assert not supported
    assert "found 999" in why


X, W, HALF = grid(2, 3), grid(3), np.float32(0.5)


@pytest.mark.parametrize(
    ("made", "inputs", "expected", "opset"),
    [
        pytest.param(node("Add", "x w", "y"), [X, W], X + W, 17, marks=pytest.mark.slow),
        (node("Clip", "x  high", "y"), {"x": X, "high": HALF}, np.minimum(X, HALF), 17),
        # Axes were an attribute once.
        pytest.param(node("Squeeze", "x", "y", axes=[0]), [X[None]], X, 11, marks=pytest.mark.slow),
        # And before opset 7 so was the axis that a smaller array begins at.
        (node("Add", "x w", "y", broadcast=1, axis=0), [X, W[:2]], X + W[:2, None], 6),
    ],
    ids=["list", "mapping", "opset 11", "opset 6"],
)
def test_a_node_runs_without_a_model(
    made: onnx.NodeProto, inputs: Any, expected: Any, opset: int
) -> None:
    given: dict[str, Any] = {} if opset == 17 else {"opset_version": opset}
    (y,) = OnnxBackend.run_node(made, inputs, **given)
    np.testing.assert_array_equal(y, expected)


def test_types_of_a_nodes_outputs_may_be_given() -> None:
    cast = node("Cast", "x", "y", to=TensorProto.INT32)
    (y,) = OnnxBackend.run_node(cast, [grid(4)], outputs_info=[(np.int32, (4,))])
    assert y.dtype == np.int32
    with pytest.raises(ModelError, match="Cast"):
        OnnxBackend.run_node(node("Cast", "x", "y"), [grid(4)])
