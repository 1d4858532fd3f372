"""The parameters of the stack that concern a driving model: keys, permitted values, and their use.

Which of them the daemon uses, and why it leaves the others alone, is in ADR 0082. A bad parameter
never ends the loop.
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

# --- The driving model that sunnypilot's user has chosen, in JSON -----------------------------
# The daemon runs the artifact of its own configuration, and reports how the two differ.

# The largest delay or filter constant that a user may set.
MAX_DELAY_S: Final = 5.0
_MOST_BUNDLE_TEXT: Final = 256
_MOST_ITEMS: Final = 32
_MOST_GENERATION: Final = 10_000
# Shorter names would be found in any other.
_SHORTEST_NAME: Final = 3


@dataclass(frozen=True, slots=True)
class ModelBundle:
    """A bundle of model files under one name."""

    name: str  # for people
    internal_name: str
    ref: str  # commit of the training's repository; "" if unknown
    generation: int  # of the interface
    runner: str  # of the stack
    files: tuple[str, ...]
    overrides: Mapping[str, str]  # of the stack's settings; "lat" and "long" are time constants, s

    def smoothing_s(self, key: str) -> float:
        """Return the time constant "lat" or "long"; 0, as in the stack, where there is none."""
        return float(self.overrides.get(key, "0"))

    def is_named_in(self, names: Iterable[str]) -> bool:
        """Return whether one of the names, of checkpoints or files, holds a name of the bundle."""
        own = {_plain(name) for name in (self.name, self.internal_name, self.ref)}
        return any(
            one in _plain(name) for name in names for one in own if len(one) >= _SHORTEST_NAME
        )


def _parse_bundle(data: bytes) -> ModelBundle:
    """Read a bundle; raise ValueError if it is none, or a part is too long or out of bounds."""
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
    """Return a name as it is compared: people write it with and without spaces and capitals."""
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


# --- The forms of all parameters --------------------------------------------------------------

# Names of devices and routes have 16 and 20 characters.
_MOST_CHARACTERS: Final = 64
# sunnypilot lets its users choose 0.35 m to either side.
_WIDEST_OFFSET_M: Final = 1.0


@dataclass(frozen=True, slots=True)
class StoredCalibration:
    """The calibration that calibrationd begins the next drive with."""

    rpy_rad: tuple[float, float, float]  # roll, pitch and yaw, device from calibrated frame
    status: str  # name of the enumerant of LiveCalibrationData
    height_m: float  # of the camera above the road; 0: not known


@dataclass(frozen=True, slots=True)
class StoredDelay:
    """The lateral delay that lagd begins the next drive with."""

    lateral_s: float  # from steering command to curvature
    status: str  # name of the enumerant of LiveDelayData


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
BUNDLE: Final[Parameter[ModelBundle]] = Parameter("ModelManager_ActiveBundle", _parse_bundle)

PARAMETERS: Final[tuple[Parameter[Any], ...]] = (
    *(CAR, CAR_BEFORE, CALIBRATION, DELAY, IS_RHD, IS_DRIVER_VIEW, IS_ONROAD, ROUTE, DONGLE_ID),
    *(USES_OWN_DELAY, OWN_DELAY, CAMERA_OFFSET, BUNDLE),
)
"""All that are known, in the order in which they are shown."""

# --- The parameters that the loop follows while it runs ---------------------------------------

# How often parameters are looked up: 3 s at 20 Hz.
PERIOD_UPDATES: Final = 60
# As often as openpilot looks for a parameter that it waits for, whatever messages come meanwhile.
PERIOD_MS: Final = 100


@dataclass(slots=True)
class UserDelay:
    """The lateral delay of a stack whose users may set one: read from time to time."""

    params: Params
    delay_s: float = 0.0  # in force

    def update(self, measured_s: float, update: int) -> float:
        """Return the delay to use, s: the stack's `measured_s`, unless the user has set another.

        Each `PERIOD_UPDATES`-th `update` of the bus, from 0, reads the parameter.
        """
        if update % PERIOD_UPDATES == 0:
            chosen = self.params.usable(OWN_DELAY) if self.params.usable(USES_OWN_DELAY) else None
            self.delay_s = measured_s if chosen is None else chosen
        return self.delay_s


@dataclass(frozen=True, slots=True)
class CarWatch:
    """The car of each drive: the stack removes its parameter at the begin, and writes a new one.

    openpilot starts its daemon for each drive; this one may live through several.
    """

    params: Params | None  # None: the car stays

    def update(self, car: CarParameters, update: int) -> CarParameters:
        """Return the car to use: the one in use, until the parameter changes.

        Each `PERIOD_UPDATES`-th `update` of the bus looks.
        """
        if self.params is None or update % PERIOD_UPDATES:
            return car
        found = self.params.usable(CAR)
        if found is None or found == car:
            return car
        logger.info("car: %s, as the parameter says now", found.name)
        return found


def tell_differences(params: Params, models: Sequence[ModelSource], rule: ActionRule) -> None:
    """Warn of choices of the stack's user that this daemon does not follow, a line for each."""
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
                "the stack smooths what %r says by %s %g s, here %g s are in force: %s_smooth_s",
                bundle.name, key, wanted_s, in_force_s, key,
            )  # fmt: skip
