"""Recurrent heads as tracing exporters write them; transformers: ViT, shifted windows, text."""

from __future__ import annotations

import numpy as np
import onnx

from tests.scheduler.onnx_import.exported.net import Net

END = 2**63 - 1


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


def lstm_both_ways() -> onnx.ModelProto:
    """Return two layers of LSTM in both directions, states sliced out of one input."""
    net, wide, hidden = Net(opset=14), 12, 8
    x = net.input("features", [1, 9, wide])
    state, cell = net.input("h", [4, 1, hidden]), net.input("c", [4, 1, hidden])
    y = net.Transpose(x, perm=[1, 0, 2])
    finals = []
    for layer in range(2):
        lead = [net.slice(s, 2 * layer, 2 * layer + 2, 0) for s in (state, cell)]
        weight = net.weight(2, 4 * hidden, wide if layer == 0 else 2 * hidden, scale=0.3)
        recurrence = net.weight(2, 4 * hidden, hidden, scale=0.3)
        bias = net.weight(2, 8 * hidden, scale=0.1)
        how = {"hidden_size": hidden, "direction": "bidirectional"}
        got = net.ops("LSTM", 3, y, weight, recurrence, bias, "", *lead, **how)
        # [steps, ways, batch, hidden] to [steps, batch, ways * hidden]
        y = net.Reshape(net.Transpose(got[0], perm=[0, 2, 1, 3]), [0, 0, -1])
        finals.append(got[1:])
    states, cells = (net.Concat(*parts, axis=0) for parts in zip(*finals, strict=True))
    out = net.linear(net.Transpose(y, perm=[1, 0, 2]), 2 * hidden, 5)
    return net.model({"y": out, "h_n": states, "c_n": cells})


def unrolled_cell() -> onnx.ModelProto:
    """Return four steps of a GRU cell written out, as a loop in Python is traced."""
    net, wide, hidden = Net(), 6, 8
    x = net.input("features", [2, 4, wide])
    state = net.input("state", [2, hidden])
    weight, recurrence = net.weight(3 * hidden, wide), net.weight(3 * hidden, hidden)
    bias = net.weight(3 * hidden, scale=0.1)
    seen = []
    for step in range(4):
        now = net.Gather(x, step, axis=1)
        new = net.ops("Split", 3, net.Gemm(now, weight, bias, transB=1), axis=1)
        old = net.ops("Split", 3, net.Gemm(state, recurrence, bias, transB=1), axis=1)
        reset = net.Sigmoid(net.Add(new[0], old[0]))
        keep = net.Sigmoid(net.Add(new[1], old[1]))
        fresh = net.Tanh(net.Add(new[2], net.Mul(reset, old[2])))
        moved = net.Mul(net.Sub(1.0, keep), fresh)
        state = net.Add(moved, net.Mul(keep, state))
        seen.append(net.Unsqueeze(state, [1]))
    return net.model({"states": net.Concat(*seen, axis=1)})


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
