"""The interfaces of driving and driver monitoring models, as data for the compiler and the daemon.

An interface describes the inputs, outputs and rules of a model. The compiler derives an `Interface`
or a `MonitoringInterface` from ONNX files and a declaration (`scheduler.driving`), builds the graph
from it, and stores its plain form in the manifest's metadata under "interface". The daemon reads it
back, so its code has no names of model generations. Terms and rules are explained in
docs/interfaces.md, driver monitoring models in docs/formats/monitoring-models.md.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, Final

from runtime.errors import ArtifactError
from runtime.format.parts import Fields

IMAGE_MODES: Final = ("bilinear", "nearest")
# After missing frames: "skip" only advances the queues of images and desires, "run" runs the model.
DROP_POLICIES: Final = ("skip", "run")
LATERAL_RULES: Final = ("plan", "desired_curvature", "action")
LONGITUDINAL_RULES: Final = ("none", "plan", "action")
LATERAL_DELAYS: Final = ("liveDelay", "steerActuatorDelay")
STOP_RULES: Final = ("plan", "speed")
LANE_CHANGE_MACHINES: Final = ("A", "B")
META_WIDTHS: Final = (48, 53, 55)
# Inputs that the host computes for each frame, besides frames, matrices and desires: name -> shape.
HOST_INPUTS: Final[Mapping[str, tuple[int, ...]]] = MappingProxyType(
    {"traffic_convention": (1, 2), "lateral_control_params": (1, 2), "action_t": (1, 2)}
)
DESIRE_WIDTH: Final = 8
MAX_WIDTH: Final = 1 << 24
MAX_HISTORY: Final = 10_000
MAX_MODELS: Final = 8


@dataclass(frozen=True, slots=True)
class ModelPart:
    """One ONNX model of an interface."""

    role: str  # such as "vision", "policy", "on_policy", "off_policy", "supercombo"
    checkpoint: str  # the training run that it comes from; "" if unknown
    width: int  # length of its output vector `<role>_outputs`, float32 (1, width)
    slices: Mapping[str, tuple[int, int]]  # head -> (start, stop), 0 <= start < stop <= width
    inputs: Mapping[str, tuple[tuple[int, ...], str]]  # ONNX input -> (shape, dtype)


@dataclass(frozen=True, slots=True)
class ImageRule:
    """The rule that makes the two camera views, the model's crops of the road."""

    mode: str  # "bilinear" (fixed point, pixel centers kept in chroma) or "nearest"
    # Number of frames between the two images that a model sees: 1 (50 ms) or 4 (200 ms); 0 if the
    # model stores its images itself and gets only the newest.
    gap: int


@dataclass(frozen=True, slots=True)
class HistoryRule:
    """A history: a queue on the device with one row per frame, which a model samples."""

    length: int  # number of samples that the model sees
    step: int  # frames between samples; for desires, a sample is the maximum of `step` rows
    current: bool  # whether a frame's row is stored before the model sees the history
    newest: bool  # whether the last sample is the newest row; otherwise the first is the oldest
    # Factor applied to stored rows: 0 disables the input; only past curvatures use other factors.
    scale: float = 1.0

    @property
    def frames(self) -> int:
        """Number of rows on the device."""
        return self.length * self.step

    @property
    def first(self) -> int:
        """Row of the first sample. Every `step`-th row after it is a sample too."""
        return self.step - 1 if self.newest else 0


