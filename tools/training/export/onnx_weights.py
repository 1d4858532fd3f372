"""Writes ONNX graphs with given weights: matrices as float16 or int8, all else as float32."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray

from tools.example_models.graph import GraphBuilder, Value
from tools.training.networks.rounding import in_eight_bits

Array = NDArray[np.floating[Any]]
# Largest finite float16.
_LARGEST = 65504.0


class Layer(NamedTuple):
    """Weight (outputs, inputs, ...) and bias (outputs,) of a linear layer or a convolution."""

    weight: Array
    bias: Array


class WeightedGraph(GraphBuilder):
    """A graph builder whose layers have weights that were learnt; their matrices are float16."""

    STORED: ClassVar = "float16"

    def __init__(self, name: str) -> None:
        super().__init__(name, 0)

    def matrix(self, array: Array, outputs: int = 0) -> Value:  # noqa: ARG002 - of other storage
        """Add the weight of a layer and return it as float32.

        Raises:
            ValueError: a value that float16 cannot hold.
        """
        if not np.all(np.abs(array) <= _LARGEST):
            raise ValueError(f"{self.name}: a weight beyond float16")
        stored = self.weight("weight", array, np.float16)
        return self.node("Cast", (stored,), stored.shape, to=onnx.TensorProto.FLOAT)

    def convolution(self, x: Value, layer: Layer, stride: int = 1) -> Value:
        """Append a Conv with bias and "same"-like padding.

        `x` is (n, channels, height, width), the kernel square and odd.
        """
        count, _, height, width = x.shape
        outputs, _, kernel, _ = layer.weight.shape
        pad = kernel // 2
        shape = (count, outputs, -(-height // stride), -(-width // stride))
        self.multiply_adds += int(np.prod(layer.weight.shape[1:])) * int(np.prod(shape))
        return self.node(
            "Conv",
            (x, self.matrix(layer.weight), self.weight("bias", layer.bias)),
            shape,
            dilations=[1, 1],
            group=1,
            kernel_shape=[kernel, kernel],
            pads=[pad, pad, pad, pad],
            strides=[stride, stride],
        )

    def dense(self, x: Value, layer: Layer) -> Value:
        """Append a Gemm: (n, inputs) to (n, outputs)."""
        self.multiply_adds += x.shape[0] * layer.weight.size
        return self.node(
            "Gemm",
            (x, self.matrix(layer.weight), self.weight("bias", layer.bias)),
            (x.shape[0], layer.weight.shape[0]),
            alpha=1.0,
            beta=1.0,
            transB=1,
        )

    def dense_rows(self, x: Value, layer: Layer) -> Value:
        """Append MatMul and Add: (1, rows, inputs) to (1, rows, outputs)."""
        weight = np.asarray(layer.weight.T, order="C")
        shape = (*x.shape[:-1], weight.shape[1])
        self.multiply_adds += int(np.prod(x.shape)) * weight.shape[1]
        product = self.node("MatMul", (x, self.matrix(weight, outputs=1)), shape)
        return self.elementwise("Add", product, self.weight("bias", layer.bias))

    def relu(self, x: Value) -> Value:
        """Append Relu."""
        return self.elementwise("Relu", x)


class EightBitGraph(WeightedGraph):
    """The same with matrices of int8, and one scale for each output."""

    STORED: ClassVar = "int8"

    def matrix(self, array: Array, outputs: int = 0) -> Value:
        """Add the weight of a layer and return it as float32."""
        numbers, scale = in_eight_bits(array, outputs)
        stored = self.weight("weight", numbers)
        # Scales are how weights are stored, and no parameters beside them.
        learnt = self.parameters
        parts = (stored, self.weight("weight_scale", scale))
        self.parameters = learnt
        return self.node("DequantizeLinear", parts, stored.shape, axis=outputs)
