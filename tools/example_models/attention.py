"""Transformers as torch exports them at opset 17: layer norm, self-attention, feed-forward."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx

from tools.example_models.graph import ConvSpec, GraphBuilder, Shape, Value

Function = Callable[[GraphBuilder, Value], Value]


def layer_norm(g: GraphBuilder, x: Value, name: str) -> Value:
    """Append LayerNormalization over the last axis, with weights under `name`."""
    with g.scope(name):
        return g.layer_norm(x)


def attention(
    g: GraphBuilder, x: Value, heads: int, biased: Function | None = None, *, unbound: bool = False
) -> Value:
    """Append multi-head self-attention; all three projections are one MatMul.

    From (batch, tokens, width) float32 to the same; `heads` divide the width. `biased` changes the
    scores (batch, heads, tokens, tokens) before Softmax. `unbound`: the projections are taken apart
    as by `unbind`, with Split and Squeeze; otherwise by indices, with Gather.
    """
    batch, tokens, width = x.shape
    size = width // heads
    with g.scope("qkv"):
        qkv = g.linear(x, 3 * width)
    qkv = g.transpose(g.reshape(qkv, batch, tokens, 3, heads, size), 2, 0, 3, 1, 4)
    apart = qkv.shape[1:]
    if unbound:
        ones = g.ints(1, 1, 1)
        parts = g.nodes("Split", (qkv, ones), [(1, *apart)] * 3, axis=0)
        query, key, value = (g.node("Squeeze", (part, g.ints(0)), apart) for part in parts)
    else:
        query, key, value = (
            g.node("Gather", (qkv, g.constant(np.int64(i))), apart, axis=0) for i in range(3)
        )
    query = g.elementwise("Mul", query, g.scalar(1.0 / math.sqrt(size)))
    key = g.transpose(key, 0, 1, 3, 2)
    scores = g.node("MatMul", (query, key), (batch, heads, tokens, tokens))
    if biased:
        scores = biased(g, scores)
    weights = g.node("Softmax", (scores,), scores.shape, axis=-1)
    mixed = g.node("MatMul", (weights, value), apart)
    g.multiply_adds += 2 * batch * heads * tokens * tokens * size
    mixed = g.reshape(g.transpose(mixed, 0, 2, 1, 3), batch, tokens, width)
    with g.scope("proj"):
        return g.linear(mixed, width, gain=0.7)


def feed_forward(
    g: GraphBuilder, x: Value, hidden: int, function: Function = GraphBuilder.gelu
) -> Value:
    """Append two linear layers over the last axis with `function` between them."""
    with g.scope("fc1"):
        y = function(g, g.linear(x, hidden))
    with g.scope("fc2"):
        return g.linear(y, x.shape[-1])


def add_attention(g: GraphBuilder, x: Value, heads: int) -> Value:
    """Append the first half of a transformer's block: x + attention(norm(x))."""
    y = layer_norm(g, x, "norm1")
    with g.scope("attn"):
        y = attention(g, y, heads, unbound=True)
    return g.elementwise("Add", x, y)


def add_feed_forward(
    g: GraphBuilder, x: Value, ratio: int, function: Function = GraphBuilder.gelu
) -> Value:
    """Append the second half: x + feed_forward(norm(x)), `ratio` times as wide inside."""
    y = layer_norm(g, x, "norm2")
    with g.scope("mlp"):
        y = feed_forward(g, y, ratio * x.shape[-1], function)
    return g.elementwise("Add", x, y)


# ----------------------------------------------------------------------------------------------
# ViT-Ti/16 (arXiv:2010.11929, arXiv:2012.12877) at 224 x 224, as a benchmark.
# Patches of 16x16 and one token of the class, twelve pre-norm blocks of attention with three heads
# and a feed-forward with GELU, as torch exports them with attention in its parts. Operators,
# parameters and multiply-adds are those of the published network; arithmetic on shapes is folded.
#
#     vit  5.72 M parameters  2.51 GFLOP at 3 x 224 x 224


@dataclass(frozen=True, slots=True)
class ViTConfig:
    """Size of a ViT; sides of the image are multiples of 16."""

    image: Shape = (1, 3, 224, 224)
    dim: int = 192
    depth: int = 12
    heads: int = 3
    classes: int = 1000


def build_vit(seed: int, config: ViTConfig | None = None) -> tuple[onnx.ModelProto, int]:
    """Return ViT-Ti/16 and its multiply-adds per run.

    Input `image`: (1, 3, 224, 224) float32. Output `outputs`: (1, 1000) float32, logits.

    Equal seeds give equal bytes; the size is that of the papers by default.
    """
    config = config or ViTConfig()
    g = GraphBuilder("vit", seed)
    x = g.input("image", config.image, onnx.TensorProto.FLOAT)
    with g.scope("patch_embed.proj"):
        x = g.conv(x, ConvSpec(config.dim, kernel=16, stride=16))
    _, dim, height, width = x.shape
    x = g.transpose(g.reshape(x, 1, dim, height * width), 0, 2, 1)
    x = g.concat((g.normal("cls_token", (1, 1, dim), 0.5), x), axis=1)
    x = g.elementwise("Add", x, g.normal("pos_embed", x.shape, 0.2))
    for block in range(config.depth):
        with g.scope(f"blocks.{block}"):
            x = add_feed_forward(g, add_attention(g, x, config.heads), 4)
    x = layer_norm(g, x, "norm")
    x = g.node("Gather", (x, g.constant(np.int64(0))), (1, dim), axis=1)
    with g.scope("head"):
        x = g.random_gemm(x, config.classes)
    metadata = {"model_checkpoint": f"example-vit/seed-{seed}"}
    return g.finish({"outputs": x}, metadata), g.multiply_adds
