"""Builds convolutional networks as benchmarks for the compiler: ResNet-18, a U-Net and ESPNet.

Each builder returns the ONNX model and its number of multiply-adds. The gains keep the variance of
activations near 1 in networks with random weights.
"""

import math
from dataclasses import dataclass

import onnx

from tools.example_models.graph import ConvSpec, GraphBuilder, Shape, Value

# ReLU halves the second moment of a unit normal; the next layer's gain compensates.
RELU_GAIN = math.sqrt(2.0)
# Gain of a residual branch: eight branches at most quadruple the variance.
BRANCH_GAIN = 0.5
# Parallel convolutions of an ESP module in ESPNet.
BRANCHES = 5
# PReLU with a slope of 1/4 leaves a unit normal with a second moment of 17/32.
PRELU_GAIN = math.sqrt(32 / 17)
# The sums in an ESP module add one to four branches, and so do their variances.
ESP_GAIN = 0.6


# --- ResNet-18 (arXiv:1512.03385, table 1) over two road frames, as a benchmark ---------------
#
# Basic blocks of two 3x3 convolutions, with a strided 1x1 on the shortcut if the shape changes.
# Every batch-norm is folded into the preceding convolution, as exporters do. The first convolution
# reads the 12 channels of the driving model's input.
#
#     resnet18  11.71 M parameters  2.83 GFLOP at 12 x 128 x 256


@dataclass(frozen=True, slots=True)
class ResNetConfig:
    """Size of a residual network; each stage but the first halves the resolution."""

    image: Shape = (1, 12, 128, 256)
    widths: tuple[int, ...] = (64, 128, 256, 512)
    blocks: tuple[int, ...] = (2, 2, 2, 2)
    classes: int = 1000


def build_resnet18(seed: int, config: ResNetConfig | None = None) -> tuple[onnx.ModelProto, int]:
    """Return ResNet-18 and its multiply-adds per run.

    Input `image`: (1, 12, 128, 256) float32. Output `outputs`: (1, 1000) float32, logits.
    Equal seeds give equal bytes. The default size is that of the paper.
    """
    config = config or ResNetConfig()
    g = GraphBuilder("resnet18", seed)
    x = g.input("image", config.image, onnx.TensorProto.FLOAT)
    with g.scope("conv1"):
        x = g.elementwise("Relu", g.conv(x, ConvSpec(config.widths[0], kernel=7, stride=2)))
    x = g.max_pool(x, kernel=3, pad=1)
    for stage, (width, blocks) in enumerate(zip(config.widths, config.blocks, strict=True)):
        for block in range(blocks):
            with g.scope(f"layer{stage + 1}.{block}"):
                x = _basic_block(g, x, width, stride=2 if stage and not block else 1)
    x = g.flatten(g.global_pool(x))
    with g.scope("fc"):
        x = g.random_gemm(x, config.classes)
    return g.finish_benchmark({"outputs": x})


def _basic_block(g: GraphBuilder, x: Value, width: int, stride: int) -> Value:
    with g.scope("conv1"):
        y = g.elementwise("Relu", g.conv(x, ConvSpec(width, 3, stride)))
    with g.scope("conv2"):
        y = g.conv(y, ConvSpec(width, 3, gain=BRANCH_GAIN * RELU_GAIN))
    if x.shape != y.shape:
        with g.scope("downsample"):
            x = g.conv(x, ConvSpec(width, stride=stride))
    return g.elementwise("Relu", g.elementwise("Add", y, x))


# --- A U-Net (arXiv:1505.04597) for segmentation at 640 x 360, as a benchmark -----------------
#
# Max pooling halves the resolution three times. Transposed convolutions with stride 2 double it
# three times; the first has a 4x4 kernel, the others 2x2. The bottleneck's convolutions are dilated
# by 1, 2 and 4. Convolutions are padded, so that skip connections fit without cropping. Batch-norm
# is folded into them.
#
#     unet  0.73 M parameters  18.11 GFLOP at 3 x 360 x 640


