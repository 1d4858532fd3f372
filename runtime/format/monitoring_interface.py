"""The interface of a driver monitoring model as data: what compiler and daemon obey.

The compiler stores the plain form of a `MonitoringInterface` in the metadata of artifacts of kind
"monitoring" under "interface"; the daemon reads it back and knows no generation by name. Heads and
files are described in docs/formats/monitoring-models.md.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, Final

from runtime.errors import ArtifactError
from runtime.format.driving_interface import IMAGE_MODES, ModelPart, parse_part, plain_value
from runtime.format.fields import Fields

ROLE: Final = "monitoring"
# Luma of the model's view, row by row.
VIEW_WIDTH: Final = 1440
VIEW_HEIGHT: Final = 960
# "exp" may overflow to infinity, "clipped" is exp(min(x, 11)).
STD_RULES: Final = ("exp", "clipped")
# The model judges both seats: a head of a seat ends in one of these.
SEATS: Final = ("lhd", "rhd")
# Orientation and position (x, y, size) of the face, then the logarithms of their deviations.
FACE_WIDTH: Final = 12
# Heads of a seat -> width. All but the face are logits.
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
# Heads that only some generations have. Without one, its message field stays empty.
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


HEADS: Final[Mapping[str, int]] = MappingProxyType({**_all_seats(SEAT_HEADS), "wheel_on_right": 1})
OPTIONAL_HEADS: Final[Mapping[str, int]] = MappingProxyType(
    {**_all_seats(OPTIONAL_SEAT_HEADS), "poor_vision": 1}
)


@dataclass(frozen=True, slots=True)
class MonitoringInterface:
    """All that compiler and daemon need to know of a driver monitoring model."""

    name: str  # of the revision
    reason: str  # how it was chosen, for people
    model: ModelPart  # inputs `input_img` and `calib`, and the heads in the output vector
    image_mode: str  # of IMAGE_MODES
    stds: str  # of STD_RULES

    def plain(self) -> dict[str, Any]:
        """Return the form for manifest and JSON: dicts, lists, text and numbers."""
        found: dict[str, Any] = plain_value(asdict(self))
        return found


def head_problems(slices: Mapping[str, tuple[int, int]]) -> list[str]:
    """Return what is wrong with the heads of a model, one phrase each; [] for nothing.

    `slices` is head -> (start, stop). Heads without a field in the message are permitted.
    """
    problems = []
    for name, width in {**HEADS, **OPTIONAL_HEADS}.items():
        bounds = slices.get(name)
        wanted = f"{name}: expected {width} value{'' if width == 1 else 's'}"
        if bounds is None:
            if name in HEADS:
                problems.append(f"{wanted}, is missing")
        elif bounds[1] - bounds[0] != width:
            problems.append(f"{wanted}, found {bounds[1] - bounds[0]}")
    return problems


def parse_monitoring_interface(value: object) -> MonitoringInterface:
    """Return the interface that `MonitoringInterface.plain` wrote, every field checked.

    Raises ArtifactError if a field is missing, of another type or out of range, or a head that the
    message needs is missing or has another width.
    """
    where = "metadata.interface"
    top = Fields(value, where)
    model = parse_part(top.get("model", dict), f"{where}.model")
    problems = head_problems(model.slices)
    if problems:
        raise ArtifactError(f"{where}.model.slices: {'; '.join(problems)}; compile the model again")
    return MonitoringInterface(
        name=top.text("name"),
        reason=top.text("reason"),
        model=model,
        image_mode=top.choice("image_mode", IMAGE_MODES),
        stds=top.choice("stds", STD_RULES),
    )
