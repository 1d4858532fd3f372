"""The benchmark networks against onnxruntime: small ones interpreted, two of full size compiled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

from scheduler.onnx_import import import_model
from scheduler.tensor.tensor import evaluate
from tests.scheduler.support.programs import load
from tools.example_models import BUILDERS
from tools.example_models.efficientnet import EfficientNetConfig, build_efficientnet_b2_elu
from tools.example_models.mobilenet import MobileNetConfig, build_mobilenetv3_large
from tools.example_models.resnet import ResNetConfig, build_resnet18
from tools.example_models.unet import UNetConfig, build_unet
from tools.example_models.vision import LARGE, build_vision

Array = NDArray[Any]
Built = tuple[onnx.ModelProto, int]

# Every layer is there, with fewer channels and pixels.
SMALL: dict[str, Callable[[int], Built]] = {
    "vision_large": lambda seed: build_vision(
        seed, replace(LARGE, dims=(8, 16, 32, 64), depths=(1, 1, 1, 2), head_size=16)
    ),
    "resnet18": lambda seed: build_resnet18(
        seed, ResNetConfig((1, 12, 32, 64), widths=(16, 24, 32, 40), classes=10)
    ),
    "efficientnet_b2_elu": lambda seed: build_efficientnet_b2_elu(
        seed, EfficientNetConfig((1, 12, 32, 64), width=0.35, classes=10)
    ),
    "mobilenetv3_large": lambda seed: build_mobilenetv3_large(
        seed, MobileNetConfig((1, 3, 32, 64), width=0.35, classes=10)
    ),
    "unet": lambda seed: build_unet(seed, UNetConfig((1, 3, 24, 40), widths=(8, 16, 24, 32))),
}


def feeds_of(session: ort.InferenceSession, seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {
        i.name: rng.integers(0, 256, i.shape).astype(np.uint8)
        if i.type == "tensor(uint8)"
        else rng.standard_normal(i.shape).astype(np.float32)
        for i in session.get_inputs()
    }


def reference(model: onnx.ModelProto, seed: int) -> tuple[dict[str, Array], Array]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), options)
    feeds = feeds_of(session, seed)
    return feeds, np.asarray(session.run(None, feeds)[0])


@pytest.mark.parametrize("name", SMALL)
def test_small_network_agrees_with_onnxruntime(name: str) -> None:
    model, _ = SMALL[name](3)
    feeds, expected = reference(model, 1)
    (found,) = evaluate([import_model(model).outputs["outputs"]], feeds)
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max()
    # A network whose answer is a constant would pass with any fault.
    assert expected.std() > 0.05


@pytest.mark.opencl
@pytest.mark.parametrize("name", ["mobilenetv3_large", "unet"])
def test_compiled_network_agrees_with_onnxruntime(name: str) -> None:
    model, _ = BUILDERS[name](0)
    with load(import_model(model).outputs) as program:
        for seed in (1, 2):
            feeds, expected = reference(model, seed)
            found = program.run(feeds)["outputs"]
            assert np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max()
