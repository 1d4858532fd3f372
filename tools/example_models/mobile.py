"""Builds MobileNetV3, EfficientNet and MobileViT, networks of inverted bottlenecks, as benchmarks.

All follow their papers in inference form: batch-norm is folded into the preceding convolution. The
shared blocks come first. An inverted bottleneck widens the channels with a 1x1 convolution,
convolves each channel separately (depthwise), and narrows them again.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import onnx

from tools.example_models.attention import add_attention, add_feed_forward, layer_norm
from tools.example_models.graph import ConvSpec, GraphBuilder, Shape, Value

Function = Callable[[GraphBuilder, Value], Value]

# Gain of a residual branch: sixteen branches at most quadruple the variance.
BRANCH_GAIN = 0.3
# Inverse of a squeeze-excite gate, which is about 0.5 in a random network.
GATE_GAIN = 2.0


@dataclass(frozen=True, slots=True)
class Nonlinearity:
    """An activation, with the gain that restores the second moment of a unit normal."""

    apply: Function
    gain: float


def _elu(g: GraphBuilder, x: Value) -> Value:
    return g.node("Elu", (x,), x.shape, alpha=1.0)


def _hard_sigmoid(g: GraphBuilder, x: Value) -> Value:
    return g.node("HardSigmoid", (x,), x.shape, alpha=1.0 / 6.0, beta=0.5)


def _op(op_type: str) -> Function:
    return lambda g, x: g.elementwise(op_type, x)


def _silu(g: GraphBuilder, x: Value) -> Value:
    return g.elementwise("Mul", x, g.elementwise("Sigmoid", x))


# Second moments for x ~ N(0, 1): ELU 1/2 + E[(e^x - 1)^2, x < 0] = 0.645, ReLU 1/2,
# hard-swish (ignoring its clamps) E[(x^2/6 + x/2)^2] = 3/36 + 1/4 = 1/3, SiLU 0.356.
ELU = Nonlinearity(_elu, 1.0 / math.sqrt(0.645))
RELU = Nonlinearity(_op("Relu"), math.sqrt(2.0))
HARD_SWISH = Nonlinearity(_op("HardSwish"), math.sqrt(3.0))
SILU = Nonlinearity(_silu, 1.0 / math.sqrt(0.356))
SIGMOID = _op("Sigmoid")
HARD_SIGMOID: Function = _hard_sigmoid


@dataclass(frozen=True, slots=True)
class SqueezeExcite:
    """Channel attention: a 1x1 convolution, `inner`, a 1x1 convolution and the function `gate`.

    `channels` is the width between the two convolutions.
    """

    channels: int
    inner: Nonlinearity
    gate: Function


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """An inverted bottleneck: widening 1x1, depthwise, squeeze-excite, narrowing 1x1.

    `kernel`, `stride` and `expanded` (channels) describe the depthwise convolution; `channels` are
    the output channels. The nonlinearity follows the first two convolutions.
    """

    kernel: int
    stride: int
    expanded: int
    channels: int
    nonlinearity: Nonlinearity
    squeeze: SqueezeExcite | None


def bottleneck(g: GraphBuilder, x: Value, spec: Bottleneck) -> Value:
    """Append an inverted bottleneck; the input is added if input and output have the same shape.

    `x` is (1, C, H, W) float32. If `expanded` equals C, the widening 1x1 is omitted.
    """
    function = spec.nonlinearity
    y = x
    if spec.expanded != x.shape[1]:
        with g.scope("expand"):
            y = function.apply(g, g.conv(y, ConvSpec(spec.expanded)))
    with g.scope("depthwise"):
        conv = ConvSpec(
            spec.expanded, spec.kernel, spec.stride, groups=spec.expanded, gain=function.gain
        )
        y = function.apply(g, g.conv(y, conv))
    gain = function.gain
    if spec.squeeze:
        gain *= GATE_GAIN
        with g.scope("se"):
            y = squeeze_excite(g, y, spec.squeeze)
    same = spec.stride == 1 and spec.channels == x.shape[1]
    with g.scope("project"):
        y = g.conv(y, ConvSpec(spec.channels, gain=gain * (BRANCH_GAIN if same else 1.0)))
    return g.elementwise("Add", y, x) if same else y


def squeeze_excite(g: GraphBuilder, x: Value, spec: SqueezeExcite) -> Value:
    """Append squeeze-excite, which scales each channel by a function of all channels' means."""
    y = g.global_pool(x)
    with g.scope("fc1"):
        y = spec.inner.apply(g, g.conv(y, ConvSpec(spec.channels)))
    with g.scope("fc2"):
        y = spec.gate(g, g.conv(y, ConvSpec(x.shape[1], gain=spec.inner.gain)))
    return g.elementwise("Mul", x, y)


