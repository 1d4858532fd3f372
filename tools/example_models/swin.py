"""Swin-T (arXiv:2103.14030) at 224 x 224, as a benchmark.

Attention within windows of 7x7, with a bias by relative position; in every other block the windows
are shifted by half their size, cyclically, and a mask keeps apart what was not together. Channels
come last, four neighbours are merged between the stages. Operators, parameters and multiply-adds
are those of the published network as torch exports it; arithmetic on shapes is folded, padding by
nothing left out, and the biases are gathered from their tables, which makes 0.31 M more of them.

    swin  28.60 M parameters  8.98 GFLOP at 3 x 224 x 224
"""

from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray

from tools.example_models.attention import add_feed_forward, attention, layer_norm
from tools.example_models.graph import ConvSpec, GraphBuilder, Shape, Value


@dataclass(frozen=True, slots=True)
class SwinConfig:
    """Size of a Swin transformer.

    `dim` channels and `heads` are those of the first stage; both double from stage to stage. The
    window's side divides the sides of every stage that are longer.
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

    Equal seeds give equal bytes; the size is that of the paper by default.
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
    metadata = {"model_checkpoint": f"example-swin/seed-{seed}"}
    return g.finish({"outputs": x}, metadata), g.multiply_adds


def _merge(g: GraphBuilder, x: Value) -> Value:
    """Append the merging of 2x2 neighbours: (1, H, W, C) becomes (1, H / 2, W / 2, 2 C)."""
    _, height, width, channels = x.shape
    x = g.reshape(x, 1, height // 2, 2, width // 2, 2, channels)
    x = g.reshape(g.transpose(x, 0, 1, 3, 4, 2, 5), 1, height // 2, width // 2, 4 * channels)
    x = layer_norm(g, x, "norm")
    with g.scope("reduction"):
        return g.linear(x, 2 * channels, bias=False)


def _block(g: GraphBuilder, x: Value, heads: int, window: int, shift: int) -> Value:
    """Append attention within windows and a feed-forward to (1, H, W, C)."""
    _, height, width, channels = x.shape
    rows, columns = height // window, width // window
    y = layer_norm(g, x, "norm1")
    if shift:
        y = _roll(g, _roll(g, y, -shift, 1), -shift, 2)
    y = g.transpose(g.reshape(y, 1, rows, window, columns, window, channels), 0, 1, 3, 2, 4, 5)
    y = g.reshape(y, rows * columns, window**2, channels)
    mask = _mask(height, width, window, shift) if shift else None
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
    """Append torch's roll: two slices change places."""
    size, cut = x.shape[axis], -shift % x.shape[axis]
    parts = []
    for start, end in ((cut, size), (0, cut)):
        shape = (*x.shape[:axis], end - start, *x.shape[axis + 1 :])
        parts.append(g.node("Slice", (x, g.ints(start), g.ints(end), g.ints(axis)), shape))
    return g.concat(parts, axis)


def _relative(window: int) -> NDArray[np.int64]:
    """Return (window^2, window^2) indices, equal for pairs that lie equally to each other."""
    rows, columns = (a[:, None] - a + window - 1 for a in np.divmod(np.arange(window**2), window))
    found: NDArray[np.int64] = rows * (2 * window - 1) + columns
    return found


def _mask(height: int, width: int, window: int, shift: int) -> NDArray[np.float32]:
    """Return (1, windows, 1, window^2, window^2): -100 for pairs that were not neighbours."""
    region = np.zeros((height, width), np.int64)
    for last in (window, shift):
        region[-last:] += 3
        region[:, -last:] += 1
    tiles = region.reshape(height // window, window, width // window, window)
    lots = tiles.transpose(0, 2, 1, 3).reshape(-1, window**2)
    apart = lots[:, :, None] != lots[:, None]
    return np.where(apart, np.float32(-100), np.float32(0))[None, :, None]
