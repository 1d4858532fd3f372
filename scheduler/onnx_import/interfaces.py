"""The interfaces of known driving models, told by the names and shapes of their inputs.

A table of the generations of openpilot's models. A model belongs to the first row whose names it
has; sizes only tell rows of the same names apart, and what does not fit is reported. Element types
play no part: exporters write float16, float32 and uint8 for the same interface.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from onnx import TensorProto, ValueInfoProto

from scheduler.errors import ModelError
from scheduler.onnx_import.files.load import OnnxModel
from scheduler.onnx_import.text import printable

Shape = tuple[int | None, ...]

MONOLITHIC: Final = "monolithic"
VISION: Final = "vision"
POLICY: Final = "policy"
MONITORING: Final = "driver monitoring"

# Two frames of 6 channels: 4 of luma, U and V, each of half the resolution of the view.
IMAGES: Shape = (1, 12, 128, 256)
# What an input is for, by name. Names have one meaning in all generations.
MEANINGS: Mapping[str, str] = {
    "action_t": "delays of steering and acceleration",
    "big_img": "wide camera, two frames of 6 channels",
    "big_input_imgs": "wide camera, two frames of 6 channels",
    "calib": "calibration angles of the camera",
    "desire": "desires, one of 8 in each row",
    "desire_pulse": "desires at their rising edge, one of 8 in each row",
    "features_buffer": "features of past frames",
    "img": "road camera, two frames of 6 channels",
    "initial_state": "recurrent state",
    "input_img": "luma of the driver camera",
    "input_imgs": "road camera, two frames of 6 channels",
    "lateral_control_params": "speed and steering delay",
    "nav_features": "features of the map",
    "nav_instructions": "navigation instructions",
    "new_img": "newest frames, road and wide",
    "prev_desired_curv": "curvatures of past frames",
    "traffic_convention": "side of the road, one of 2",
    "warped": "newest frames, road and wide",
}


@dataclass(frozen=True, slots=True)
class Generation:
    """A row of the table.

    Attributes:
        title: with its time, for messages.
        role: MONOLITHIC, VISION, POLICY or MONITORING.
        required: input name -> shape, None for any size; "a|b" is one input of either name.
        optional: inputs that some models have; the same form.
        driving: whether `compile_driving` takes it.
        states: whether further inputs are states, each with an output "next_" + name.
    """

    title: str
    role: str
    required: Mapping[str, Shape]
    optional: Mapping[str, Shape] = field(default_factory=dict)
    driving: bool = False
    states: bool = False


_TRAFFIC: Mapping[str, Shape] = {"traffic_convention": (1, 2)}
_OLD_EYES: Mapping[str, Shape] = {"input_imgs": IMAGES, "big_input_imgs": IMAGES}
_EYES: Mapping[str, Shape] = {"img": IMAGES, "big_img": IMAGES}
_LATERAL: Mapping[str, Shape] = {"lateral_control_params": (1, 2)}
_MEMORY: Mapping[str, Shape] = {"desire": (1, 100, 8), "features_buffer": (1, 99, 512), **_TRAFFIC}
_CURVES: Mapping[str, Shape] = {**_LATERAL, "prev_desired_curv": (1, 100, 1)}

# The first row that fits is taken: rows with more required inputs stand before those with fewer.
GENERATIONS: tuple[Generation, ...] = (
    Generation(
        "monolithic supercombo with a recurrent state (until 2022)",
        MONOLITHIC,
        {"input_imgs": IMAGES, "desire": (1, 8), "initial_state": (1, 512), **_TRAFFIC},
        {"big_input_imgs": IMAGES},
    ),
    Generation(
        "monolithic supercombo with navigation (2023)",
        MONOLITHIC,
        {**_OLD_EYES, **_MEMORY, "nav_features": (1, 256)},
        {"nav_instructions": (1, 150), **_CURVES},
    ),
    Generation(
        "monolithic supercombo (2023 to 2024)", MONOLITHIC, {**_OLD_EYES, **_MEMORY}, _CURVES
    ),
    Generation(
        "monolithic supercombo (2026)",
        MONOLITHIC,
        {**_EYES, **_TRAFFIC, "features_buffer": (1, 24, 512), "desire_pulse|desire": (1, 25, 8)},
        {"action_t": (1, 2)},
    ),
    Generation(
        "big monolithic supercombo (2026)",
        MONOLITHIC,
        {
            **_EYES,
            **_TRAFFIC,
            "features_buffer": (1, 32, 32, 512),
            "desire_pulse|desire": (1, 33, 8),
        },
        {"action_t": (1, 2)},
    ),
    Generation(
        "monolithic supercombo with its history inside (2026)",
        MONOLITHIC,
        {"new_img|warped": (2, 6, 128, 256), "desire": (8,), **_TRAFFIC},
        {"action_t": (1, 2)},
        states=True,
    ),
    Generation("split vision, first names (2025)", VISION, _OLD_EYES, driving=True),
    Generation("split vision (2025 to 2026)", VISION, _EYES, driving=True),
    Generation(
        "split policy with past curvatures (2025)",
        POLICY,
        {
            "desire|desire_pulse": (1, 25, 8),
            "features_buffer": (1, 25, 512),
            **_TRAFFIC,
            **_LATERAL,
        },
        {"prev_desired_curv": (1, 25, 1)},
    ),
    Generation(
        "split policy with action times (2026)",
        POLICY,
        {
            "desire_pulse|desire": (1, 25, 8),
            "features_buffer": (1, 25, 512),
            **_TRAFFIC,
            "action_t": (1, 2),
        },
    ),
    Generation(
        "split policy (2025 to 2026)",
        POLICY,
        {"desire_pulse|desire": (1, 25, 8), "features_buffer": (1, 25, 512), **_TRAFFIC},
        driving=True,
    ),
    Generation("driver monitoring", MONITORING, {"input_img": (1, 1382400), "calib": (1, 3)}),
)


@dataclass(frozen=True, slots=True)
class Interface:
    """The interface that a model was recognised by.

    Attributes:
        generation: the row of the table.
        inputs: input name -> what it is for, in the order of the file.
        shapes: input name -> shape that this generation has; of states, as declared.
        variant: "on-policy" or "off-policy" for halves of a policy that was split once more, told
            by their output slices; "" otherwise.
        half: inputs of type float16.
        odd: what does not fit the generation, one phrase each; empty for a model of known sizes.
    """

    generation: Generation
    inputs: dict[str, str]
    shapes: dict[str, Shape]
    variant: str
    half: tuple[str, ...]
    odd: tuple[str, ...]

    @property
    def role(self) -> str:
        """MONOLITHIC, VISION, POLICY or MONITORING."""
        return self.generation.role

    @property
    def title(self) -> str:
        """The name for messages."""
        return f"{self.generation.title}{', ' if self.variant else ''}{self.variant}"

    @property
    def advice(self) -> str:
        """The command that compiles it."""
        if not self.generation.driving:
            return "compile it with: modeld compile --plain MODEL.onnx -o OUT.pkl"
        return "compile vision and policy with: modeld compile VISION.onnx POLICY.onnx -o OUT.pkl"


def recognise(model: OnnxModel, slices: Mapping[str, object] | None = None) -> Interface | None:
    """Return the interface of a driving model, None for any other model.

    Args:
        model: only names, shapes and types of its inputs and outputs are looked at.
        slices: names of its output slices, which tell halves of a policy apart.
    """
    shapes = {value.name: _shape(value) for value in model.inputs}
    outputs = {value.name for value in model.proto.graph.output}
    best: Interface | None = None
    for row in GENERATIONS:
        wanted = _match(row, shapes, outputs)
        if wanted is None:
            continue
        odd = tuple(
            f'input "{name}" is {_text(shapes[name])} instead of {_text(shape)}'
            for name, shape in wanted.items()
            if not _fits(shapes[name], shape)
        )
        meanings = {
            name: MEANINGS.get(name, "state" if row.states else "unknown") for name in shapes
        }
        expected = {name: wanted.get(name) or shapes[name] or () for name in shapes}
        variant = _variant(row, slices or {})
        found = Interface(row, meanings, expected, variant, _half(model), odd)
        if not odd:
            return found
        if best is None or len(odd) < len(best.odd):
            best = found
    return best


def check_driving(vision: OnnxModel, policy: OnnxModel) -> None:
    """Refuse two models that are known, but not to be a vision and a policy in this order.

    Models that are not recognised pass: what is wrong with them shows when they are joined.

    Raises:
        ModelError: a model needs no second one, they stand in the wrong order, one was given twice,
            or the policy is of a generation whose inputs the driving program does not have.
    """
    first, second = recognise(vision), recognise(policy)
    for model, found in ((vision, first), (policy, second)):
        if found is not None and found.role in (MONOLITHIC, MONITORING):
            raise ModelError(
                f"{model.name}: expected a vision and a policy model, found a {found.title}, which "
                f"has no second half; {found.advice}"
            )
    roles = tuple(found.role if found else None for found in (first, second))
    if roles == (POLICY, VISION):
        raise ModelError(
            f"{vision.name}, {policy.name}: expected the vision model first, found the policy; "
            "give them in the other order"
        )
    if roles[0] is not None and roles[0] == roles[1]:
        same = vision.sha256 and vision.sha256 == policy.sha256
        missing = (
            "a policy with the inputs desire_pulse, traffic_convention, features_buffer"
            if roles[0] == VISION
            else "a vision model with two image inputs"
        )
        raise ModelError(
            f"{vision.name}, {policy.name}: {'the same' if same else 'a'} {roles[0]} model was "
            f"given twice; expected also {missing}"
        )
    for model, found in ((vision, first), (policy, second)):
        if found is not None and not found.generation.driving:
            raise ModelError(
                f"{model.name}: found a {found.title}, whose inputs {list(found.inputs)} the "
                f"driving program does not have; {found.advice}"
            )


def _match(
    row: Generation, shapes: Mapping[str, Shape | None], outputs: set[str]
) -> dict[str, Shape] | None:
    """Return the expected shape of each input that a row names, None if names do not fit."""
    wanted: dict[str, Shape] = {}
    for names, shape in row.required.items():
        name = next((n for n in names.split("|") if n in shapes), None)
        if name is None:
            return None
        wanted[name] = shape
    wanted |= {name: shape for name, shape in row.optional.items() if name in shapes}
    others = [name for name in shapes if name not in wanted]
    if row.states:
        return wanted if others and all(f"next_{name}" in outputs for name in others) else None
    return None if others else wanted


def _variant(row: Generation, slices: Mapping[str, object]) -> str:
    if row.role != POLICY or not slices:
        return ""
    plans = any(name in slices for name in ("plan", "action"))
    sees = any(name in slices for name in ("lane_lines", "lead", "road_edges"))
    if plans and not sees:
        return "on-policy" if "desire_state" not in slices or "action" in slices else ""
    return "off-policy" if sees and not plans else ""


def _half(model: OnnxModel) -> tuple[str, ...]:
    half = TensorProto.FLOAT16
    return tuple(v.name for v in model.inputs if v.type.tensor_type.elem_type == half)


def _shape(value: ValueInfoProto) -> Shape | None:
    """Return the declared shape, None for symbolic sizes; None if no shape is declared."""
    kind = value.type.tensor_type
    if not kind.HasField("shape"):
        return None
    return tuple(
        int(dim.dim_value) if dim.HasField("dim_value") and dim.dim_value >= 0 else None
        for dim in kind.shape.dim
    )


def _fits(found: Shape | None, wanted: Shape) -> bool:
    return found is None or (
        len(found) == len(wanted)
        and all(f is None or w is None or f == w for f, w in zip(found, wanted, strict=True))
    )


def _text(shape: Shape | None) -> str:
    if shape is None:
        return "of unknown shape"
    return printable("(" + ", ".join("?" if size is None else str(size) for size in shape) + ")")
