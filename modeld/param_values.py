"""The parameters of the stack that concern a driving model: their keys, and what values may be.

Which of them the daemon uses, and why it leaves the others alone, is in ADR 0082.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from cereal.schema import content, member_name, read_car_params, read_event, reading
from modeld.inputs import CarParameters, read_car_parameters
from modeld.model_bundle import MAX_DELAY_S, ModelBundle, parse_bundle
from modeld.params import Parameter
from modeld.validity import ANGLES, LATERAL_DELAY

# Names of devices and routes have 16 and 20 characters.
_MOST_CHARACTERS: Final = 64
# sunnypilot lets its users choose 0.35 m to either side.
_WIDEST_OFFSET_M: Final = 1.0


@dataclass(frozen=True, slots=True)
class StoredCalibration:
    """The calibration that calibrationd begins the next drive with.

    Attributes:
        rpy_rad: Roll, pitch and yaw: device from calibrated frame.
        status: Name of the enumerant of LiveCalibrationData.
        height_m: Of the camera above the road; 0: not known.
    """

    rpy_rad: tuple[float, float, float]
    status: str
    height_m: float


@dataclass(frozen=True, slots=True)
class StoredDelay:
    """The lateral delay that lagd begins the next drive with.

    Attributes:
        lateral_s: From steering command to curvature.
        status: Name of the enumerant of LiveDelayData.
    """

    lateral_s: float
    status: str


def _car(data: bytes) -> CarParameters:
    with reading("CarParams"):
        car = read_car_parameters(read_car_params(data))
    # Zeros and other structures read as a car without a name.
    if not car.name:
        raise ValueError("expected the fingerprint of a car, found none; the file is damaged")
    return car


def _message(data: bytes, service: str) -> Any:
    event = read_event(data)
    if member_name(event) != service:
        raise ValueError(f"expected a message {service}, found {member_name(event)}")
    return content(event)


def _calibration(data: bytes) -> StoredCalibration:
    with reading("liveCalibration"):
        message = _message(data, "liveCalibration")
        angles, heights = list(message.rpyCalib), list(message.height)
        status = str(message.calStatus)
    if len(angles) != len(ANGLES):
        raise ValueError(f"expected {len(ANGLES)} angles, found {len(angles)}")
    for rule, angle in zip(ANGLES, angles, strict=True):
        if not rule.allows(angle):
            raise ValueError(rule.describe(angle))
    height_m = heights[0] if heights else 0.0
    if not 0.0 <= height_m <= 10.0:
        raise ValueError(f"expected a height of 0 to 10 m, found {height_m:g}")
    return StoredCalibration((angles[0], angles[1], angles[2]), status, height_m)


def _delay(data: bytes) -> StoredDelay:
    with reading("liveDelay"):
        message = _message(data, "liveDelay")
        delay_s, status = message.lateralDelay, str(message.status)
    if not LATERAL_DELAY.allows(delay_s):
        raise ValueError(LATERAL_DELAY.describe(delay_s))
    return StoredDelay(delay_s, status)


def _flag(data: bytes) -> bool:
    if data not in (b"0", b"1"):
        raise ValueError(f"expected 0 or 1, found {data[:40]!r}")
    return data == b"1"


def _text(data: bytes) -> str:
    text = data.decode("ascii", "replace")
    if len(text) > _MOST_CHARACTERS or not text.isprintable():
        raise ValueError(f"expected a name, found {data[:40]!r}")
    return text


def _number(low: float, high: float, expected: str) -> Callable[[bytes], float]:
    def parse(data: bytes) -> float:
        try:
            value = float(data.decode("ascii"))
        except ValueError:
            value = math.nan
        if not low <= value <= high:
            raise ValueError(f"expected {expected} from {low:g} to {high:g}, found {data[:40]!r}")
        return value

    return parse


CAR: Final = Parameter("CarParams", _car)
"""The car of this drive: removed when a drive begins, written once the car is recognised."""
CAR_BEFORE: Final = Parameter("CarParamsPersistent", _car)
"""The car of some drive, maybe another one; for a replay that has none of its own."""
CALIBRATION: Final = Parameter("CalibrationParams", _calibration)
DELAY: Final = Parameter("LiveDelay", _delay)
IS_RHD: Final = Parameter("IsRhdDetected", _flag)
IS_DRIVER_VIEW: Final = Parameter("IsDriverViewEnabled", _flag)
IS_ONROAD: Final = Parameter("IsOnroad", _flag)
ROUTE: Final = Parameter("CurrentRoute", _text)
DONGLE_ID: Final = Parameter("DongleId", _text)
# Of sunnypilot.
USES_OWN_DELAY: Final = Parameter("LagdToggle", _flag)
OWN_DELAY: Final = Parameter("LagdValueCache", _number(0.0, MAX_DELAY_S, "seconds"))
CAMERA_OFFSET: Final = Parameter(
    "CameraOffset", _number(-_WIDEST_OFFSET_M, _WIDEST_OFFSET_M, "metres")
)
BUNDLE: Final[Parameter[ModelBundle]] = Parameter("ModelManager_ActiveBundle", parse_bundle)

PARAMETERS: Final[tuple[Parameter[Any], ...]] = (
    *(CAR, CAR_BEFORE, CALIBRATION, DELAY, IS_RHD, IS_DRIVER_VIEW, IS_ONROAD, ROUTE, DONGLE_ID),
    *(USES_OWN_DELAY, OWN_DELAY, CAMERA_OFFSET, BUNDLE),
)
"""All that are known, in the order in which they are shown."""
