"""Builds ONNX graphs from trained weights: the layers, and the trunk of the vision network.

Matrices are stored as float16 or int8, all other weights as float32. The trunk computes the same as
`Trunk` of the networks in torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray

from tools.example_models.graph import GraphBuilder, Shape, Value
from tools.simulator.training.heads import FOR_CURVES
from tools.simulator.training.networks import sweep
from tools.simulator.training.networks.architecture import (
    DISPLACEMENT_SCALE,
    NORM_EPSILON,
    READING_SCALE,
    VIEW_SHAPE,
    VISION_SIZE,
    in_eight_bits,
)
from tools.simulator.training.networks.cells import (
    COLUMNS,
    LEAD_READINGS,
    LINES,
    ROWS,
    column_scale,
    row_scale,
)

Array = NDArray[np.floating[Any]]
Weights = Mapping[str, NDArray[np.float32]]
# The largest finite float16.
_LARGEST = 65504.0


class Layer(NamedTuple):
    """Weight (outputs, inputs, ...) and bias (outputs,) of a linear layer or a convolution."""

    weight: Array
    bias: Array


class WeightedGraph(GraphBuilder):
    """A graph builder for layers with trained weights; matrices are stored as float16."""

    STORED: ClassVar = "float16"

    def __init__(self, name: str) -> None:
        super().__init__(name, 0)

    def matrix(self, array: Array, outputs: int = 0) -> Value:  # noqa: ARG002 - of other storage
        """Add the weight of a layer and return it as float32.

        Raises:
            ValueError: float16 cannot represent a value.
        """
        if not np.all(np.abs(array) <= _LARGEST):
            raise ValueError(f"{self.name}: a weight beyond float16")
        stored = self.weight("weight", array, np.float16)
        return self.node("Cast", (stored,), stored.shape, to=onnx.TensorProto.FLOAT)

    def convolution(self, x: Value, layer: Layer, stride: int = 1) -> Value:
        """Append a Conv with bias, and padding that keeps the size at stride 1.

        `x` is (n, channels, height, width); the kernel is square with an odd size.
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
        """Append a Gemm from (n, inputs) to (n, outputs)."""
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
        """Append MatMul and Add from (1, rows, inputs) to (1, rows, outputs)."""
        weight = np.asarray(layer.weight.T, order="C")
        shape = (*x.shape[:-1], weight.shape[1])
        self.multiply_adds += int(np.prod(x.shape)) * weight.shape[1]
        product = self.node("MatMul", (x, self.matrix(weight, outputs=1)), shape)
        return self.elementwise("Add", product, self.weight("bias", layer.bias))

    def relu(self, x: Value) -> Value:
        """Append a Relu."""
        return self.elementwise("Relu", x)


class EightBitGraph(WeightedGraph):
    """A weighted graph whose matrices are stored as int8 with one scale per output."""

    STORED: ClassVar = "int8"

    def matrix(self, array: Array, outputs: int = 0) -> Value:
        """Add the weight of a layer and return it as float32."""
        numbers, scale = in_eight_bits(array, outputs)
        stored = self.weight("weight", numbers)
        # Scales belong to the storage of a weight and are not counted as parameters.
        learnt = self.parameters
        parts = (stored, self.weight("weight_scale", scale))
        self.parameters = learnt
        return self.node("DequantizeLinear", parts, stored.shape, axis=outputs)


# --- The trunk -----------------------------------------------------------------------------------


def linear(w: Weights, name: str) -> Layer:
    """Return a linear layer, or a convolution without a normalisation."""
    return Layer(w[f"{name}.weight"], w[f"{name}.bias"])


def trunk(g: WeightedGraph, w: Weights, x: Value) -> Value:
    """Append the trunk and return `hidden_state`, (1, 512).

    `x` is (2, 12, 128, 256), both views, with values of about [-2, 2].
    """
    with g.scope("sweep"):
        displacement = _sweep(g, w, x)
    cells = x
    for index, step in enumerate(VISION_SIZE.steps):
        with g.scope(f"trunk.{index}"):
            name = f"trunk.steps.{index}"
            if step.kind == "conv":
                x = g.relu(g.convolution(x, _folded(w, name), step.stride))
            else:
                with g.scope("first"):
                    y = g.relu(g.convolution(x, _folded(w, f"{name}.first")))
                with g.scope("second"):
                    y = g.convolution(y, _folded(w, f"{name}.second"))
                x = g.relu(g.elementwise("Add", x, y))
        if index == VISION_SIZE.cells.step:
            cells = x
    with g.scope("cells"):
        read = _cells(g, w, cells, x)
    # Join the channels of the road view and those of the wide view.
    x = _reshape(g, x, (1, 2 * x.shape[1], *x.shape[2:]))
    with g.scope("joint"):
        x = g.relu(g.convolution(x, _folded(w, "trunk.joint"), 2))
    with g.scope("neck"):
        x = g.flatten(g.relu(g.convolution(x, _folded(w, "trunk.neck"))))
    x = _joined(g, x, read, displacement)
    with g.scope("curves"):
        curves = _for_curves(g, w, x)
    with g.scope("places"):
        x = g.dense(_joined(g, x, curves), linear(w, "trunk.places"))
    with g.scope("norm"):
        scale, bias = (g.weight(k, w[f"trunk.norm.{k}"]) for k in ("weight", "bias"))
        inputs = (x, scale, bias)
        return g.node("LayerNormalization", inputs, x.shape, axis=-1, epsilon=NORM_EPSILON)


