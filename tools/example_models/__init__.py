"""Seeded, architecture-faithful ONNX models: no trained driving model can be shipped.

Needs the `compile` extra (onnx). Called by `modeld make-model` and by tests. A further variant is a
builder function here and a row in BUILDERS.
"""

from collections.abc import Callable
from dataclasses import dataclass

import onnx

from tools.example_models.efficientnet import build_efficientnet_b2_elu
from tools.example_models.mobilenet import build_mobilenetv3_large
from tools.example_models.policy import build_policy
from tools.example_models.resnet import build_resnet18
from tools.example_models.unet import build_unet
from tools.example_models.vision import build_vision, build_vision_large

BUILDERS: dict[str, Callable[[int], tuple[onnx.ModelProto, int]]] = {
    "vision": build_vision,
    "policy": build_policy,
    "vision_large": build_vision_large,
    "resnet18": build_resnet18,
    "efficientnet_b2_elu": build_efficientnet_b2_elu,
    "mobilenetv3_large": build_mobilenetv3_large,
    "unet": build_unet,
}


@dataclass(frozen=True, slots=True)
class ExampleModel:
    """A built model with its size.

    Attributes:
        name: key of BUILDERS; the file is `<name>.onnx`.
        data: the serialized model; equal for equal seeds.
        parameters: elements of all weights.
        flops: 2 x multiply-adds of convolutions and matrix products per run.
    """

    name: str
    data: bytes
    parameters: int
    flops: int


def build_example(name: str, seed: int = 0) -> ExampleModel:
    """Build and serialize an example model.

    Args:
        name: a key of BUILDERS.
        seed: of all weights.
    """
    model, multiply_adds = BUILDERS[name](seed)
    parameters = sum(_elements(tensor) for tensor in model.graph.initializer)
    return ExampleModel(
        name, model.SerializeToString(deterministic=True), parameters, 2 * multiply_adds
    )


def _elements(tensor: onnx.TensorProto) -> int:
    count = 1
    for dim in tensor.dims:
        count *= dim
    return count
