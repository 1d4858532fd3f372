"""MobileViT-S (arXiv:2110.02178, table 4) at 256 x 256, as a benchmark.

Inverted bottlenecks with SiLU and, in the last three stages, transformers over tokens that lie at
the same place of each 2x2 patch, between convolutions. Operators, parameters and multiply-adds are
those of the published network as torch exports it, with batch-norm folded.

    mobilevit  5.57 M parameters  4.00 GFLOP at 3 x 256 x 256
"""

from dataclasses import dataclass

import onnx

from tools.example_models.attention import add_attention, add_feed_forward, layer_norm
from tools.example_models.graph import ConvSpec, GraphBuilder, Shape, Value
from tools.example_models.mobile import SILU, Bottleneck, bottleneck

PATCH = 2


@dataclass(frozen=True, slots=True)
class MobileViTConfig:
    """Size of a MobileViT.

    Sides of the image are multiples of 64. `stages` are channels, bottlenecks, width of a token and
    layers of each stage's transformer (0: none); the first keeps the resolution. `last` channels
    precede the pooling.
    """

    image: Shape = (1, 3, 256, 256)
    stem: int = 16
    stages: tuple[tuple[int, int, int, int], ...] = (
        (32, 1, 0, 0),
        (64, 3, 0, 0),
        (96, 1, 144, 2),
        (128, 1, 192, 4),
        (160, 1, 240, 3),
    )
    heads: int = 4
    last: int = 640
    classes: int = 1000


def build_mobilevit(
    seed: int, config: MobileViTConfig | None = None
) -> tuple[onnx.ModelProto, int]:
    """Return MobileViT-S and its multiply-adds per run.

    Input `image`: (1, 3, 256, 256) float32. Output `outputs`: (1, 1000) float32, logits.

    Equal seeds give equal bytes; the size is that of the paper by default.
    """
    config = config or MobileViTConfig()
    g = GraphBuilder("mobilevit", seed)
    x = g.input("image", config.image, onnx.TensorProto.FLOAT)
    x = _convolve(g, x, "stem", ConvSpec(config.stem, 3, 2))
    for stage, (channels, bottlenecks, dim, layers) in enumerate(config.stages):
        for index in range(bottlenecks):
            stride = 2 if stage and not index else 1
            spec = Bottleneck(3, stride, 4 * x.shape[1], channels, SILU, None)
            with g.scope(f"stages.{stage}.{index}"):
                x = bottleneck(g, x, spec)
        if layers:
            with g.scope(f"stages.{stage}.{bottlenecks}"):
                x = _mobilevit_block(g, x, dim, layers, config.heads)
    x = _convolve(g, x, "final_conv", ConvSpec(config.last, gain=SILU.gain))
    x = g.flatten(g.global_pool(x))
    with g.scope("head.fc"):
        x = g.random_gemm(x, config.classes, gain=2 * SILU.gain)
    metadata = {"model_checkpoint": f"example-mobilevit/seed-{seed}"}
    return g.finish({"outputs": x}, metadata), g.multiply_adds


def _convolve(g: GraphBuilder, x: Value, name: str, spec: ConvSpec) -> Value:
    with g.scope(name):
        return SILU.apply(g, g.conv(x, spec))


def _mobilevit_block(g: GraphBuilder, x: Value, dim: int, layers: int, heads: int) -> Value:
    """Append convolutions, a transformer over (places in a patch, patches, dim), convolutions."""
    _, channels, height, width = x.shape
    rows, columns, places = height // PATCH, width // PATCH, PATCH**2
    y = _convolve(g, x, "conv_kxk", ConvSpec(channels, 3))
    with g.scope("conv_1x1"):
        y = g.conv(y, ConvSpec(dim, gain=SILU.gain, bias=False))
    y = g.transpose(g.reshape(y, dim * rows, PATCH, columns, PATCH), 0, 2, 1, 3)
    y = g.transpose(g.reshape(y, 1, dim, rows * columns, places), 0, 3, 2, 1)
    y = g.reshape(y, places, rows * columns, dim)
    for layer in range(layers):
        with g.scope(f"transformer.{layer}"):
            y = add_feed_forward(g, add_attention(g, y, heads), 2, SILU.apply)
    y = g.reshape(layer_norm(g, y, "norm"), 1, places, rows * columns, dim)
    y = g.reshape(g.transpose(y, 0, 3, 2, 1), dim * rows, columns, PATCH, PATCH)
    y = g.reshape(g.transpose(y, 0, 2, 1, 3), 1, dim, height, width)
    y = _convolve(g, y, "conv_proj", ConvSpec(channels))
    y = g.concat((x, y), axis=1)
    return _convolve(g, y, "conv_fusion", ConvSpec(channels, 3, gain=1.3))
