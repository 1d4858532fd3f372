"""One small network in the habits of several exporters: what a file may hold beside layers."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto

from tests.scheduler.onnx_import.exported.net import Array, Net


def training_export() -> onnx.ModelProto:
    """Return a network exported in training style: batch norms whole, Dropout, shared weights.

    Two batch norms read their parameters through Identity, as torch writes equal weights once.
    """
    net = Net(opset=13)
    x = net.input("x", [2, 3, 12, 16])
    shared = [
        net.weight(8, scale=0.2, mean=1.0),
        net.weight(8, scale=0.2),
        net.weight(8, scale=0.2),
        net.initializer(net.rng.uniform(0.5, 2.0, 8).astype(np.float32)),
    ]
    for channels in (3, 8):
        weight = net.weight(8, channels, 3, 3)
        x = net.op("Conv", x, weight, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
        copied = [net.op("Identity", name) for name in shared]
        x = net.op("BatchNormalization", x, *copied, epsilon=1e-3, momentum=0.9)
        x = net.op("Clip", x, net.number(0.0), net.number(6.0))
        x = net.ops("Dropout", 2, x, net.constant(0.3, np.float32), net.constant(False, bool))[0]
    pooled = net.op("Squeeze", net.op("GlobalAveragePool", x), net.constant([2, 3]))
    out = net.op("Gemm", pooled, net.weight(5, 8), net.weight(5), transB=1, beta=0.5)
    return net.model({"y": net.op("LogSoftmax", out, axis=1)})


def ir_version_3() -> onnx.ModelProto:
    """Return an old file: initializers listed as inputs, opset 8, pads and steps as attributes."""
    net = Net(opset=8, ir_version=3, constants_as_nodes=False)
    x = net.input("data_0", [1, 3, 17, 19])
    x = net.conv(x, (12, 3, 3, 3), strides=[2, 2])
    parameters = [net.weight(12, scale=0.2, mean=m) for m in (1.0, 0.0, 0.0)]
    variance = net.initializer(net.rng.uniform(0.5, 2.0, 12).astype(np.float32))
    x = net.op("BatchNormalization", x, *parameters, variance, spatial=1)
    x = net.op("LeakyRelu", x, alpha=0.1)
    x = net.op("Pad", x, pads=[0, 0, 1, 0, 0, 0, 0, 1], mode="constant", value=0.5)
    x = net.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[0, 0, 1, 1])
    x = net.op("Slice", x, axes=[2, 3], starts=[0, 1], ends=[4, 5])
    flat = net.op("Reshape", x, net.constant([1, -1]))
    dense = net.op("Gemm", flat, net.weight(7, 192), net.weight(7), transB=1)
    # Softmax before opset 13 is over everything from the axis on.
    return net.model({"y": net.op("Softmax", net.op("Reshape", dense, net.constant([1, 7, 1])))})


def half_precision() -> onnx.ModelProto:
    """Return a network in half precision with single precision islands and ends, Cast between."""
    net = Net(opset=17, real=np.float16)
    x = net.input("x", [1, 6, 20], TensorProto.FLOAT)
    y = net.op("Cast", x, to=TensorProto.FLOAT16)
    y = net.linear(y, 20, 32)
    wide = net.op("Cast", y, to=TensorProto.FLOAT)
    scale, bias = (net.initializer(_near(net, m)) for m in (1.0, 0.0))
    wide = net.op("LayerNormalization", wide, scale, bias, axis=-1, epsilon=1e-5)
    y = net.op("Mul", net.op("Cast", wide, to=TensorProto.FLOAT16), net.number(0.5))
    y = net.op("Add", y, net.linear(net.op("Tanh", y), 32, 32))
    logits = net.op("Cast", net.linear(y, 32, 5), to=TensorProto.FLOAT)
    return net.model({"y": net.op("Softmax", logits, axis=-1)})


def _near(net: Net, mean: float) -> Array:
    return (net.rng.standard_normal(32) * 0.1 + mean).astype(np.float32)


def tf2onnx() -> onnx.ModelProto:
    """Return a channels-last network: a Transpose on both sides of each convolution.

    Padding is that of "SAME" (more at the end), the batch is read from the shape and cast to int32
    and back, and batch norm is Mul and Add.
    """
    net = Net(opset=13)
    x = net.input("input_1", ["unk__1", 15, 18, 3])
    wide = 3
    for out, stride in ((8, 2), (12, 1), (12, 2)):
        first = net.op("Transpose", x, perm=[0, 3, 1, 2])
        if wide == out:  # depthwise: the weight of TensorFlow is [h, w, channels, 1]
            weight = net.op("Transpose", net.weight(3, 3, out, 1, scale=0.3), perm=[2, 3, 0, 1])
            groups = out
        else:
            weight = net.op("Transpose", net.weight(3, 3, wide, out, scale=0.2), perm=[3, 2, 0, 1])
            groups = 1
        y = net.op(
            "Conv", first, weight, auto_pad="SAME_UPPER", strides=[stride, stride], group=groups
        )
        y = net.op("Transpose", y, perm=[0, 2, 3, 1])
        y = net.op("Mul", y, net.weight(out, scale=0.1, mean=1.0))
        y = net.op("Add", y, net.weight(out, scale=0.1))
        x, wide = net.op("Min", net.op("Relu", y), net.number(6.0)), out
    mean = net.op("ReduceMean", x, axes=[1, 2], keepdims=0)
    sizes = net.op("Cast", net.op("Shape", mean), to=TensorProto.INT32)
    batch = net.op("Cast", net.slice(sizes, 0, 1, 0), to=TensorProto.INT64)
    shape = net.op("Concat", batch, net.constant([4, 3]), axis=0)
    logits = net.op("MatMul", net.op("Reshape", mean, shape), net.weight(3, 6))
    return net.model({"Identity": net.op("Softmax", logits, axis=-1)})


def dynamic_batch() -> onnx.ModelProto:
    """Return a network of any batch, height and width: the sizes are read where needed."""
    net = Net(opset=17)
    x = net.input("x", ["batch", 3, "height", "width"])
    deep = net.op("Relu", net.conv(x, (8, 3, 3, 3), strides=[2, 2]))
    size = net.op("Slice", net.op("Shape", x), *map(net.constant, ([2], [4], [0])))
    sizes = net.op("Concat", net.constant([0, 0]), size, axis=0)
    lead = net.op("Slice", net.op("Shape", deep), *map(net.constant, ([0], [2], [0])))
    whole = net.op("Concat", lead, net.slice(sizes, 2, 4, 0), axis=0)
    up = net.op(
        "Resize",
        *(deep, "", "", whole),
        mode="nearest",
        nearest_mode="floor",
        coordinate_transformation_mode="asymmetric",
    )
    y = net.conv(net.op("Concat", up, x, axis=1), (4, 11, 3, 3))
    flat = net.op("Reshape", y, net.constant([0, 4, -1]))
    return net.model(
        {"map": net.op("Softmax", y, axis=1), "peak": net.op("ReduceMax", flat, axes=[2])}
    )


def quantized() -> onnx.ModelProto:
    """Return an int8 network as quantisers write it: QuantizeLinear, DequantizeLinear around all.

    Weights are int8 per channel, biases int32, activations uint8; a residual sum is quantised too.
    """
    net = Net(opset=13, constants_as_nodes=False)
    x = _through(net, net.input("x", [1, 3, 16, 16]), 0.03, 128)
    x = _through(net, net.op("Relu", _conv8(net, x, (8, 3, 3, 3), 0.03)), 0.02, 0)
    y = _through(net, _conv8(net, x, (8, 8, 3, 3), 0.02), 0.03, 117)
    x = _through(net, net.op("Add", x, y), 0.04, 90)
    pooled = _through(net, net.op("GlobalAveragePool", x), 0.02, 100)
    flat = net.op("Reshape", pooled, net.constant([1, 8]))
    weight = net.initializer(net.rng.integers(-127, 128, (4, 8)).astype(np.int8))
    scales = net.initializer(np.float32(0.004)), net.initializer(np.int8(0))
    back = net.op("DequantizeLinear", weight, *scales)
    return net.model({"y": net.op("Gemm", flat, back, transB=1)})


def _through(net: Net, x: str, scale: float, zero: int) -> str:
    """Append QuantizeLinear and DequantizeLinear with one scale."""
    both = net.initializer(np.float32(scale)), net.initializer(np.uint8(zero))
    return net.op("DequantizeLinear", net.op("QuantizeLinear", x, *both), *both)


def _conv8(net: Net, x: str, shape: tuple[int, int, int, int], scale: float) -> str:
    """Append a convolution of dequantised int8 weights and an int32 bias."""
    steps = net.rng.uniform(0.001, 0.004, shape[0]).astype(np.float32)
    weight = net.initializer(net.rng.integers(-127, 128, shape).astype(np.int8))
    zeros = net.initializer(np.zeros(shape[0], np.int8))
    weight = net.op("DequantizeLinear", weight, net.initializer(steps), zeros, axis=0)
    bias = net.initializer(net.rng.integers(-3000, 3000, shape[0]).astype(np.int32))
    zeros = net.initializer(np.zeros(shape[0], np.int32))
    scales = net.initializer((steps * scale).astype(np.float32))
    bias = net.op("DequantizeLinear", bias, scales, zeros, axis=0)
    return net.op("Conv", x, weight, bias, kernel_shape=shape[2:], pads=[1, 1, 1, 1])
