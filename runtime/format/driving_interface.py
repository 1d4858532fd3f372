"""The interface of a driving model as data: what an artifact says, and compiler and daemon obey.

The compiler derives an `Interface` from ONNX files and a declaration (`scheduler.driving`), stores
its plain form in the manifest's metadata under "interface", and builds the driving graph from it.
The daemon reads it back with `parse_interface` and knows no generation by name. Terms and rules are
explained in docs/interfaces.md.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, Final

from runtime.errors import ArtifactError
from runtime.format.fields import Fields

IMAGE_MODES: Final = ("bilinear", "nearest")
# After missing frame ids: "skip" only advances the queues of images and desires, "run" runs.
DROP_POLICIES: Final = ("skip", "run")
LATERAL_RULES: Final = ("plan", "desired_curvature", "action")
LONGITUDINAL_RULES: Final = ("none", "plan", "action")
LATERAL_DELAYS: Final = ("liveDelay", "steerActuatorDelay")
STOP_RULES: Final = ("plan", "speed")
LANE_CHANGE_MACHINES: Final = ("A", "B")
META_WIDTHS: Final = (48, 53, 55)
# What the host computes for each frame, beside frames, matrices and desires: name -> shape.
HOST_INPUTS: Final[Mapping[str, tuple[int, ...]]] = MappingProxyType(
    {"traffic_convention": (1, 2), "lateral_control_params": (1, 2), "action_t": (1, 2)}
)
DESIRE_WIDTH: Final = 8
MAX_WIDTH: Final = 1 << 24
MAX_HISTORY: Final = 10_000
MAX_MODELS: Final = 8


@dataclass(frozen=True, slots=True)
class ModelPart:
    """One ONNX model of an interface.

    Attributes:
        role: such as "vision", "policy", "on_policy", "off_policy", "supercombo".
        checkpoint: which training run it comes from; "" if it does not say.
        width: of its output vector `<role>_outputs`, float32 (1, width).
        slices: head -> (start, stop) of that vector; 0 <= start < stop <= width.
        inputs: ONNX input -> (shape, dtype).
    """

    role: str
    checkpoint: str
    width: int
    slices: Mapping[str, tuple[int, int]]
    inputs: Mapping[str, tuple[tuple[int, ...], str]]


@dataclass(frozen=True, slots=True)
class ImageRule:
    """How the two camera views are made.

    Attributes:
        mode: "bilinear" (fixed point, pixel centres kept in chroma) or "nearest".
        gap: frames between the two images that a model sees: 1 (50 ms) or 4 (200 ms); 0 where the
            model keeps its images itself and takes only the newest ones.
    """

    mode: str
    gap: int


@dataclass(frozen=True, slots=True)
class HistoryRule:
    """A history that the device keeps, one row a frame, and that a model sees in samples.

    Attributes:
        length: samples that the model sees.
        step: frames between samples; for desires the maximum of so many rows is taken.
        current: whether the row of a frame is stored before the model sees the history; else after.
        newest: whether the last sample is the newest row; else the first is the oldest.
        scale: what a row is multiplied by before it is stored (0 for inputs that were switched
            off); 1 but for past curvatures.
    """

    length: int
    step: int
    current: bool
    newest: bool
    scale: float = 1.0

    @property
    def frames(self) -> int:
        """Rows that the device keeps."""
        return self.length * self.step

    @property
    def first(self) -> int:
        """Row of the first sample; the others follow at each `step`-th."""
        return self.step - 1 if self.newest else 0


@dataclass(frozen=True, slots=True)
class ActionRule:
    """How the driving command is made of the outputs.

    The lateral delay is that of the source, and `lateral_delay_extra_s` and `lat_smooth_s` more;
    the longitudinal one that of the car and `long_smooth_s`. A command takes effect
    `frame_delay_s` after the delay.

    Attributes:
        lateral: head that curvature comes from.
        longitudinal: head that acceleration comes from; "none" leaves it empty.
        lateral_delay: message and field it comes from.
        lateral_delay_extra_s: seconds.
        frame_delay_s: seconds.
        lat_smooth_s, long_smooth_s: time constants of the filters; 0 for none.
        hold_below_mps: at most at this speed the curvature is held; 0 for never.
        stop: "plan" (planned speeds) or "speed" (speed and acceleration now).
        clip_speed: speeds below 0 count as 0 before use.
    """

    lateral: str
    longitudinal: str
    lateral_delay: str
    lateral_delay_extra_s: float
    frame_delay_s: float
    lat_smooth_s: float
    long_smooth_s: float
    hold_below_mps: float
    stop: str
    clip_speed: bool


@dataclass(frozen=True, slots=True)
class Interface:
    """All that compiler and daemon need to know of a driving model.

    Attributes:
        name: of the revision, see `modeld make-model --list-interfaces`.
        reason: how it was chosen, for people.
        models: in the order in which they run in a frame; a head in two is the later one's.
        image: of both views.
        desire: history of desires; None where the model keeps it itself.
        features: history of `hidden_state`; None where the model keeps it itself.
        curvature: history of the model's own curvatures; None for none.
        states: ONNX inputs that the model hands on to the next frame as `next_<name>`.
        host_inputs: names of HOST_INPUTS that the program takes.
        drop_policy: of DROP_POLICIES.
        action: the driving command.
        meta: width of the head `meta`, which tells its columns.
        lane_change: of LANE_CHANGE_MACHINES.
        big: the flag of messages.
    """

    name: str
    reason: str
    models: tuple[ModelPart, ...]
    image: ImageRule
    desire: HistoryRule | None
    features: HistoryRule | None
    curvature: HistoryRule | None
    states: tuple[str, ...]
    host_inputs: tuple[str, ...]
    drop_policy: str
    action: ActionRule
    meta: int
    lane_change: str
    big: bool = False

    def plain(self) -> dict[str, Any]:
        """Return the form for manifest and JSON: dicts, lists, text and numbers."""
        found: dict[str, Any] = plain_value(asdict(self))
        return found

    @property
    def heads(self) -> dict[str, tuple[str, int, int]]:
        """Head -> (role, start, stop), the later model's where two have it."""
        return {
            name: (part.role, *bounds)
            for part in self.models
            for name, bounds in part.slices.items()
        }


