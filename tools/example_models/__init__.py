"""Seeded, architecture-faithful ONNX models, as published driving models cannot be shipped.

Needs the `compile` extra (onnx). Called by `modeld make-model` and by tests. A further variant is a
builder function here and a row in BUILDERS; a further revision of the driving models needs nothing
here but the shape of heads that no other one has (`outputs.py`).
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
    """A built model with its size.

    Its file is `<name>.onnx`; equal seeds give equal `data`. `parameters` are elements of all
    weights, `flops` 2 x multiply-adds of convolutions and matrix products per run.
    """

    name: str
    data: bytes
    parameters: int
    flops: int


def build_example(name: str, seed: int = 0) -> ExampleModel:
    """Build and serialize an example model."""
    return _example(name, *BUILDERS[name](seed))


def build_revision(revision: Revision, seed: int = 0) -> tuple[ExampleModel, ...]:
    """Build and serialize small models of a revision, in the order in which they run."""
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
    """Write example models as `<directory>/<name>.onnx`; each file appears whole or not at all.

    The directory is made with its parents. The result has the path and the model of each file, in
    the order of `names`.

    Raises:
        UsageError: the directory cannot be made or written to.
    """
    return [_write(directory, build_example(name, seed)) for name in names]


def write_interface(
    directory: Path, interface: str, seed: int = 0
) -> list[tuple[Path, ExampleModel]]:
    """Write small models of a revision as `<directory>/<role>.onnx`, each whole or not at all.

    That of driver monitoring is `<directory>/dmonitoring.onnx`. The directory is made with its
    parents. The result has the path and the model of each file, in the order in which they run in a
    frame.

    Raises:
        UsageError: an unknown interface, or a directory that cannot be made or written to.
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
