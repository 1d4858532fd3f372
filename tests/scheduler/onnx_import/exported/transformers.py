"""Transformers: ViT with the arithmetic on shapes left in, shifted windows, masked text."""

from __future__ import annotations

import numpy as np
import onnx

from tests.scheduler.onnx_import.exported.net import INT64, Net


def attention(net: Net, x: str, wide: int, heads: int, mask: str | None = None) -> str:
    """Append self-attention of [B, N, wide] with one product for query, key and value.

    The result of the product is reshaped by sizes read from it at run time, and split by Gather.
    """
    batch, tokens = net.size_of(x, 0), net.size_of(x, 1)
    head = net.op("Div", net.size_of(x, 2), net.constant(heads))
    joined = net.linear(x, wide, 3 * wide)
    apart = net.op("Reshape", joined, net.shape(batch, tokens, 3, heads, head))
    first = net.op("Transpose", apart, perm=[2, 0, 3, 1, 4])
    query, key, value = (net.op("Gather", first, net.constant(i), axis=0) for i in range(3))
    scale = net.op("Sqrt", net.op("Cast", head, to=1))
    scores = net.op("MatMul", query, net.op("Transpose", key, perm=[0, 1, 3, 2]))
    scores = net.op("Div", scores, scale)
    if mask is not None:
        scores = net.op("Add", scores, mask)
    mixed = net.op("MatMul", net.op("Softmax", scores, axis=-1), value)
    together = net.op("Transpose", mixed, perm=[0, 2, 1, 3])
    flat = net.op("Reshape", together, net.shape(batch, tokens, wide))
    return net.linear(flat, wide, wide)


def block(net: Net, x: str, wide: int, heads: int) -> str:
    """Append a pre-norm block of attention and two linear layers."""
    x = net.op("Add", x, attention(net, net.layer_norm(x, wide), wide, heads))
    hidden = net.gelu(net.linear(net.layer_norm(x, wide), wide, 2 * wide))
    return net.op("Add", x, net.linear(hidden, 2 * wide, wide))


def vit_tiny() -> onnx.ModelProto:
    """Return a ViT: patches, class token expanded to the batch, positions, two blocks."""
    net, wide = Net(opset=14), 24
    x = net.input("pixels", ["batch", 3, 16, 24])
    weight, bias = net.weight(wide, 3, 8, 8), net.weight(wide, scale=0.1)
    patches = net.op("Conv", x, weight, bias, kernel_shape=[8, 8], strides=[8, 8])
    lead = net.op("Slice", net.op("Shape", patches), *map(net.constant, ([0], [2], [0])))
    flat = net.op("Reshape", patches, net.op("Concat", lead, net.constant([-1]), axis=0))
    tokens = net.op("Transpose", flat, perm=[0, 2, 1])
    # torch's expand(batch, -1, -1): -1 becomes 1 by ConstantOfShape, Mul, Equal and Where.
    wanted = net.shape(net.size_of(tokens, 0), -1, -1)
    ones = net.op("ConstantOfShape", net.constant([3]), value=_one())
    minus = net.op("Mul", ones, net.constant(-1))
    sizes = net.op("Where", net.op("Equal", wanted, minus), ones, wanted)
    token = net.op("Expand", net.weight(1, 1, wide, scale=1.0), sizes)
    x = net.op("Concat", token, tokens, axis=1)
    x = net.op("Add", x, net.weight(1, 7, wide, scale=0.5))
    for _ in range(2):
        x = block(net, x, wide, 3)
    first = net.op("Gather", net.layer_norm(x, wide), net.constant(0), axis=1)
    logits = net.op("Gemm", first, net.weight(10, wide), net.weight(10, scale=0.1), transB=1)
    return net.model({"logits": logits})


def _one() -> onnx.TensorProto:
    return onnx.numpy_helper.from_array(np.array([1], np.int64))


def roll(net: Net, x: str, shift: int, axis: int) -> str:
    """Append torch.roll: two slices joined the other way round."""
    return net.op(
        "Concat",
        net.slice(x, -shift, 2**63 - 1, axis),
        net.slice(x, 0, -shift, axis),
        axis=axis,
    )


