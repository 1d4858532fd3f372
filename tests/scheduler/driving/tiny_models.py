"""Tiny seeded models of any revision: every output depends on every element of every input."""

from __future__ import annotations

import base64
import pickle
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from scheduler.driving.derive import example_parts
from scheduler.driving.revisions import Revision

WIDTH = 8  # of the one hidden layer
CODES = {
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "uint8": TensorProto.UINT8,
}


class Net:
    """A graph that is being written."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def constant(self, array: NDArray[Any]) -> str:
        """Return the name of a constant."""
        name = f"c{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def node(self, op: str, *inputs: str, **attributes: Any) -> str:
        """Return the name of a node's only output."""
        name = f"{op}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], name=name, **attributes))
        return name

    def matrix(self, rows: int, columns: int) -> str:
        """Return random weights that keep the size of values."""
        values = self.rng.standard_normal((rows, columns)) / np.sqrt(rows)
        return self.constant(values.astype(np.float32))

    def reshape(self, value: str, shape: tuple[int, ...]) -> str:
        """Return a value in another shape."""
        return self.node("Reshape", value, self.constant(np.array(shape, np.int64)))

    def rows(self, value: str, start: int, stop: int, axis: int = 0) -> str:
        """Return a slice of an axis."""
        bounds = (self.constant(np.array([n], np.int64)) for n in (start, stop, axis))
        return self.node("Slice", value, *bounds)

    def mixed(self, value: str, shape: tuple[int, ...], scale: float) -> str:
        """Return (1, WIDTH) made of all elements: each row is mixed alone, then the rows."""
        inner = shape[-1] if len(shape) < 4 else shape[-1] * shape[-2]
        count = prod(shape) // inner
        value = self.node("Cast", value, to=TensorProto.FLOAT)
        value = self.node("Mul", value, self.constant(np.float32([scale])))
        each = self.node("MatMul", self.reshape(value, (count, inner)), self.matrix(inner, 4))
        flat = self.reshape(each, (1, 4 * count))
        return self.node("MatMul", flat, self.matrix(4 * count, WIDTH))


def write_tiny_models(revision: Revision, directory: Path, seed: int = 0) -> list[Path]:
    """Write the models of a revision in run order; returns their files."""
    paths = []
    for index, (model, part) in enumerate(
        zip(revision.models, example_parts(revision), strict=True)
    ):
        net = Net(seed + index)
        total = net.constant(net.rng.standard_normal((1, WIDTH)).astype(np.float32))
        for name, (shape, _) in part.inputs.items():
            scale = 1 / 64 if prod(shape) > 10_000 and "feat" not in name else 1.0
            total = net.node("Add", total, net.mixed(name, shape, scale))
        hidden = net.node("Tanh", total)
        outputs = {"outputs": net.node("MatMul", hidden, net.matrix(WIDTH, part.width))}
        types = {"outputs": ((1, part.width), "float32")}
        for name in model.states:
            types[f"next_{name}"] = part.inputs[name]
            outputs[f"next_{name}"] = _next(net, name, part.inputs, outputs, part.slices)
        for name, value in outputs.items():
            net.nodes.append(helper.make_node("Identity", [value], [name], name=f"out_{name}"))
        path = directory / f"{revision.name}-{model.role}.onnx"
        _write(path, net, part.inputs, types, part.slices)
        paths.append(path)
    return paths


def _next(net: Net, name: str, inputs: Any, outputs: Any, slices: Any) -> str:
    """Return the next state: a queue after the push, or the newest feature."""
    if name == "state_prev_feat":
        start, stop = slices["hidden_state"]
        return net.rows(outputs["outputs"], start, stop, 1)
    newest = {
        "state_img_q": lambda: net.rows(_first(inputs, "warped", "new_img"), 0, 1),
        "state_big_img_q": lambda: net.rows(_first(inputs, "warped", "new_img"), 1, 2),
        "state_desire_q": lambda: _first(inputs, "desire", "desire_pulse"),
        "state_feat_q": lambda: "state_prev_feat",
    }[name]()
    shape = inputs[name][0]
    row = net.reshape(newest, (1, *shape[1:]))
    return net.node("Concat", net.rows(name, 1, shape[0]), row, axis=0)


def _first(inputs: Any, *names: str) -> str:
    return next(name for name in names if name in inputs)


def _write(path: Path, net: Net, inputs: Any, outputs: Any, slices: Any) -> None:
    def values(signatures: Any) -> list[onnx.ValueInfoProto]:
        return [
            helper.make_tensor_value_info(name, CODES[kind], shape)
            for name, (shape, kind) in signatures.items()
        ]

    graph = helper.make_graph(net.nodes, path.stem, values(inputs), values(outputs), net.weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    table = {name: slice(*bounds) for name, bounds in slices.items()}
    text = base64.b64encode(pickle.dumps(table)).decode()
    properties = {"output_slices": text, "model_checkpoint": f"tiny/{path.stem}"}
    helper.set_model_props(model, properties)
    path.write_bytes(model.SerializeToString())
