"""Writes ONNX graphs with given weights: matrices as float16, widened when the model is loaded."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray

from tools.example_models.graph import GraphBuilder, Value

Array = NDArray[np.floating[Any]]
# Largest finite float16.
_LARGEST = 65504.0


class Layer(NamedTuple):
    """Weight (outputs, inputs, ...) and bias (outputs,) of a linear layer or a convolution."""

    weight: Array
    bias: Array


class WeightedGraph(GraphBuilder):
    """A graph builder whose layers have weights that were learnt."""

    def __init__(self, name: str) -> None:
        super().__init__(name, 0)

    def half(self, name: str, array: Array) -> Value:
        """Add an initializer of float16 and return it as float32.

        Raises:
            ValueError: a value that float16 cannot hold.
        """
        if not np.all(np.abs(array) <= _LARGEST):
            raise ValueError(f"{self.name}: {name}: a weight beyond float16")
        stored = self.weight(name, array, np.float16)
        return self.node("Cast", (stored,), stored.shape, to=onnx.TensorProto.FLOAT)

    def convolution(self, x: Value, layer: Layer, stride: int = 1) -> Value:
        """Append a Conv with bias and "same"-like padding.

        Args:
            x: (n, channels, height, width).
            layer: weight (outputs, channels, kernel, kernel), square and odd.
            stride: in both directions.
        """
        count, _, height, width = x.shape
        outputs, _, kernel, _ = layer.weight.shape
        pad = kernel // 2
        shape = (count, outputs, -(-height // stride), -(-width // stride))
        self.multiply_adds += int(np.prod(layer.weight.shape[1:])) * int(np.prod(shape))
        return self.node(
            "Conv",
            (x, self.half("weight", layer.weight), self.weight("bias", layer.bias)),
            shape,
            dilations=[1, 1],
            group=1,
            kernel_shape=[kernel, kernel],
            pads=[pad, pad, pad, pad],
            strides=[stride, stride],
        )

    def dense(self, x: Value, layer: Layer) -> Value:
        """Append a Gemm: (1, inputs) to (1, outputs)."""
        self.multiply_adds += layer.weight.size
        return self.node(
            "Gemm",
            (x, self.half("weight", layer.weight), self.weight("bias", layer.bias)),
            (1, layer.weight.shape[0]),
            alpha=1.0,
            beta=1.0,
            transB=1,
        )

    def dense_rows(self, x: Value, layer: Layer) -> Value:
        """Append MatMul and Add: (1, rows, inputs) to (1, rows, outputs)."""
        weight = np.ascontiguousarray(layer.weight.T)
        shape = (*x.shape[:-1], weight.shape[1])
        self.multiply_adds += int(np.prod(x.shape)) * weight.shape[1]
        product = self.node("MatMul", (x, self.half("weight", weight)), shape)
        return self.elementwise("Add", product, self.weight("bias", layer.bias))

    def relu(self, x: Value) -> Value:
        """Append Relu."""
        return self.elementwise("Relu", x)
