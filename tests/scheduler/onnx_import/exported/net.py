"""A writer of ONNX graphs node by node, with the habits of exporters as switches."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

Array = NDArray[Any]


@dataclass
class Net:
    """A graph under construction: `net.Mul(x, 0.5)` appends a node and returns its output's name.

    Inputs are names and what becomes constants: integers, lists of them (int64), floats
    (float32) and arrays.

    Attributes:
        opset: version of the default domain.
        ir_version: version of the file format.
        constants_as_nodes: small arrays become Constant nodes, as tracing exporters leave them.
    """

    opset: int = 17
    ir_version: int = 8
    constants_as_nodes: bool = True
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(5))
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    inputs: list[onnx.ValueInfoProto] = field(default_factory=list)
    initializers: list[onnx.TensorProto] = field(default_factory=list)

    def __getattr__(self, kind: str) -> Callable[..., str]:
        if not kind[0].isupper():
            raise AttributeError(kind)
        return lambda *inputs, **attributes: self.ops(kind, 1, *inputs, **attributes)[0]

    def ops(self, kind: str, count: int, *inputs: Any, **attributes: Any) -> list[str]:
        """Append a node with `count` outputs and return their names."""
        given = [x if isinstance(x, str) else self.constant(x) for x in inputs]
        label = f"/{kind}_{len(self.nodes)}"
        names = [f"{label}_output_{i}" for i in range(count)]
        self.nodes.append(helper.make_node(kind, given, names, label, **attributes))
        return names

    def input(self, name: str, shape: Sequence[int | str], kind: Any = np.float32) -> str:
        """Declare an input of floats, or of another numpy type."""
        code = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
        self.inputs.append(helper.make_tensor_value_info(name, code, list(shape)))
        return name

    def constant(self, values: Any) -> str:
        """Return a small array: a shape, axes, a scalar."""
        kind = np.float32 if isinstance(values, float) else np.int64
        array = np.asarray(values, getattr(values, "dtype", kind))
        if not self.constants_as_nodes:
            return self.initializer(array)
        return self.Constant(value=numpy_helper.from_array(array))

    def initializer(self, array: Array | np.generic) -> str:
        name = f"onnx::{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def weight(self, *shape: int, scale: float | None = None, mean: float = 0.0) -> str:
        """Return a random weight; by default its scale keeps the variance of a product."""
        if scale is None:
            scale = float(np.prod(shape[1:])) ** -0.5
        drawn = self.rng.standard_normal(shape) * scale + mean
        return self.initializer(drawn.astype(np.float32))

    def conv(self, x: str, shape: tuple[int, int, int, int], **attributes: Any) -> str:
        """Append a convolution with bias and "same" padding; `shape` is that of its weight."""
        low = [(side - 1) // 2 for side in shape[2:]]
        attributes.setdefault("pads", low + low)
        bias = self.weight(shape[0], scale=0.1)
        return self.Conv(x, self.weight(*shape), bias, kernel_shape=shape[2:], **attributes)

    def dense(self, x: str, wide: int, out: int, scale: float | None = None) -> str:
        """Append Gemm, as a linear layer on two axes is written."""
        return self.Gemm(x, self.weight(out, wide), self.weight(out, scale=scale), transB=1)

    def linear(self, x: str, wide: int, out: int) -> str:
        """Append MatMul and Add, as a linear layer on more than two axes is written."""
        drawn = self.rng.standard_normal((wide, out)) * wide**-0.5
        weight = self.initializer(drawn.astype(np.float32))
        return self.Add(self.weight(out, scale=0.1), self.MatMul(x, weight))

    def size_of(self, x: str, axis: int) -> str:
        """Return one size of a tensor at run time: Shape and Gather."""
        return self.Gather(self.Shape(x), axis, axis=0)

    def shape(self, *sizes: str | int) -> str:
        """Return a shape put together from sizes known and unknown: Unsqueeze and Concat."""
        axes = self.constant([0])
        return self.Concat(
            *(self.Unsqueeze(s, axes) if isinstance(s, str) else [s] for s in sizes), axis=0
        )

    def slice(self, x: str, start: int, end: int, axis: int, step: int = 1) -> str:
        return self.Slice(x, [start], [end], [axis], [step])

    def layer_norm(self, x: str, wide: int) -> str:
        """Append a layer norm written out, as before opset 17."""
        centred = self.Sub(x, self.ReduceMean(x, axes=[-1]))
        variance = self.ReduceMean(self.Pow(centred, 2.0), axes=[-1])
        normal = self.Div(centred, self.Sqrt(self.Add(variance, 1e-5)))
        scaled = self.Mul(normal, self.weight(wide, scale=0.1, mean=1.0))
        return self.Add(scaled, self.weight(wide, scale=0.1))

    def gelu(self, x: str) -> str:
        """Append GELU as exporters write it: Div, Erf, Add, Mul, Mul."""
        erf = self.Erf(self.Div(x, 2**0.5))
        return self.Mul(self.Mul(x, self.Add(erf, 1.0)), 0.5)

    def model(self, outputs: Mapping[str, str]) -> onnx.ModelProto:
        for name, source in outputs.items():
            self.nodes.append(helper.make_node("Identity", [source], [name]))
        untyped = [onnx.ValueInfoProto(name=name) for name in outputs]
        graph = helper.make_graph(self.nodes, "main_graph", self.inputs, untyped, self.initializers)
        opsets = [helper.make_opsetid("", self.opset)]
        made = helper.make_model(graph, opset_imports=opsets, ir_version=self.ir_version)
        return onnx.shape_inference.infer_shapes(made, check_type=True)
