"""The vision model: a re-parameterised FastViT over two pairs of frames.

The layout (stem, RepMixer token mixing as one depthwise 3x3, convolutional feed-forward with layer
scale, strided depthwise 7x7 patch embedding, squeeze-excite head) follows FastViT,
arXiv:2303.14189, in its inference form, where every branch and batch-norm is folded into one
convolution. Two pairs of frames enter as 24 channels.

The large variant has twice the blocks, and attention instead of convolution mixes the tokens of its
last stage, as in the larger FastViTs. Sizes per run, seed 0:

    vision  8.21 M parameters  1.59 GFLOP
    vision_large  18.37 M parameters  3.15 GFLOP
"""

import math
from dataclasses import dataclass

import numpy as np
import onnx

from tools.example_models.attention import attention
from tools.example_models.fastvit import (
    conv_feed_forward,
    final_conv,
    patch_embed,
    stem,
    token_mixer,
)
from tools.example_models.graph import ConvSpec, GraphBuilder, Value
from tools.example_models.interface import (
    HIDDEN_WIDTH,
    VISION_OUTPUTS,
    model_metadata,
    vision_slices,
)
from tools.example_models.road import HEADS, head_weight

IMAGE_SHAPE = (1, 12, 128, 256)


@dataclass(frozen=True, slots=True)
class VisionConfig:
    """Size of a vision model.

    Each stage halves the resolution of the one before. `layer_scale` is the weight of each residual
    branch, `head_size` the channels of an attention head in the last stage, 0 for no attention.
    """

    dims: tuple[int, ...] = (64, 128, 256, 512)
    depths: tuple[int, ...] = (2, 2, 6, 2)
    expansion: int = 3
    head_width: int = 192
    layer_scale: float = 0.4
    head_size: int = 0
    name: str = "vision"


# Twice the blocks add up to the same variance with branches smaller by the root of two.
LARGE = VisionConfig(depths=(4, 4, 12, 4), layer_scale=0.28, head_size=32, name="vision_large")


def build_vision_large(seed: int) -> tuple[onnx.ModelProto, int]:
    """Return the large vision model and its multiply-adds: the interface of `build_vision`.

    Equal seeds give equal bytes.
    """
    return build_vision(seed, LARGE)


def build_vision(seed: int, config: VisionConfig | None = None) -> tuple[onnx.ModelProto, int]:
    """Return the vision model and its multiply-adds per run.

    Inputs `img`, `big_img`: (1, 12, 128, 256) uint8, two frames of 6 channels each, older first.
    Output `outputs`: (1, 1576) float32, laid out as `interface.VISION_OUTPUTS`.

    Equal seeds give equal bytes; the size is the 8 M parameter model of the 2025 split interface by
    default.
    """
    config = config or VisionConfig()
    g = GraphBuilder(config.name, seed)
    x = _normalise(g)
    x = stem(g, x, config.dims[0])
    for index, (dim, depth) in enumerate(zip(config.dims, config.depths, strict=True)):
        with g.scope(f"stages.{index}"):
            if index:
                x = patch_embed(g, x, dim, activated=True)
            attends = config.head_size > 0 and index == len(config.dims) - 1
            if attends:
                with g.scope("position"):
                    x = g.conv(x, ConvSpec(dim, 7, groups=dim, gain=0.3, identity=0.95))
            for block in range(depth):
                with g.scope(f"blocks.{block}"):
                    x = _mix_by_attention(g, x, config) if attends else token_mixer(g, x)
                    y = conv_feed_forward(g, x, config.expansion)
                    x = _add_scaled(g, x, y, "layer_scale", config)
    features = _final(g, x)
    outputs = _heads(g, features, config.head_width)
    model = g.finish(
        {"outputs": outputs}, model_metadata(f"example-{config.name}/seed-{seed}", vision_slices())
    )
    return model, g.multiply_adds


def _normalise(g: GraphBuilder) -> Value:
    """Map both uint8 inputs to about [-2, 2] and stack their channels."""
    images = [g.input(name, IMAGE_SHAPE, onnx.TensorProto.UINT8) for name in ("img", "big_img")]
    scaled = []
    for image in images:
        x = g.node("Cast", (image,), IMAGE_SHAPE, to=onnx.TensorProto.FLOAT)
        x = g.elementwise("Sub", x, g.scalar(127.5))
        scaled.append(g.elementwise("Div", x, g.scalar(63.75)))
    return g.node("Concat", scaled, (1, 24, *IMAGE_SHAPE[2:]), axis=1)


def _mix_by_attention(g: GraphBuilder, x: Value, config: VisionConfig) -> Value:
    """Add scaled self-attention over all tokens; no convolution takes in its batch-norm."""
    _, dim, height, width = x.shape
    with g.scope("norm"):
        y = g.batch_norm(x)
    with g.scope("token_mixer"):
        y = g.transpose(g.reshape(y, 1, dim, height * width), 0, 2, 1)
        y = attention(g, y, dim // config.head_size)
        y = g.reshape(g.transpose(y, 0, 2, 1), 1, dim, height, width)
    return _add_scaled(g, x, y, "layer_scale_1", config)


def _add_scaled(g: GraphBuilder, x: Value, y: Value, name: str, config: VisionConfig) -> Value:
    scale = g.weight(name, np.full((x.shape[1], 1, 1), config.layer_scale))
    return g.elementwise("Add", x, g.elementwise("Mul", scale, y))


def _final(g: GraphBuilder, x: Value) -> Value:
    """Widen twofold, squeeze-excite, pool, normalise and project to the (1, 512) hidden state."""
    x = final_conv(g, x)
    dim = x.shape[1]
    with g.scope("head"):
        x = g.node("GlobalAveragePool", (x,), (1, dim, 1, 1))
        x = g.node("Flatten", (x,), (1, dim), axis=1)
        # Random weights pass contrast on more than linearly; the norm keeps a dim road and a noise
        # image in the same range, so that the heads' modes stay plausible.
        scale, bias = g.weight("norm.weight", np.ones(dim)), g.weight("norm.bias", np.zeros(dim))
        x = g.node("LayerNormalization", (x, scale, bias), x.shape, axis=-1, epsilon=1e-6)
        return g.random_gemm(x, HIDDEN_WIDTH)


def _heads(g: GraphBuilder, features: Value, width: int) -> Value:
    """Give each output its own two-layer head and append the hidden state itself."""
    parts = []
    for name, output_width in VISION_OUTPUTS:
        if name == "hidden_state":
            parts.append(features)
            continue
        bias, modes = HEADS[name]()
        with g.scope(f"heads.{name}.0"):
            hidden = g.elementwise("Relu", g.random_gemm(features, width, gain=math.sqrt(2)))
        with g.scope(f"heads.{name}.1"):
            weight = head_weight(modes, width, g.rng("weight"))
            parts.append(g.gemm(hidden, weight, bias))
        assert parts[-1].shape == (1, output_width)
    return g.node("Concat", parts, (1, sum(w for _, w in VISION_OUTPUTS)), axis=1)
