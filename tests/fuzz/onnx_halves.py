"""Random models in halves, with parts in float32 and bfloat16 behind casts."""

from collections.abc import Iterator
from typing import Final

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.fuzz.draw import Draw
from tests.fuzz.onnx_networks import Array, Network
from tests.fuzz.onnx_nodes import GENERATORS, case_of
from tests.fuzz.onnx_programs import Feeds, hurt
from tests.scheduler.onnx_import.onnx_cases import CASES
from tests.scheduler.onnx_import.test_ops import build

HALF, FLOAT, BRAIN = TensorProto.FLOAT16, TensorProto.FLOAT, TensorProto.BFLOAT16
CASTS: Final = 0.3  # of the nodes stand between casts
# What ONNX has for bfloat16 as well.
IN_BRAIN: Final = {
    *("Add", "Sub", "Mul", "Div", "Neg", "Abs", "Relu", "Sigmoid", "Tanh", "Exp", "MatMul", "Gemm"),
    *("Transpose", "Reshape", "Concat", "Slice", "ReduceSum", "ReduceMax", "Softmax", "Where"),
}


def model_of(seed: int) -> tuple[onnx.ModelProto, Feeds, str]:
    """Return a model in halves, values of its inputs, and its operator ("" for a network)."""
    draw, ops = Draw(f"halves {seed}"), list(GENERATORS)
    while True:
        node = None
        if draw.flag(0.4):
            network = Network(draw.integer(0, 2**31))
            model, given = network.proto(), dict(network.feeds)
        else:
            drawn = case_of(draw.pick(ops), draw.integer(0, 2**31))
            node = draw.pick(CASES) if draw.flag(0.3) else drawn
            if node.domain:
                continue
            model, given = build(node, folded=draw.integer(0, 7) == 0)
        made = in_halves(draw, model)
        if made is None:
            continue
        feeds = {n: _half(v) if v.dtype == np.float32 else v for n, v in given.items()}
        if node is not None:
            hurt(draw, node, feeds)
        return made, feeds, "" if node is None else node.op


def in_halves(draw: Draw, model: onnx.ModelProto) -> onnx.ModelProto | None:
    """Return a model with halves instead of float32, None if ONNX has none such."""
    made = onnx.ModelProto.FromString(model.SerializeToString())
    for graph in _graphs(made.graph):
        _narrow(graph)
    try:
        typed = onnx.shape_inference.infer_shapes(made, check_type=True, strict_mode=True)
        _put_casts(draw, typed.graph)
        onnx.checker.check_model(typed, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        return None
    return typed


def _half(array: Array) -> Array:
    with np.errstate(over="ignore"):
        return array.astype(np.float16)


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _graphs(attribute.g)


def _narrow(graph: onnx.GraphProto) -> None:
    tensors = [a.t for node in graph.node for a in node.attribute if a.HasField("t")]
    for tensor in (*graph.initializer, *tensors):
        if tensor.data_type == FLOAT:
            half = _half(numpy_helper.to_array(tensor))
            tensor.CopyFrom(numpy_helper.from_array(half, tensor.name))
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.name in ("to", "dtype") and attribute.i == FLOAT:
                attribute.i = HALF
    del graph.value_info[:]
    for value in (*graph.input, *graph.output):
        if value.type.tensor_type.elem_type == FLOAT:
            value.type.tensor_type.elem_type = HALF


def _put_casts(draw: Draw, graph: onnx.GraphProto) -> None:
    """Compute some nodes in float32 or bfloat16: cast what they read, and what they give back."""
    values = (*graph.input, *graph.value_info, *graph.output)
    halves = {v.name for v in values if v.type.tensor_type.elem_type == HALF}
    halves |= {t.name for t in graph.initializer if t.data_type == HALF}
    # onnxruntime lacks bfloat16, and onnx's evaluator mixes up weights of one name in two bodies.
    flat = len(list(_graphs(graph))) == 1
    nodes = []
    for i, node in enumerate(graph.node):
        read = [n for n in node.input if n in halves]
        is_plain = not any(a.HasField("g") or a.name in ("to", "dtype") for a in node.attribute)
        if not read or not is_plain or not draw.flag(CASTS):
            nodes.append(node)
            continue
        wide = BRAIN if flat and node.op_type in IN_BRAIN and draw.flag(0.3) else FLOAT
        nodes += [_cast(name, f"{name}_{i}", wide) for name in dict.fromkeys(read)]
        inner = onnx.NodeProto.FromString(node.SerializeToString())
        inner.input[:] = [f"{n}_{i}" if n in read else n for n in node.input]
        inner.output[:] = [f"{n}_{i}" if n in halves else n for n in node.output]
        nodes += [inner, *(_cast(f"{n}_{i}", n, HALF) for n in node.output if n in halves)]
    copies = [onnx.NodeProto.FromString(n.SerializeToString()) for n in nodes]
    del graph.node[:]
    graph.node.extend(copies)


def _cast(source: str, target: str, code: int) -> onnx.NodeProto:
    return helper.make_node("Cast", [source], [target], to=code)
