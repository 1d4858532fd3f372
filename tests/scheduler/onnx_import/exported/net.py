"""A writer of ONNX graphs node by node, with the habits of exporters as switches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Array = NDArray[Any]


@dataclass
class Net:
    """A graph under construction.

    Attributes:
        opset: version of the default domain.
        ir_version: version of the file format; 3 is what wanted every initializer as an input.
        constants_as_nodes: small arrays become Constant nodes, as tracing exporters leave them.
        real: element type of weights and inputs.
    """

    opset: int = 17
    ir_version: int = 8
    constants_as_nodes: bool = True
    real: type[np.floating[Any]] = np.float32
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(5))
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    inputs: list[onnx.ValueInfoProto] = field(default_factory=list)
    initializers: list[onnx.TensorProto] = field(default_factory=list)

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Append a node with one output and return the output's name."""
        return self.ops(kind, 1, *inputs, **attributes)[0]

    def ops(self, kind: str, count: int, *inputs: str, **attributes: Any) -> list[str]:
        """Append a node with `count` outputs and return their names."""
        label = f"/{kind}_{len(self.nodes)}"
        names = [f"{label}_output_{i}" for i in range(count)]
        self.nodes.append(helper.make_node(kind, list(inputs), names, label, **attributes))
        return names

    def input(self, name: str, shape: Sequence[int | str], kind: int | None = None) -> str:
        """Declare an input of type `real`, or of TensorProto type `kind`."""
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(self.real)) if kind is None else kind
        self.inputs.append(helper.make_tensor_value_info(name, kind, list(shape)))
        return name

    def constant(self, values: Any, kind: Any = np.int64) -> str:
        """Return a small array: a shape, axes, a scalar."""
        array = np.asarray(values, kind)
        if not self.constants_as_nodes:
            return self.initializer(array)
        return self.op("Constant", value=numpy_helper.from_array(array))

    def number(self, value: float) -> str:
        """Return a scalar of type `real`."""
        return self.constant(value, self.real)

    def initializer(self, array: Array | np.generic) -> str:
        """Return an array stored with the graph."""
        name = f"onnx::{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def weight(self, *shape: int, scale: float | None = None, mean: float = 0.0) -> str:
        """Return a random weight; by default its scale keeps the variance of a product."""
        if scale is None:
            scale = float(np.prod(shape[1:])) ** -0.5
        drawn = self.rng.standard_normal(shape) * scale + mean
        return self.initializer(drawn.astype(self.real))

    def conv(self, x: str, shape: tuple[int, int, int, int], **attributes: Any) -> str:
        """Append a convolution with bias and "same" padding; `shape` is that of its weight."""
        low = [(side - 1) // 2 for side in shape[2:]]
        attributes.setdefault("pads", low + low)
        bias = self.weight(shape[0], scale=0.1)
        return self.op("Conv", x, self.weight(*shape), bias, kernel_shape=shape[2:], **attributes)

    def linear(self, x: str, wide: int, out: int) -> str:
        """Append MatMul and Add, as a linear layer on more than two axes is written."""
        weight = self.initializer(
            (self.rng.standard_normal((wide, out)) * wide**-0.5).astype(self.real)
        )
        return self.op("Add", self.weight(out, scale=0.1), self.op("MatMul", x, weight))

    def size_of(self, x: str, axis: int) -> str:
        """Return one size of a tensor at run time: Shape and Gather."""
        return self.op("Gather", self.op("Shape", x), self.constant(axis), axis=0)

    def shape(self, *sizes: str | int) -> str:
        """Return a shape put together from sizes known and unknown: Unsqueeze and Concat."""
        axes = self.constant([0])
        parts = [
            self.op("Unsqueeze", s, axes) if isinstance(s, str) else self.constant([s])
            for s in sizes
        ]
        return self.op("Concat", *parts, axis=0)

    def slice(self, x: str, start: int, end: int, axis: int, step: int = 1) -> str:
        """Append a Slice of one axis."""
        bounds = [self.constant([v]) for v in (start, end, axis, step)]
        return self.op("Slice", x, *bounds)

    def layer_norm(self, x: str, wide: int) -> str:
        """Append a layer norm written out, as before opset 17."""
        mean = self.op("ReduceMean", x, axes=[-1])
        centred = self.op("Sub", x, mean)
        squared = self.op("Pow", centred, self.number(2.0))
        variance = self.op("ReduceMean", squared, axes=[-1])
        deviation = self.op("Sqrt", self.op("Add", variance, self.number(1e-5)))
        normal = self.op("Div", centred, deviation)
        scaled = self.op("Mul", normal, self.weight(wide, scale=0.1, mean=1.0))
        return self.op("Add", scaled, self.weight(wide, scale=0.1))

    def gelu(self, x: str) -> str:
        """Append GELU as exporters write it: Div, Erf, Add, Mul, Mul."""
        erf = self.op("Erf", self.op("Div", x, self.number(2**0.5)))
        doubled = self.op("Mul", x, self.op("Add", erf, self.number(1.0)))
        return self.op("Mul", doubled, self.number(0.5))

    def model(self, outputs: Mapping[str, str]) -> onnx.ModelProto:
        """Return the model; `outputs` are the names of its outputs and of what they are."""
        for name, source in outputs.items():
            self.nodes.append(helper.make_node("Identity", [source], [name]))
        listed = list(self.inputs)
        if self.ir_version < 4:
            listed += [
                helper.make_tensor_value_info(w.name, w.data_type, list(w.dims))
                for w in self.initializers
            ]
        graph = helper.make_graph(
            self.nodes,
            "main_graph",
            listed,
            [onnx.ValueInfoProto(name=name) for name in outputs],
            self.initializers,
        )
        opsets = [helper.make_opsetid("", self.opset)]
        made = helper.make_model(graph, opset_imports=opsets, ir_version=self.ir_version)
        return onnx.shape_inference.infer_shapes(made, check_type=True)


INT64 = TensorProto.INT64