@dataclass(frozen=True, slots=True)
class ActionRule:
    """The rule that computes the driving command from the model's outputs.

    The lateral delay is the sum of its source, `lateral_delay_extra_s` and `lat_smooth_s`. The
    longitudinal delay is the sum of the car's delay and `long_smooth_s`. A command takes effect
    `frame_delay_s` after the delay.
    """

    lateral: str  # head with the curvature
    longitudinal: str  # head with the acceleration; "none" leaves it empty
    lateral_delay: str  # source of the delay, one of LATERAL_DELAYS
    lateral_delay_extra_s: float
    frame_delay_s: float
    lat_smooth_s: float  # time constant of the lateral filter; 0 for none
    long_smooth_s: float  # time constant of the longitudinal filter; 0 for none
    hold_below_mps: float  # up to this speed the curvature is held; 0 for never
    stop: str  # one of STOP_RULES: by planned speeds, or by current speed and acceleration
    clip_speed: bool  # whether negative speeds count as 0


@dataclass(frozen=True, slots=True)
class Interface:
    """Everything that the compiler and the daemon need to know about a driving model."""

    name: str  # name of the revision, see `modeld make-model --list-interfaces`
    reason: str  # why this interface was chosen, for people
    # In execution order. If two models have the same head, the later one's is used.
    models: tuple[ModelPart, ...]
    image: ImageRule
    desire: HistoryRule | None  # history of desires; None if the model stores it
    features: HistoryRule | None  # history of `hidden_state`; None if the model stores it
    curvature: HistoryRule | None  # history of the model's own curvatures; None for none
    states: tuple[str, ...]  # ONNX inputs whose next value is the output `next_<name>`
    host_inputs: tuple[str, ...]  # the HOST_INPUTS that the program has
    drop_policy: str  # one of DROP_POLICIES
    action: ActionRule
    meta: int  # width of the head `meta`, which determines its columns
    lane_change: str  # one of LANE_CHANGE_MACHINES
    big: bool = False  # value of the `big` flag in messages

    def plain(self) -> dict[str, Any]:
        """Return the interface as plain data for the manifest and JSON."""
        found: dict[str, Any] = _plain_value(asdict(self))
        return found

    @property
    def heads(self) -> dict[str, tuple[str, int, int]]:
        """Head -> (role, start, stop), of the later model if two have the head."""
        return {
            name: (part.role, *bounds)
            for part in self.models
            for name, bounds in part.slices.items()
        }


def _plain_value(value: Any) -> Any:
    """Return a value with tuples as lists and mappings as dicts, the types of manifests."""
    if isinstance(value, Mapping):
        return {key: _plain_value(item) for key, item in value.items()}
    return [_plain_value(item) for item in value] if isinstance(value, tuple | list) else value


def parse_interface(value: object) -> Interface:
    """Parse the result of `Interface.plain`, checking every field.

    Raises ArtifactError if a field is missing, has the wrong type or is out of range.
    """
    where = "metadata.interface"
    if isinstance(value, str):
        raise ArtifactError(
            f"{where}: expected a description, found the name {value[:80]!r} of an older compiler; "
            "compile the artifact again"
        )
    top = Fields(value, where)
    parts = tuple(
        _parse_part(item, f"{where}.models[{i}]")
        for i, item in enumerate(top.items("models", MAX_MODELS))
    )
    if not parts:
        raise ArtifactError(f"{where}.models: expected at least one model, found none")
    image = Fields(top.get("image", dict), f"{where}.image")
    host = tuple(
        _one_of(h, tuple(HOST_INPUTS), f"{where}.host_inputs") for h in top.items("host_inputs", 16)
    )
    meta = top.number("meta", 1, MAX_WIDTH)
    if meta not in META_WIDTHS:
        raise ArtifactError(f"{where}.meta: expected one of {META_WIDTHS}, found {meta}")
    return Interface(
        name=top.text("name"),
        reason=top.text("reason"),
        models=parts,
        image=ImageRule(image.choice("mode", IMAGE_MODES), image.number("gap", 0, 100)),
        desire=_history(top, "desire"),
        features=_history(top, "features"),
        curvature=_history(top, "curvature"),
        states=tuple(_text(s, f"{where}.states") for s in top.items("states", 256)),
        host_inputs=host,
        drop_policy=top.choice("drop_policy", DROP_POLICIES),
        action=_action(Fields(top.get("action", dict), f"{where}.action")),
        meta=meta,
        lane_change=top.choice("lane_change", LANE_CHANGE_MACHINES),
        big=top.get("big", bool),
    )


