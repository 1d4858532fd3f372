"""ConvNeXt (arXiv:2201.03545) of the size "atto" at 224 x 224, as a benchmark.

A depthwise 7x7, layer norm over the channels, two 1x1 with GELU between them and a layer scale; the
norms transpose to channels last and back, as torch exports them. Patches of 4x4 in front, of 2x2
between the stages. Operators, parameters and multiply-adds are those of the published network.

    convnext  3.70 M parameters  1.09 GFLOP at 3 x 224 x 224
"""

from dataclasses import dataclass

import numpy as np
import onnx

from tools.example_models.fastvit import GELU_GAIN
from tools.example_models.graph import ConvSpec, GraphBuilder, Shape, Value


@dataclass(frozen=True, slots=True)
class ConvNeXtConfig:
    """Size of a ConvNeXt.

    Attributes:
        image: input shape; sides are multiples of 32.
        dims: channels of each stage; each stage halves the resolution of the one before.
        depths: blocks of each stage.
        classes: width of the output.
    """

    image: Shape = (1, 3, 224, 224)
    dims: tuple[int, ...] = (40, 80, 160, 320)
    depths: tuple[int, ...] = (2, 2, 6, 2)
    classes: int = 1000


def build_convnext(seed: int, config: ConvNeXtConfig | None = None) -> tuple[onnx.ModelProto, int]:
    """Return ConvNeXt-Atto and its multiply-adds per run.

    Input `image`: (1, 3, 224, 224) float32. Output `outputs`: (1, 1000) float32, logits.

    Args:
        seed: of all weights; equal seeds give equal bytes.
        config: the size.
    """
    config = config or ConvNeXtConfig()
    g = GraphBuilder("convnext", seed)
    x = g.input("image", config.image, onnx.TensorProto.FLOAT)
    with g.scope("stem.0"):
        x = g.conv(x, ConvSpec(config.dims[0], kernel=4, stride=4))
    x = _channel_norm(g, x, "stem.1")
    for index, (dim, depth) in enumerate(zip(config.dims, config.depths, strict=True)):
        with g.scope(f"stages.{index}"):
            if index:
                x = _channel_norm(g, x, "downsample.0")
                with g.scope("downsample.1"):
                    x = g.conv(x, ConvSpec(dim, kernel=2, stride=2))
            for block in range(depth):
                with g.scope(f"blocks.{block}"):
                    x = _block(g, x)
    x = g.flatten(_channel_norm(g, g.global_pool(x), "head.norm"))
    with g.scope("head.fc"):
        x = g.random_gemm(x, config.classes)
    metadata = {"model_checkpoint": f"example-convnext/seed-{seed}"}
    return g.finish({"outputs": x}, metadata), g.multiply_adds


def _channel_norm(g: GraphBuilder, x: Value, name: str) -> Value:
    """Append a layer norm over the channels of (1, C, H, W)."""
    with g.scope(name):
        return g.transpose(g.layer_norm(g.transpose(x, 0, 2, 3, 1), 1e-6), 0, 3, 1, 2)


def _block(g: GraphBuilder, x: Value) -> Value:
    dim = x.shape[1]
    with g.scope("conv_dw"):
        y = g.conv(x, ConvSpec(dim, kernel=7, groups=dim))
    y = _channel_norm(g, y, "norm")
    with g.scope("mlp.fc1"):
        y = g.gelu(g.conv(y, ConvSpec(4 * dim)))
    with g.scope("mlp.fc2"):
        y = g.conv(y, ConvSpec(dim, gain=GELU_GAIN))
    y = g.elementwise("Mul", y, g.weight("gamma", np.full((1, dim, 1, 1), 0.4)))
    return g.elementwise("Add", y, x)
