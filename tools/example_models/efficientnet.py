"""EfficientNet-B2 (arXiv:1905.11946) with ELU instead of SiLU, as a benchmark.

Table 1 of the paper for B0, widths times 1.1 (multiples of 8), depths times 1.2 (rounded up):
inverted bottlenecks with 3x3 and 5x5 depthwise convolutions and squeeze-excite. The first
convolution sees the 12 channels of the driving model's input.

    efficientnet_b2_elu  9.08 M parameters  0.91 GFLOP at 12 x 128 x 256
"""

import math
from dataclasses import dataclass

import onnx

from tools.example_models.graph import ConvSpec, GraphBuilder, Shape
from tools.example_models.mobile import (
    ELU,
    SIGMOID,
    Bottleneck,
    SqueezeExcite,
    bottleneck,
    round_channels,
)

# B0: expansion, kernel, stride, channels, blocks.
STAGES = (
    (1, 3, 1, 16, 1),
    (6, 3, 2, 24, 2),
    (6, 5, 2, 40, 2),
    (6, 3, 2, 80, 3),
    (6, 5, 1, 112, 3),
    (6, 5, 2, 192, 4),
    (6, 3, 1, 320, 1),
)
B0_STEM, B0_LAST = 32, 1280


@dataclass(frozen=True, slots=True)
class EfficientNetConfig:
    """Size of an EfficientNet: factors of B0's channels and blocks."""

    image: Shape = (1, 12, 128, 256)
    width: float = 1.1
    depth: float = 1.2
    classes: int = 1000


def build_efficientnet_b2_elu(
    seed: int, config: EfficientNetConfig | None = None
) -> tuple[onnx.ModelProto, int]:
    """Return EfficientNet-B2 with ELU and its multiply-adds per run.

    Input `image`: (1, 12, 128, 256) float32. Output `outputs`: (1, 1000) float32, logits.

    Equal seeds give equal bytes; the size is B2's by default.
    """
    config = config or EfficientNetConfig()
    g = GraphBuilder("efficientnet_b2_elu", seed)
    x = g.input("image", config.image, onnx.TensorProto.FLOAT)
    with g.scope("stem"):
        x = ELU.apply(g, g.conv(x, ConvSpec(round_channels(B0_STEM * config.width), 3, 2)))
    for index, (expansion, kernel, stride, channels, blocks) in enumerate(STAGES):
        for block in range(math.ceil(blocks * config.depth)):
            entering = x.shape[1]
            spec = Bottleneck(
                kernel,
                1 if block else stride,
                entering * expansion,
                round_channels(channels * config.width),
                ELU,
                # A quarter of the channels that enter the block.
                SqueezeExcite(max(1, entering // 4), ELU, SIGMOID),
            )
            with g.scope(f"stages.{index}.{block}"):
                x = bottleneck(g, x, spec)
    with g.scope("head"):
        x = ELU.apply(g, g.conv(x, ConvSpec(round_channels(B0_LAST * config.width))))
    x = g.flatten(g.global_pool(x))
    with g.scope("classifier"):
        x = g.random_gemm(x, config.classes, gain=ELU.gain)
    metadata = {"model_checkpoint": f"example-efficientnet_b2_elu/seed-{seed}"}
    return g.finish({"outputs": x}, metadata), g.multiply_adds