@dataclass(frozen=True, slots=True)
class UNetConfig:
    """Size of a U-Net.

    Height and width of the image are multiples of 2 per pooling. `widths` are channels per
    resolution, finest first, bottleneck last. `upsample` are the kernels of the transposed
    convolutions, coarsest first.
    """

    image: Shape = (1, 3, 360, 640)
    widths: tuple[int, ...] = (16, 32, 64, 128)
    dilations: tuple[int, ...] = (1, 2, 4)
    upsample: tuple[int, ...] = (4, 2, 2)
    classes: int = 5


def build_unet(seed: int, config: UNetConfig | None = None) -> tuple[onnx.ModelProto, int]:
    """Return the U-Net and its multiply-adds per run.

    Input `image`: (1, 3, 360, 640) float32. Output `outputs`: (1, 5, 360, 640) float32, logits per
    pixel.
    Equal seeds give equal bytes.
    """
    config = config or UNetConfig()
    g = GraphBuilder("unet", seed)
    x = g.input("image", config.image, onnx.TensorProto.FLOAT)
    skips = []
    for level, width in enumerate(config.widths[:-1]):
        with g.scope(f"down.{level}"):
            x = _double(g, x, width, first=not level)
        skips.append(x)
        x = g.max_pool(x, kernel=2)
    for index, dilation in enumerate(config.dilations):
        with g.scope(f"bottleneck.{index}"):
            x = _convolve(g, x, config.widths[-1], dilation=dilation)
    for level, kernel in enumerate(config.upsample):
        skip = skips.pop()
        width = skip.shape[1]
        with g.scope(f"up.{level}"):
            x = g.upsample(x, width, kernel, gain=RELU_GAIN)
            joined = (1, 2 * width, *skip.shape[2:])
            x = _double(g, g.node("Concat", (x, skip), joined, axis=1), width, first=False)
    with g.scope("head"):
        x = g.conv(x, ConvSpec(config.classes, gain=RELU_GAIN))
    return g.finish_benchmark({"outputs": x})


def _double(g: GraphBuilder, x: Value, width: int, *, first: bool) -> Value:
    """Append two convolutions; the `first` ones read the image, which no ReLU has halved."""
    with g.scope("0"):
        x = _convolve(g, x, width, gain=1.0 if first else RELU_GAIN)
    with g.scope("1"):
        return _convolve(g, x, width)


def _convolve(
    g: GraphBuilder, x: Value, width: int, *, dilation: int = 1, gain: float = RELU_GAIN
) -> Value:
    return g.elementwise("Relu", g.conv(x, ConvSpec(width, 3, gain=gain, dilation=dilation)))


# --- ESPNet (arXiv:1803.06815) with a decoder and two heads at 640 x 360, as a benchmark ------
#
# An ESP module reduces the channels to a fifth and convolves them in parallel with dilations of 1
# to 16. It adds each result to the sum of the previous ones and concatenates the sums. Batch-norm
# follows the concatenation, so it cannot be folded; then PReLU. Downscaled images join the features
# of each resolution. The decoder doubles the resolution by transposed convolution. Two heads double
# it once more, each after a concatenation with the half-size image. Operators are those of the same
# network as torch exports it.
#
#     espnet  0.21 M parameters  2.98 GFLOP at 3 x 360 x 640


@dataclass(frozen=True, slots=True)
class ESPNetConfig:
    """Size of an ESPNet.

    Height and width of the image are multiples of 8. `widths` are the channels at 1/4 and 1/8
    resolution, `depths` the modules there after the one that halves the resolution. Heads have half
    of the `decoder` channels, and a quarter before the last convolution.
    """

    image: Shape = (1, 3, 360, 640)
    stem: int = 16
    widths: tuple[int, int] = (64, 128)
    depths: tuple[int, int] = (2, 3)
    decoder: int = 32
    classes: int = 2


