"""Convolutional networks: grouped with squeeze and excitation, a detector with its grid."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx

from tests.scheduler.onnx_import.exported.net import Array, Net


def regnet() -> onnx.ModelProto:
    """Return blocks of RegNetY: grouped convolutions, gates of channels, strided shortcuts."""
    net = Net(opset=13)
    x = net.input("image", [1, 3, 24, 40])
    x = net.op("Relu", net.conv(x, (16, 3, 3, 3), strides=[2, 2]))
    wide = 16
    for out, stride in ((24, 2), (24, 1), (48, 2)):
        y = net.op("Relu", net.conv(x, (out, wide, 1, 1)))
        y = net.op("Relu", net.conv(y, (out, 8, 3, 3), group=out // 8, strides=[stride, stride]))
        # torch's mean over the axes as a tracer writes it
        pooled = net.op("ReduceMean", y, axes=[2, 3], keepdims=1)
        gate = net.op("Relu", net.conv(pooled, (6, out, 1, 1)))
        y = net.op("Mul", y, net.op("Sigmoid", net.conv(gate, (out, 6, 1, 1))))
        y = net.conv(y, (out, out, 1, 1))
        short = x if stride == 1 else net.conv(x, (out, wide, 1, 1), strides=[stride, stride])
        x, wide = net.op("Relu", net.op("Add", y, short)), out
    flat = net.op("Flatten", net.op("GlobalAveragePool", x), axis=1)
    logits = net.op("Gemm", flat, net.weight(10, wide), net.weight(10), transB=1)
    return net.model({"logits": logits})


def yolo() -> onnx.ModelProto:
    """Return a detector of two scales: pyramid by Resize, boxes by distribution, a grid."""
    net, bins, classes = Net(opset=12), 8, 3
    x = net.input("images", [1, 3, 32, 48])
    fine = _silu(net, net.conv(x, (12, 3, 5, 5), strides=[4, 4]))
    coarse = _silu(net, net.conv(fine, (16, 12, 3, 3), strides=[2, 2]))
    # Pooling of pooling of pooling, joined.
    pools = [_silu(net, net.conv(coarse, (8, 16, 1, 1)))]
    for _ in range(3):
        window: dict[str, list[int]] = {"kernel_shape": [5, 5], "strides": [1, 1], "pads": [2] * 4}
        pools.append(net.op("MaxPool", pools[-1], **window))
    coarse = _silu(net, net.conv(net.op("Concat", *pools, axis=1), (16, 32, 1, 1)))
    doubled = net.op(
        "Resize",
        coarse,
        net.constant([], np.float32),  # regions, which opset 12 wants to be there
        net.constant([1, 1, 2, 2], np.float32),
        coordinate_transformation_mode="asymmetric",
        mode="nearest",
        nearest_mode="floor",
    )
    fine = _silu(net, net.conv(net.op("Concat", doubled, fine, axis=1), (12, 28, 3, 3)))
    rows = []
    for scale, wide in ((fine, 12), (coarse, 16)):
        head = net.conv(scale, (4 * bins + classes, wide, 1, 1))
        rows.append(net.op("Reshape", head, net.constant([1, 4 * bins + classes, -1])))
    parts = net.ops("Split", 2, net.op("Concat", *rows, axis=2), axis=1, split=[4 * bins, classes])
    boxes = _boxes(net, parts[0], bins)
    return net.model({"boxes": boxes, "scores": net.op("Sigmoid", parts[1])})


def _boxes(net: Net, raw: str, bins: int) -> str:
    """Append boxes (x, y, width, height) of distributions [1, 4 * bins, cells]."""
    cells = net.op("Gather", net.op("Shape", raw), net.constant(2), axis=0)
    apart = net.op(
        "Reshape", raw, net.op("Concat", net.constant([1, 4, bins]), _one(net, cells), axis=0)
    )
    likely = net.op("Softmax", net.op("Transpose", apart, perm=[0, 2, 1, 3]), axis=1)
    steps = net.initializer(np.arange(bins, dtype=np.float32).reshape(1, bins, 1, 1))
    distance = net.op("Conv", likely, steps, kernel_shape=[1, 1])
    distance = net.op("Reshape", distance, net.constant([1, 4, -1]))
    centres, strides = _grid(((8, 12, 4.0), (4, 6, 8.0)))
    centre = net.initializer(centres)
    low = net.op("Sub", centre, net.slice(distance, 0, 2, 1))
    high = net.op("Add", centre, net.slice(distance, 2, 4, 1))
    middle = net.op("Div", net.op("Add", low, high), net.number(2.0))
    joined = net.op("Concat", middle, net.op("Sub", high, low), axis=1)
    return net.op("Mul", joined, net.initializer(strides))


def _one(net: Net, size: str) -> str:
    return net.op("Unsqueeze", size, axes=[0])


def _grid(scales: Sequence[tuple[int, int, float]]) -> tuple[Array, Array]:
    """Return the centres of cells [1, 2, cells] and their strides [1, 1, cells]."""
    centres, strides = [], []
    for height, width, stride in scales:
        y, x = np.mgrid[:height, :width].reshape(2, -1) + 0.5
        centres.append(np.stack([x, y]))
        strides.append(np.full((1, x.size), stride))
    both = (np.concatenate(part, axis=1)[None].astype(np.float32) for part in (centres, strides))
    first, second = both
    return first, second


def _silu(net: Net, x: str) -> str:
    return net.op("Mul", x, net.op("Sigmoid", x))
