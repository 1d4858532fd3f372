"""Builds transformers as torch exports them at opset 17: shared blocks, ViT and Swin.

ViT and Swin are benchmarks for the compiler. The vision and policy models use the shared blocks.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray

from tools.example_models.graph import ConvSpec, GraphBuilder, Shape, Value

Function = Callable[[GraphBuilder, Value], Value]


def layer_norm(g: GraphBuilder, x: Value, name: str) -> Value:
    """Append LayerNormalization over the last axis, with weights under `name`."""
    with g.scope(name):
        return g.layer_norm(x)


def attention(
    g: GraphBuilder, x: Value, heads: int, biased: Function | None = None, *, unbound: bool = False
) -> Value:
    """Append multi-head self-attention, with query, key and value projections in one MatMul.

    `x` and the result are (batch, tokens, width) float32; `heads` divides the width. `biased`
    modifies the scores (batch, heads, tokens, tokens) before Softmax. If `unbound`, the projections
    are separated with Split and Squeeze, like torch's `unbind`; otherwise with Gather.
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
    """Append the attention half of a transformer block: x + attention(norm(x))."""
    y = layer_norm(g, x, "norm1")
    with g.scope("attn"):
        y = attention(g, y, heads, unbound=True)
    return g.elementwise("Add", x, y)


def add_feed_forward(
    g: GraphBuilder, x: Value, ratio: int, function: Function = GraphBuilder.gelu
) -> Value:
    """Append the other half: x + feed_forward(norm(x)); the hidden layer is `ratio` x as wide."""
    y = layer_norm(g, x, "norm2")
    with g.scope("mlp"):
        y = feed_forward(g, y, ratio * x.shape[-1], function)
    return g.elementwise("Add", x, y)


# --- ViT-Ti/16 (arXiv:2010.11929, arXiv:2012.12877) at 224 x 224, as a benchmark --------------
#
# 16x16 patches and one class token pass twelve pre-norm blocks. Each block has attention with three
# heads and a feed-forward with GELU; attention is exported as separate operators. Operators,
# parameters and multiply-adds equal those of the published network. Shape arithmetic is folded.
#
#     vit  5.72 M parameters  2.51 GFLOP at 3 x 224 x 224


@dataclass(frozen=True, slots=True)
class ViTConfig:
    """Size of a ViT; height and width of the image are multiples of 16."""

    image: Shape = (1, 3, 224, 224)
    dim: int = 192
    depth: int = 12
    heads: int = 3
    classes: int = 1000


