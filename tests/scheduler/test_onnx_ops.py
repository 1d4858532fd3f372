"""Every translator against onnxruntime: one node, seeded inputs, given at run time and folded."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from scheduler.onnx_import import TRANSLATORS, import_model
from scheduler.tensor import evaluate

Array = NDArray[Any]
rng = np.random.default_rng(7)


@dataclass(frozen=True)
class Const:
    """An input that is an initializer in both runs: a shape, axes, a scale."""

    array: Array | np.generic


@dataclass(frozen=True)
class Case:
    op: str
    inputs: tuple[Any, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    opset: int = 17
    outputs: int = 1

    @property
    def label(self) -> str:
        shapes = "_".join("x".join(map(str, np.shape(_array(i)))) for i in self.inputs)
        names = "_".join(f"{k}={v}" for k, v in self.attributes.items() if np.size(v) < 9)
        return f"{self.op}-{self.opset}-{shapes}-{names}".replace(" ", "")[:90]


def _array(value: Any) -> Any:
    return value.array if isinstance(value, Const) else value


def f(*shape: int) -> Array:
    return rng.standard_normal(shape).astype(np.float32)


def pos(*shape: int) -> Array:
    return (rng.random(shape) + 0.1).astype(np.float32)


def i32(*shape: int) -> Array:
    return rng.integers(-9, 10, shape).astype(np.int32)


def flags(*shape: int) -> Array:
    return rng.random(shape) < 0.5


def k(*values: float, dtype: Any = np.int64) -> Const:
    """Return a 1-D constant."""
    return Const(np.array(values, dtype))


def w(*shape: int) -> Const:
    return Const(f(*shape))


def case(op: str, *inputs: Any, opset: int = 17, outputs: int = 1, **attributes: Any) -> Case:
    return Case(op, inputs, attributes, opset, outputs)


HALVES = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 3.49], np.float32)
WIDE = np.array([-200.0, -20.0, -1.0, 0.0, 1.0, 20.0, 200.0], np.float32)
WINDOWS: dict[str, Any] = {"kernel_shape": [3, 3], "pads": [1, 0, 2, 1], "strides": [2, 1]}

ELEMENTWISE = [
    *(case(op, f(2, 3, 4), f(3, 1)) for op in ("Add", "Sub", "Mul", "Div", "Max", "Min")),
    *(case(op, f(5), opset=13) for op in ("Neg", "Abs", "Exp", "Erf", "Tanh", "Sigmoid", "Relu")),
    *(case(op, f(4, 5)) for op in ("Sign", "Sin", "Cos", "Floor", "Ceil", "Softplus", "Softsign")),
    *(case(op, pos(3, 4)) for op in ("Sqrt", "Log", "Reciprocal")),
    *(case(op, WIDE) for op in ("Sigmoid", "Softplus", "Tanh", "Elu", "Erf", "HardSwish")),
    case("Mish", WIDE, opset=18),
    case("Round", HALVES),
    case("Div", np.array([-7, 7, -7, 7], np.int32), np.array([2, 2, -2, -2], np.int32)),
    case("Mod", np.array([-7, 7, -7, 7], np.int32), np.array([3, 3, -3, -3], np.int32)),
    case("Mod", np.array([-7, 7, -7, 7], np.int32), np.array([3, 3, -3, -3], np.int32), fmod=1),
    case("Mod", f(6) * 5, pos(6), fmod=1),
    *(case("Pow", pos(3, 4), Const(np.array(e, np.float32))) for e in (0.5, 2.0, 3.0, -1.0, 1.7)),
    case("Pow", pos(3), k(2.0, dtype=np.float32)),
    case("Pow", pos(3, 4), f(4)),
    case("Pow", f(4), np.array([2, 3, 1, 0], np.int64)),
    case("Pow", i32(5), Const(np.array(2, np.int32))),
    *(case(op, f(3, 4), f(4), f(3, 1)) for op in ("Max", "Min", "Sum", "Mean")),
    case("Max", f(3)),
    case("Clip", f(9), opset=7, min=-0.5, max=0.5),
    case("Clip", f(9), Const(np.float32(-0.5)), Const(np.float32(0.5))),
    case("Clip", f(9), None, Const(np.float32(0.2))),
    case("Clip", i32(9), Const(np.int32(-3)), opset=12),
    case("Where", flags(3, 1), f(1, 4), f(3, 4)),
    *(case(op, i32(20), i32(20)) for op in ("Equal", "Less", "Greater", "LessOrEqual")),
    case("GreaterOrEqual", f(3, 4), f(4)),
    *(case(op, flags(9), flags(9)) for op in ("And", "Or", "Xor")),
    case("Not", flags(9)),
    *(case("Cast", f(9) * 3, to=t) for t in (TensorProto.INT32, TensorProto.BOOL)),
    case("Cast", i32(9), to=TensorProto.FLOAT),
    case("Cast", rng.integers(0, 256, 9).astype(np.uint8), to=TensorProto.FLOAT),
    case("Cast", f(9), to=TensorProto.FLOAT16),
    case("CastLike", f(9) * 3, np.zeros(1, np.int64)),
    case("Identity", f(3)),
    case("Dropout", f(3, 4), outputs=2),
    case("Dropout", f(3, 4), opset=10, ratio=0.3),
]
ACTIVATIONS = [
    *(case(op, f(3, 5)) for op in ("Elu", "Selu", "LeakyRelu", "HardSigmoid", "Celu")),
    case("Elu", f(9), alpha=0.3),
    case("Selu", f(9), alpha=1.1, gamma=0.7),
    case("LeakyRelu", f(9), alpha=0.3),
    case("HardSigmoid", f(9), alpha=0.3, beta=0.4),
    case("Celu", f(9), alpha=0.4),
    case("ThresholdedRelu", f(9), alpha=0.4),
    case("PRelu", f(2, 3, 4), w(3, 1)),
    case("HardSwish", f(9) * 4),
    case("Gelu", f(9), opset=20),
    case("Gelu", f(9), opset=20, approximate="tanh"),
    *(case(op, f(2, 3, 4), opset=o) for op in ("Softmax", "LogSoftmax") for o in (11, 13)),
    *(case(op, f(2, 3, 4), opset=o, axis=0) for op in ("Softmax", "LogSoftmax") for o in (11, 13)),
]
SPATIAL = [
    case("Conv", f(1, 4, 9, 11), w(6, 4, 3, 3), w(6), **WINDOWS),
    case("Conv", f(1, 4, 9, 11), w(6, 2, 3, 3), group=2, dilations=[2, 1]),
    case("Conv", f(2, 4, 9, 11), w(8, 1, 7, 7), w(8), group=4, pads=[3, 3, 3, 3], strides=[2, 2]),
    *(
        case("Conv", f(1, 3, 8, 9), w(5, 3, 4, 3), auto_pad=mode, strides=[2, 3])
        for mode in ("SAME_UPPER", "SAME_LOWER", "VALID")
    ),
    case("Conv", f(2, 3, 10), w(4, 3, 3), w(4), strides=[2]),
    case("Conv", f(1, 2, 5, 6, 7), w(3, 2, 3, 2, 1), pads=[1, 0, 0, 1, 0, 0]),
    case("Conv", f(1, 3, 6, 6), f(4, 3, 1, 1)),
    case("ConvTranspose", f(1, 4, 5, 6), w(4, 3, 3, 3), w(3), strides=[2, 2]),
    case("ConvTranspose", f(1, 4, 5, 6), w(4, 3, 4, 4), strides=[2, 2], pads=[1, 1, 1, 1]),
    case("ConvTranspose", f(1, 4, 5, 6), w(4, 3, 3, 3), strides=[2, 2], output_padding=[1, 1]),
    case("ConvTranspose", f(1, 4, 5, 6), w(4, 3, 3, 2), group=2, dilations=[2, 1]),
    case("ConvTranspose", f(1, 4, 5, 6), w(4, 3, 2, 2), w(3), strides=[2, 2]),
    case(
        "ConvTranspose",
        f(1, 4, 5, 6),
        w(4, 3, 3, 3),
        group=2,
        strides=[2, 3],
        dilations=[2, 2],
        pads=[1, 0, 2, 1],
        output_padding=[1, 2],
    ),
    *(
        case("ConvTranspose", f(1, 4, 5, 6), w(4, 3, 3, 3), strides=[2, 2], auto_pad=mode)
        for mode in ("SAME_UPPER", "SAME_LOWER", "VALID")
    ),
    case("ConvTranspose", f(1, 2, 5, 6), w(2, 3, 3, 3), strides=[2, 2], output_shape=[10, 12]),
    case("ConvTranspose", f(1, 2, 3, 3), w(2, 3, 3, 3), strides=[3, 2], output_shape=[10, 8]),
    *(case(op, f(2, 3, 4, 5)) for op in ("GlobalAveragePool", "GlobalMaxPool")),
    *(case(op, f(1, 3, 9, 8), **WINDOWS) for op in ("MaxPool", "AveragePool")),
    *(
        case(op, f(1, 2, 7, 8), kernel_shape=[3, 2], strides=[2, 3], ceil_mode=1)
        for op in ("MaxPool", "AveragePool")
    ),
    *(
        case("AveragePool", f(1, 2, 7, 8), **WINDOWS, ceil_mode=c, count_include_pad=1)
        for c in (0, 1)
    ),
    case("AveragePool", f(1, 2, 9, 9), kernel_shape=[3, 3], dilations=[2, 1], opset=19),
    case("AveragePool", f(1, 2, 9), kernel_shape=[4], auto_pad="SAME_UPPER", strides=[2]),
    case("MaxPool", f(1, 2, 9, 9), kernel_shape=[2, 3], dilations=[3, 2]),
    case("MaxPool", -pos(1, 2, 4, 4), kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
    case("DepthToSpace", f(1, 12, 2, 3), blocksize=2),
    case("DepthToSpace", f(1, 12, 2, 3), blocksize=2, mode="CRD"),
    case("SpaceToDepth", f(1, 3, 4, 6), blocksize=2),
    case("Upsample", f(1, 2, 3, 4), opset=7, scales=[1.0, 1.0, 2.0, 3.0]),
    case("Upsample", f(1, 2, 3, 4), k(1, 1, 2, 1.5, dtype=np.float32), opset=9),
    case("Resize", f(1, 2, 3, 4), k(1, 1, 2, 2, dtype=np.float32), opset=10),
    case("Resize", f(1, 2, 3, 4), None, k(1, 1, 2, 2, dtype=np.float32)),
    *(
        case(
            "Resize",
            f(1, 2, 5, 4),
            None,
            k(1, 1, 0.6, 2.5, dtype=np.float32),
            nearest_mode=n,
            coordinate_transformation_mode=c,
        )
        for n in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
        for c in ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")
    ),
    case("Resize", f(1, 2, 3, 4), None, None, k(1, 2, 6, 7)),
    case(
        "Resize",
        f(1, 2, 3, 4),
        None,
        None,
        k(7, 6),
        opset=18,
        axes=[3, 2],
        keep_aspect_ratio_policy="not_larger",
    ),
    case("BatchNormalization", f(2, 3, 4, 5), w(3), w(3), w(3), Const(pos(3)), epsilon=1e-3),
    case("BatchNormalization", f(2, 3), w(3), w(3), w(3), Const(pos(3)), opset=9),
    case("InstanceNormalization", f(2, 3, 4, 5), w(3), w(3)),
    case("LayerNormalization", f(2, 3, 8), w(8), w(8)),
    case("LayerNormalization", f(2, 3, 8), w(3, 8), axis=1, epsilon=1e-2),
    case("LayerNormalization", f(2, 3, 8), w(8), w(8), outputs=3),
]
PRODUCTS = [
    case("MatMul", f(3, 4), w(4, 5)),
    case("MatMul", f(2, 1, 3, 4), f(5, 4, 6)),
    case("MatMul", f(4), f(2, 4, 3)),
    case("MatMul", f(2, 3, 4), f(4)),
    case("MatMul", f(4), f(4)),
    case("Gemm", f(3, 4), w(4, 5), w(5)),
    case("Gemm", f(4, 3), w(5, 4), w(3, 1), transA=1, transB=1, alpha=0.5, beta=2.0),
    case("Gemm", f(3, 4), w(4, 5)),
]
REDUCES = ["ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1"]
REDUCES += ["ReduceL2", "ReduceSumSquare", "ReduceLogSumExp"]
REDUCTIONS = [
    *(case(op, f(2, 3, 4), opset=11, axes=[0, -1]) for op in REDUCES),
    *(case(op, f(2, 3, 4), k(1), opset=18, keepdims=0) for op in REDUCES),
    *(case(op, f(2, 3, 4), opset=18) for op in REDUCES),
    case("ReduceLogSum", pos(2, 3, 4), k(-2), opset=18),
    case("ReduceSum", f(2, 3), Const(np.zeros(0, np.int64)), noop_with_empty_axes=1),
    case("ReduceSum", i32(4, 5), k(1), opset=13),
    case("ReduceMean", i32(4, 5), opset=13, axes=[1]),
    case("ReduceMax", rng.integers(0, 256, (4, 5)).astype(np.uint8), opset=13, axes=[1]),
    *(
        case(
            op,
            np.array([[3.0, 1, 3, 1], [0, 0, 0, 0]], np.float32),
            axis=1,
            keepdims=d,
            select_last_index=last,
        )
        for op in ("ArgMax", "ArgMin")
        for d in (0, 1)
        for last in (0, 1)
    ),
]
MOVEMENT = [
    case("Reshape", f(2, 3, 4), k(0, -1)),
    case("Reshape", f(2, 3, 4), k(4, 1, 6)),
    case("Flatten", f(2, 3, 4), axis=2),
    case("Flatten", f(2, 3, 4), axis=-1),
    case("Flatten", f(2, 3, 4), axis=0),
    case("Squeeze", f(1, 3, 1, 4), opset=11, axes=[0, -2]),
    case("Squeeze", f(1, 3, 1, 4), k(2)),
    case("Squeeze", f(1, 3, 1, 4)),
    case("Unsqueeze", f(3, 4), opset=11, axes=[0, 3]),
    case("Unsqueeze", f(3, 4), k(-1, 1)),
    case("Transpose", f(2, 3, 4)),
    case("Transpose", f(2, 3, 4), perm=[1, 2, 0]),
    case("Expand", f(3, 1), k(2, 1, 4)),
    case("Concat", f(2, 3), f(2, 1), w(2, 2), axis=-1),
    case("Concat", f(2, 3), f(1, 3), axis=0),
    case("Split", f(6, 4), opset=11, outputs=3, axis=0, split=[1, 2, 3]),
    case("Split", f(6, 4), k(1, 3), outputs=2, axis=1),
    case("Split", f(6, 4), outputs=2, axis=-1),
    case("Split", f(7, 4), opset=18, outputs=3, axis=0, num_outputs=3),
    case("Tile", f(2, 3), k(2, 3)),
    case("Pad", f(3, 4), opset=10, pads=[1, 0, 0, 2], value=1.5),
    case("Pad", f(3, 4), k(1, 0, 0, 2)),
    case("Pad", f(3, 4), k(-1, 1, 2, -2), Const(np.float32(2.5))),
    *(case("Pad", f(4, 5), k(1, 2, 3, 0), mode=m) for m in ("edge", "reflect")),
    case("Pad", f(4, 5), k(1, 2, 3, 0), opset=19, mode="wrap"),
    case("Pad", f(3, 4, 5), k(1, 2), None, k(-1), opset=18),
    case("Slice", f(5, 6), opset=9, starts=[1, -3], ends=[4, 100], axes=[0, 1]),
    case("Slice", f(5, 6), k(4, -1), k(0, -100), k(0, 1), k(-2, -1)),
    case("Slice", f(5, 6), k(1), k(-1), k(-1), k(2)),
    case("Slice", f(5, 6), k(1, 2), k(3, 2**62)),
    case("Slice", f(5, 6), k(3), k(1)),
    *(case("Gather", f(3, 4, 5), Const(np.array(i)), axis=1) for i in (2, -1)),
    case("Gather", f(3, 4, 5), k(1, 2, 3), axis=1),
    case("Gather", f(3, 4, 5), Const(np.array([[0, -1], [2, 2]])), axis=-1),
    case("Gather", f(3, 4, 5), Const(np.array([[-1]])), axis=1),
    case("Gather", f(6, 4), np.array([[0, 5], [-1, 2]], np.int64)),
    case("Shape", f(2, 3, 4)),
    case("Shape", f(2, 3, 4), opset=15, start=1, end=-1),
    case("Size", f(2, 3, 4)),
    case("ConstantOfShape", k(2, 3)),
    case("ConstantOfShape", k(2), value=numpy_helper.from_array(np.array([7], np.int64))),
    case("Range", *(Const(np.array(v, np.int64)) for v in (2, 11, 3))),
    case("Range", *(Const(np.array(v, np.float32)) for v in (1.0, -1.0, -0.3))),
    case("Constant", value=numpy_helper.from_array(f(2, 3))),
    case("Constant", value_ints=[1, 2]),
    case("Constant", value_float=1.5),
]
CASES = ELEMENTWISE + ACTIVATIONS + SPATIAL + PRODUCTS + REDUCTIONS + MOVEMENT


def build(case: Case, *, folded: bool) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """Return a one-node model; `folded` makes every input an initializer."""
    node_inputs, infos, weights, feeds = [], [], [], {}
    for i, value in enumerate(case.inputs):
        node_inputs.append("" if value is None else f"x{i}")
        if value is None:
            continue
        array = np.asarray(_array(value))
        if folded or isinstance(value, Const):
            weights.append(numpy_helper.from_array(array, f"x{i}"))
        else:
            kind = helper.np_dtype_to_tensor_dtype(array.dtype)
            infos.append(helper.make_tensor_value_info(f"x{i}", kind, array.shape))
            feeds[f"x{i}"] = array
    outputs = [f"y{i}" for i in range(case.outputs)]
    node = helper.make_node(case.op, node_inputs, outputs, "the_node", **case.attributes)
    graph = helper.make_graph(
        [node], "case", infos, [onnx.ValueInfoProto(name=o) for o in outputs], weights
    )
    opsets = [helper.make_opsetid("", case.opset)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return onnx.shape_inference.infer_shapes(model), feeds


def reference(model: onnx.ModelProto, feeds: dict[str, Array]) -> list[Array]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options)
    found: list[Array] = session.run(None, feeds)
    return found


@pytest.mark.parametrize("folded", [False, True], ids=["run", "fold"])
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.label)
def test_translator_agrees_with_onnxruntime(case: Case, folded: bool) -> None:
    model, feeds = build(case, folded=folded)
    expected = reference(model, feeds)
    imported = import_model(model)
    assert list(imported.inputs) == list(feeds)
    found = evaluate(list(imported.outputs.values()), feeds)
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        if a.dtype.kind == "f":
            tolerance = 2e-3 if a.dtype == np.float16 else 1e-5
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * _scale(b))
        else:
            np.testing.assert_array_equal(a, b)


def _scale(values: Array) -> float:
    finite = np.abs(values[np.isfinite(values)])
    return float(finite.max()) if finite.size else 1.0


def test_every_translator_has_a_case() -> None:
    assert {c.op for c in CASES} == set(TRANSLATORS)
