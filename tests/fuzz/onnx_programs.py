"""Random ONNX models over all operators and types, with values that hurt, and references."""

import warnings
from collections.abc import Sequence
from functools import cache
from typing import Any, Final

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from scheduler.ir import dtype as dt
from tests.fuzz.draw import Draw
from tests.fuzz.onnx_networks import Network
from tests.fuzz.onnx_nodes import GENERATORS, case_of
from tests.fuzz.values import array
from tests.scheduler.onnx_import.onnx_cases import CASES
from tests.scheduler.onnx_import.onnx_cases.case import Case as NodeCase
from tests.scheduler.onnx_import.onnx_cases.case import array_of
from tests.scheduler.onnx_import.test_ops import build

Array = NDArray[Any]
Feeds = dict[str, Array]

# One element of these depends on one element of each input: any value may be given.
ELEMENTWISE: Final = {
    *("Add", "Sub", "Mul", "Max", "Min", "Less", "Greater", "Equal", "LessOrEqual", "Sum", "Where"),
    *("GreaterOrEqual", "Abs", "Neg", "Sign", "Floor", "Ceil", "Round", "Relu", "Sqrt", "Identity"),
    *("Clip", "Not", "And", "Or", "Xor", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot"),
    *("IsNaN", "IsInf", "LeakyRelu", "ThresholdedRelu", "Reciprocal", "Transpose", "Reshape"),
    *("Flatten", "Concat", "Slice", "Gather", "Pad", "Tile", "Expand", "Split", "Squeeze"),
    *("ReduceMax", "ReduceMin", "MaxPool", "GlobalMaxPool", "Exp", "Log", "Tanh", "Sigmoid", "Erf"),
}
# Integers of these are numbers; of others they may be places, sizes, lengths.
NUMBERS: Final = ELEMENTWISE - {"Gather", "Slice", "Pad", "Tile", "Expand", "Reshape", "Split"}
# What others make of a NaN here differs; ours is in numerics.md.
WITHOUT_NAN: Final = {
    *("Max", "Min", "Clip", "Relu", "LeakyRelu", "ThresholdedRelu", "Sign", "ReduceMax", "Sum"),
    *("ReduceMin", "MaxPool", "GlobalMaxPool"),
}
# Types of which other values are given.
HURT: Final = ("float16", "float32", "float64", "int8", "uint8", "int32", "int64")
# Whose results others round otherwise, so that nothing may decide by them.
ROUNDED: Final = {"Sqrt", "Reciprocal", "Exp", "Log", "Tanh", "Sigmoid", "Erf"}
# What is put before and behind a node, and is moved by passes; and what also decides.
AROUND: Final = ("Neg", "Abs", "Relu", "Identity", "Div", "Mul", "Add")
DECIDING: Final = ("Floor", "Ceil", "Round")


def model_of(seed: int) -> tuple[onnx.ModelProto, Feeds, str]:
    """Return a model, values of its inputs, and its operator ("" for a network)."""
    draw = Draw(seed)
    if seed % 5 == 4:
        network = Network(seed)
        return network.proto(), dict(network.feeds), ""
    ops = list(GENERATORS)
    node = draw.pick(CASES) if seed % 5 == 3 else case_of(draw.pick(ops), seed)
    model, feeds = build(node, folded=draw.integer(0, 7) == 0)
    hurt(draw, node, feeds)
    if not node.domain and draw.flag():
        surround(draw, model, feeds)
    return model, feeds, node.op


def hurt(draw: Draw, node: NodeCase, feeds: Feeds) -> None:
    """Give some inputs other values: ties of rounding, and the ends of types where any will do."""
    if draw.integer(0, 3) == 0:
        return
    for name, value in feeds.items():
        kind = value.dtype
        numbers = kind.kind == "f" or (kind.kind in "iu" and node.op in NUMBERS)
        if not numbers or kind.name not in HURT:
            continue
        profiles = ("whole", "halves", "extreme") if node.op in ELEMENTWISE else ("whole", "halves")
        positive = kind.kind == "f" and value.size and (value > 0).all()
        made = array(draw, value.shape, dt.from_numpy(kind), draw.pick(profiles))
        if kind.kind == "f" and node.op in WITHOUT_NAN:
            made = np.where(np.isnan(made), kind.type(7), made)
        if node.op == "Pow" and array_of(node.inputs[0]).dtype.kind in "iu":
            made = np.abs(made)  # 0 to a negative power is no integer
        feeds[name] = np.abs(made) + kind.type(0.5) if positive else made


def surround(draw: Draw, model: onnx.ModelProto, feeds: Feeds) -> None:
    """Put elementwise nodes before inputs and behind outputs of a node."""
    graph = model.graph
    node = graph.node[0]
    before, behind = [], []
    for i, name in enumerate(node.input):
        if name in feeds and feeds[name].dtype == np.float32 and draw.flag():
            before += _around(draw, model, (name, f"{name}_before"), (*AROUND, *DECIDING))
            node.input[i] = f"{name}_before"
    for i, info in enumerate(graph.output):
        if info.type.tensor_type.elem_type == TensorProto.FLOAT and draw.flag():
            node.output[i] = f"{info.name}_inner"
            sharp = node.op_type in ELEMENTWISE - ROUNDED and not before
            ops = (*AROUND, *DECIDING) if sharp else AROUND
            behind += _around(draw, model, (f"{info.name}_inner", info.name), ops)
    nodes = [*before, node, *behind]
    copies = [onnx.NodeProto.FromString(n.SerializeToString()) for n in nodes]
    del graph.node[:]
    graph.node.extend(copies)


def _around(
    draw: Draw, model: onnx.ModelProto, names: tuple[str, str], ops: Sequence[str]
) -> list[onnx.NodeProto]:
    source, target = names
    graph, opset = model.graph, model.opset_import[0].version
    op = draw.pick([o for o in ops if onnx.defs.has(o, opset)])
    if op not in ("Div", "Mul", "Add"):
        return [helper.make_node(op, [source], [target])]
    number = draw.pick([41.0, 2.0, 0.5, 3.0, 10.0, -1.0, 1.0])
    name = f"{target}_number"
    graph.initializer.append(helper.make_tensor(name, TensorProto.FLOAT, [], [number]))
    return [helper.make_node(op, [source, name], [target])]


# What onnxruntime computes with instructions that saturate, where it has no others.
SUMS_OF_BYTES = {"ConvInteger", "MatMulInteger", "QLinearConv", "QLinearMatMul", "QGemm"}


def by_onnxruntime(model: onnx.ModelProto, feeds: Feeds) -> list[Array] | None:
    """Return what onnxruntime gives, None where it lacks an operator or a type, or saturates."""
    if any(node.op_type in SUMS_OF_BYTES for node in model.graph.node) and saturates():
        return None
    return _run(model, feeds)


@cache
def saturates() -> bool:
    """Whether onnxruntime adds products of bytes in 16 bits, as on x86-64 without VNNI."""
    terms = np.full((8, 64), 255, np.uint8), np.full((64, 8), 127, np.int8)
    inputs = [
        helper.make_tensor_value_info("a", TensorProto.UINT8, terms[0].shape),
        helper.make_tensor_value_info("b", TensorProto.INT8, terms[1].shape),
    ]
    output = helper.make_tensor_value_info("y", TensorProto.INT32, (8, 8))
    node = helper.make_node("MatMulInteger", ["a", "b"], ["y"])
    graph = helper.make_graph([node], "sums", inputs, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    found = _run(model, dict(zip("ab", terms, strict=True)))
    return found is None or bool((found[0] != 64 * 255 * 127).any())


def _run(model: onnx.ModelProto, feeds: Feeds) -> list[Array] | None:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        found: list[Array] = ort.InferenceSession(model.SerializeToString(), options).run(
            None, feeds
        )
    except Exception:  # noqa: BLE001  # it has no exceptions of its own that are public
        return None
    return found


def by_onnx(model: onnx.ModelProto, feeds: Feeds) -> list[Array] | None:
    """Return what onnx's own evaluator gives, None where it cannot."""
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return [np.asarray(a) for a in ReferenceEvaluator(model).run(None, feeds)]
    except Exception:  # noqa: BLE001  # any of numpy's, and its own
        return None