def build_vit(seed: int, config: ViTConfig | None = None) -> tuple[onnx.ModelProto, int]:
    """Return ViT-Ti/16 and its multiply-adds per run.

    Input `image`: (1, 3, 224, 224) float32. Output `outputs`: (1, 1000) float32, logits.
    Equal seeds give equal bytes. The default size is that of the papers.
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
    return g.finish_benchmark({"outputs": x})


# --- Swin-T (arXiv:2103.14030) at 224 x 224, as a benchmark -----------------------------------
#
# Attention works within windows of 7x7 tokens, with a bias by relative position. Every other block
# shifts the windows cyclically by half their size; a mask separates tokens that were not adjacent
# before the shift. Channels are last, and 2x2 neighbors are merged between stages. Operators,
# parameters and multiply-adds are those of torch's export of the published network, except that
# shape arithmetic is folded, padding by zero is omitted, and the biases are already gathered from
# their tables, which adds 0.31 M parameters.
#
#     swin  28.60 M parameters  8.98 GFLOP at 3 x 224 x 224


@dataclass(frozen=True, slots=True)
class SwinConfig:
    """Size of a Swin transformer.

    `dim` and `heads` are the channels and heads of the first stage; both double with each stage.
    `window` divides height and width of every stage that is larger than a window.
    """

    image: Shape = (1, 3, 224, 224)
    dim: int = 96
    depths: tuple[int, ...] = (2, 2, 6, 2)
    heads: int = 3
    window: int = 7
    classes: int = 1000


def build_swin(seed: int, config: SwinConfig | None = None) -> tuple[onnx.ModelProto, int]:
    """Return Swin-T and its multiply-adds per run.

    Input `image`: (1, 3, 224, 224) float32. Output `outputs`: (1, 1000) float32, logits.
    Equal seeds give equal bytes. The default size is that of the paper.
    """
    config = config or SwinConfig()
    g = GraphBuilder("swin", seed)
    x = g.input("image", config.image, onnx.TensorProto.FLOAT)
    with g.scope("patch_embed.proj"):
        x = g.conv(x, ConvSpec(config.dim, kernel=4, stride=4))
    x = layer_norm(g, g.transpose(x, 0, 2, 3, 1), "patch_embed.norm")
    for stage, depth in enumerate(config.depths):
        with g.scope(f"layers.{stage}"):
            if stage:
                with g.scope("downsample"):
                    x = _merge(g, x)
            window = min(config.window, *x.shape[1:3])
            for block in range(depth):
                shift = window // 2 if block % 2 and window < min(x.shape[1:3]) else 0
                with g.scope(f"blocks.{block}"):
                    x = _block(g, x, config.heads * 2**stage, window, shift)
    x = layer_norm(g, x, "norm")
    x = g.node("ReduceMean", (x,), (1, x.shape[-1]), axes=[1, 2], keepdims=0)
    with g.scope("head.fc"):
        x = g.random_gemm(x, config.classes)
    return g.finish_benchmark({"outputs": x})


def _merge(g: GraphBuilder, x: Value) -> Value:
    """Merge 2x2 neighbors: (1, H, W, C) becomes (1, H / 2, W / 2, 2 C)."""
    _, height, width, channels = x.shape
    x = g.reshape(x, 1, height // 2, 2, width // 2, 2, channels)
    x = g.reshape(g.transpose(x, 0, 1, 3, 4, 2, 5), 1, height // 2, width // 2, 4 * channels)
    x = layer_norm(g, x, "norm")
    with g.scope("reduction"):
        return g.linear(x, 2 * channels, bias=False)


def _block(g: GraphBuilder, x: Value, heads: int, window: int, shift: int) -> Value:
    """Append windowed attention and a feed-forward to `x` (1, H, W, C)."""
    _, height, width, channels = x.shape
    rows, columns = height // window, width // window
    y = layer_norm(g, x, "norm1")
    if shift:
        y = _roll(g, _roll(g, y, -shift, 1), -shift, 2)
    y = g.transpose(g.reshape(y, 1, rows, window, columns, window, channels), 0, 1, 3, 2, 4, 5)
    y = g.reshape(y, rows * columns, window**2, channels)
    mask = _shift_mask(height, width, window, shift) if shift else None
    with g.scope("attn"):
        table = 0.5 * g.rng("relative_position_bias").standard_normal(
            (heads, (2 * window - 1) ** 2)
        )
        bias = g.weight("relative_position_bias", table[None, :, _relative(window)])

        def biased(g: GraphBuilder, scores: Value) -> Value:
            scores, shape = g.elementwise("Add", scores, bias), scores.shape
            if mask is None:
                return scores
            scores = g.elementwise("Add", g.reshape(scores, 1, *shape), g.constant(mask))
            return g.reshape(scores, *shape)

        y = attention(g, y, heads, biased, unbound=True)
    y = g.transpose(g.reshape(y, 1, rows, columns, window, window, channels), 0, 1, 3, 2, 4, 5)
    y = g.reshape(y, 1, height, width, channels)
    if shift:
        y = _roll(g, _roll(g, y, shift, 1), shift, 2)
    x = g.reshape(g.elementwise("Add", x, y), 1, height * width, channels)
    return g.reshape(add_feed_forward(g, x, 4), 1, height, width, channels)


def _roll(g: GraphBuilder, x: Value, shift: int, axis: int) -> Value:
    """Append torch's roll along an axis: two slices swap places."""
    size, cut = x.shape[axis], -shift % x.shape[axis]
    parts = []
    for start, end in ((cut, size), (0, cut)):
        shape = (*x.shape[:axis], end - start, *x.shape[axis + 1 :])
        parts.append(g.node("Slice", (x, g.ints(start), g.ints(end), g.ints(axis)), shape))
    return g.concat(parts, axis)


def _relative(window: int) -> NDArray[np.int64]:
    """Return (window^2, window^2) bias indices, equal for token pairs with equal displacement."""
    rows, columns = (a[:, None] - a + window - 1 for a in np.divmod(np.arange(window**2), window))
    found: NDArray[np.int64] = rows * (2 * window - 1) + columns
    return found


def _shift_mask(height: int, width: int, window: int, shift: int) -> NDArray[np.float32]:
    """Return the mask of a shifted block: -100 for token pairs that were apart before the shift.

    The shape is (1, windows, 1, window^2, window^2); other pairs have 0.
    """
    region = np.zeros((height, width), np.int64)
    for last in (window, shift):
        region[-last:] += 3
        region[:, -last:] += 1
    tiles = region.reshape(height // window, window, width // window, window)
    windows = tiles.transpose(0, 2, 1, 3).reshape(-1, window**2)
    apart = windows[:, :, None] != windows[:, None]
    return np.where(apart, np.float32(-100), np.float32(0))[None, :, None]