def _parse_part(value: object, where: str) -> ModelPart:
    """Parse one model of an interface; `where` names it in errors, as in `parse_interface`."""
    fields = Fields(value, where)
    width = fields.number("width", 1, MAX_WIDTH)
    slices: dict[str, tuple[int, int]] = {}
    for name, bounds in fields.get("slices", dict).items():
        start, stop = _pair(bounds, f"{where}.slices.{name}")
        if not 0 <= start < stop <= width:
            raise ArtifactError(
                f"{where}.slices.{name}: expected [start, stop] within 0..{width}, found {bounds!r}"
            )
        slices[_text(name, where)] = (start, stop)
    inputs: dict[str, tuple[tuple[int, ...], str]] = {}
    for name, signature in fields.get("inputs", dict).items():
        if type(signature) is not list or len(signature) != 2 or type(signature[0]) is not list:
            raise ArtifactError(f"{where}.inputs.{name}: expected [shape, dtype]")
        inputs[_text(name, where)] = (
            Fields({"shape": signature[0]}, f"{where}.inputs.{name}").numbers(
                "shape", 0, MAX_WIDTH, 16
            ),
            _text(signature[1], f"{where}.inputs.{name}"),
        )
    return ModelPart(fields.text("role"), fields.text("checkpoint"), width, slices, inputs)


def _history(top: Fields, key: str) -> HistoryRule | None:
    if top.value.get(key) is None:
        return None
    fields = Fields(top.get(key, dict), f"{top.where}.{key}")
    return HistoryRule(
        fields.number("length", 1, MAX_HISTORY),
        fields.number("step", 1, 100),
        fields.get("current", bool),
        fields.get("newest", bool),
        _bounded(fields, "scale", 1.0),
    )


def _action(fields: Fields) -> ActionRule:
    return ActionRule(
        lateral=fields.choice("lateral", LATERAL_RULES),
        longitudinal=fields.choice("longitudinal", LONGITUDINAL_RULES),
        lateral_delay=fields.choice("lateral_delay", LATERAL_DELAYS),
        lateral_delay_extra_s=_bounded(fields, "lateral_delay_extra_s"),
        frame_delay_s=_bounded(fields, "frame_delay_s"),
        lat_smooth_s=_bounded(fields, "lat_smooth_s"),
        long_smooth_s=_bounded(fields, "long_smooth_s"),
        hold_below_mps=_bounded(fields, "hold_below_mps"),
        stop=fields.choice("stop", STOP_RULES),
        clip_speed=fields.get("clip_speed", bool),
    )


def _bounded(fields: Fields, key: str, high: float = 10.0) -> float:
    """Return the float field `key`, which must be in [0, high]; NaN is refused."""
    value: float = fields.get(key, float)
    if not 0.0 <= value <= high:
        raise ArtifactError(f"{fields.where}.{key}: {value} is outside 0..{high:g}")
    return value


def _pair(value: object, where: str) -> tuple[int, int]:
    if type(value) is not list or len(value) != 2 or any(type(v) is not int for v in value):
        raise ArtifactError(f"{where}: expected [start, stop], found {str(value)[:80]}")
    return value[0], value[1]


def _text(value: object, where: str) -> str:
    if type(value) is not str:
        raise ArtifactError(f"{where}: expected text, found {type(value).__name__}")
    return value


def _one_of(value: object, allowed: tuple[str, ...], where: str) -> str:
    return Fields({"item": value}, where).choice("item", allowed)


# --- Driver monitoring ------------------------------------------------------------------------

