"""The parameters of the driving stack that concern a driving model.

This module defines their keys and permitted values and applies those that the daemon uses. ADR 0082
explains which ones it ignores and why. An invalid parameter never ends the loop.
"""

import json
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cereal.schema import content, member_name, read_car_params, read_event, reading
from modeld.vehicle.inputs import CarParameters, read_car_parameters
from modeld.vehicle.params import Parameter, Params
from modeld.vehicle.validity import ANGLES, LATERAL_DELAY
from runtime.format.interfaces import ActionRule
from runtime.format.manifest import ModelSource

logger = logging.getLogger(__name__)

# --- The driving model chosen by sunnypilot's user, a JSON parameter --------------------------
# The daemon runs the artifact in its own configuration, and reports how the two differ.

# Largest delay or filter constant that a user may set.
MAX_DELAY_S: Final = 5.0
_MOST_BUNDLE_TEXT: Final = 256
_MOST_ITEMS: Final = 32
_MOST_GENERATION: Final = 10_000
# Shorter names are contained in too many others to be compared.
_SHORTEST_NAME: Final = 3


@dataclass(frozen=True, slots=True)
class ModelBundle:
    """A bundle of model files under one name."""

    name: str  # display name
    internal_name: str
    ref: str  # commit in the training repository; "" if unknown
    generation: int  # generation of the model interface
    runner: str  # the stack's program that runs the model
    files: tuple[str, ...]  # names of the model files
    # Overridden settings of the stack; "lat" and "long" are filter time constants in s.
    overrides: Mapping[str, str]

    def smoothing_s(self, key: str) -> float:
        """Return the time constant "lat" or "long"; if not set 0, as in the stack."""
        return float(self.overrides.get(key, "0"))

    def is_named_in(self, names: Iterable[str]) -> bool:
        """Return whether one of `names` (of checkpoints or files) contains the bundle's name."""
        own = {_plain(name) for name in (self.name, self.internal_name, self.ref)}
        return any(
            one in _plain(name) for name in names for one in own if len(one) >= _SHORTEST_NAME
        )


