"""Builds the models that the daemon runs, with random weights: vision, policy, driver monitoring.

They have the inputs, outputs and about the cost of openpilot's models of 2025. Each builder returns
the ONNX model and its number of multiply-adds.
"""

import math
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray

from runtime.format.interfaces import FACE_WIDTH, VIEW_HEIGHT, VIEW_WIDTH
from scheduler.driving.revisions import MonitoringRevision
from tools.example_models.attention import attention, feed_forward, layer_norm
from tools.example_models.fastvit import (
    conv_feed_forward,
    final_conv,
    patch_embed,
    stem,
    token_mixer,
)
from tools.example_models.graph import ConvSpec, GraphBuilder, Value
from tools.example_models.mobile import RELU, Bottleneck, bottleneck
from tools.example_models.outputs import (
    HEADS,
    HIDDEN_WIDTH,
    POLICY_OUTPUTS,
    POLICY_PAD,
    VISION_OUTPUTS,
    head_weight,
    model_metadata,
    policy_slices,
    vision_slices,
)

# --- The vision model: a re-parameterized FastViT over two pairs of frames --------------------
#
# The layout follows FastViT (arXiv:2303.14189) in its inference form, where every branch and
# batch-norm is folded into one convolution: a stem, token mixing as one depthwise 3x3,
# convolutional feed-forwards with layer scale, strided depthwise 7x7 patch embeddings, and a
# squeeze-excite head. Two pairs of frames enter as 24 channels.
#
# The large variant has twice the blocks. Attention instead of convolution mixes the tokens of its
# last stage, as in the larger FastViTs. Sizes per run, seed 0:
#
#     vision  8.21 M parameters  1.59 GFLOP
#     vision_large  18.37 M parameters  3.15 GFLOP

IMAGE_SHAPE = (1, 12, 128, 256)


@dataclass(frozen=True, slots=True)
class VisionConfig:
    """Size of a vision model.

    Each stage has half the resolution of the previous one. `layer_scale` is the weight of each
    residual branch. `head_size` is the number of channels per attention head in the last stage; 0
    means no attention.
    """

    dims: tuple[int, ...] = (64, 128, 256, 512)
    depths: tuple[int, ...] = (2, 2, 6, 2)
    expansion: int = 3
    head_width: int = 192
    layer_scale: float = 0.4
    head_size: int = 0
    name: str = "vision"


# With twice the blocks, branches smaller by sqrt(2) give the same total variance.
LARGE = VisionConfig(depths=(4, 4, 12, 4), layer_scale=0.28, head_size=32, name="vision_large")


def build_vision_large(seed: int) -> tuple[onnx.ModelProto, int]:
    """Return the large vision model, with the interface of `build_vision`, and its multiply-adds.

    Equal seeds give equal bytes.
    """
    return build_vision(seed, LARGE)


