"""Collects the properties that an ONNX file declares: names, shapes, slices, and its role.

Nothing is expected of the file here; `fit.py` and `recognise.py` compare it with known models. The
role (such as vision or policy) is detected from the names of its inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from onnx import TensorProto, ValueInfoProto

from scheduler.driving.derive import PAD, overlaps
from scheduler.errors import ModelError
from scheduler.onnx_import import OnnxModel, import_model
from scheduler.onnx_import.limits import printable
from scheduler.onnx_import.metadata import (
    CHECKPOINT_KEY,
    SLICED_OUTPUT,
    SLICES_KEY,
    load_slices,
    resolve_slices,
)

# Sizes that the file leaves open are None.
Shape = tuple[int | None, ...]

SUPERCOMBO: Final = "supercombo"
VISION: Final = "vision"
POLICY: Final = "policy"
OFF_POLICY: Final = "off_policy"
ON_POLICY: Final = "on_policy"
MONITORING: Final = "monitoring"
RECURRENT: Final = "recurrent"
NAVIGATION: Final = "navigation"

ROAD_IMAGES: Final = ("img", "input_imgs")
WIDE_IMAGES: Final = ("big_img", "big_input_imgs")
NEWEST_IMAGES: Final = ("warped", "new_img")


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Properties of one ONNX file."""

    model: OnnxModel  # the model as read
    # Detected from the names of its inputs: SUPERCOMBO, VISION, POLICY, MONITORING, RECURRENT or
    # NAVIGATION; "" for any other model.
    role: str
    shapes: Mapping[str, Shape | None]  # input -> declared shape; None if no shape is declared
    states: tuple[str, ...]  # inputs that the model feeds back to itself by outputs `next_<name>`
    width: int | None  # width of the output vector; None if unknown
    slices: Mapping[str, tuple[int, int]]  # head -> (start, stop), without `pad`
    problems: tuple[str, ...]  # problems with the slices, a phrase each
    checkpoint: str  # name of the training run; "" if the file has none

    @property
    def name(self) -> str:
        """Name of the file, for messages."""
        return self.model.name

    @property
    def half(self) -> tuple[str, ...]:
        """Inputs of type float16."""
        kind = TensorProto.FLOAT16
        return tuple(v.name for v in self.model.inputs if v.type.tensor_type.elem_type == kind)


def facts_of(model: OnnxModel) -> ModelFacts:
    """Return the properties of a model."""
    shapes = {value.name: shape_of(value) for value in model.inputs}
    outputs = {value.name for value in model.proto.graph.output}
    width = _width(model)
    slices, problems = _slices(model, width)
    return ModelFacts(
        model=model,
        role=_role(set(shapes)),
        shapes=shapes,
        states=tuple(name for name in shapes if f"next_{name}" in outputs),
        width=width,
        slices={name: bounds for name, bounds in slices.items() if name != PAD},
        problems=(*problems, *overlaps(slices)),
        checkpoint=model.metadata_props.get(CHECKPOINT_KEY, ""),
    )


def shape_of(value: ValueInfoProto) -> Shape | None:
    """Return the declared shape, with None for symbolic sizes; None if no shape is declared."""
    kind = value.type.tensor_type
    if not kind.HasField("shape"):
        return None
    return tuple(
        int(dim.dim_value) if dim.HasField("dim_value") and dim.dim_value >= 0 else None
        for dim in kind.shape.dim
    )


def shape_text(shape: Shape | None) -> str:
    """Return a shape for messages, with "?" for open sizes."""
    if shape is None:
        return "no shape"
    sizes = ", ".join("?" if size is None else str(size) for size in shape)
    return printable(f"({sizes}{',' if len(shape) == 1 else ''})")


def fits(found: Shape | None, wanted: Shape) -> bool:
    """Whether a declared shape can be the wanted one."""
    return found is None or (
        len(found) == len(wanted)
        and all(f is None or w is None or f == w for f, w in zip(found, wanted, strict=True))
    )


def _role(names: set[str]) -> str:
    sees = not names.isdisjoint(ROAD_IMAGES)
    wide = not names.isdisjoint(WIDE_IMAGES)
    remembers = "features_buffer" in names and not names.isdisjoint(("desire", "desire_pulse"))
    if names == {"input_img", "calib"}:
        return MONITORING
    if sees and {"initial_state", "desire"} <= names:
        return RECURRENT
    if sees and remembers and "nav_features" in names:
        return NAVIGATION
    if "desire" in names and not names.isdisjoint(NEWEST_IMAGES):
        return SUPERCOMBO
    if sees and wide:
        return SUPERCOMBO if remembers else VISION
    return POLICY if remembers and not sees else ""


def _width(model: OnnxModel) -> int | None:
    outputs = {value.name: shape_of(value) for value in model.proto.graph.output}
    name = next(iter(outputs)) if len(outputs) == 1 else SLICED_OUTPUT
    shape = outputs.get(name)
    if shape and shape[-1] is not None:
        return shape[-1]
    if name not in outputs:
        return None
    try:
        found = import_model(model).outputs[name].shape
    except ModelError:
        return None
    return found[-1] if found else None


def _slices(
    model: OnnxModel, width: int | None
) -> tuple[dict[str, tuple[int, int]], tuple[str, ...]]:
    """Return the slices that fit the output, and the problems with others."""
    text = model.metadata_props.get(SLICES_KEY)
    if text is None:
        return {}, ()
    if width is None:
        return {}, (f'expected one output, or one called "{SLICED_OUTPUT}", of known width',)
    found: dict[str, tuple[int, int]] = {}
    problems = []
    try:
        raw = load_slices(text, model.name)
    except ModelError as error:
        return {}, (str(error).removeprefix(f"{model.name}: "),)
    for name, item in raw.items():
        try:
            found |= resolve_slices({name: item}, width, model.name)
        except ModelError as error:
            problems.append(str(error).removeprefix(f"{model.name}: "))
    return found, tuple(problems)
