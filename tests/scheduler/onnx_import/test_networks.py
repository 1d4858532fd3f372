"""Networks of the benchmarks, and as exporters write them, against onnxruntime."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from scheduler.ir.node import toposort
from scheduler.onnx_import import import_model
from scheduler.tensor.tensor import evaluate
from tests.scheduler.onnx_import.exported import networks
from tests.scheduler.onnx_import.onnx_models import Array, ort_session
from tests.scheduler.support.programs import load
from tests.support.built import example_models
from tests.support.selection import quick_cases
from tools.example_models.attention import SwinConfig, ViTConfig, build_swin, build_vit
from tools.example_models.convolutional import (
    ESPNetConfig,
    ResNetConfig,
    UNetConfig,
    build_espnet,
    build_resnet18,
    build_unet,
)
from tools.example_models.driving import LARGE, build_vision
from tools.example_models.fastvit import (
    ConvNeXtConfig,
    FastViTConfig,
    build_convnext,
    build_fastvit,
)
from tools.example_models.mobile import (
    EfficientNetConfig,
    MobileNetConfig,
    MobileViTConfig,
    build_efficientnet_b2_elu,
    build_mobilenetv3_large,
    build_mobilevit,
)

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
    "fastvit": lambda seed: build_fastvit(
        seed, FastViTConfig((1, 3, 32, 64), (8, 16, 32, 64), depths=(1, 1, 1, 1), classes=10)
    ),
    "mobilevit": lambda seed: build_mobilevit(
        seed, MobileViTConfig((1, 3, 64, 128), 8, ((8, 1, 0, 0), (12, 2, 16, 2)), 2, 24, 10)
    ),
    "swin": lambda seed: build_swin(
        seed, SwinConfig((1, 3, 32, 64), 16, depths=(2, 2), heads=2, window=4, classes=10)
    ),
    "vit": lambda seed: build_vit(seed, ViTConfig((1, 3, 32, 48), 24, depth=2, classes=10)),
    "convnext": lambda seed: build_convnext(
        seed, ConvNeXtConfig((1, 3, 32, 64), (8, 12, 16, 24), depths=(1, 1, 1, 1), classes=10)
    ),
    "espnet": lambda seed: build_espnet(
        seed, ESPNetConfig((1, 3, 24, 40), 6, (11, 13), (1, 1), decoder=8)
    ),
}


@dataclass(frozen=True)
class Network:
    """A network, the sizes its symbolic dimensions get, and how far numbers may be apart.

    Relative to the largest number: half precision rounds each step differently, and a quantised
    value on the edge between two steps falls either way. A network whose answer is a constant
    would pass with any fault: its outputs have at least this standard deviation.
    """

    build: Callable[[], onnx.ModelProto]
    bind: dict[str, int] = field(default_factory=dict)
    tolerance: float = 1e-4
    deviation: float = 0.01


def example(name: str) -> Network:
    return Network(lambda: onnx.load(example_models(name)[name]))


EXPORTED = [
    Network(networks.yolo),
    Network(networks.vit_tiny, {"batch": 2}),
    Network(networks.swin_blocks),
    Network(networks.masked_text, {"batch": 3, "tokens": 7}),
    Network(networks.gru_head, {"batch": 2}),
    Network(networks.tf2onnx, {"unk__1": 2}),
    Network(networks.quantized, tolerance=2e-2),
]
COMPILED = ["yolo", "vit_tiny", "swin_blocks", "gru_head", "tf2onnx", "quantized"]
COMPILED += [f"small_{name}" for name in ("fastvit", "mobilevit", "swin", "convnext", "espnet")]
FULL = ["vision", "policy"]
FULL_COMPILED = ["mobilenetv3_large", "unet"]
NETWORKS = {e.build.__name__: e for e in EXPORTED}
NETWORKS |= {
    f"small_{name}": Network(lambda make=make: make(3)[0], deviation=0.05)  # type: ignore[misc]
    for name, make in SMALL.items()
}
QUICK = list(NETWORKS)
NETWORKS |= {name: example(name) for name in (*FULL, *FULL_COMPILED)}


def feeds_of(session: ort.InferenceSession, bind: dict[str, int], seed: int) -> dict[str, Array]:
    """Return seeded inputs: pixels, integers of 0 to 19 or, of a mask, ones and then zeros."""
    rng = np.random.default_rng(seed)
    feeds: dict[str, Array] = {}
    for given in session.get_inputs():
        shape = [bind.get(size, 1) if isinstance(size, str) else size for size in given.shape]
        if given.type == "tensor(float)":
            feeds[given.name] = rng.standard_normal(shape).astype(np.float32)
        elif given.type == "tensor(uint8)":
            feeds[given.name] = rng.integers(0, 256, shape).astype(np.uint8)
        elif given.name.endswith("mask"):
            ends = np.arange(1, shape[0] + 1)[:, None] * 2
            feeds[given.name] = (np.arange(shape[1]) < ends).astype(np.int64)
        else:
            feeds[given.name] = rng.integers(0, 20, shape)
    return feeds


def check(
    network: Network, model: onnx.ModelProto, run: Callable[[dict[str, Array]], dict[str, Array]]
) -> None:
    """Compare what `run` makes of two inputs with onnxruntime's outputs."""
    session = ort_session(model)
    names = [output.name for output in session.get_outputs()]
    for seed in (1, 2):
        feeds = feeds_of(session, network.bind, seed)
        found = run(feeds)
        for name, expected in zip(names, session.run(names, feeds), strict=True):
            got = found[name]
            assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
            assert np.abs(got - expected).max() <= network.tolerance * np.abs(expected).max()
            assert expected.std() > network.deviation


@pytest.mark.parametrize("name", quick_cases([*QUICK, *FULL], *QUICK))
def test_network_agrees_with_onnxruntime(name: str) -> None:
    network = NETWORKS[name]
    model = network.build()
    outputs = import_model(model, bind=network.bind).outputs
    check(
        network,
        model,
        lambda feeds: dict(zip(outputs, evaluate(list(outputs.values()), feeds), strict=True)),
    )


@pytest.mark.opencl
@pytest.mark.parametrize("name", quick_cases([*COMPILED, *FULL_COMPILED], "tf2onnx"))
def test_compiled_network_agrees_with_onnxruntime(name: str) -> None:
    network = NETWORKS[name]
    model = network.build()
    with load(import_model(model, bind=network.bind).outputs) as program:
        check(network, model, program.run)


def test_nodes_carry_the_onnx_names_they_come_from() -> None:
    imported = import_model(example_models("policy")["policy"])
    order = toposort([imported.outputs["outputs"].node])
    origins = {name for n in order for name in imported.origins.of(n)}
    assert "/blocks.1/attn/Softmax" in origins
    assert "/heads.plan.1/Gemm" in origins
