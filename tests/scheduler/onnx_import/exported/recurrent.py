"""Recurrent heads over a history of features, as tracing exporters write them."""

from __future__ import annotations

import onnx

from tests.scheduler.onnx_import.exported.net import Net


def gru_head() -> onnx.ModelProto:
    """Return a GRU over 20 features, the last state and its mean in time through an MLP.

    The initial state is made from the batch size at run time, and the features come with the batch
    first, as of torch's `batch_first`.
    """
    net, wide, hidden = Net(opset=14), 24, 16
    x = net.input("features", ["batch", 20, wide])
    steps = net.op("Transpose", x, perm=[1, 0, 2])
    first = net.op("Expand", net.number(0.0), net.shape(1, net.size_of(x, 0), hidden))
    weights = net.weight(1, 3 * hidden, wide, scale=0.3), net.weight(1, 3 * hidden, hidden)
    bias = net.weight(1, 6 * hidden, scale=0.1)
    gru = net.ops(
        "GRU", 2, steps, *weights, bias, "", first, hidden_size=hidden, linear_before_reset=1
    )
    states = net.op("Transpose", net.op("Squeeze", gru[0], net.constant([1])), perm=[1, 0, 2])
    last = net.op("Gather", states, net.constant(-1), axis=1)
    mean = net.op("ReduceMean", states, axes=[1], keepdims=0)
    joined = net.op("Concat", last, mean, axis=1)
    inner = net.op("Relu", net.op("Gemm", joined, net.weight(32, 32), net.weight(32), transB=1))
    plan = net.op("Gemm", inner, net.weight(12, 32), net.weight(12), transB=1)
    return net.model({"plan": plan, "state": gru[1]})


def lstm_both_ways() -> onnx.ModelProto:
    """Return two layers of LSTM in both directions, states sliced out of one input."""
    net, wide, hidden = Net(opset=14), 12, 8
    x = net.input("features", [1, 9, wide])
    state, cell = net.input("h", [4, 1, hidden]), net.input("c", [4, 1, hidden])
    y = net.op("Transpose", x, perm=[1, 0, 2])
    finals = []
    for layer in range(2):
        lead = [net.slice(s, 2 * layer, 2 * layer + 2, 0) for s in (state, cell)]
        weight = net.weight(2, 4 * hidden, wide if layer == 0 else 2 * hidden, scale=0.3)
        recurrence = net.weight(2, 4 * hidden, hidden, scale=0.3)
        bias = net.weight(2, 8 * hidden, scale=0.1)
        got = net.ops(
            "LSTM",
            3,
            *(y, weight, recurrence, bias, "", *lead),
            hidden_size=hidden,
            direction="bidirectional",
        )
        # [steps, ways, batch, hidden] to [steps, batch, ways * hidden]
        y = net.op("Transpose", got[0], perm=[0, 2, 1, 3])
        y = net.op("Reshape", y, net.constant([0, 0, -1]))
        finals.append(got[1:])
    states, cells = (net.op("Concat", *parts, axis=0) for parts in zip(*finals, strict=True))
    out = net.linear(net.op("Transpose", y, perm=[1, 0, 2]), 2 * hidden, 5)
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
        now = net.op("Gather", x, net.constant(step), axis=1)
        new = net.ops("Split", 3, net.op("Gemm", now, weight, bias, transB=1), axis=1)
        old = net.ops("Split", 3, net.op("Gemm", state, recurrence, bias, transB=1), axis=1)
        reset = net.op("Sigmoid", net.op("Add", new[0], old[0]))
        keep = net.op("Sigmoid", net.op("Add", new[1], old[1]))
        fresh = net.op("Tanh", net.op("Add", new[2], net.op("Mul", reset, old[2])))
        moved = net.op("Mul", net.op("Sub", net.number(1.0), keep), fresh)
        state = net.op("Add", moved, net.op("Mul", keep, state))
        seen.append(net.op("Unsqueeze", state, net.constant([1])))
    return net.model({"states": net.op("Concat", *seen, axis=1)})