def round_channels(channels: float) -> int:
    """Round to a multiple of 8, at least 8 and never below 90 %, as the papers do."""
    rounded = max(8, int(channels + 4) // 8 * 8)
    return rounded if rounded >= 0.9 * channels else rounded + 8


# --- MobileNetV3-Large (arXiv:1905.02244, table 1) at 256 x 128, as a benchmark ---------------
#
# Inverted bottlenecks with 3x3 and 5x5 depthwise convolutions and squeeze-excite with a hard
# sigmoid. Early blocks use ReLU, later ones hard-swish.
#
#     mobilenetv3_large  5.47 M parameters  0.29 GFLOP at 3 x 128 x 256

# Kernel, expanded channels, output channels, squeeze-excite, hard-swish, stride.
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
    """Size of a MobileNetV3-Large; `width` multiplies the paper's channel counts."""

    image: Shape = (1, 3, 128, 256)
    width: float = 1.0
    classes: int = 1000


def build_mobilenetv3_large(
    seed: int, config: MobileNetConfig | None = None
) -> tuple[onnx.ModelProto, int]:
    """Return MobileNetV3-Large and its multiply-adds per run.

    Input `image`: (1, 3, 128, 256) float32. Output `outputs`: (1, 1000) float32, logits.
    Equal seeds give equal bytes. The default size is the paper's.
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
    return g.finish_benchmark({"outputs": x})


# --- EfficientNet-B2 (arXiv:1905.11946) with ELU instead of SiLU, as a benchmark --------------
#
# Table 1 of the paper describes B0. B2 has its widths times 1.1 (multiples of 8) and its depths
# times 1.2 (rounded up): inverted bottlenecks with 3x3 and 5x5 depthwise convolutions and
# squeeze-excite. The first convolution reads the 12 channels of the driving model's input.
#
#     efficientnet_b2_elu  9.08 M parameters  0.91 GFLOP at 12 x 128 x 256

# B0: expansion, kernel, stride, output channels, number of blocks.
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
    """Size of an EfficientNet; `width` and `depth` multiply B0's channels and blocks."""

    image: Shape = (1, 12, 128, 256)
    width: float = 1.1
    depth: float = 1.2
    classes: int = 1000


def build_efficientnet_b2_elu(
    seed: int, config: EfficientNetConfig | None = None
) -> tuple[onnx.ModelProto, int]:
    """Return EfficientNet-B2 with ELU and its multiply-adds per run.

    Input `image`: (1, 12, 128, 256) float32. Output `outputs`: (1, 1000) float32, logits.
    Equal seeds give equal bytes. The default size is B2's.
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
                # A quarter of the block's input channels.
                SqueezeExcite(max(1, entering // 4), ELU, SIGMOID),
            )
            with g.scope(f"stages.{index}.{block}"):
                x = bottleneck(g, x, spec)
    with g.scope("head"):
        x = ELU.apply(g, g.conv(x, ConvSpec(round_channels(B0_LAST * config.width))))
    x = g.flatten(g.global_pool(x))
    with g.scope("classifier"):
        x = g.random_gemm(x, config.classes, gain=ELU.gain)
    return g.finish_benchmark({"outputs": x})


# --- MobileViT-S (arXiv:2110.02178, table 4) at 256 x 256, as a benchmark ---------------------
#
# Inverted bottlenecks with SiLU. The last three stages also have a transformer between
# convolutions; its attention connects tokens at the same position of all 2x2 patches. Operators,
# parameters and multiply-adds are those of torch's export of the published network, with batch-norm
# folded.
#
#     mobilevit  5.57 M parameters  4.00 GFLOP at 3 x 256 x 256

PATCH = 2


@dataclass(frozen=True, slots=True)
class MobileViTConfig:
    """Size of a MobileViT.

    Height and width of the image are multiples of 64. Each of `stages` is (channels, number of
    bottlenecks, token width, transformer layers); 0 layers mean no transformer. Every stage but the
    first halves the resolution. `last` is the number of channels before pooling.
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
    Equal seeds give equal bytes. The default size is that of the paper.
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
    return g.finish_benchmark({"outputs": x})


def _convolve(g: GraphBuilder, x: Value, name: str, spec: ConvSpec) -> Value:
    with g.scope(name):
        return SILU.apply(g, g.conv(x, spec))


def _mobilevit_block(g: GraphBuilder, x: Value, dim: int, layers: int, heads: int) -> Value:
    """Append a MobileViT block: convolutions, a transformer, convolutions, and a fusion with `x`.

    The transformer's tokens are (position in the patch, patch, dim).
    """
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
