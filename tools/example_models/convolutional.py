"""ResNet-18 (arXiv:1512.03385, table 1) over two road frames, as a benchmark.

Basic blocks of two 3x3 convolutions, a strided 1x1 on the shortcut where the shape changes; every
batch-norm is folded into the convolution before it, as exporters do. The first convolution sees the
12 channels of the driving model's input.

    resnet18  11.71 M parameters  2.83 GFLOP at 12 x 128 x 256
"""

import math
from dataclasses import dataclass

import onnx

from tools.example_models.graph import ConvSpec, GraphBuilder, Shape, Value

# Unit-variance normal in, max(x, 0) has a second moment of 1/2: the next layer's gain undoes it.
RELU_GAIN = math.sqrt(2.0)
# Share of a residual branch: eight of them at most quadruple the variance.
BRANCH_GAIN = 0.5


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

    Equal seeds give equal bytes; the size is that of the paper by default.
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
    metadata = {"model_checkpoint": f"example-resnet18/seed-{seed}"}
    return g.finish({"outputs": x}, metadata), g.multiply_adds


def _basic_block(g: GraphBuilder, x: Value, width: int, stride: int) -> Value:
    with g.scope("conv1"):
        y = g.elementwise("Relu", g.conv(x, ConvSpec(width, 3, stride)))
    with g.scope("conv2"):
        y = g.conv(y, ConvSpec(width, 3, gain=BRANCH_GAIN * RELU_GAIN))
    if x.shape != y.shape:
        with g.scope("downsample"):
            x = g.conv(x, ConvSpec(width, stride=stride))
    return g.elementwise("Relu", g.elementwise("Add", y, x))


# ----------------------------------------------------------------------------------------------
# A U-Net (arXiv:1505.04597) for segmentation at 640 x 360, as a benchmark.
# Three halvings by max pooling and three doublings by transposed convolution: the first, out of the
# bottleneck, 4x4 with stride 2, the others 2x2 with stride 2. The bottleneck's convolutions are
# dilated by 1, 2 and 4. Convolutions are padded, so that skip connections fit without cropping;
# batch-norm is folded into them.
#
#     unet  0.73 M parameters  18.11 GFLOP at 3 x 360 x 640


@dataclass(frozen=True, slots=True)
class UNetConfig:
    """Size of a U-Net.

    Height and width of the image are multiples of 2 per halving. `widths` are finest first, the
    bottleneck's last; `upsample` has the kernel of each transposed convolution, coarsest first.
    """

    image: Shape = (1, 3, 360, 640)
    widths: tuple[int, ...] = (16, 32, 64, 128)
    dilations: tuple[int, ...] = (1, 2, 4)
    upsample: tuple[int, ...] = (4, 2, 2)
    classes: int = 5


def build_unet(seed: int, config: UNetConfig | None = None) -> tuple[onnx.ModelProto, int]:
    """Return the U-Net and its multiply-adds per run.

    Input `image`: (1, 3, 360, 640) float32. Output `outputs`: (1, 5, 360, 640) float32, logits of
    each pixel.

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
    metadata = {"model_checkpoint": f"example-unet/seed-{seed}"}
    return g.finish({"outputs": x}, metadata), g.multiply_adds


def _double(g: GraphBuilder, x: Value, width: int, *, first: bool) -> Value:
    """Append two convolutions; `first` ones see the image, which no ReLU has halved."""
    with g.scope("0"):
        x = _convolve(g, x, width, gain=1.0 if first else RELU_GAIN)
    with g.scope("1"):
        return _convolve(g, x, width)


def _convolve(
    g: GraphBuilder, x: Value, width: int, *, dilation: int = 1, gain: float = RELU_GAIN
) -> Value:
    return g.elementwise("Relu", g.conv(x, ConvSpec(width, 3, gain=gain, dilation=dilation)))
