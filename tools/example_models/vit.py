"""ViT-Ti/16 (arXiv:2010.11929, arXiv:2012.12877) at 224 x 224, as a benchmark.

Patches of 16x16 and one token of the class, twelve pre-norm blocks of attention with three heads
and a feed-forward with GELU, as torch exports them with attention in its parts. Operators,
parameters and multiply-adds are those of the published network; arithmetic on shapes is folded.

    vit  5.72 M parameters  2.51 GFLOP at 3 x 224 x 224
"""

from dataclasses import dataclass

import numpy as np
import onnx

from tools.example_models.attention import add_attention, add_feed_forward, layer_norm
from tools.example_models.graph import ConvSpec, GraphBuilder, Shape


@dataclass(frozen=True, slots=True)
class ViTConfig:
    """Size of a ViT.

    Attributes:
        image: input shape; sides are multiples of 16.
        dim: width of a token.
        depth: blocks.
        heads: of attention.
        classes: width of the output.
    """

    image: Shape = (1, 3, 224, 224)
    dim: int = 192
    depth: int = 12
    heads: int = 3
    classes: int = 1000


def build_vit(seed: int, config: ViTConfig | None = None) -> tuple[onnx.ModelProto, int]:
    """Return ViT-Ti/16 and its multiply-adds per run.

    Input `image`: (1, 3, 224, 224) float32. Output `outputs`: (1, 1000) float32, logits.

    Args:
        seed: of all weights; equal seeds give equal bytes.
        config: the size; that of the papers by default.
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
