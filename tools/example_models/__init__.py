"""Builds and writes example ONNX models with random weights, as replacements for published ones.

Published driving models cannot be redistributed. These have the same architecture, interface and
cost, and their weights depend on a seed only. `modeld make-model` and tests use them. Building
needs the `compile` extra (onnx).

To add a network, write a builder function in this package and add it to BUILDERS. A new revision
of the driving models needs code only for heads with a new shape (`outputs.py`).
"""

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import onnx

from runtime.files.user_file import whole_file
from scheduler.driving.derive import example_parts
from scheduler.driving.revisions import (
    MonitoringRevision,
    Revision,
    load_monitoring,
    load_revisions,
)
from tools.errors import UsageError
from tools.example_models.attention import build_swin, build_vit
from tools.example_models.convolutional import build_espnet, build_resnet18, build_unet
from tools.example_models.driving import (
    build_monitoring,
    build_policy,
    build_vision,
    build_vision_large,
)
from tools.example_models.fastvit import build_convnext, build_fastvit
from tools.example_models.mobile import (
    build_efficientnet_b2_elu,
    build_mobilenetv3_large,
    build_mobilevit,
)
from tools.example_models.small_driving import build_part

BUILDERS: dict[str, Callable[[int], tuple[onnx.ModelProto, int]]] = {
    "vision": build_vision,
    "policy": build_policy,
    "vision_large": build_vision_large,
    "resnet18": build_resnet18,
    "efficientnet_b2_elu": build_efficientnet_b2_elu,
    "mobilenetv3_large": build_mobilenetv3_large,
    "unet": build_unet,
    "fastvit": build_fastvit,
    "mobilevit": build_mobilevit,
    "swin": build_swin,
    "vit": build_vit,
    "convnext": build_convnext,
    "espnet": build_espnet,
}


@dataclass(frozen=True, slots=True)
class ExampleModel:
    """A serialized model with its size.

    Attributes:
        name: stem of the file name, `<name>.onnx`.
        data: the bytes of the file; equal seeds give equal bytes.
        parameters: number of weight elements.
        flops: floating-point operations per run: twice the multiply-adds of convolutions and
            matrix products.
    """

    name: str
    data: bytes
    parameters: int
    flops: int


def build_example(name: str, seed: int = 0) -> ExampleModel:
    """Build and serialize the example model `name`, a key of BUILDERS."""
    return _example(name, *BUILDERS[name](seed))


def build_revision(revision: Revision, seed: int = 0) -> tuple[ExampleModel, ...]:
    """Build and serialize the small models of a revision, in execution order."""
    return tuple(
        _example(part.role, *build_part(revision.name, part, row.pad, seed))
        for part, row in zip(example_parts(revision), revision.models, strict=True)
    )


def build_driver_monitoring(revision: MonitoringRevision, seed: int = 0) -> ExampleModel:
    """Build and serialize the driver monitoring model of a revision."""
    return _example("dmonitoring", *build_monitoring(revision, seed))


def write_models(
    directory: Path, names: tuple[str, ...], seed: int = 0
) -> list[tuple[Path, ExampleModel]]:
    """Write example models as `<directory>/<name>.onnx` and return their paths and models.

    Each file is written atomically. Missing directories are created. The result is in the order of
    `names`.

    Raises:
        UsageError: the directory cannot be created or written to.
    """
    return [_write(directory, build_example(name, seed)) for name in names]


def write_interface(
    directory: Path, interface: str, seed: int = 0
) -> list[tuple[Path, ExampleModel]]:
    """Write the small models of a revision and return their paths and models, in execution order.

    The files are `<directory>/<role>.onnx`, or `<directory>/dmonitoring.onnx` for a revision of
    driver monitoring. Each is written atomically. Missing directories are created.

    Raises:
        UsageError: the interface is unknown, or the directory cannot be created or written to.
    """
    revisions, monitoring = load_revisions(), load_monitoring()
    known = [*revisions, *monitoring]
    if interface not in known:
        near = difflib.get_close_matches(interface, known, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise UsageError(
            f"--interface: expected one of {', '.join(known)}, found {interface!r}{hint}"
        )
    if interface in monitoring:
        return [_write(directory, build_driver_monitoring(monitoring[interface], seed))]
    return [_write(directory, model) for model in build_revision(revisions[interface], seed)]


def _example(name: str, model: onnx.ModelProto, multiply_adds: int) -> ExampleModel:
    parameters = sum(_elements(tensor) for tensor in model.graph.initializer)
    return ExampleModel(
        name, model.SerializeToString(deterministic=True), parameters, 2 * multiply_adds
    )


def _elements(tensor: onnx.TensorProto) -> int:
    count = 1
    for dim in tensor.dims:
        count *= dim
    return count


def _write(directory: Path, model: ExampleModel) -> tuple[Path, ExampleModel]:
    path = directory / f"{model.name}.onnx"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as file:
            file.write(model.data)
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be written ({error.strerror or error}); name another directory"
        ) from error
    return path, model
