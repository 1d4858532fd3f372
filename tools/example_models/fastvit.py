"""Builds FastViT-T8 (arXiv:2303.14189, table 1) at 256 x 256, its blocks, and ConvNeXt.

Both networks are benchmarks for the compiler; the driving models' vision is built from the same
blocks. FastViT is in its inference form: every branch and batch-norm is folded into one
convolution. RepMixer is then one depthwise 3x3. The feed-forward is a depthwise 7x7, two 1x1 with
GELU between them, and a layer scale. Operators, parameters and multiply-adds are those of the
published network as torch exports it.

    fastvit  3.99 M parameters  1.37 GFLOP at 3 x 256 x 256
"""

import math
from dataclasses import dataclass

import numpy as np
import onnx

from tools.example_models.graph import ConvSpec, GraphBuilder, Shape, Value

# GELU leaves a unit normal with a second moment of 0.425; the next layer's gain compensates.
GELU_GAIN = 1.0 / math.sqrt(0.425)
# Measured with seed 0 on blocky images. Without this gain activations would halve with each stage,
# because GELU passes less than 0.425 of a smaller variance.
DOWNSAMPLE_GAIN = 1.3


@dataclass(frozen=True, slots=True)
class FastViTConfig:
    """Size of a FastViT.

    Each stage has half the resolution of the previous one. `expansion` is the ratio of hidden to
    outer channels in the feed-forward.
    """

    image: Shape = (1, 3, 256, 256)
    dims: tuple[int, ...] = (48, 96, 192, 384)
    depths: tuple[int, ...] = (2, 2, 4, 2)
    expansion: int = 3
    classes: int = 1000


def build_fastvit(seed: int, config: FastViTConfig | None = None) -> tuple[onnx.ModelProto, int]:
    """Return FastViT-T8 and its multiply-adds per run.

    Input `image`: (1, 3, 256, 256) float32. Output `outputs`: (1, 1000) float32, logits.
    Equal seeds give equal bytes. The default size is that of the paper.
    """
    config = config or FastViTConfig()
    g = GraphBuilder("fastvit", seed)
    x = stem(g, g.input("image", config.image, onnx.TensorProto.FLOAT), config.dims[0])
    for index, (dim, depth) in enumerate(zip(config.dims, config.depths, strict=True)):
        with g.scope(f"stages.{index}"):
            if index:
                x = patch_embed(g, x, dim, activated=False)
            for block in range(depth):
                with g.scope(f"blocks.{block}"):
                    x = token_mixer(g, x)
                    y = conv_feed_forward(g, x, config.expansion)
                    scale = g.weight("layer_scale.gamma", np.full((dim, 1, 1), 0.4))
                    x = g.elementwise("Add", x, g.elementwise("Mul", y, scale))
    x = g.flatten(g.global_pool(final_conv(g, x)))
    with g.scope("head.fc"):
        # The squeeze-excite gate halves the values; the mean over the pixels leaves a quarter.
        x = g.random_gemm(x, config.classes, gain=8 * GELU_GAIN)
    return g.finish_benchmark({"outputs": x})


def stem(g: GraphBuilder, x: Value, dim: int) -> Value:
    """Quarter the resolution: dense 3x3 with stride 2, depthwise 3x3 with stride 2, then 1x1."""
    specs = (
        ConvSpec(dim, kernel=3, stride=2),
        ConvSpec(dim, kernel=3, stride=2, groups=dim, gain=GELU_GAIN),
        ConvSpec(dim, gain=GELU_GAIN),
    )
    for index, spec in enumerate(specs):
        with g.scope(f"stem.{index}"):
            x = g.gelu(g.conv(x, spec))
    return x


def patch_embed(g: GraphBuilder, x: Value, dim: int, *, activated: bool) -> Value:
    """Halve the resolution and widen: strided depthwise 7x7, GELU if `activated`, then 1x1."""
    with g.scope("downsample.proj.0"):
        x = g.conv(x, ConvSpec(dim, 7, 2, x.shape[1], DOWNSAMPLE_GAIN))
        if activated:
            x = g.gelu(x)
    with g.scope("downsample.proj.1"):
        gain = DOWNSAMPLE_GAIN * GELU_GAIN if activated else 1.0
        return g.gelu(g.conv(x, ConvSpec(dim, gain=gain)))


def token_mixer(g: GraphBuilder, x: Value) -> Value:
    """Mix neighboring tokens with a depthwise 3x3, into which all its branches are folded."""
    dim = x.shape[1]
    with g.scope("token_mixer"):
        return g.conv(x, ConvSpec(dim, kernel=3, groups=dim, gain=0.3, identity=0.95))


def conv_feed_forward(g: GraphBuilder, x: Value, expansion: int) -> Value:
    """Append the convolutional feed-forward: depthwise 7x7, 1x1, GELU, 1x1."""
    dim = x.shape[1]
    with g.scope("mlp.conv"):
        y = g.conv(x, ConvSpec(dim, kernel=7, groups=dim, gain=0.7, identity=0.7))
    with g.scope("mlp.fc1"):
        y = g.gelu(g.conv(y, ConvSpec(dim * expansion)))
    with g.scope("mlp.fc2"):
        return g.conv(y, ConvSpec(dim, gain=GELU_GAIN))


def final_conv(g: GraphBuilder, x: Value) -> Value:
    """Double the channels with a depthwise 3x3, then squeeze-excite with ratio 16 and GELU."""
    dim = 2 * x.shape[1]
    with g.scope("final_conv"):
        x = g.conv(x, ConvSpec(dim, kernel=3, groups=x.shape[1]))
    with g.scope("final_conv.se"):
        y = g.node("ReduceMean", (x,), (1, dim, 1, 1), axes=[2, 3], keepdims=1)
        with g.scope("fc1"):
            y = g.elementwise("Relu", g.conv(y, ConvSpec(dim // 16)))
        with g.scope("fc2"):
            y = g.elementwise("Sigmoid", g.conv(y, ConvSpec(dim, gain=math.sqrt(2))))
        x = g.elementwise("Mul", x, y)
    return g.gelu(x)


# --- ConvNeXt (arXiv:2201.03545) of the size "atto" at 224 x 224, as a benchmark --------------
#
# A block is a depthwise 7x7, layer norm over the channels, two 1x1 with GELU between them, and a
# layer scale. Each norm transposes to channels last and back, as torch exports it. A 4x4 patch
# convolution comes first, and 2x2 ones between stages. Operators, parameters and multiply-adds are
# those of the published network.
#
#     convnext  3.70 M parameters  1.09 GFLOP at 3 x 224 x 224


@dataclass(frozen=True, slots=True)
class ConvNeXtConfig:
    """Size of a ConvNeXt.

    Height and width of the image are multiples of 32. Each stage has half the resolution of the
    previous one.
    """

    image: Shape = (1, 3, 224, 224)
    dims: tuple[int, ...] = (40, 80, 160, 320)
    depths: tuple[int, ...] = (2, 2, 6, 2)
    classes: int = 1000


def build_convnext(seed: int, config: ConvNeXtConfig | None = None) -> tuple[onnx.ModelProto, int]:
    """Return ConvNeXt-Atto and its multiply-adds per run.

    Input `image`: (1, 3, 224, 224) float32. Output `outputs`: (1, 1000) float32, logits.
    Equal seeds give equal bytes.
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
    return g.finish_benchmark({"outputs": x})


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
