"""Models of a revision, changed as a test asks: inputs, heads, checkpoint."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import onnx
from onnx import TensorProto

from runtime.format.interfaces import ModelPart
from scheduler.driving.derive import example_parts, is_image
from scheduler.driving.revisions import Revision, load_revisions
from scheduler.onnx_import import OnnxModel, from_proto
from tests.scheduler.onnx_import.tiny_models import mixer

Bounds = tuple[int | None, int | None]


@cache
def revisions() -> Mapping[str, Revision]:
    return load_revisions()


def parts_of(name: str) -> dict[str, ModelPart]:
    return {part.role: part for part in example_parts(revisions()[name])}


def proto_of(
    part: ModelPart,
    *,
    inputs: Mapping[str, tuple[int, ...] | None] | None = None,
    slices: Mapping[str, Bounds | None] | None = None,
    width: int | None = None,
    checkpoint: str = "",
) -> onnx.ModelProto:
    """Return a model with the interface of a part, but for what is named; None takes it away."""
    shapes = {n: shape for n, (shape, _) in part.inputs.items()} | dict(inputs or {})
    heads = dict(part.slices) | dict(slices or {})
    proto = mixer(
        {name: shape for name, shape in shapes.items() if shape is not None},
        width or part.width,
        {name: slice(*bounds) for name, bounds in heads.items() if bounds is not None},
        {name: TensorProto.UINT8 for name in shapes if is_image(name)},
    )
    if checkpoint:
        proto.metadata_props.add(key="model_checkpoint", value=checkpoint)
    return proto


def edited(part: ModelPart, **changes: Any) -> OnnxModel:
    """Return the model of `proto_of`, read; it is called `<role>.onnx`."""
    return from_proto(proto_of(part, **changes), f"{part.role}.onnx")


def pair(name: str = "split-2025") -> list[OnnxModel]:
    """Return the models of a revision, of unknown checkpoint."""
    return [edited(part) for part in parts_of(name).values()]
