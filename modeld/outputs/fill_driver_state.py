"""Fills driverStateV2 from parsed outputs.

Fields, order and lengths are those of openpilot's dmonitoringmodeld; fields of heads that a model
does not have stay empty.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from modeld.outputs.monitoring_outputs import DriverOutputs, MonitoringOutputs

# Head -> field, of single probabilities and of lists of them.
_FIELDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "face_prob": "faceProb",
        "left_eye_prob": "leftEyeProb",
        "right_eye_prob": "rightEyeProb",
        "left_blink_prob": "leftBlinkProb",
        "right_blink_prob": "rightBlinkProb",
        "sunglasses_prob": "sunglassesProb",
        "occluded_prob": "occludedProb",
        "using_phone_prob": "phoneProb",
        "sleep_prob": "sleepProb",
    }
)
_LISTS: Final[Mapping[str, str]] = MappingProxyType(
    {"ready_prob": "readyProb", "not_ready_prob": "notReadyProb"}
)
# Of the face's position its size is left out.
_PLACE: Final = slice(0, 2)


@dataclass(frozen=True, slots=True)
class MonitoringFrame:
    """Facts about the frame and the run."""

    frame_id: int
    execution_time_s: float  # from inputs ready to outputs parsed
    program_time_s: float  # of that, in the program: image, model, and outputs read
    valid: bool


def fill_driver_state(
    event: Any, outputs: MonitoringOutputs, frame: MonitoringFrame, raw: bytes | None
) -> None:
    """Fill an Event's driverStateV2.

    `raw` is the float32 output vector for rawPredictions; None leaves it empty.
    """
    event.valid = frame.valid
    state = event.driverStateV2
    state.frameId = frame.frame_id
    state.modelExecutionTime = frame.execution_time_s
    state.gpuExecutionTime = frame.program_time_s
    if raw is not None:
        state.rawPredictions = raw
    if outputs.poor_vision is not None:
        state.poorVisionProb = outputs.poor_vision
    state.wheelOnRightProb = outputs.wheel_on_right
    _fill_driver(state.leftDriverData, outputs.left)
    _fill_driver(state.rightDriverData, outputs.right)


def _fill_driver(data: Any, driver: DriverOutputs) -> None:
    data.faceOrientation = driver.orientation.tolist()
    data.faceOrientationStd = driver.orientation_stds.tolist()
    data.facePosition = driver.position[_PLACE].tolist()
    data.facePositionStd = driver.position_stds[_PLACE].tolist()
    for head, field in _FIELDS.items():
        values = driver.probabilities.get(head)
        if values is not None:
            setattr(data, field, float(values[0]))
    for head, field in _LISTS.items():
        values = driver.probabilities.get(head)
        if values is not None:
            setattr(data, field, values.tolist())
