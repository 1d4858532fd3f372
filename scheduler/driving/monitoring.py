"""Builds the driver monitoring program, and recognizes which interface its model has.

    frame, geometry, transform -> warp -> input_img -+
                                            calib ---+-> model -> monitoring_outputs

The program has no state between frames.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

from runtime.format.interfaces import (
    MONITORING_HEADS,
    MONITORING_ROLE,
    VIEW_HEIGHT,
    VIEW_WIDTH,
    ModelPart,
    MonitoringInterface,
    monitoring_head_problems,
)
from scheduler.driving.derive import PAD, overlaps
from scheduler.driving.facts import facts_of
from scheduler.driving.recognise import declaration
from scheduler.driving.revisions import MONITORING_RULES, MonitoringRevision, load_monitoring
from scheduler.driving.warp import luma_image
from scheduler.errors import ModelError
from scheduler.ir import dtype as dt
from scheduler.ir.origin import Origins
from scheduler.onnx_import import ImportedModel, OnnxModel, import_model
from scheduler.onnx_import.binding import declared
from scheduler.onnx_import.metadata import SLICED_OUTPUT
from scheduler.schedule_cache import EntryGraph
from scheduler.tensor.tensor import Tensor

MONITORING: Final = "monitoring"  # kind of the artifact, and its name
SEE: Final = "see docs/formats/monitoring-models.md"
DECLARE: Final = (
    'declare another with --interface NAME, or interface = "NAME" in a TOML next to the model'
)
IMAGE, CALIBRATION = "input_img", "calib"
# Number of elements of each input; exporters have used several shapes.
SIZES: Final[Mapping[str, int]] = {IMAGE: VIEW_WIDTH * VIEW_HEIGHT, CALIBRATION: 3}


@dataclass(frozen=True, slots=True)
class RecognisedMonitoring:
    """A driver monitoring model, its interface, and notes about assumptions."""

    model: OnnxModel
    interface: MonitoringInterface
    notes: tuple[str, ...]


def is_monitoring(model: OnnxModel) -> bool:
    """Whether a model has the inputs of a driver monitoring model."""
    return {value.name for value in model.inputs} == set(SIZES)


def recognise_monitoring(model: OnnxModel, name: str | None = None) -> RecognisedMonitoring:
    """Return the interface of a driver monitoring model.

    The revision is the declared one (`name`), else that of a TOML next to the model, else the one
    that its outputs match. Raises ModelError, with all problems in one message, if it is no driver
    monitoring model of a known revision, contradicts the declaration, or has wrong slices or heads.
    """
    inputs = _inputs_as_declared(model)
    revisions = load_monitoring()
    facts = facts_of(model)
    declared_as = declaration([facts], name, revisions, MONITORING_RULES)
    imported = None
    width, slices, problems = facts.width, facts.slices, [*facts.problems]
    # A model with wrong slices is not imported. If its width is not declared, the slices cannot be
    # checked before the import, so the import finds the width and they are checked again.
    if width is None or not problems:
        imported = import_model(model, inputs)
        width, slices = _output(imported).shape[1], imported.metadata.output_slices
        problems = overlaps(slices)
    named = {head: bounds for head, bounds in slices.items() if head != PAD}
    if declared_as.name is None:
        revision, why = _by_outputs(model, revisions, named, width, problems)
    else:
        revision, why = revisions[declared_as.name], declared_as.reason
    problems += _differences(revision, named, width)
    if problems or imported is None:
        raise ModelError(
            f"{model.name}: recognized as {revision.name} ({why}): {'; '.join(problems)}; {SEE}"
            + ("" if declared_as.name else f"; {DECLARE}")
        )
    part = ModelPart(
        role=MONITORING_ROLE,
        checkpoint=imported.metadata.checkpoint,
        width=width,
        slices=named if revision.model.sliced else revision.model.slices,
        inputs={n: (t.shape, t.dtype.name) for n, t in imported.inputs.items()},
    )
    rules = {"image_mode": revision.image_mode, "stds": revision.stds, **(declared_as.rules or {})}
    found = MonitoringInterface(revision.name, why + declared_as.rules_text, part, **rules)
    assumed = (
        f"{model.name}: {found.name} ({found.reason}): images {found.image_mode}, deviations "
        f"{found.stds}"
    )
    return RecognisedMonitoring(model, found, (*imported.notes, assumed))


def monitoring_graph(found: RecognisedMonitoring, capacity: int) -> EntryGraph:
    """Return the graph for a frame of at most `capacity` bytes: the entry "run".

    Inputs: `driver_frame` (capacity,) uint8, NV12, may be shorter in a run; `driver_geometry` (4,)
    int32; `driver_transform` (3, 3) float32; `calib` (1, 3) float32, rad. Output:
    `monitoring_outputs` (1, width) float32.
    """
    frame = Tensor.input("driver_frame", (capacity,), dt.uint8, partial=True)
    geometry = Tensor.input("driver_geometry", (4,), dt.int32)
    transform = Tensor.input("driver_transform", (3, 3))
    calibration = Tensor.input("calib", (1, 3))
    inputs = (frame, geometry, transform, calibration)
    origins = Origins()
    origins.name((t.node for t in inputs), ())
    view = luma_image(frame, transform, geometry, found.interface.image_mode)
    origins.name([view.node], ("warp/driver",))
    given = {IMAGE: view, CALIBRATION: calibration}
    fitted = {}
    for name, (shape, kind) in found.interface.model.inputs.items():
        fitted[name] = given[name].reshape(shape).cast(dt.as_dtype(kind))
    imported = import_model(found.model, fitted, origins=origins)
    outputs = {f"{MONITORING_ROLE}_outputs": _output(imported).node}
    return EntryGraph(outputs, (), [t.node for t in inputs], origins=origins)


def _by_outputs(
    model: OnnxModel,
    revisions: Mapping[str, MonitoringRevision],
    slices: Mapping[str, tuple[int, int]],
    width: int,
    problems: Sequence[str],
) -> tuple[MonitoringRevision, str]:
    """Return the revision that a model's outputs match, and the reason."""
    has_heads = not slices.keys().isdisjoint(MONITORING_HEADS)
    for revision in revisions.values():
        row = revision.model
        if row.sliced and has_heads:
            return revision, "the slices of its heads"
        if not row.sliced and not has_heads and width == row.width:
            return revision, f"{width} values without slices"
    rows = "; ".join(
        f"{r.name} has {'named slices' if r.model.sliced else f'{r.model.width} values'}"
        for r in revisions.values()
    )
    raise ModelError(
        f"{model.name}: a driver monitoring model of no known interface: found an output of "
        f"{'; '.join([f'{width} values {_slices_text(slices)}', *problems])}; {rows}"
    )


