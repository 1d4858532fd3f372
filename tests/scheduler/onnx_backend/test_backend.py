"""ONNX's backend interface: shapes and values a model is compiled for, types, devices, refusals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from runtime.errors import InputError, NoDeviceError, RuntimeFault
from scheduler.errors import DynamicInputError, ModelError
from scheduler.onnx_backend.backend import MAX_PROGRAMS, OnnxBackend
from scheduler.onnx_import import import_model

pytestmark = pytest.mark.opencl

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
Given = tuple[str, int, Sequence[int | str | None]]


def model_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[Given],
    outputs: Sequence[Given],
    initializers: Sequence[onnx.TensorProto] = (),
    opset: int = 18,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        list(nodes),
        "net",
        [helper.make_tensor_value_info(*given) for given in inputs],
        [helper.make_tensor_value_info(*given) for given in outputs],
        list(initializers),
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def reshaped() -> onnx.ModelProto:
    """Return exp(x) in the shape [a, b, -1], where a and b are inputs too."""
    return model_of(
        [
            helper.make_node("Exp", ["x"], ["e"]),
            helper.make_node("Constant", [], ["rest"], value_ints=[-1]),
            helper.make_node("Concat", ["a", "b", "rest"], ["shape"], axis=0),
            helper.make_node("Reshape", ["e", "shape"], ["y"]),
        ],
        [("x", FLOAT, ["n", "m"]), ("b", INT64, [1]), ("a", INT64, [1])],
        [("y", FLOAT, [None, None, None])],
    )


def grid(*shape: int) -> NDArray[np.float32]:
    return np.linspace(-2, 2, int(np.prod(shape)), dtype=np.float32).reshape(shape)


def int64s(*values: int) -> NDArray[np.int64]:
    return np.array(values, np.int64)


# --- shapes and values ------------------------------------------------------------------------


def test_a_model_is_compiled_once_for_each_set_of_shapes() -> None:
    model = model_of(
        [helper.make_node("Exp", ["x"], ["y"])], [("x", FLOAT, ["n", 3])], [("y", FLOAT, [None, 3])]
    )
    with OnnxBackend.prepare(model) as backend:
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
    with OnnxBackend.prepare(reshaped()) as backend:
        (y,) = backend.run([x, int64s(3), int64s(2)])
        assert backend.last is not None
        assert backend.last.bound == ("b", "a")
        assert list(backend.last.live) == ["x"]
        assert not backend.last.folded
        np.testing.assert_allclose(y, np.exp(x).reshape(2, 3, 4), rtol=1e-6)
        (y,) = backend.run({"x": x, "a": int64s(4), "b": int64s(2)})
        np.testing.assert_allclose(y, np.exp(x).reshape(4, 2, 3), rtol=1e-6)


def test_an_importer_error_names_the_inputs_that_a_shape_comes_from() -> None:
    with pytest.raises(ModelError) as caught:
        import_model(reshaped())
    causes: list[BaseException] = [caught.value]
    while causes[-1].__cause__ is not None:
        causes.append(causes[-1].__cause__)
    named = [error.inputs for error in causes if isinstance(error, DynamicInputError)]
    assert {"a", "b"} in map(set, named)


def test_outputs_that_depend_on_no_input_are_said_to_be_folded() -> None:
    model = model_of(
        [helper.make_node("Range", ["first", "end", "step"], ["y"])],
        [("first", INT64, []), ("end", INT64, []), ("step", INT64, [])],
        [("y", INT64, [None])],
    )
    with OnnxBackend.prepare(model) as backend:
        (y,) = backend.run([np.int64(1), np.int64(9), np.int64(3)])
        assert backend.last is not None
        assert backend.last.folded
    assert y.tolist() == [1, 4, 7]


def test_outputs_without_elements_come_beside_others() -> None:
    model = model_of(
        [
            helper.make_node("Split", ["x", "sizes"], ["empty", "rest"], axis=1),
            helper.make_node("Neg", ["rest"], ["y"]),
        ],
        [("x", FLOAT, [2, 3]), ("sizes", INT64, [2])],
        [("empty", FLOAT, [2, None]), ("y", FLOAT, [2, None])],
    )
    empty, y = OnnxBackend.run_model(model, [grid(2, 3), int64s(0, 3)])
    assert empty.shape == (2, 0)
    assert empty.dtype == np.float32
    np.testing.assert_array_equal(y, -grid(2, 3))


def test_an_initializer_is_a_default_that_can_be_replaced() -> None:
    model = model_of(
        [helper.make_node("Sub", ["x", "w"], ["y"])],
        [("x", FLOAT, [3]), ("w", FLOAT, [3])],
        [("y", FLOAT, [3])],
        [numpy_helper.from_array(np.array([1, 2, 3], np.float32), "w")],
    )
    x, w = np.array([5, 5, 5], np.float32), np.array([0, 1, 0], np.float32)
    with OnnxBackend.prepare(model) as backend:
        assert backend.run([x])[0].tolist() == [4, 3, 2]
        assert backend.run([x, w])[0].tolist() == [5, 4, 5]
        assert backend.run({"x": x})[0].tolist() == [4, 3, 2]


def test_the_oldest_program_gives_way() -> None:
    model = model_of(
        [helper.make_node("Neg", ["x"], ["y"])], [("x", FLOAT, ["n"])], [("y", FLOAT, ["n"])]
    )
    with OnnxBackend.prepare(model) as backend:
        backend.run([grid(1)])
        oldest = backend.last
        assert oldest is not None
        for size in range(2, MAX_PROGRAMS + 2):
            backend.run([grid(size)])
        with pytest.raises(RuntimeFault, match="closed"):
            oldest.run({"x": grid(1)})
        assert backend.run([grid(1)])[0].tolist() == [2.0]


# --- types ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "dtype"),
    [
        (TensorProto.BFLOAT16, ml_dtypes.bfloat16),
        (TensorProto.FLOAT8E4M3FN, ml_dtypes.float8_e4m3fn),
        (TensorProto.FLOAT4E2M1, ml_dtypes.float4_e2m1fn),
        (TensorProto.INT4, ml_dtypes.int4),
        (TensorProto.UINT2, ml_dtypes.uint2),
    ],
)
def test_types_without_a_numpy_type_are_those_of_ml_dtypes(code: int, dtype: Any) -> None:
    """Among them reordered and converted on the device; an int4 of -1 stays -1."""
    values = np.array([-2, -1, 0, 1, 1, 0], np.float32)
    x = (np.abs(values) if code == TensorProto.UINT2 else values).astype(dtype).reshape(2, 3)
    model = model_of(
        [
            helper.make_node("Transpose", ["x"], ["y"]),
            helper.make_node("Cast", ["x"], ["z"], to=FLOAT),
        ],
        [("x", code, [2, 3])],
        [("y", code, [3, 2]), ("z", FLOAT, [2, 3])],
        opset=25,
    )
    y, z = OnnxBackend.run_model(model, [x])
    assert y.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(y.astype(np.float32), x.T.astype(np.float32))
    np.testing.assert_array_equal(z, x.astype(np.float32))


def test_inputs_that_are_no_tensors_of_numbers_are_refused() -> None:
    text = model_of(
        [helper.make_node("Identity", ["x"], ["y"])],
        [("x", TensorProto.STRING, [1])],
        [("y", TensorProto.STRING, [1])],
    )
    with pytest.raises(ModelError, match='input "x"'):
        OnnxBackend.prepare(text)
    kind = helper.make_tensor_type_proto(FLOAT, [1])
    sequence = model_of([helper.make_node("Identity", ["x"], ["y"])], [], [])
    for values in (sequence.graph.input, sequence.graph.output):
        name = "x" if values is sequence.graph.input else "y"
        values.append(helper.make_value_info(name, helper.make_sequence_type_proto(kind)))
    with pytest.raises(ModelError, match="expected a tensor, found: sequence"):
        OnnxBackend.prepare(sequence)


# --- arrays that do not fit -------------------------------------------------------------------


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
    model = model_of(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        [("x", FLOAT, [2, "n"]), ("w", FLOAT, ["n"])],
        [("y", FLOAT, [2, "n"])],
    )
    with OnnxBackend.prepare(model) as backend, pytest.raises(InputError, match=says):
        backend.run(inputs)


# --- what is asked before ---------------------------------------------------------------------


def test_devices_are_found_by_kind_name_and_number() -> None:
    assert OnnxBackend.supports_device("CPU")
    assert OnnxBackend.supports_device("CPU:0")
    assert OnnxBackend.supports_device("POCL")
    for name in ("CPU:99", "ABACUS", "", "CPU:x"):
        assert not OnnxBackend.supports_device(name)
    model = model_of(
        [helper.make_node("Neg", ["x"], ["y"])], [("x", FLOAT, [1])], [("y", FLOAT, [1])]
    )
    with pytest.raises(NoDeviceError, match="ABACUS"):
        OnnxBackend.prepare(model, "ABACUS")


def test_a_model_with_an_unknown_operator_is_not_compatible() -> None:
    def one(op: str, domain: str = "") -> onnx.ModelProto:
        node = helper.make_node(op, ["x"], ["y"], domain=domain)
        made = model_of([node], [("x", FLOAT, [1])], [("y", FLOAT, [1])])
        if domain:
            made.opset_import.append(helper.make_opsetid(domain, 1))
        return made

    assert OnnxBackend.is_compatible(one("Neg"))
    assert not OnnxBackend.is_compatible(one("Neg"), "ABACUS")
    assert not OnnxBackend.is_compatible(one("Frobnicate", "com.example"))
    assert not OnnxBackend.is_compatible(onnx.ModelProto())


def test_an_opset_from_the_future_is_not_supported() -> None:
    model = model_of([helper.make_node("Neg", ["x"], ["y"])], [], [])
    assert OnnxBackend.is_opset_supported(model) == (True, "")
    model.opset_import[0].version = 999
    supported, why = OnnxBackend.is_opset_supported(model)
    assert not supported
    assert "found 999" in why


# --- single nodes -----------------------------------------------------------------------------


def test_a_node_runs_without_a_model() -> None:
    x, w = grid(2, 3), grid(3)
    add = helper.make_node("Add", ["x", "w"], ["y"])
    (y,) = OnnxBackend.run_node(add, [x, w])
    np.testing.assert_allclose(y, x + w, rtol=1e-6)
    clip = helper.make_node("Clip", ["x", "", "high"], ["y"])
    (y,) = OnnxBackend.run_node(clip, {"x": x, "high": np.float32(0.5)})
    np.testing.assert_array_equal(y, np.minimum(x, np.float32(0.5)))
    # Axes were an attribute once.
    old = helper.make_node("Squeeze", ["x"], ["y"], axes=[0])
    (y,) = OnnxBackend.run_node(old, [x[None]], opset_version=11)
    np.testing.assert_array_equal(y, x)
    # And before opset 7 so was the axis that a smaller array begins at.
    oldest = helper.make_node("Add", ["x", "w"], ["y"], broadcast=1, axis=0)
    (y,) = OnnxBackend.run_node(oldest, [x, w[:2]], opset_version=6)
    np.testing.assert_array_equal(y, x + w[:2, None])


def test_types_of_a_nodes_outputs_may_be_given() -> None:
    node = helper.make_node("Cast", ["x"], ["y"], to=TensorProto.INT32)
    (y,) = OnnxBackend.run_node(node, [grid(4)], outputs_info=[(np.int32, (4,))])
    assert y.dtype == np.int32
    with pytest.raises(ModelError, match="Cast"):
        OnnxBackend.run_node(helper.make_node("Cast", ["x"], ["y"]), [grid(4)])
