"""A small ONNX graph writer that names nodes and weights like torch's exporter.

The model builders of this package call its methods in the order of the layers. It tracks shapes, so
a builder reads like a network definition. It also counts parameters and multiply-adds.
"""

import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

OPSET = 17
IR_VERSION = 8

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Value:
    """A named tensor with a static shape, in the graph under construction."""

    name: str
    shape: Shape


@dataclass(frozen=True, slots=True)
class ConvSpec:
    """A 2-D convolution: output channels, square kernel and how its random weights are drawn.

    Attributes:
        channels: number of output channels.
        kernel: side of the kernel. An odd kernel is padded to keep the size. An even one splits
            the image into patches: it has no padding, and its stride equals its side.
        groups: convolution groups; the number of input channels for a depthwise convolution.
        gain: standard deviation of the output for independent unit-variance inputs.
        identity: weight added to the center tap, which passes each channel through (depthwise
            only).
        dilation: distance between kernel taps in both directions.
        bias: whether the convolution has a bias; without one, a batch-norm may follow.
    """

    channels: int
    kernel: int = 1
    stride: int = 1
    groups: int = 1
    gain: float = 1.0
    identity: float = 0.0
    dilation: int = 1
    bias: bool = True


class GraphBuilder:
    """Collects nodes and weights and returns them as a deterministic ModelProto.

    Every weight is drawn from its own generator, seeded with (seed, weight name). A variant of a
    network therefore keeps the weights of the layers it shares with the original.
    """

    def __init__(self, name: str, seed: int) -> None:
        self.name = name
        self.seed = seed
        self.parameters = 0
        self.multiply_adds = 0
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: list[onnx.TensorProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._scope: list[str] = []
        self._used: dict[str, int] = {}

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Prefix the names of everything built inside, like a torch module path."""
        self._scope.append(name)
        try:
            yield
        finally:
            self._scope.pop()

    def input(self, name: str, shape: Shape, dtype: int) -> Value:
        """Declare a graph input; dtype is an onnx.TensorProto element type."""
        self._inputs.append(helper.make_tensor_value_info(name, dtype, shape))
        return Value(name, shape)

    def rng(self, name: str) -> np.random.Generator:
        """Return the random generator of the weight `name` in the current scope."""
        return np.random.default_rng([self.seed, zlib.crc32(self._weight_name(name).encode())])

    def weight(
        self, name: str, array: NDArray[Any], stored: type[np.floating[Any]] = np.float32
    ) -> Value:
        """Add an initializer and return it; float arrays are converted to the dtype `stored`."""
        if array.dtype.kind == "f":
            array = array.astype(stored)
        full_name = self._weight_name(name)
        self._initializers.append(numpy_helper.from_array(np.asarray(array, order="C"), full_name))
        self.parameters += array.size
        return Value(full_name, array.shape)

    def normal(self, name: str, shape: Shape, std: float, mean: float = 0.0) -> Value:
        """Add a float32 initializer drawn from N(mean, std^2)."""
        return self.weight(name, mean + std * self.rng(name).standard_normal(shape))

    def constant(self, array: NDArray[Any] | np.generic) -> Value:
        """Add a Constant node, which is how exporters write literals of the source program."""
        value = np.asarray(array)
        return self.node("Constant", (), value.shape, value=numpy_helper.from_array(value))

    def scalar(self, value: float) -> Value:
        """Add a float32 scalar Constant node."""
        return self.constant(np.float32(value))

    def ints(self, *values: int) -> Value:
        """Add a 1-D int64 Constant node (a shape, axes or split sizes)."""
        return self.constant(np.array(values, np.int64))

    def node(self, op_type: str, inputs: Sequence[Value], shape: Shape, **attributes: Any) -> Value:
        """Append a node with one output of the given shape and return that output."""
        return self.nodes(op_type, inputs, (shape,), **attributes)[0]

    def nodes(
        self, op_type: str, inputs: Sequence[Value], shapes: Sequence[Shape], **attributes: Any
    ) -> list[Value]:
        """Append a node with one output per shape and return the outputs."""
        name = self._node_name(op_type)
        outputs = [f"{name}_output_{i}" for i in range(len(shapes))]
        names = [value.name for value in inputs]
        self._nodes.append(helper.make_node(op_type, names, outputs, name, **attributes))
        return [Value(o, tuple(s)) for o, s in zip(outputs, shapes, strict=True)]

    def elementwise(self, op_type: str, *inputs: Value) -> Value:
        """Append a broadcasting elementwise node."""
        return self.node(op_type, inputs, np.broadcast_shapes(*(value.shape for value in inputs)))

    def conv(self, x: Value, spec: ConvSpec) -> Value:
        """Append a Conv with random weights.

        The input is (1, C, H, W) float32. Padding is dilation * (kernel // 2) on each side, or 0
        for an even kernel. If the convolution has a bias, its batch-norm counts as already folded
        into weight and bias.
        """
        _, channels, height, width = x.shape
        shape = (spec.channels, channels // spec.groups, spec.kernel, spec.kernel)
        weight = self.rng("weight").standard_normal(shape) * (spec.gain / math.sqrt(_fan_in(shape)))
        if spec.identity:
            weight[:, 0, spec.kernel // 2, spec.kernel // 2] += spec.identity
        out = (
            1,
            spec.channels,
            (height + spec.stride - 1) // spec.stride,
            (width + spec.stride - 1) // spec.stride,
        )
        pad = spec.dilation * (spec.kernel // 2) if spec.kernel % 2 else 0
        self.multiply_adds += _fan_in(shape) * math.prod(out)
        inputs = [x, self.weight("weight", weight)]
        if spec.bias:
            inputs.append(self.normal("bias", (spec.channels,), 0.02))
        return self.node(
            "Conv",
            inputs,
            out,
            dilations=[spec.dilation, spec.dilation],
            group=spec.groups,
            kernel_shape=[spec.kernel, spec.kernel],
            pads=[pad, pad, pad, pad],
            strides=[spec.stride, spec.stride],
        )

    def upsample(self, x: Value, channels: int, kernel: int, gain: float = 1.0) -> Value:
        """Append a ConvTranspose with stride 2 and bias that doubles height and width.

        The input is (1, C, H, W) float32. The side of the square kernel is even; padding removes
        results beyond the doubled size. `gain` is the standard deviation of the output for
        independent unit-variance inputs.
        """
        _, depth, height, width = x.shape
        shape = (depth, channels, kernel, kernel)
        # With stride 2, each output element uses a quarter of the kernel's taps.
        weight = self.rng("weight").standard_normal(shape) * (
            gain / math.sqrt(depth * kernel**2 / 4)
        )
        self.multiply_adds += math.prod(shape) * height * width
        pad = (kernel - 2) // 2
        return self.node(
            "ConvTranspose",
            (x, self.weight("weight", weight), self.normal("bias", (channels,), 0.02)),
            (1, channels, 2 * height, 2 * width),
            dilations=[1, 1],
            group=1,
            kernel_shape=[kernel, kernel],
            pads=[pad, pad, pad, pad],
            strides=[2, 2],
        )

    def max_pool(self, x: Value, kernel: int, pad: int = 0) -> Value:
        """Append a MaxPool with stride 2 over (1, C, H, W)."""
        _, channels, height, width = x.shape
        size = [(n + 2 * pad - kernel) // 2 + 1 for n in (height, width)]
        return self.node(
            "MaxPool",
            (x,),
            (1, channels, *size),
            ceil_mode=0,
            kernel_shape=[kernel, kernel],
            pads=[pad, pad, pad, pad],
            strides=[2, 2],
        )

    def global_pool(self, x: Value) -> Value:
        """Append GlobalAveragePool: (1, C, H, W) becomes (1, C, 1, 1)."""
        return self.node("GlobalAveragePool", (x,), (1, x.shape[1], 1, 1))

    def batch_norm(self, x: Value) -> Value:
        """Append BatchNormalization over (1, C, H, W), if it cannot be folded into a Conv."""
        channels = x.shape[1]
        statistics = (
            self.normal("weight", (channels,), 0.05, mean=1.0),
            self.normal("bias", (channels,), 0.02),
            self.normal("running_mean", (channels,), 0.02),
            self.weight("running_var", self.rng("running_var").uniform(0.7, 1.3, channels)),
        )
        return self.node("BatchNormalization", (x, *statistics), x.shape, epsilon=1e-5)

    def layer_norm(self, x: Value, epsilon: float = 1e-5) -> Value:
        """Append LayerNormalization over the last axis."""
        scale = self.normal("weight", (x.shape[-1],), 0.05, mean=1.0)
        bias = self.normal("bias", (x.shape[-1],), 0.02)
        return self.node("LayerNormalization", (x, scale, bias), x.shape, axis=-1, epsilon=epsilon)

    def concat(self, parts: Sequence[Value], axis: int) -> Value:
        """Append Concat along a non-negative axis."""
        shape = list(parts[0].shape)
        shape[axis] = sum(part.shape[axis] for part in parts)
        return self.node("Concat", parts, tuple(shape), axis=axis)

    def reshape(self, x: Value, *shape: int) -> Value:
        """Append Reshape to static sizes."""
        return self.node("Reshape", (x, self.ints(*shape)), shape)

    def transpose(self, x: Value, *perm: int) -> Value:
        """Append Transpose: axis i of the result is axis perm[i] of x."""
        return self.node("Transpose", (x,), tuple(x.shape[i] for i in perm), perm=list(perm))

    def flatten(self, x: Value) -> Value:
        """Append Flatten: (1, C, H, W) becomes (1, C * H * W)."""
        return self.node("Flatten", (x,), (1, math.prod(x.shape)), axis=1)

    def gelu(self, x: Value) -> Value:
        """Append exact GELU as exporters before opset 20 write it: 0.5 x (1 + erf(x / sqrt 2))."""
        erf = self.elementwise("Erf", self.elementwise("Div", x, self.scalar(math.sqrt(2))))
        gate = self.elementwise("Add", erf, self.scalar(1.0))
        return self.elementwise("Mul", self.elementwise("Mul", x, gate), self.scalar(0.5))

    def linear(self, x: Value, width: int, gain: float = 1.0, *, bias: bool = True) -> Value:
        """Append MatMul + Add over the last axis, as exporters write nn.Linear on 3-D inputs."""
        depth = x.shape[-1]
        weight = self.normal("weight", (depth, width), gain / math.sqrt(depth))
        self.multiply_adds += math.prod(x.shape) * width
        product = self.node("MatMul", (x, weight), (*x.shape[:-1], width))
        return (
            self.elementwise("Add", self.normal("bias", (width,), 0.02), product)
            if bias
            else product
        )

    def gemm(self, x: Value, weight: NDArray[Any], bias: NDArray[Any]) -> Value:
        """Append Gemm with a transposed weight, as exporters write nn.Linear on 2-D inputs.

        `x` is (1, K), `weight` is (N, K) and `bias` is (N,).
        """
        self.multiply_adds += weight.size
        return self.node(
            "Gemm",
            (x, self.weight("weight", weight), self.weight("bias", bias)),
            (1, weight.shape[0]),
            alpha=1.0,
            beta=1.0,
            transB=1,
        )

    def random_gemm(self, x: Value, width: int, gain: float = 1.0) -> Value:
        """Append a Gemm whose random weights scale unit-variance inputs by `gain`."""
        weight = self.rng("weight").standard_normal((width, x.shape[1])) * (
            gain / math.sqrt(x.shape[1])
        )
        return self.gemm(x, weight, self.rng("bias").standard_normal(width) * 0.02)

    def finish(
        self,
        outputs: Mapping[str, Value],
        metadata: Mapping[str, str],
        kinds: Mapping[str, int] = MappingProxyType({}),
    ) -> onnx.ModelProto:
        """Name the outputs, attach the metadata and return the checked model.

        `kinds` maps outputs that are not float32 to their onnx.TensorProto element types.
        """
        renamed = {value.name: name for name, value in outputs.items()}
        for node in self._nodes:
            for i, name in enumerate(node.output):
                node.output[i] = renamed.get(name, name)
            for i, name in enumerate(node.input):
                node.input[i] = renamed.get(name, name)
        infos = [
            helper.make_tensor_value_info(
                name, kinds.get(name, onnx.TensorProto.FLOAT), value.shape
            )
            for name, value in outputs.items()
        ]
        graph = helper.make_graph(self._nodes, self.name, self._inputs, infos, self._initializers)
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="modeld-make-model",
        )
        helper.set_model_props(model, dict(metadata))
        onnx.checker.check_model(model, full_check=True)
        return model

    def finish_benchmark(self, outputs: Mapping[str, Value]) -> tuple[onnx.ModelProto, int]:
        """Return the checked model and its multiply-adds; the metadata has the name and seed."""
        metadata = {"model_checkpoint": f"example-{self.name}/seed-{self.seed}"}
        return self.finish(outputs, metadata), self.multiply_adds

    def _weight_name(self, name: str) -> str:
        return ".".join((*self._scope, name))

    def _node_name(self, op_type: str) -> str:
        base = "/" + "/".join((*self._scope, op_type))
        count = self._used.get(base, 0)
        self._used[base] = count + 1
        return base if count == 0 else f"{base}_{count}"


def _fan_in(weight_shape: Shape) -> int:
    return math.prod(weight_shape[1:])