def windows(net: Net, x: str, height: int, width: int, wide: int) -> str:
    """Append the cut of [1, height, width, wide] into windows of 4 x 4: [windows, 16, wide]."""
    cut = net.constant([1, height // 4, 4, width // 4, 4, wide])
    apart = net.op("Transpose", net.op("Reshape", x, cut), perm=[0, 1, 3, 2, 4, 5])
    return net.op("Reshape", apart, net.constant([-1, 16, wide]))


def swin_blocks() -> onnx.ModelProto:
    """Return a shifted-window block: roll, windows, a bias by relative position, a mask, merge."""
    net, wide, height, width = Net(opset=12), 16, 8, 12
    x = net.input("features", [1, height, width, wide])
    rolled = roll(net, roll(net, net.layer_norm(x, wide), -2, 1), -2, 2)
    cut = windows(net, rolled, height, width, wide)
    rows, columns = np.divmod(np.arange(16), 4)
    relative = (rows[:, None] - rows + 3) * 7 + columns[:, None] - columns + 3
    picked = net.op("Gather", net.weight(49, 2, scale=1.0), net.constant(relative.reshape(-1)))
    bias = net.op("Reshape", picked, net.constant([16, 16, 2]))
    bias = net.op("Unsqueeze", net.op("Transpose", bias, perm=[2, 0, 1]), axes=[0])
    region = np.zeros((height, width), np.int64)
    region[-4:-2] += 3
    region[-2:] += 6
    region[:, -4:-2] += 1
    region[:, -2:] += 2
    lots = region.reshape(2, 4, 3, 4).transpose(0, 2, 1, 3).reshape(6, 16)
    apart = lots[:, :, None] != lots[:, None]
    mask = net.op("Where", net.constant(apart, bool), net.number(-100.0), net.number(0.0))
    mask = net.op("Add", bias, net.op("Unsqueeze", mask, axes=[1]))
    mixed = attention_fixed(net, cut, wide, mask)
    back = net.op("Reshape", mixed, net.constant([1, height // 4, width // 4, 4, 4, wide]))
    back = net.op("Transpose", back, perm=[0, 1, 3, 2, 4, 5])
    back = net.op("Reshape", back, net.constant([1, height, width, wide]))
    x = net.op("Add", x, roll(net, roll(net, back, 2, 1), 2, 2))
    # Merging of patches: every second row and column, joined along the channels.
    parts = [net.slice(net.slice(x, i, 2**63 - 1, 1, 2), j, 2**63 - 1, 2, 2) for j, i in QUARTERS]
    merged = net.op("Concat", *parts, axis=3)
    return net.model({"merged": net.linear(net.layer_norm(merged, 4 * wide), 4 * wide, 2 * wide)})


QUARTERS = ((0, 0), (0, 1), (1, 0), (1, 1))


def attention_fixed(net: Net, x: str, wide: int, mask: str) -> str:
    """Append attention of [6, 16, wide] with 2 heads and all sizes known, split by Split."""
    joined = net.op("Reshape", net.linear(x, wide, 3 * wide), net.constant([6, 16, 3, 2, 8]))
    parts = net.ops("Split", 3, net.op("Transpose", joined, perm=[2, 0, 3, 1, 4]), axis=0)
    query, key, value = (net.op("Squeeze", part, axes=[0]) for part in parts)
    query = net.op("Mul", query, net.number(8**-0.5))
    scores = net.op("MatMul", query, net.op("Transpose", key, perm=[0, 1, 3, 2]))
    mixed = net.op("MatMul", net.op("Softmax", net.op("Add", scores, mask), axis=-1), value)
    flat = net.op(
        "Reshape", net.op("Transpose", mixed, perm=[0, 2, 1, 3]), net.constant([6, 16, wide])
    )
    return net.linear(flat, wide, wide)


def masked_text() -> onnx.ModelProto:
    """Return a text encoder: embedding, positions by Range, a padding mask of integers, mean."""
    net, wide, heads = Net(opset=14), 16, 2
    ids = net.input("input_ids", ["batch", "tokens"], INT64)
    mask = net.input("attention_mask", ["batch", "tokens"], INT64)
    words = net.op("Gather", net.weight(50, wide, scale=1.0), ids)
    end = net.size_of(ids, 1)
    places = net.op("Range", net.constant(0), end, net.constant(1))
    places = net.op("Unsqueeze", places, net.constant([0]))
    x = net.op("Add", words, net.op("Gather", net.weight(32, wide, scale=1.0), places))
    ends = net.op("Unsqueeze", net.op("Unsqueeze", mask, net.constant([1])), net.constant([2]))
    real = net.op("Cast", ends, to=1)
    penalty = net.op("Mul", net.op("Sub", net.number(1.0), real), net.number(-3.4028e38))
    x = net.layer_norm(net.op("Add", x, attention(net, x, wide, heads, penalty)), wide)
    weights = net.op("Cast", net.op("Unsqueeze", mask, net.constant([-1])), to=1)
    weights = net.op("Expand", weights, net.op("Shape", x))
    total = net.op("ReduceSum", net.op("Mul", x, weights), net.constant([1]), keepdims=0)
    count = net.op("ReduceSum", weights, net.constant([1]), keepdims=0)
    mean = net.op("Div", total, net.op("Clip", count, net.number(1e-9)))
    length = net.op("ReduceL2", mean, axes=[1], keepdims=1)
    length = net.op("Expand", net.op("Clip", length, net.number(1e-12)), net.op("Shape", mean))
    return net.model({"embedding": net.op("Div", mean, length)})
