"""Which revision of the table a set of driving models is, told by names and shapes of inputs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

from runtime.driving_interface import Interface, ModelPart
from scheduler.driving.derive import derive, example_parts
from scheduler.driving.revisions import load_revisions
from scheduler.errors import ModelError
from scheduler.onnx_import import OnnxModel
from scheduler.onnx_import.metadata import CHECKPOINT_KEY, SLICES_KEY, load_slices, resolve_slices


def recognise_driving(
    models: Sequence[OnnxModel], declared: str | None = None
) -> tuple[Interface, tuple[OnnxModel, ...], tuple[str, ...]]:
    """Return the interface of models, the models in run order, and notes.

    Raises:
        ModelError: no revision has such models.
    """
    revisions = load_revisions()
    for name, revision in revisions.items():
        if declared not in (None, name):
            continue
        parts = example_parts(revision)
        for ordered in permutations(models):
            if len(ordered) == len(parts) and all(map(_fits, ordered, parts)):
                found = tuple(map(_part, ordered, parts))
                states = [s for model in revision.models for s in model.states]
                interface = derive(name, "names and shapes", found, states, revision.rules)
                return interface, ordered, tuple(n for m in ordered for n in m.notes)
    names = ", ".join(model.name for model in models)
    raise ModelError(f"{names}: expected models of one of {list(revisions)}, found none")


def _fits(model: OnnxModel, part: ModelPart) -> bool:
    slices = load_slices(model.metadata_props.get(SLICES_KEY, "gAR9lC4="), model.name)
    shapes = {
        v.name: tuple(d.dim_value for d in v.type.tensor_type.shape.dim) for v in model.inputs
    }
    return shapes == {n: s for n, (s, _) in part.inputs.items()} and set(slices) >= set(part.slices)


def _part(model: OnnxModel, part: ModelPart) -> ModelPart:
    text = model.metadata_props[SLICES_KEY]
    output = next(v for v in model.proto.graph.output if not v.name.startswith("next_"))
    width = output.type.tensor_type.shape.dim[-1].dim_value or part.width
    slices = resolve_slices(load_slices(text, model.name), width, model.name)
    checkpoint = model.metadata_props.get(CHECKPOINT_KEY, "")
    return ModelPart(part.role, checkpoint, width, slices, part.inputs)