def _differences(
    revision: MonitoringRevision, slices: Mapping[str, tuple[int, int]], width: int
) -> list[str]:
    """Return the differences between a model's outputs and those of a revision, a phrase each."""
    row = revision.model
    has_heads = not slices.keys().isdisjoint(MONITORING_HEADS)
    if row.sliced != has_heads or (not row.sliced and width != row.width):
        expected = "output_slices" if row.sliced else f"{row.width} values without slices"
        return [f"expected {expected}, found an output of {width} values {_slices_text(slices)}"]
    return monitoring_head_problems(slices if row.sliced else row.slices)


def _slices_text(slices: Mapping[str, tuple[int, int]]) -> str:
    names = sorted(slices)
    shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
    return f"with the slices {shown}" if names else "without slices"


def _inputs_as_declared(model: OnnxModel) -> dict[str, Tensor]:
    """Return inputs with the model's shapes and types; raise ModelError for unexpected inputs.

    If a size is unknown, the last unknown one is set so that the number of elements is `SIZES`.
    """
    names = [value.name for value in model.inputs]
    if not is_monitoring(model):
        raise ModelError(
            f"{model.name}: expected the inputs {' and '.join(SIZES)} of a driver monitoring "
            f"model, found {names}"
        )
    found = {}
    for value in model.inputs:
        sizes, kind = declared(value, f'{model.name}: input "{value.name}"')
        known = prod(size or 1 for _, size in sizes)
        shape = [size or 1 for _, size in sizes]
        # The last open axis gets the elements that the known axes leave; other open axes get 1.
        free = [axis for axis, (_, size) in enumerate(sizes) if size is None]
        if free and known and SIZES[value.name] % known == 0:
            shape[free[-1]] = SIZES[value.name] // known
        if prod(shape) != SIZES[value.name]:
            raise ModelError(
                f'{model.name}: input "{value.name}": expected {SIZES[value.name]} elements, as '
                f"(1, {SIZES[value.name]}), found {tuple(size for _, size in sizes)}"
            )
        found[value.name] = Tensor.input(value.name, tuple(shape), kind)
    return found


def _output(model: ImportedModel) -> Tensor:
    """Return the vector that the slices refer to, (1, width) float32."""
    outputs = model.outputs
    output = outputs.get(SLICED_OUTPUT)
    if output is None and len(outputs) == 1:
        output = next(iter(outputs.values()))
    if output is None or output.ndim != 2 or output.shape[0] != 1:
        found = {name: tensor.shape for name, tensor in outputs.items()}
        raise ModelError(f"{model.source.name}: expected one output (1, width), found {found}")
    return output.float()