def build_vision(seed: int, config: VisionConfig | None = None) -> tuple[onnx.ModelProto, int]:
    """Return the vision model and its multiply-adds per run.

    Inputs `img`, `big_img`: (1, 12, 128, 256) uint8, two frames of 6 channels each, older first.
    Output `outputs`: (1, 1576) float32 in the layout of `outputs.VISION_OUTPUTS`.
    Equal seeds give equal bytes. By default it is the 8 M parameter model of the split interface
    of 2025.
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
    heads = _heads(g, features, VISION_OUTPUTS, config.head_width)
    outputs = g.concat(heads, axis=1)
    model = g.finish(
        {"outputs": outputs}, model_metadata(f"example-{config.name}/seed-{seed}", vision_slices())
    )
    return model, g.multiply_adds


def _normalise(g: GraphBuilder) -> Value:
    """Return both uint8 inputs as one tensor of 24 channels, scaled to about [-2, 2]."""
    images = [g.input(name, IMAGE_SHAPE, onnx.TensorProto.UINT8) for name in ("img", "big_img")]
    return g.concat([_scaled(g, image) for image in images], axis=1)


def _scaled(g: GraphBuilder, x: Value) -> Value:
    """Scale bytes to about [-2, 2]."""
    x = g.node("Cast", (x,), x.shape, to=onnx.TensorProto.FLOAT)
    x = g.elementwise("Sub", x, g.scalar(127.5))
    return g.elementwise("Div", x, g.scalar(63.75))


def _mix_by_attention(g: GraphBuilder, x: Value, config: VisionConfig) -> Value:
    """Add scaled self-attention over all tokens, with a batch-norm that cannot be folded."""
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
    """Double the channels, squeeze-excite, pool and project to the (1, 512) hidden state."""
    x = final_conv(g, x)
    dim = x.shape[1]
    with g.scope("head"):
        x = g.node("GlobalAveragePool", (x,), (1, dim, 1, 1))
        x = g.node("Flatten", (x,), (1, dim), axis=1)
        # Random weights amplify contrast. The norm keeps dark roads and noise images in the same
        # range, so that the heads' modes stay plausible.
        scale, bias = g.weight("norm.weight", np.ones(dim)), g.weight("norm.bias", np.zeros(dim))
        x = g.node("LayerNormalization", (x, scale, bias), x.shape, axis=-1, epsilon=1e-6)
        return g.random_gemm(x, HIDDEN_WIDTH)


def _heads(
    g: GraphBuilder, features: Value, outputs: tuple[tuple[str, int], ...], width: int
) -> list[Value]:
    """Return one two-layer head per output; the hidden state is the features themselves."""
    parts = []
    for name, output_width in outputs:
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
    return parts


# --- The policy model: a pre-norm transformer over five seconds of vision features ------------
#
# It reads 25 past feature vectors with the desires of the same frames, and predicts the plan for
# the next ten seconds. nn.Linear, LayerNorm and attention are written as torch exports them at
# opset 17.
#
#     policy  7.37 M parameters  0.33 GFLOP

CONTEXT = 25
DESIRES = 8


@dataclass(frozen=True, slots=True)
class PolicyConfig:
    """Size of a policy model.

    `heads` divides the 512 features. `head_width` is the number of hidden units per output head.
    """

    layers: int = 3
    heads: int = 8
    feed_forward: int = 1024
    head_width: int = 384


def build_policy(seed: int, config: PolicyConfig | None = None) -> tuple[onnx.ModelProto, int]:
    """Return the policy model and its multiply-adds per run.

    Inputs, float32: `desire_pulse` (1, 25, 8), `traffic_convention` (1, 2), `features_buffer`
    (1, 25, 512). Histories begin with the oldest row, at 5 Hz. Output `outputs`: (1, 1000) float32
    in the layout of `outputs.POLICY_OUTPUTS`, then two values of padding.
    Equal seeds give equal bytes. By default it is the 7 M parameter model of the split interface of
    2025.
    """
    config = config or PolicyConfig()
    g = GraphBuilder("policy", seed)
    x = _embed(g)
    for index in range(config.layers):
        with g.scope(f"blocks.{index}"):
            with g.scope("attn"):
                x = g.elementwise("Add", x, attention(g, layer_norm(g, x, "norm"), config.heads))
            with g.scope("mlp"):
                y = feed_forward(g, layer_norm(g, x, "norm"), config.feed_forward)
                x = g.elementwise("Add", x, y)
    x = layer_norm(g, x, "norm")
    last = g.node("Gather", (x, g.constant(np.int64(-1))), (1, HIDDEN_WIDTH), axis=1)
    heads = _heads(g, last, POLICY_OUTPUTS, config.head_width)
    heads.append(g.constant(np.zeros((1, POLICY_PAD), np.float32)))
    outputs = g.node("Concat", heads, (1, sum(head.shape[1] for head in heads)), axis=-1)
    model = g.finish(
        {"outputs": outputs}, model_metadata(f"example-policy/seed-{seed}", policy_slices())
    )
    return model, g.multiply_adds


def _embed(g: GraphBuilder) -> Value:
    """Project features and desires to 512 channels; add position and driving side."""
    float_type = onnx.TensorProto.FLOAT
    desire = g.input("desire_pulse", (1, CONTEXT, DESIRES), float_type)
    traffic = g.input("traffic_convention", (1, 2), float_type)
    features = g.input("features_buffer", (1, CONTEXT, HIDDEN_WIDTH), float_type)
    x = g.node("Concat", (features, desire), (1, CONTEXT, HIDDEN_WIDTH + DESIRES), axis=-1)
    with g.scope("embed"):
        x = g.linear(x, HIDDEN_WIDTH)
        x = g.elementwise("Add", x, g.normal("position", (1, CONTEXT, HIDDEN_WIDTH), 0.2))
    with g.scope("traffic"):
        side = g.random_gemm(traffic, HIDDEN_WIDTH, gain=0.5)
        side = g.node("Unsqueeze", (side, g.ints(1)), (1, 1, HIDDEN_WIDTH))
    return g.elementwise("Add", x, side)


# --- The driver monitoring model: inverted bottlenecks over the luma of the driver camera -----
#
# The face is a small part of the image, so the network keeps a high resolution with few channels:
# 1440x960 is divided by 64 before averaging. Calibration angles join the features. Sizes per run,
# seed 0:
#
#     dmonitoring-2025  0.95 M parameters  0.66 GFLOP

FEATURES = 512
# (kernel, stride, expanded channels, channels), after the stem has divided both sides by 4.
LAYERS = (
    (3, 2, 16, 24),
    (3, 2, 72, 40),
    (5, 2, 120, 80),
    (5, 1, 240, 80),
    (5, 2, 240, 160),
    (5, 1, 480, 160),
)
# Logits of a driver who looks ahead in a left-hand-drive car, by head name without the seat.
LOGITS = {
    "left_eye_prob": 2.5,
    "right_eye_prob": 2.5,
    "left_blink_prob": -3.0,
    "right_blink_prob": -3.0,
    "sunglasses_prob": -2.5,
    "occluded_prob": -3.0,
    "using_phone_prob": -3.5,
    "sleep_prob": -4.0,
    "poor_vision": -3.0,
    "wheel_on_right": -3.0,
}
FACE_LOGITS = {"lhd": 3.5, "rhd": -3.5}
# Orientation in rad; position and size as fractions of the image; then log standard deviations.
FACE = (0.05, -0.1, 0.0, -0.2, -0.05, 0.15, -2.5, -2.5, -3.0, -3.5, -3.5, -4.0)
VARIATION = 0.25  # standard deviation of the logits between pictures


def build_monitoring(revision: MonitoringRevision, seed: int) -> tuple[onnx.ModelProto, int]:
    """Return the model of a revision and its multiply-adds per run.

    Inputs: `input_img` (1, 1382400) uint8 and `calib` (1, 3) float32. Output: `outputs` (1, width)
    float32. The metadata contains slices if the revision does.
    Equal seeds give equal bytes.
    """
    g = GraphBuilder(revision.name, seed)
    flat = g.input("input_img", (1, VIEW_WIDTH * VIEW_HEIGHT), onnx.TensorProto.UINT8)
    x = _scaled(g, g.reshape(flat, 1, 1, VIEW_HEIGHT, VIEW_WIDTH))
    with g.scope("stem"):
        x = g.conv(x, ConvSpec(16, 5, stride=4))
        x = g.elementwise("Relu", x)
    for index, (kernel, stride, expanded, channels) in enumerate(LAYERS):
        with g.scope(f"layers.{index}"):
            x = bottleneck(g, x, Bottleneck(kernel, stride, expanded, channels, RELU, None))
    with g.scope("head"):
        x = g.elementwise("Relu", g.conv(x, ConvSpec(FEATURES, gain=math.sqrt(2))))
    seen = g.flatten(g.global_pool(x))
    angles = g.input("calib", (1, 3), onnx.TensorProto.FLOAT)
    both = g.node("Concat", (seen, angles), (1, FEATURES + 3), axis=1)
    with g.scope("features"):
        features = g.elementwise("Relu", g.random_gemm(both, FEATURES, gain=math.sqrt(2)))
    with g.scope("outputs"):
        width = revision.model.width
        weight = g.rng("weight").standard_normal((width, FEATURES))
        outputs = g.gemm(features, weight * VARIATION / math.sqrt(FEATURES), _bias(revision))
    slices = {name: slice(*bounds) for name, bounds in revision.model.slices.items()}
    metadata = model_metadata(f"example-{revision.name}/seed-{seed}", slices)
    if not revision.model.sliced:
        del metadata["output_slices"]
    return g.finish({"outputs": outputs}, metadata), g.multiply_adds


def _bias(revision: MonitoringRevision) -> NDArray[np.float64]:
    bias = np.zeros(revision.model.width)
    for name, (start, stop) in revision.model.slices.items():
        head, _, seat = name.rpartition("_")
        if head == "face_descs":
            assert stop - start == FACE_WIDTH
            bias[start:stop] = FACE
        elif head == "face_prob":
            bias[start:stop] = FACE_LOGITS[seat]
        else:
            bias[start:stop] = LOGITS.get(name, LOGITS.get(head, 0.0))
    return bias