MONITORING_ROLE: Final = "monitoring"
# Size of the luma plane of the model's view, stored row by row.
VIEW_WIDTH: Final = 1440
VIEW_HEIGHT: Final = 960
# The rule for standard deviations: "exp" may overflow to infinity, "clipped" is exp(min(x, 11)).
STD_RULES: Final = ("exp", "clipped")
# The model judges both seats. The name of each seat's head ends in one of these.
SEATS: Final = ("lhd", "rhd")
# Orientation and position (x, y, size) of the face, then the logarithms of their deviations.
FACE_WIDTH: Final = 12
# Heads for each seat -> width. All except the face are logits.
SEAT_HEADS: Final[Mapping[str, int]] = MappingProxyType(
    {
        "face_descs": FACE_WIDTH,
        "face_prob": 1,
        "left_eye_prob": 1,
        "right_eye_prob": 1,
        "left_blink_prob": 1,
        "right_blink_prob": 1,
        "sunglasses_prob": 1,
    }
)
# Heads of some generations only. If one is missing, its message field stays empty.
OPTIONAL_SEAT_HEADS: Final[Mapping[str, int]] = MappingProxyType(
    {
        "occluded_prob": 1,
        "ready_prob": 4,
        "not_ready_prob": 2,
        "using_phone_prob": 1,
        "sleep_prob": 1,
    }
)


def _all_seats(heads: Mapping[str, int]) -> dict[str, int]:
    return {f"{head}_{seat}": width for seat in SEATS for head, width in heads.items()}


MONITORING_HEADS: Final[Mapping[str, int]] = MappingProxyType(
    {**_all_seats(SEAT_HEADS), "wheel_on_right": 1}
)
OPTIONAL_MONITORING_HEADS: Final[Mapping[str, int]] = MappingProxyType(
    {**_all_seats(OPTIONAL_SEAT_HEADS), "poor_vision": 1}
)


@dataclass(frozen=True, slots=True)
class MonitoringInterface:
    """Everything that the compiler and the daemon need to know about a driver monitoring model."""

    name: str  # name of the revision
    reason: str  # why this interface was chosen, for people
    model: ModelPart  # inputs `input_img` and `calib`, and the heads in the output vector
    image_mode: str  # one of IMAGE_MODES
    stds: str  # one of STD_RULES

    def plain(self) -> dict[str, Any]:
        """Return the interface as plain data for the manifest and JSON."""
        found: dict[str, Any] = _plain_value(asdict(self))
        return found


def monitoring_head_problems(slices: Mapping[str, tuple[int, int]]) -> list[str]:
    """Return the problems with a model's heads, one phrase each; [] if there are none.

    `slices` is head -> (start, stop). Heads that the message has no field for are permitted.
    """
    problems = []
    for name, width in {**MONITORING_HEADS, **OPTIONAL_MONITORING_HEADS}.items():
        bounds = slices.get(name)
        wanted = f"{name}: expected {width} value{'' if width == 1 else 's'}"
        if bounds is None:
            if name in MONITORING_HEADS:
                problems.append(f"{wanted}, is missing")
        elif bounds[1] - bounds[0] != width:
            problems.append(f"{wanted}, found {bounds[1] - bounds[0]}")
    return problems


def parse_monitoring_interface(value: object) -> MonitoringInterface:
    """Parse the result of `MonitoringInterface.plain`, checking every field.

    Raises ArtifactError if a field is missing, has the wrong type or is out of range, or a head
    that the message needs is missing or has another width.
    """
    where = "metadata.interface"
    top = Fields(value, where)
    model = _parse_part(top.get("model", dict), f"{where}.model")
    problems = monitoring_head_problems(model.slices)
    if problems:
        raise ArtifactError(f"{where}.model.slices: {'; '.join(problems)}; compile the model again")
    return MonitoringInterface(
        name=top.text("name"),
        reason=top.text("reason"),
        model=model,
        image_mode=top.choice("image_mode", IMAGE_MODES),
        stds=top.choice("stds", STD_RULES),
    )