def build_espnet(seed: int, config: ESPNetConfig | None = None) -> tuple[onnx.ModelProto, int]:
    """Return the network and its multiply-adds per run.

    Input `image`: (1, 3, 360, 640) float32. Outputs `road`, `lanes`: (1, 2, 360, 640) float32,
    logits per pixel.
    Equal seeds give equal bytes.
    """
    config = config or ESPNetConfig()
    g = GraphBuilder("espnet", seed)
    image = g.input("image", config.image, onnx.TensorProto.FLOAT)
    half = _halve(g, image)
    x = _convolve_prelu(g, image, "stem", ConvSpec(config.stem, 3, 2))
    x = _normalise(g, g.concat((x, half), 1), "b1")
    features = []
    for level, (width, depth) in enumerate(zip(config.widths, config.depths, strict=True)):
        x = first = _esp(g, x, f"down{level}", width, halves=True)
        for index in range(depth):
            x = _esp(g, x, f"level{level}.{index}", width)
        joined = (first, x) if level else (first, x, _halve(g, half))
        x = _normalise(g, g.concat(joined, 1), f"b{level + 2}")
        features.append(x)
    x = _convolve_prelu(g, x, "conv", ConvSpec(config.decoder, gain=PRELU_GAIN))
    x = g.concat((_upsample(g, x, "up", config.decoder), features[0]), 1)
    x = _convolve_prelu(g, x, "mix", ConvSpec(config.decoder, gain=PRELU_GAIN))
    outputs = {}
    for name in ("road", "lanes"):
        with g.scope(name):
            outputs[name] = _head(g, x, half, config)
    return g.finish_benchmark(outputs)


def _esp(g: GraphBuilder, x: Value, name: str, width: int, *, halves: bool = False) -> Value:
    """Append an ESP module. Unless it halves the resolution, it adds its input to its result."""
    inner = width // BRANCHES
    with g.scope(name):
        with g.scope("reduce"):
            kernel, stride = (3, 2) if halves else (1, 1)
            y = g.conv(x, ConvSpec(inner, kernel, stride, gain=PRELU_GAIN, bias=False))
        sums: list[Value] = []
        for branch in range(BRANCHES):
            # The first branch gets the remaining channels and is not part of any sum.
            channels = inner if branch else width - (BRANCHES - 1) * inner
            spec = ConvSpec(channels, 3, gain=ESP_GAIN, dilation=2**branch, bias=False)
            with g.scope(f"d.{branch}"):
                z = g.conv(y, spec)
            sums.append(g.elementwise("Add", sums[-1], z) if branch > 1 else z)
        y = g.concat(sums, 1)
        if not halves:
            y = g.elementwise("Add", x, y)
        return _normalise(g, y, "act")


def _head(g: GraphBuilder, x: Value, half: Value, config: ESPNetConfig) -> Value:
    """Append a head: upsample, concatenate the half-size image, upsample to logits."""
    x = g.concat((_upsample(g, x, "up1", config.decoder // 2), half), 1)
    x = _convolve_prelu(g, x, "conv", ConvSpec(config.decoder // 2, 3, gain=PRELU_GAIN))
    x = _upsample(g, x, "up2", config.decoder // 4)
    with g.scope("out"):
        return g.conv(x, ConvSpec(config.classes, gain=PRELU_GAIN))


def _convolve_prelu(g: GraphBuilder, x: Value, name: str, spec: ConvSpec) -> Value:
    with g.scope(name):
        return _prelu(g, g.conv(x, spec))


def _upsample(g: GraphBuilder, x: Value, name: str, width: int) -> Value:
    with g.scope(name):
        return _normalise(g, g.upsample(x, width, kernel=2, gain=PRELU_GAIN), "bn")


def _normalise(g: GraphBuilder, x: Value, name: str) -> Value:
    with g.scope(name):
        return _prelu(g, g.batch_norm(x))


def _prelu(g: GraphBuilder, x: Value) -> Value:
    slopes = g.normal("slope", (x.shape[1], 1, 1), 0.05, mean=0.25)
    return g.node("PRelu", (x, slopes), x.shape)


def _halve(g: GraphBuilder, x: Value) -> Value:
    _, channels, height, width = x.shape
    shape = (1, channels, (height + 1) // 2, (width + 1) // 2)
    window = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2]}
    return g.node("AveragePool", (x,), shape, count_include_pad=1, **window)