def _sweep(g: WeightedGraph, w: Weights, x: Value) -> Value:
    """Compare the frames of the road view: (2, 12, 128, 256) to (1, 129)."""
    half, first = VIEW_SHAPE[0] // 2, sweep.FIRST_CHANNEL_ROW
    x = _slice(g, x, 0, 0, 1)
    x = _slice(g, _reshape(g, x, (2, half, *x.shape[2:])), 2, first, x.shape[2])
    with g.scope("look"):
        x = g.convolution(x, _folded(w, "trunk.sweep.look"), sweep.STRIDE)
    for index in range(VISION_SIZE.sweep.more):
        with g.scope(f"more.{index}"):
            x = g.convolution(g.relu(x), _folded(w, f"trunk.sweep.more.{index}"))
    channels, high, wide = x.shape[1], sweep.OLDER_ROWS, sweep.COLUMNS
    x = _reshape(g, x, (2, channels, x.shape[2] * x.shape[3]))
    parts = []
    for at, share in zip(sweep.place_indices(), sweep.place_weights(), strict=True):
        part = g.node("Gather", (x, g.constant(at)), (2, channels, high * wide), axis=2)
        parts.append(g.elementwise("Mul", part, g.constant(share)))
    x = _reshape(g, g.elementwise("Add", *parts), (2, channels, high, wide))
    x = g.node("Transpose", (x,), (2, high, channels, wide), perm=[0, 2, 1, 3])
    x = _reshape(g, x, (2, high, channels * wide))
    older, newer = _slice(g, x, 0, 0, 1), _slice(g, _slice(g, x, 0, 1, 2), 1, 0, sweep.ROWS)
    older = g.node("Transpose", (older,), (1, channels * wide, high), perm=[0, 2, 1])
    g.multiply_adds += sweep.ROWS * high * channels * wide
    x = g.node("MatMul", (newer, older), (1, sweep.ROWS, high))
    x = _reshape(g, x, (1, sweep.ROWS * high))
    displacements = g.constant(sweep.displacement_indices())
    x = g.node("Gather", (x, displacements), (1, displacements.shape[0]), axis=1)
    x = _reshape(g, x, (1, sweep.BANDS, sweep.ROWS // sweep.BANDS, sweep.DISPLACEMENTS))
    x = g.node("ReduceSum", (x, g.ints(2)), (1, sweep.BANDS, sweep.DISPLACEMENTS), keepdims=0)
    ones = g.constant(np.ones(sweep.DISPLACEMENTS, np.float32))
    x = g.node("LayerNormalization", (x, ones), x.shape, axis=-1, epsilon=NORM_EPSILON)
    trust = g.weight("trust", w["trunk.sweep.trust"][:, None])
    votes = g.elementwise("Mul", x, trust)
    votes = g.node("ReduceSum", (votes, g.ints(1)), (1, sweep.DISPLACEMENTS), keepdims=0)
    steps = DISPLACEMENT_SCALE * np.arange(sweep.DISPLACEMENTS, dtype=np.float32)
    displacement = g.elementwise(
        "Mul", g.node("Softmax", (votes,), votes.shape, axis=-1), g.constant(steps)
    )
    displacement = g.node("ReduceSum", (displacement, g.ints(-1)), (1, 1), keepdims=1)
    return g.node(
        "Concat", (g.flatten(x), displacement), (1, sweep.BANDS * sweep.DISPLACEMENTS + 1), axis=1
    )


def _cells(g: WeightedGraph, w: Weights, cells: Value, around: Value) -> Value:
    """Locate lines and the car ahead in both views: (2, channels, 16, 32) to (1, width)."""
    with g.scope("around"):
        x = g.convolution(around, linear(w, "trunk.cells.around"))
    none = g.constant(np.zeros(0, np.float32))
    scales = g.constant(np.array([1.0, 1.0, 2.0, 2.0], np.float32))
    x = g.node(
        "Resize",
        (x, none, scales),
        cells.shape,
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )
    x = g.elementwise("Add", cells, x)
    for name in ("row", "column"):
        x = g.elementwise("Add", x, g.weight(name, w[f"trunk.cells.{name}"]))
    seen = g.relu(x)
    with g.scope("look"):
        x = g.relu(g.convolution(seen, _folded(w, "trunk.cells.look")))
    with g.scope("last"):
        x = g.convolution(x, linear(w, "trunk.cells.last"))
    with g.scope("lines"):
        lines = _read_lines(g, _slice(g, x, 1, 0, LINES))
    with g.scope("lead"):
        lead = _read_lead(g, _slice(g, x, 1, LINES, LINES + 1), seen)
    with g.scope("readings"):
        parts = (lines, lead, _readings(g, w, lead))
    width = sum(part.shape[1] for part in parts)
    return _reshape(g, g.node("Concat", parts, (2, width), axis=1), (1, 2 * width))


def _read_lines(g: WeightedGraph, x: Value) -> Value:
    """Return columns and presence of lines: (2, 6, 16, 32) to (2, 192)."""
    rows = (2, LINES, ROWS)
    there = g.node("ReduceMax", (x,), rows, axes=[-1], keepdims=0)
    there = g.elementwise("Sigmoid", there)
    share = g.node("Softmax", (x,), x.shape, axis=-1)
    column = g.elementwise("Mul", share, g.constant(column_scale()))
    column = g.node("ReduceSum", (column, g.ints(-1)), rows, keepdims=0)
    found = (g.elementwise("Mul", column, there), there)
    read = g.node("Concat", found, (2, 2 * LINES, ROWS), axis=1)
    return _reshape(g, read, (2, 2 * LINES * ROWS))


def _read_lead(g: WeightedGraph, x: Value, cells: Value) -> Value:
    """Return position, presence and features of the car ahead: to (2, 3 + channels)."""
    count, channels = ROWS * COLUMNS, cells.shape[1]
    flat = _reshape(g, x, (2, count))
    there = g.node("ReduceMax", (flat,), (2, 1), axes=[-1], keepdims=1)
    there = g.elementwise("Sigmoid", there)
    share = g.node("Softmax", (flat,), flat.shape, axis=-1)
    places = _reshape(g, share, (2, ROWS, COLUMNS))
    parts = []
    for axis, scale, left in ((1, column_scale(), COLUMNS), (2, row_scale(), ROWS)):
        part = g.node("ReduceSum", (places, g.ints(axis)), (2, left), keepdims=0)
        part = g.elementwise("Mul", part, g.constant(scale))
        parts.append(g.node("ReduceSum", (part, g.ints(1)), (2, 1), keepdims=1))
    g.multiply_adds += 2 * channels * count
    looks = _reshape(g, cells, (2, channels, count))
    looks = g.node("MatMul", (looks, _reshape(g, share, (2, count, 1))), (2, channels, 1))
    parts += [g.constant(np.ones((2, 1), np.float32)), _reshape(g, looks, (2, channels))]
    found = g.node("Concat", parts, (2, 3 + channels), axis=1)
    return g.elementwise("Mul", found, there)


def _readings(g: WeightedGraph, w: Weights, lead: Value) -> Value:
    """Return readings of the car ahead from its features: (2, 3 + channels) to (2, 2)."""
    with g.scope("first"):
        x = g.relu(g.dense(lead, linear(w, "trunk.cells.lead.first")))
    with g.scope("last"):
        x = g.dense(x, linear(w, "trunk.cells.lead.last"))
    there = g.elementwise("Mul", _slice(g, lead, 1, 2, 3), g.scalar(READING_SCALE))
    assert x.shape == (2, LEAD_READINGS)
    return g.elementwise("Mul", x, there)


def _for_curves(g: WeightedGraph, w: Weights, found: Value) -> Value:
    """Return the acceleration that the curves ahead require, from all features: to (1, 1)."""
    with g.scope("first"):
        x = g.relu(g.dense(found, linear(w, "trunk.curves.first")))
    with g.scope("last"):
        mean = (w[f"trunk.curves.last.{name}"][: FOR_CURVES.size] for name in ("weight", "bias"))
        x = g.dense(x, Layer(*mean))
    return g.elementwise("Mul", x, g.scalar(READING_SCALE))


def _joined(g: WeightedGraph, *parts: Value) -> Value:
    return g.node("Concat", parts, (1, sum(part.shape[1] for part in parts)), axis=1)


def _reshape(g: WeightedGraph, x: Value, shape: Shape) -> Value:
    return g.node("Reshape", (x, g.ints(*shape)), shape)


def _slice(g: WeightedGraph, x: Value, axis: int, begin: int, end: int) -> Value:
    shape = (*x.shape[:axis], end - begin, *x.shape[axis + 1 :])
    return g.node("Slice", (x, g.ints(begin), g.ints(end), g.ints(axis)), shape)


def _folded(w: Weights, name: str) -> Layer:
    """Return a convolution with its batch normalisation folded in."""
    deviation = np.sqrt(w[f"{name}.norm.running_var"].astype(np.float64) + NORM_EPSILON)
    factor = w[f"{name}.norm.weight"] / deviation
    bias = w[f"{name}.norm.bias"] - w[f"{name}.norm.running_mean"] * factor
    weight = w[f"{name}.conv.weight"] * factor[:, None, None, None]
    return Layer(weight, bias)
