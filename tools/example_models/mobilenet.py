"""MobileNetV3-Large (arXiv:1905.02244, table 1) at 256 x 128, as a benchmark.

Inverted bottlenecks with 3x3 and 5x5 depthwise convolutions, ReLU in the early and hard-swish in
the later ones, squeeze-excite with a hard sigmoid.

    mobilenetv3_large  5.47 M parameters  0.29 GFLOP at 3 x 128 x 256
"""

from dataclasses import dataclass

import onnx

from tools.example_models.graph import ConvSpec, GraphBuilder, Shape
from tools.example_models.mobile import (
    HARD_SIGMOID,
    HARD_SWISH,
    RELU,
    Bottleneck,
    SqueezeExcite,
    bottleneck,
    round_channels,
)

# kernel, expanded channels, channels, squeeze-excite, hard-swish, stride.
BLOCKS = (
    (3, 16, 16, False, False, 1),
    (3, 64, 24, False, False, 2),
    (3, 72, 24, False, False, 1),
    (5, 72, 40, True, False, 2),
    (5, 120, 40, True, False, 1),
    (5, 120, 40, True, False, 1),
    (3, 240, 80, False, True, 2),
    (3, 200, 80, False, True, 1),
    (3, 184, 80, False, True, 1),
    (3, 184, 80, False, True, 1),
    (3, 480, 112, True, True, 1),
    (3, 672, 112, True, True, 1),
    (5, 672, 160, True, True, 2),
    (5, 960, 160, True, True, 1),
    (5, 960, 160, True, True, 1),
)
STEM, LAST, CLASSIFIER = 16, 960, 1280


@dataclass(frozen=True, slots=True)
class MobileNetConfig:
    """Size of a MobileNetV3-Large.

    Attributes:
        image: input shape.
        width: factor of the paper's channels.
        classes: width of the output.
    """

    image: Shape = (1, 3, 128, 256)
    width: float = 1.0
    classes: int = 1000


def build_mobilenetv3_large(
    seed: int, config: MobileNetConfig | None = None
) -> tuple[onnx.ModelProto, int]:
    """Return MobileNetV3-Large and its multiply-adds per run.

    Input `image`: (1, 3, 128, 256) float32. Output `outputs`: (1, 1000) float32, logits.

    Args:
        seed: of all weights; equal seeds give equal bytes.
        config: the size; the paper's by default.
    """
    config = config or MobileNetConfig()
    g = GraphBuilder("mobilenetv3_large", seed)
    x = g.input("image", config.image, onnx.TensorProto.FLOAT)
    with g.scope("stem"):
        x = HARD_SWISH.apply(g, g.conv(x, ConvSpec(round_channels(STEM * config.width), 3, 2)))
    for index, (kernel, expanded, channels, squeeze, hard_swish, stride) in enumerate(BLOCKS):
        inner = round_channels(expanded * config.width)
        spec = Bottleneck(
            kernel,
            stride,
            inner,
            round_channels(channels * config.width),
            HARD_SWISH if hard_swish else RELU,
            SqueezeExcite(round_channels(inner // 4), RELU, HARD_SIGMOID) if squeeze else None,
        )
        with g.scope(f"blocks.{index}"):
            x = bottleneck(g, x, spec)
    with g.scope("head"):
        x = HARD_SWISH.apply(g, g.conv(x, ConvSpec(round_channels(LAST * config.width))))
    x = g.flatten(g.global_pool(x))
    with g.scope("classifier.0"):
        width = round_channels(CLASSIFIER * config.width)
        x = HARD_SWISH.apply(g, g.random_gemm(x, width, gain=HARD_SWISH.gain))
    with g.scope("classifier.1"):
        x = g.random_gemm(x, config.classes, gain=HARD_SWISH.gain)
    metadata = {"model_checkpoint": f"example-mobilenetv3_large/seed-{seed}"}
    return g.finish({"outputs": x}, metadata), g.multiply_adds