def _parse_bundle(data: bytes) -> ModelBundle:
    """Return the bundle in a parameter's value; raise ValueError if the value is invalid."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"expected JSON, found {data[:40]!r}") from error
    root = _object(found, "a bundle")
    overrides = {
        _bundle_text(one, "key"): _bundle_text(one, "value")
        for one in (_object(item, "an override") for item in _list(root, "overrides"))
    }
    for key in ("lat", "long"):
        _check_seconds(key, overrides.get(key, "0"))
    generation = root.get("generation", 0)
    if type(generation) is not int or not 0 <= generation <= _MOST_GENERATION:
        raise ValueError(f"generation: expected 0 to {_MOST_GENERATION}, found {generation!r:.40}")
    name, internal_name = (
        _bundle_text(root, "displayName"),
        _bundle_text(root, "internalName"),
    )
    if not name and not internal_name:
        raise ValueError("displayName: expected the name of a model, found none")
    models = [_object(item, "a model") for item in _list(root, "models")]
    artifacts = [_object(model.get("artifact", {}), "an artifact") for model in models]
    return ModelBundle(
        name=name or internal_name,
        internal_name=internal_name,
        ref=_bundle_text(root, "ref"),
        generation=generation,
        runner=_bundle_text(root, "runner"),
        files=tuple(_bundle_text(artifact, "fileName") for artifact in artifacts),
        overrides=overrides,
    )


def _plain(text: str) -> str:
    """Return a name in lower case without spaces and punctuation, for comparison."""
    return "".join(character for character in text.casefold() if character.isalnum())


def _object(found: Any, what: str) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise ValueError(f"expected {what}, found {found!r:.40}")  # noqa: TRY004 -- of the content
    return found


def _list(root: Mapping[str, Any], key: str) -> list[Any]:
    found = root.get(key) or []
    if not isinstance(found, list) or len(found) > _MOST_ITEMS:
        raise ValueError(f"{key}: expected a list of at most {_MOST_ITEMS}, found {found!r:.40}")
    return found


def _bundle_text(root: Mapping[str, Any], key: str) -> str:
    found = root.get(key, "")
    if type(found) in (int, float, bool):
        found = str(found)
    if not isinstance(found, str) or len(found) > _MOST_BUNDLE_TEXT or not found.isprintable():
        raise ValueError(f"{key}: expected a line of text, found {found!r:.40}")
    return found


def _check_seconds(key: str, text: str) -> None:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 <= value <= MAX_DELAY_S:
        raise ValueError(f"{key}: expected seconds from 0 to {MAX_DELAY_S:g}, found {text!r:.40}")


# --- The formats of all parameters ------------------------------------------------------------

# Longest accepted name. Names of devices and routes have 16 and 20 characters.
_MOST_CHARACTERS: Final = 64
# Largest accepted camera offset. sunnypilot lets users set up to 0.35 m to either side.
_WIDEST_OFFSET_M: Final = 1.0


@dataclass(frozen=True, slots=True)
class StoredCalibration:
    """The calibration with which calibrationd begins the next drive."""

    rpy_rad: tuple[float, float, float]  # roll, pitch, yaw; device from calibrated frame
    status: str  # name of the status in LiveCalibrationData
    height_m: float  # height of the camera above the road; 0 if unknown


@dataclass(frozen=True, slots=True)
class StoredDelay:
    """The lateral delay with which lagd begins the next drive."""

    lateral_s: float  # delay from steering command to curvature
    status: str  # name of the status in LiveDelayData


def _car(data: bytes) -> CarParameters:
    with reading("CarParams"):
        car = read_car_parameters(read_car_params(data))
    # Zeros and other structures parse as a car without a name.
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
"""The car of this drive. The stack removes it at the beginning of a drive and writes it once the
car is recognized."""
CAR_BEFORE: Final = Parameter("CarParamsPersistent", _car)
"""The car of the last drive in which one was recognized; used to replay a drive without a car."""
CALIBRATION: Final = Parameter("CalibrationParams", _calibration)
DELAY: Final = Parameter("LiveDelay", _delay)
IS_RHD: Final = Parameter("IsRhdDetected", _flag)
IS_DRIVER_VIEW: Final = Parameter("IsDriverViewEnabled", _flag)
IS_ONROAD: Final = Parameter("IsOnroad", _flag)
ROUTE: Final = Parameter("CurrentRoute", _text)
DONGLE_ID: Final = Parameter("DongleId", _text)
# Parameters of sunnypilot.
USES_OWN_DELAY: Final = Parameter("LagdToggle", _flag)
OWN_DELAY: Final = Parameter("LagdValueCache", _number(0.0, MAX_DELAY_S, "seconds"))
CAMERA_OFFSET: Final = Parameter(
    "CameraOffset", _number(-_WIDEST_OFFSET_M, _WIDEST_OFFSET_M, "metres")
)
BUNDLE: Final[Parameter[ModelBundle]] = Parameter("ModelManager_ActiveBundle", _parse_bundle)

PARAMETERS: Final[tuple[Parameter[Any], ...]] = (
    *(CAR, CAR_BEFORE, CALIBRATION, DELAY, IS_RHD, IS_DRIVER_VIEW, IS_ONROAD, ROUTE, DONGLE_ID),
    *(USES_OWN_DELAY, OWN_DELAY, CAMERA_OFFSET, BUNDLE),
)
"""All known parameters, in the order of display."""

# --- The parameters that are read while the loop runs -----------------------------------------

# Bus updates between two readings of a parameter: 3 s at 20 Hz.
PERIOD_UPDATES: Final = 60
# Shortest interval of checks while waiting for a parameter, as in openpilot.
PERIOD_MS: Final = 100


@dataclass(slots=True)
class UserDelay:
    """The lateral delay of a stack whose users can set one; it is read regularly."""

    params: Params
    delay_s: float = 0.0  # the delay in use

    def update(self, measured_s: float, update: int) -> float:
        """Return the delay to use in s: the user's, if one is set, else the stack's `measured_s`.

        `update` is the number of the bus update. The parameter is read when it is a multiple of
        `PERIOD_UPDATES`.
        """
        if update % PERIOD_UPDATES == 0:
            chosen = self.params.usable(OWN_DELAY) if self.params.usable(USES_OWN_DELAY) else None
            self.delay_s = measured_s if chosen is None else chosen
        return self.delay_s


@dataclass(frozen=True, slots=True)
class CarWatch:
    """Detects the car of a new drive from the stack's parameter.

    Unlike openpilot's daemon, which is started for each drive, this one can run for several drives.
    """

    params: Params | None  # None: the car never changes

    def update(self, car: CarParameters, update: int) -> CarParameters:
        """Return the car to use: `car`, or the one in the parameter if that differs.

        `update` is the number of the bus update. The parameter is read when it is a multiple of
        `PERIOD_UPDATES`.
        """
        if self.params is None or update % PERIOD_UPDATES:
            return car
        found = self.params.usable(CAR)
        if found is None or found == car:
            return car
        logger.info("car changed: %s", found.name)
        return found


def log_differences(params: Params, models: Sequence[ModelSource], rule: ActionRule) -> None:
    """Log a warning for each choice of the stack's user that this daemon does not follow."""
    offset_m = params.usable(CAMERA_OFFSET)
    if offset_m:
        logger.warning("CameraOffset is %g m and is not applied: set it to 0", offset_m)
    bundle = params.usable(BUNDLE)
    if bundle is None:
        return
    if not bundle.is_named_in(name for one in models for name in (one.checkpoint, one.file)):
        logger.warning(
            "the stack's model is %r (%s, generation %d), this artifact is another one: %s; what "
            "was set for that model may not fit",
            bundle.name,
            bundle.ref or "no ref",
            bundle.generation,
            ", ".join(f"{one.role} {one.checkpoint or one.file}" for one in models),
        )
        return
    for key, in_force_s in (("lat", rule.lat_smooth_s), ("long", rule.long_smooth_s)):
        wanted_s = bundle.smoothing_s(key)
        if wanted_s != in_force_s:
            logger.warning(
                "the stack smooths the outputs of %r with %s %g s, here with %g s: %s_smooth_s",
                bundle.name, key, wanted_s, in_force_s, key,
            )  # fmt: skip
