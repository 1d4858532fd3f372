"""Networks as exporters write them: convolutions, recurrent heads, transformers.

A detector; channels last; int8; a GRU; ViT, shifted windows, text.
"""

import numpy as np
import onnx
from onnx import TensorProto

from tests.scheduler.onnx_import.exported.net import Net

END = 2**63 - 1
DOUBLED = {
    "mode": "nearest",
    "nearest_mode": "floor",
    "coordinate_transformation_mode": "asymmetric",
}


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


def gru_head() -> onnx.ModelProto:
    """Return a GRU over 20 features, the last state and its mean in time through an MLP.

    The initial state is made from the batch size at run time, and the features come with the batch
    first, as of torch's `batch_first`.
    """
    net, wide, hidden = Net(opset=14), 24, 16
    x = net.input("features", ["batch", 20, wide])
    steps = net.Transpose(x, perm=[1, 0, 2])
    first = net.Expand(0.0, net.shape(1, net.size_of(x, 0), hidden))
    weights = net.weight(1, 3 * hidden, wide, scale=0.3), net.weight(1, 3 * hidden, hidden)
    bias = net.weight(1, 6 * hidden, scale=0.1)
    how = {"hidden_size": hidden, "linear_before_reset": 1}
    gru = net.ops("GRU", 2, steps, *weights, bias, "", first, **how)
    states = net.Transpose(net.Squeeze(gru[0], [1]), perm=[1, 0, 2])
    last = net.Gather(states, -1, axis=1)
    mean = net.ReduceMean(states, axes=[1], keepdims=0)
    inner = net.Relu(net.dense(net.Concat(last, mean, axis=1), 32, 32))
    return net.model({"plan": net.dense(inner, 32, 12), "state": gru[1]})


def attention(net: Net, x: str, wide: int, heads: int, mask: str | None = None) -> str:
    """Append self-attention of [B, N, wide] with one product for query, key and value.

    The result of the product is reshaped by sizes read from it at run time, and split by Gather.
    """
    batch, tokens = net.size_of(x, 0), net.size_of(x, 1)
    head = net.Div(net.size_of(x, 2), heads)
    joined = net.linear(x, wide, 3 * wide)
    apart = net.Reshape(joined, net.shape(batch, tokens, 3, heads, head))
    first = net.Transpose(apart, perm=[2, 0, 3, 1, 4])
    query, key, value = (net.Gather(first, i, axis=0) for i in range(3))
    scores = net.MatMul(query, net.Transpose(key, perm=[0, 1, 3, 2]))
    scores = net.Div(scores, net.Sqrt(net.Cast(head, to=1)))
    if mask is not None:
        scores = net.Add(scores, mask)
    mixed = net.MatMul(net.Softmax(scores, axis=-1), value)
    together = net.Transpose(mixed, perm=[0, 2, 1, 3])
    flat = net.Reshape(together, net.shape(batch, tokens, wide))
    return net.linear(flat, wide, wide)


def block(net: Net, x: str, wide: int, heads: int) -> str:
    """Append a pre-norm block of attention and two linear layers."""
    x = net.Add(x, attention(net, net.layer_norm(x, wide), wide, heads))
    hidden = net.gelu(net.linear(net.layer_norm(x, wide), wide, 2 * wide))
    return net.Add(x, net.linear(hidden, 2 * wide, wide))


def vit_tiny() -> onnx.ModelProto:
    """Return a ViT: patches, class token expanded to the batch, positions, two blocks."""
    net, wide = Net(opset=14), 24
    x = net.input("pixels", ["batch", 3, 16, 24])
    weight, bias = net.weight(wide, 3, 8, 8), net.weight(wide, scale=0.1)
    patches = net.Conv(x, weight, bias, kernel_shape=[8, 8], strides=[8, 8])
    lead = net.Slice(net.Shape(patches), [0], [2], [0])
    flat = net.Reshape(patches, net.Concat(lead, [-1], axis=0))
    tokens = net.Transpose(flat, perm=[0, 2, 1])
    # torch's expand(batch, -1, -1): -1 becomes 1 by ConstantOfShape, Mul, Equal and Where.
    wanted = net.shape(net.size_of(tokens, 0), -1, -1)
    ones = net.ConstantOfShape([3], value=onnx.numpy_helper.from_array(np.array([1], np.int64)))
    sizes = net.Where(net.Equal(wanted, net.Mul(ones, -1)), ones, wanted)
    token = net.Expand(net.weight(1, 1, wide, scale=1.0), sizes)
    x = net.Concat(token, tokens, axis=1)
    x = net.Add(x, net.weight(1, 7, wide, scale=0.5))
    for _ in range(2):
        x = block(net, x, wide, 3)
    first = net.Gather(net.layer_norm(x, wide), 0, axis=1)
    return net.model({"logits": net.dense(first, wide, 10, scale=0.1)})


