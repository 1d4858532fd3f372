"""Self-attention as torch exports it at opset 17: reshapes, transposes, two MatMuls, a Softmax."""

import math

import numpy as np

from tools.example_models.graph import GraphBuilder, Value


def attention(g: GraphBuilder, x: Value, heads: int) -> Value:
    """Append multi-head self-attention; all three projections are one MatMul.

    Args:
        g: the graph.
        x: (1, tokens, width) float32.
        heads: number of heads; they divide the width.

    Returns:
        (1, tokens, width).
    """
    _, tokens, width = x.shape
    size = width // heads
    with g.scope("qkv"):
        qkv = g.linear(x, 3 * width)
    qkv = g.node("Reshape", (qkv, g.ints(1, tokens, 3, heads, size)), (1, tokens, 3, heads, size))
    qkv = g.node("Transpose", (qkv,), (3, 1, heads, tokens, size), perm=[2, 0, 3, 1, 4])
    query, key, value = (
        g.node("Gather", (qkv, g.constant(np.int64(i))), (1, heads, tokens, size), axis=0)
        for i in range(3)
    )
    query = g.elementwise("Mul", query, g.scalar(1.0 / math.sqrt(size)))
    key = g.node("Transpose", (key,), (1, heads, size, tokens), perm=[0, 1, 3, 2])
    scores = g.node("MatMul", (query, key), (1, heads, tokens, tokens))
    weights = g.node("Softmax", (scores,), scores.shape, axis=-1)
    mixed = g.node("MatMul", (weights, value), (1, heads, tokens, size))
    g.multiply_adds += 2 * heads * tokens * tokens * size
    mixed = g.node("Transpose", (mixed,), (1, tokens, heads, size), perm=[0, 2, 1, 3])
    mixed = g.node("Reshape", (mixed, g.ints(1, tokens, width)), (1, tokens, width))
    with g.scope("proj"):
        return g.linear(mixed, width, gain=0.7)