def plain_value(value: Any) -> Any:
    """Return a value with lists for tuples and dicts for mappings, as manifests have them."""
    if isinstance(value, Mapping):
        return {key: plain_value(item) for key, item in value.items()}
    return [plain_value(item) for item in value] if isinstance(value, tuple | list) else value


def parse_interface(value: object) -> Interface:
    """Return the interface that `Interface.plain` wrote, every field checked.

    Raises:
        ArtifactError: a field is missing, of another type or out of range.
    """
    where = "metadata.interface"
    if isinstance(value, str):
        raise ArtifactError(
            f"{where}: expected a description, found the name {value[:80]!r} of an older compiler; "
            "compile the artifact again"
        )
    top = Fields(value, where)
    parts = tuple(
        parse_part(item, f"{where}.models[{i}]")
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


def parse_part(value: object, where: str) -> ModelPart:
    """Return the part that `Interface.plain` wrote under `where`, every field checked.

    Raises:
        ArtifactError: a field is missing, of another type or out of range.
    """
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
        _seconds(fields, "scale", 1.0),
    )


def _action(fields: Fields) -> ActionRule:
    return ActionRule(
        lateral=fields.choice("lateral", LATERAL_RULES),
        longitudinal=fields.choice("longitudinal", LONGITUDINAL_RULES),
        lateral_delay=fields.choice("lateral_delay", LATERAL_DELAYS),
        lateral_delay_extra_s=_seconds(fields, "lateral_delay_extra_s"),
        frame_delay_s=_seconds(fields, "frame_delay_s"),
        lat_smooth_s=_seconds(fields, "lat_smooth_s"),
        long_smooth_s=_seconds(fields, "long_smooth_s"),
        hold_below_mps=_seconds(fields, "hold_below_mps"),
        stop=fields.choice("stop", STOP_RULES),
        clip_speed=fields.get("clip_speed", bool),
    )


def _seconds(fields: Fields, key: str, high: float = 10.0) -> float:
    """Return a float in [0, high]; NaN is not."""
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
