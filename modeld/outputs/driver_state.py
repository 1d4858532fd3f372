"""Parses the output of a driver monitoring model and fills driverStateV2 from it.

The output vector describes the faces on both front seats and the side of the steering wheel. It
consists of heads, slices with one output each. The artifact specifies their positions and the
encoding of standard deviations (docs/formats/monitoring-models.md). Fields of heads that a model
lacks stay empty. The message is filled as by openpilot's dmonitoringmodeld.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from modeld.outputs.parse_outputs import safe_exp, sigmoid
from runtime.format.interfaces import FACE_WIDTH, SEATS, MonitoringInterface

Array = NDArray[np.float32]
_AXES = 3


@dataclass(frozen=True, slots=True)
class DriverOutputs:
    """The model's outputs about the person on one seat, if there is one."""

    orientation: Array  # (3,) pitch, yaw, roll of the face, rad
    orientation_stds: Array  # (3,) rad
    position: Array  # (3,) x and y from the image center, in image sizes; then the face's size
    position_stds: Array  # (3,) as `position`
    # Name of a head without its seat, such as "left_eye_prob" -> probabilities (n,), 0..1.
    probabilities: Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class MonitoringOutputs:
    """The outputs of one frame."""

    left: DriverOutputs
    right: DriverOutputs
    wheel_on_right: float  # probability that the steering wheel is on the right
    poor_vision: float | None  # probability that the camera sees little; None: no such head


class MonitoringParser:
    """Parses the raw vectors of one artifact. Its heads were checked when it was read."""

    def __init__(self, interface: MonitoringInterface) -> None:
        self._slices = {
            name: slice(start, stop) for name, (start, stop) in interface.model.slices.items()
        }
        self._clip = interface.stds == "clipped"

    def parse(self, raw: Array) -> MonitoringOutputs:
        """Return the outputs in a finite raw vector, float32 (1, width) or (width,).

        Standard deviations can be infinite if the interface does not clip them.
        """
        flat = raw.reshape(-1)
        left, right = (self._driver(flat, f"_{seat}") for seat in SEATS)
        poor = self._slices.get("poor_vision")
        return MonitoringOutputs(
            left,
            right,
            wheel_on_right=float(_sigmoid(flat[self._slices["wheel_on_right"]])[0]),
            poor_vision=None if poor is None else float(_sigmoid(flat[poor])[0]),
        )

    def _driver(self, flat: Array, ending: str) -> DriverOutputs:
        face = flat[self._slices[f"face_descs{ending}"]]
        means, logarithms = face[: FACE_WIDTH // 2], face[FACE_WIDTH // 2 :]
        stds = self._stds(logarithms)
        probabilities = {
            name.removesuffix(ending): _sigmoid(flat[where])
            for name, where in self._slices.items()
            if name.endswith(f"_prob{ending}")
        }
        return DriverOutputs(
            orientation=means[:_AXES].copy(),
            orientation_stds=stds[:_AXES],
            position=means[_AXES:].copy(),
            position_stds=stds[_AXES:],
            probabilities=probabilities,
        )

    def _stds(self, logarithms: Array) -> Array:
        stds = np.empty_like(logarithms)
        if self._clip:
            safe_exp(logarithms, stds)
            return stds
        # Without clipping (models of 2025), infinity is fine: consumers compare it with thresholds.
        with np.errstate(over="ignore"):
            return np.exp(logarithms, out=stds)


def _sigmoid(logits: Array) -> Array:
    found = np.empty_like(logits)
    sigmoid(logits, found)
    return found


def nobody() -> MonitoringOutputs:
    """Return the outputs of empty seats, published when the model's outputs are unusable."""
    zeros = np.zeros(_AXES, np.float32)
    empty = DriverOutputs(zeros, zeros, zeros, zeros, {})
    return MonitoringOutputs(empty, empty, wheel_on_right=0.0, poor_vision=None)


# --- The message driverStateV2 ----------------------------------------------------------------

# Head -> message field, for single probabilities and then for lists of them.
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
# The message has x and y of the face, but not its size.
_PLACE: Final = slice(0, 2)


@dataclass(frozen=True, slots=True)
class MonitoringFrame:
    """Facts about the frame and the run."""

    frame_id: int
    execution_time_s: float  # time from inputs ready to outputs parsed
    program_time_s: float  # part of it spent in the program: image warp, model, reading outputs
    valid: bool  # the message is marked valid


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
