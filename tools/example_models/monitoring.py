"""The driver monitoring model: inverted bottlenecks over the luma of the driver camera.

The face is small in the view, so the network is wide in pixels and narrow in channels: 1440x960 is
divided by 64 before it is averaged. Calibration angles join the features. Sizes per run, seed 0:

    dmonitoring-2025  0.95 M parameters  0.66 GFLOP
"""

import math

import numpy as np
import onnx
from numpy.typing import NDArray

from runtime.format.interfaces import FACE_WIDTH, VIEW_HEIGHT, VIEW_WIDTH
from scheduler.driving.revisions import MonitoringRevision
from tools.example_models.graph import ConvSpec, GraphBuilder, Value
from tools.example_models.interface import model_metadata
from tools.example_models.mobile import RELU, Bottleneck, bottleneck

FEATURES = 512
# (kernel, stride, expanded, channels); the stem has divided the sides by 4 before.
LAYERS = (
    (3, 2, 16, 24),
    (3, 2, 72, 40),
    (5, 2, 120, 80),
    (5, 1, 240, 80),
    (5, 2, 240, 160),
    (5, 1, 480, 160),
)
# Logits of a driver who looks ahead in a left-hand-drive car, by head without its seat.
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
# Orientation in rad; place as shares of the image, and size; then log deviations.
FACE = (0.05, -0.1, 0.0, -0.2, -0.05, 0.15, -2.5, -2.5, -3.0, -3.5, -3.5, -4.0)
VARIATION = 0.25  # of outputs from picture to picture, as measured by the logit


def build_monitoring(revision: MonitoringRevision, seed: int) -> tuple[onnx.ModelProto, int]:
    """Return the model of a revision and its multiply-adds per run.

    Inputs `input_img` (1, 1382400) uint8 and `calib` (1, 3) float32; output `outputs` (1, width)
    float32, with slices in the metadata where the revision has them.

    Equal seeds give equal bytes.
    """
    g = GraphBuilder(revision.name, seed)
    x = _normalise(g)
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


def _normalise(g: GraphBuilder) -> Value:
    """Map the bytes to about [-2, 2], as one channel of a picture."""
    flat = g.input("input_img", (1, VIEW_WIDTH * VIEW_HEIGHT), onnx.TensorProto.UINT8)
    shape = (1, 1, VIEW_HEIGHT, VIEW_WIDTH)
    x = g.node("Reshape", (flat, g.ints(*shape)), shape)
    x = g.node("Cast", (x,), shape, to=onnx.TensorProto.FLOAT)
    x = g.elementwise("Sub", x, g.scalar(127.5))
    return g.elementwise("Div", x, g.scalar(63.75))


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
