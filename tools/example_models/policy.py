"""The policy model: a pre-norm transformer over five seconds of vision features.

Sees 25 past feature vectors with the desires of the same moments and answers with the plan of the
next ten seconds. Written the way torch exports nn.Linear, LayerNorm and attention at opset 17.

    policy  7.37 M parameters  0.33 GFLOP
"""

import math
from dataclasses import dataclass

import numpy as np
import onnx

from tools.example_models.attention import attention, feed_forward, layer_norm
from tools.example_models.graph import GraphBuilder, Value
from tools.example_models.interface import (
    HIDDEN_WIDTH,
    POLICY_OUTPUTS,
    POLICY_PAD,
    model_metadata,
    policy_slices,
)
from tools.example_models.road import HEADS, head_weight

CONTEXT = 25
DESIRES = 8


@dataclass(frozen=True, slots=True)
class PolicyConfig:
    """Size of a policy model.

    Attention heads divide the 512 features; `head_width` are hidden units of each output head.
    """

    layers: int = 3
    heads: int = 8
    feed_forward: int = 1024
    head_width: int = 384


def build_policy(seed: int, config: PolicyConfig | None = None) -> tuple[onnx.ModelProto, int]:
    """Return the policy model and its multiply-adds per run.

    Inputs, float32: `desire_pulse` (1, 25, 8), `traffic_convention` (1, 2), `features_buffer`
    (1, 25, 512); oldest first, 5 Hz. Output `outputs`: (1, 1000) float32 as
    `interface.POLICY_OUTPUTS` and two values of padding.

    Equal seeds give equal bytes; the size is the 7 M parameter model of the 2025 split interface by
    default.
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
    outputs = _heads(g, last, config.head_width)
    model = g.finish(
        {"outputs": outputs}, model_metadata(f"example-policy/seed-{seed}", policy_slices())
    )
    return model, g.multiply_adds


def _embed(g: GraphBuilder) -> Value:
    """Project features and desires to 512 and add position and driving side."""
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


def _heads(g: GraphBuilder, features: Value, width: int) -> Value:
    parts = []
    for name, output_width in POLICY_OUTPUTS:
        bias, modes = HEADS[name]()
        with g.scope(f"heads.{name}.0"):
            hidden = g.elementwise("Relu", g.random_gemm(features, width, gain=math.sqrt(2)))
        with g.scope(f"heads.{name}.1"):
            parts.append(g.gemm(hidden, head_weight(modes, width, g.rng("weight")), bias))
        assert parts[-1].shape == (1, output_width)
    parts.append(g.constant(np.zeros((1, POLICY_PAD), np.float32)))
    return g.node("Concat", parts, (1, sum(p.shape[1] for p in parts)), axis=-1)
