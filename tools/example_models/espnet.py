"""ESPNet (arXiv:1803.06815) with a decoder and two heads at 640 x 360, as a benchmark.

An ESP module reduces the channels to a fifth, convolves them with dilations of 1 to 16 side by
side, adds each to the sum of those before it, and joins the sums; batch-norm follows the joint, so
that no convolution takes it in, and PReLU. Smaller images join the features of each resolution. The
decoder doubles the resolution by transposed convolution; two heads do so once more, each beside the
image. Operators are those of the same network as torch exports it.

    espnet  0.21 M parameters  2.98 GFLOP at 3 x 360 x 640
"""

import math
from dataclasses import dataclass

import onnx

from tools.example_models.graph import ConvSpec, GraphBuilder, Shape, Value

BRANCHES = 5
# Unit-variance normal in, PReLU with a slope of a quarter has a second moment of 17/32.
PRELU_GAIN = math.sqrt(32 / 17)
# The sums of a module hold one to four branches, whose variances add up.
ESP_GAIN = 0.6


@dataclass(frozen=True, slots=True)
class ESPNetConfig:
    """Size of an ESPNet.

    Sides of the image are multiples of 8. `widths` are channels at a quarter and at an eighth,
    `depths` the modules there, besides the one that halves the resolution. The heads have half of
    the `decoder` channels, a quarter in front of the end.
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
    logits of each pixel.

    Equal seeds give equal bytes.
    """
    config = config or ESPNetConfig()
    g = GraphBuilder("espnet", seed)
    image = g.input("image", config.image, onnx.TensorProto.FLOAT)
    half = _halve(g, image)
    x = _convolve(g, image, "stem", ConvSpec(config.stem, 3, 2))
    x = _normalise(g, g.concat((x, half), 1), "b1")
    features = []
    for level, (width, depth) in enumerate(zip(config.widths, config.depths, strict=True)):
        x = first = _esp(g, x, f"down{level}", width, halves=True)
        for index in range(depth):
            x = _esp(g, x, f"level{level}.{index}", width)
        joined = (first, x) if level else (first, x, _halve(g, half))
        x = _normalise(g, g.concat(joined, 1), f"b{level + 2}")
        features.append(x)
    x = _convolve(g, x, "conv", ConvSpec(config.decoder, gain=PRELU_GAIN))
    x = g.concat((_double(g, x, "up", config.decoder), features[0]), 1)
    x = _convolve(g, x, "mix", ConvSpec(config.decoder, gain=PRELU_GAIN))
    outputs = {}
    for name in ("road", "lanes"):
        with g.scope(name):
            outputs[name] = _head(g, x, half, config)
    metadata = {"model_checkpoint": f"example-espnet/seed-{seed}"}
    return g.finish(outputs, metadata), g.multiply_adds


def _esp(g: GraphBuilder, x: Value, name: str, width: int, *, halves: bool = False) -> Value:
    """Append an ESP module; one that keeps size and width adds its input."""
    inner = width // BRANCHES
    with g.scope(name):
        with g.scope("reduce"):
            kernel, stride = (3, 2) if halves else (1, 1)
            y = g.conv(x, ConvSpec(inner, kernel, stride, gain=PRELU_GAIN, bias=False))
        sums: list[Value] = []
        for branch in range(BRANCHES):
            # The first takes the channels that are left over, and is in no sum.
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
    """Append a head: twice the resolution beside the image, and twice again to logits."""
    x = g.concat((_double(g, x, "up1", config.decoder // 2), half), 1)
    x = _convolve(g, x, "conv", ConvSpec(config.decoder // 2, 3, gain=PRELU_GAIN))
    x = _double(g, x, "up2", config.decoder // 4)
    with g.scope("out"):
        return g.conv(x, ConvSpec(config.classes, gain=PRELU_GAIN))


def _convolve(g: GraphBuilder, x: Value, name: str, spec: ConvSpec) -> Value:
    with g.scope(name):
        return _prelu(g, g.conv(x, spec))


def _double(g: GraphBuilder, x: Value, name: str, width: int) -> Value:
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
