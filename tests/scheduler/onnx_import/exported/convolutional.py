"""Convolutional networks, and one small network in the habits of several exporters."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto

from tests.scheduler.onnx_import.exported.net import Net

FLOAT, FLOAT16 = TensorProto.FLOAT, TensorProto.FLOAT16
DOUBLED = {
    "mode": "nearest",
    "nearest_mode": "floor",
    "coordinate_transformation_mode": "asymmetric",
}


def regnet() -> onnx.ModelProto:
    """Return blocks of RegNetY: grouped convolutions, gates of channels, strided shortcuts."""
    net = Net(opset=13)
    x = net.input("image", [1, 3, 24, 40])
    x = net.Relu(net.conv(x, (16, 3, 3, 3), strides=[2, 2]))
    wide = 16
    for out, stride in ((24, 2), (24, 1), (48, 2)):
        y = net.Relu(net.conv(x, (out, wide, 1, 1)))
        y = net.Relu(net.conv(y, (out, 8, 3, 3), group=out // 8, strides=[stride, stride]))
        # torch's mean over the axes as a tracer writes it
        pooled = net.ReduceMean(y, axes=[2, 3], keepdims=1)
        gate = net.Relu(net.conv(pooled, (6, out, 1, 1)))
        y = net.Mul(y, net.Sigmoid(net.conv(gate, (out, 6, 1, 1))))
        y = net.conv(y, (out, out, 1, 1))
        short = x if stride == 1 else net.conv(x, (out, wide, 1, 1), strides=[stride, stride])
        x, wide = net.Relu(net.Add(y, short)), out
    flat = net.Flatten(net.GlobalAveragePool(x), axis=1)
    return net.model({"logits": net.dense(flat, wide, 10)})


def yolo() -> onnx.ModelProto:
    """Return a detector of two scales: pyramid by Resize, boxes by distribution, a grid."""
    net, bins, classes = Net(opset=12), 8, 3
    x = net.input("images", [1, 3, 32, 48])
    fine = _silu(net, net.conv(x, (12, 3, 5, 5), strides=[4, 4]))
    coarse = _silu(net, net.conv(fine, (16, 12, 3, 3), strides=[2, 2]))
    # Pooling of pooling of pooling, joined.
    pools = [_silu(net, net.conv(coarse, (8, 16, 1, 1)))]
    for _ in range(3):
        pools.append(net.MaxPool(pools[-1], kernel_shape=[5, 5], strides=[1, 1], pads=[2] * 4))
    coarse = _silu(net, net.conv(net.Concat(*pools, axis=1), (16, 32, 1, 1)))
    # Regions, which opset 12 wants to be there, and scales.
    doubled = net.Resize(coarse, *(np.array(v, np.float32) for v in ([], [1, 1, 2, 2])), **DOUBLED)
    fine = _silu(net, net.conv(net.Concat(doubled, fine, axis=1), (12, 28, 3, 3)))
    rows = []
    for scale, wide in ((fine, 12), (coarse, 16)):
        head = net.conv(scale, (4 * bins + classes, wide, 1, 1))
        rows.append(net.Reshape(head, [1, 4 * bins + classes, -1]))
    parts = net.ops("Split", 2, net.Concat(*rows, axis=2), axis=1, split=[4 * bins, classes])
    return net.model({"boxes": _boxes(net, parts[0], bins), "scores": net.Sigmoid(parts[1])})


def _boxes(net: Net, raw: str, bins: int) -> str:
    """Append boxes (x, y, width, height) of distributions [1, 4 * bins, cells]."""
    cells = net.Unsqueeze(net.size_of(raw, 2), axes=[0])
    apart = net.Reshape(raw, net.Concat([1, 4, bins], cells, axis=0))
    likely = net.Softmax(net.Transpose(apart, perm=[0, 2, 1, 3]), axis=1)
    steps = net.initializer(np.arange(bins, dtype=np.float32).reshape(1, bins, 1, 1))
    distance = net.Reshape(net.Conv(likely, steps, kernel_shape=[1, 1]), [1, 4, -1])
    centres, strides = [], []
    for height, width, stride in ((8, 12, 4.0), (4, 6, 8.0)):
        y, x = np.mgrid[:height, :width].reshape(2, -1) + 0.5
        centres.append(np.stack([x, y]))
        strides.append(np.full((1, x.size), stride))
    centre, scale = (
        net.initializer(np.concatenate(part, axis=1)[None].astype(np.float32))
        for part in (centres, strides)
    )
    low = net.Sub(centre, net.slice(distance, 0, 2, 1))
    high = net.Add(centre, net.slice(distance, 2, 4, 1))
    joined = net.Concat(net.Div(net.Add(low, high), 2.0), net.Sub(high, low), axis=1)
    return net.Mul(joined, scale)


def _silu(net: Net, x: str) -> str:
    return net.Mul(x, net.Sigmoid(x))


def training_export() -> onnx.ModelProto:
    """Return a network exported in training style: batch norms whole, Dropout, shared weights.

    Two batch norms read their parameters through Identity, as torch writes equal weights once.
    """
    net = Net(opset=13)
    x = net.input("x", [2, 3, 12, 16])
    shared = [net.weight(8, scale=0.2, mean=mean) for mean in (1.0, 0.0, 0.0)]
    shared.append(net.initializer(net.rng.uniform(0.5, 2.0, 8).astype(np.float32)))
    for channels in (3, 8):
        weight = net.weight(8, channels, 3, 3)
        x = net.Conv(x, weight, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
        copied = [net.Identity(name) for name in shared]
        x = net.BatchNormalization(x, *copied, epsilon=1e-3, momentum=0.9)
        x = net.ops("Dropout", 2, net.Clip(x, 0.0, 6.0), np.float32(0.3), np.False_)[0]
    pooled = net.Squeeze(net.GlobalAveragePool(x), [2, 3])
    out = net.Gemm(pooled, net.weight(5, 8), net.weight(5), transB=1, beta=0.5)
    return net.model({"y": net.LogSoftmax(out, axis=1)})


def ir_version_3() -> onnx.ModelProto:
    """Return an old file: initializers listed as inputs, opset 8, pads and steps as attributes."""
    net = Net(opset=8, ir_version=3, constants_as_nodes=False)
    x = net.input("data_0", [1, 3, 17, 19])
    x = net.conv(x, (12, 3, 3, 3), strides=[2, 2])
    parameters = [net.weight(12, scale=0.2, mean=m) for m in (1.0, 0.0, 0.0)]
    variance = net.initializer(net.rng.uniform(0.5, 2.0, 12).astype(np.float32))
    x = net.BatchNormalization(x, *parameters, variance, spatial=1)
    x = net.LeakyRelu(x, alpha=0.1)
    x = net.Pad(x, pads=[0, 0, 1, 0, 0, 0, 0, 1], mode="constant", value=0.5)
    x = net.MaxPool(x, kernel_shape=[3, 3], strides=[2, 2], pads=[0, 0, 1, 1])
    x = net.Slice(x, axes=[2, 3], starts=[0, 1], ends=[4, 5])
    dense = net.dense(net.Reshape(x, [1, -1]), 192, 7)
    # Softmax before opset 13 is over everything from the axis on.
    return net.model({"y": net.Softmax(net.Reshape(dense, [1, 7, 1]))})


def half_precision() -> onnx.ModelProto:
    """Return a network in half precision with single precision islands and ends, Cast between."""
    net = Net(opset=17, real=np.float16)
    x = net.input("x", [1, 6, 20], np.float32)
    y = net.linear(net.Cast(x, to=FLOAT16), 20, 32)
    drawn = (net.rng.standard_normal(32) * 0.1 + mean for mean in (1.0, 0.0))
    parameters = [net.initializer(values.astype(np.float32)) for values in drawn]
    wide = net.LayerNormalization(net.Cast(y, to=FLOAT), *parameters, axis=-1, epsilon=1e-5)
    y = net.Mul(net.Cast(wide, to=FLOAT16), 0.5)
    y = net.Add(y, net.linear(net.Tanh(y), 32, 32))
    logits = net.Cast(net.linear(y, 32, 5), to=FLOAT)
    return net.model({"y": net.Softmax(logits, axis=-1)})


def tf2onnx() -> onnx.ModelProto:
    """Return a channels-last network: a Transpose on both sides of each convolution.

    Padding is that of "SAME" (more at the end), the batch is read from the shape and cast to int32
    and back, and batch norm is Mul and Add.
    """
    net = Net(opset=13)
    x = net.input("input_1", ["unk__1", 15, 18, 3])
    wide = 3
    for out, stride in ((8, 2), (12, 1), (12, 2)):
        first = net.Transpose(x, perm=[0, 3, 1, 2])
        # A weight of TensorFlow is [h, w, channels, 1] where it is depthwise, else [h, w, in, out].
        if wide == out:
            weight, groups = (
                net.Transpose(net.weight(3, 3, out, 1, scale=0.3), perm=[2, 3, 0, 1]),
                out,
            )
        else:
            weight, groups = (
                net.Transpose(net.weight(3, 3, wide, out, scale=0.2), perm=[3, 2, 0, 1]),
                1,
            )
        y = net.Conv(first, weight, auto_pad="SAME_UPPER", strides=[stride, stride], group=groups)
        y = net.Transpose(y, perm=[0, 2, 3, 1])
        y = net.Mul(y, net.weight(out, scale=0.1, mean=1.0))
        y = net.Add(y, net.weight(out, scale=0.1))
        x, wide = net.Min(net.Relu(y), 6.0), out
    mean = net.ReduceMean(x, axes=[1, 2], keepdims=0)
    sizes = net.Cast(net.Shape(mean), to=TensorProto.INT32)
    batch = net.Cast(net.slice(sizes, 0, 1, 0), to=TensorProto.INT64)
    rows = net.Reshape(mean, net.Concat(batch, [4, 3], axis=0))
    logits = net.MatMul(rows, net.weight(3, 6))
    return net.model({"Identity": net.Softmax(logits, axis=-1)})


def dynamic_batch() -> onnx.ModelProto:
    """Return a network of any batch, height and width: the sizes are read where needed."""
    net = Net(opset=17)
    x = net.input("x", ["batch", 3, "height", "width"])
    deep = net.Relu(net.conv(x, (8, 3, 3, 3), strides=[2, 2]))
    sizes = net.Concat([0, 0], net.Slice(net.Shape(x), [2], [4], [0]), axis=0)
    lead = net.Slice(net.Shape(deep), [0], [2], [0])
    whole = net.Concat(lead, net.slice(sizes, 2, 4, 0), axis=0)
    up = net.Resize(deep, "", "", whole, **DOUBLED)
    y = net.conv(net.Concat(up, x, axis=1), (4, 11, 3, 3))
    flat = net.Reshape(y, [0, 4, -1])
    return net.model({"map": net.Softmax(y, axis=1), "peak": net.ReduceMax(flat, axes=[2])})


def quantized() -> onnx.ModelProto:
    """Return an int8 network as quantisers write it: QuantizeLinear, DequantizeLinear around all.

    Weights are int8 per channel, biases int32, activations uint8; a residual sum is quantised too.
    """
    net = Net(opset=13, constants_as_nodes=False)
    x = _through(net, net.input("x", [1, 3, 16, 16]), 0.03, 128)
    x = _through(net, net.Relu(_conv8(net, x, (8, 3, 3, 3), 0.03)), 0.02, 0)
    y = _through(net, _conv8(net, x, (8, 8, 3, 3), 0.02), 0.03, 117)
    x = _through(net, net.Add(x, y), 0.04, 90)
    pooled = _through(net, net.GlobalAveragePool(x), 0.02, 100)
    flat = net.Reshape(pooled, [1, 8])
    weight = net.initializer(net.rng.integers(-127, 128, (4, 8)).astype(np.int8))
    back = net.DequantizeLinear(weight, np.float32(0.004), np.int8(0))
    return net.model({"y": net.Gemm(flat, back, transB=1)})


def _through(net: Net, x: str, scale: float, zero: int) -> str:
    """Append QuantizeLinear and DequantizeLinear with one scale."""
    both = net.constant(np.float32(scale)), net.constant(np.uint8(zero))
    return net.DequantizeLinear(net.QuantizeLinear(x, *both), *both)


def _conv8(net: Net, x: str, shape: tuple[int, int, int, int], scale: float) -> str:
    """Append a convolution of dequantised int8 weights and an int32 bias."""
    steps = net.rng.uniform(0.001, 0.004, shape[0]).astype(np.float32)
    weight = net.rng.integers(-127, 128, shape).astype(np.int8)
    weights = net.DequantizeLinear(weight, steps, np.zeros(shape[0], np.int8), axis=0)
    bias = net.rng.integers(-3000, 3000, shape[0]).astype(np.int32)
    scales = (steps * scale).astype(np.float32)
    biases = net.DequantizeLinear(bias, scales, np.zeros(shape[0], np.int32), axis=0)
    return net.Conv(x, weights, biases, kernel_shape=shape[2:], pads=[1, 1, 1, 1])