def roll(net: Net, x: str, shift: int, axis: int) -> str:
    """Append torch.roll: two slices joined the other way round."""
    return net.Concat(net.slice(x, -shift, END, axis), net.slice(x, 0, -shift, axis), axis=axis)


def windows(net: Net, x: str, height: int, width: int, wide: int) -> str:
    """Append the cut of [1, height, width, wide] into windows of 4 x 4: [windows, 16, wide]."""
    cut = [1, height // 4, 4, width // 4, 4, wide]
    apart = net.Transpose(net.Reshape(x, cut), perm=[0, 1, 3, 2, 4, 5])
    return net.Reshape(apart, [-1, 16, wide])


def swin_blocks() -> onnx.ModelProto:
    """Return a shifted-window block: roll, windows, a bias by relative position, a mask, merge."""
    net, wide, height, width = Net(opset=12), 16, 8, 12
    x = net.input("features", [1, height, width, wide])
    rolled = roll(net, roll(net, net.layer_norm(x, wide), -2, 1), -2, 2)
    cut = windows(net, rolled, height, width, wide)
    rows, columns = np.divmod(np.arange(16), 4)
    relative = (rows[:, None] - rows + 3) * 7 + columns[:, None] - columns + 3
    picked = net.Gather(net.weight(49, 2, scale=1.0), relative.reshape(-1))
    bias = net.Reshape(picked, [16, 16, 2])
    bias = net.Unsqueeze(net.Transpose(bias, perm=[2, 0, 1]), axes=[0])
    region = np.zeros((height, width), np.int64)
    for last in (4, 2):
        region[-last:] += 3
        region[:, -last:] += 1
    lots = region.reshape(2, 4, 3, 4).transpose(0, 2, 1, 3).reshape(6, 16)
    apart = lots[:, :, None] != lots[:, None]
    mask = net.Where(apart, -100.0, 0.0)
    mask = net.Add(bias, net.Unsqueeze(mask, axes=[1]))
    mixed = attention_fixed(net, cut, wide, mask)
    back = net.Reshape(mixed, [1, height // 4, width // 4, 4, 4, wide])
    back = net.Transpose(back, perm=[0, 1, 3, 2, 4, 5])
    back = net.Reshape(back, [1, height, width, wide])
    x = net.Add(x, roll(net, roll(net, back, 2, 1), 2, 2))
    # Merging of patches: every second row and column, joined along the channels.
    parts = [net.slice(net.slice(x, i, END, 1, 2), j, END, 2, 2) for j in (0, 1) for i in (0, 1)]
    merged = net.Concat(*parts, axis=3)
    return net.model({"merged": net.linear(net.layer_norm(merged, 4 * wide), 4 * wide, 2 * wide)})


def attention_fixed(net: Net, x: str, wide: int, mask: str) -> str:
    """Append attention of [6, 16, wide] with 2 heads and all sizes known, split by Split."""
    joined = net.Reshape(net.linear(x, wide, 3 * wide), [6, 16, 3, 2, 8])
    parts = net.ops("Split", 3, net.Transpose(joined, perm=[2, 0, 3, 1, 4]), axis=0)
    query, key, value = (net.Squeeze(part, axes=[0]) for part in parts)
    query = net.Mul(query, 8**-0.5)
    scores = net.MatMul(query, net.Transpose(key, perm=[0, 1, 3, 2]))
    mixed = net.MatMul(net.Softmax(net.Add(scores, mask), axis=-1), value)
    flat = net.Reshape(net.Transpose(mixed, perm=[0, 2, 1, 3]), [6, 16, wide])
    return net.linear(flat, wide, wide)


def masked_text() -> onnx.ModelProto:
    """Return a text encoder: embedding, positions by Range, a padding mask of integers, mean."""
    net, wide, heads = Net(opset=14), 16, 2
    ids = net.input("input_ids", ["batch", "tokens"], np.int64)
    mask = net.input("attention_mask", ["batch", "tokens"], np.int64)
    words = net.Gather(net.weight(50, wide, scale=1.0), ids)
    end = net.size_of(ids, 1)
    places = net.Unsqueeze(net.Range(0, end, 1), [0])
    x = net.Add(words, net.Gather(net.weight(32, wide, scale=1.0), places))
    real = net.Cast(net.Unsqueeze(net.Unsqueeze(mask, [1]), [2]), to=1)
    penalty = net.Mul(net.Sub(1.0, real), -3.4028e38)
    x = net.layer_norm(net.Add(x, attention(net, x, wide, heads, penalty)), wide)
    weights = net.Expand(net.Cast(net.Unsqueeze(mask, [-1]), to=1), net.Shape(x))
    total = net.ReduceSum(net.Mul(x, weights), [1], keepdims=0)
    count = net.ReduceSum(weights, [1], keepdims=0)
    mean = net.Div(total, net.Clip(count, 1e-9))
    length = net.ReduceL2(mean, axes=[1], keepdims=1)
    length = net.Expand(net.Clip(length, 1e-12), net.Shape(mean))
    return net.model({"embedding": net.Div(mean, length)})
