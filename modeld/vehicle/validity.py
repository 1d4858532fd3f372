"""The rules for input values, and the reasons why published messages are invalid.

`INPUTS` is the table of rules, also shown in ``docs/inputs.md``. A rule gives the permitted values
of a field, its timeout and the replacement of bad values. A violation never ends the daemon: the
value is replaced and, if the rule says so, messages are marked invalid with a reason. See ADR 0020.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from cereal.services import service
from modeld.state.episodes import NS_PER_S, SHORTEST_NS
from modeld.state.loop_state import LoopState

# A service has timed out after this many periods without a message, as in the stack's processes.
ALIVE_PERIODS: Final = 10
# Shortest timeout. The loop reads the bus at 20 Hz, so this is ten of its frames.
SHORTEST_SILENCE_S: Final = 0.5


class Reason(NamedTuple):
    """A reason why messages are invalid."""

    kind: str  # identifies the reason; constant while it lasts
    text: str  # text for logs; can contain a duration


@dataclass(frozen=True, slots=True)
class InputRule:
    """The rule for one field of one service. Texts are for documentation and messages."""

    service: str
    field: str  # name of the field, with the index if it is a list
    bounds: tuple[float, float] | None  # lowest and highest accepted value; None: any value
    unit: str  # unit of the bounds
    source: str  # origin of the bounds
    unseen: str  # effective value before the first message
    instead: str  # replacement of a value out of bounds, and after a timeout
    silent_s: float | None = None  # timeout of the service after its first message; None: never
    marks: bool = False  # a value out of bounds makes messages invalid
    silence_marks: bool = False  # a timeout makes messages invalid

    def allows(self, value: float) -> bool:
        """Return whether a value is finite and within the bounds."""
        if self.bounds is None:
            return True
        low, high = self.bounds
        return math.isfinite(value) and low <= value <= high

    def describe(self, value: float) -> str:
        """Return a text that says that `value` is out of bounds."""
        low, high = self.bounds or (0.0, 0.0)
        return (
            f"{self.service}.{self.field}: expected {low:g} to {high:g} {self.unit}, "
            f"found {value:g}"
        )


def silence_s(name: str) -> float:
    """Return the timeout of a service: ten of its periods, at least ten frames of the loop."""
    return max(ALIVE_PERIODS / service(name).frequency_hz, SHORTEST_SILENCE_S)


def _angle(index: int, name: str, low: float, high: float, source: str) -> InputRule:
    return InputRule(
        "liveCalibration",
        f"rpyCalib[{index}]",
        (low, high),
        "rad",
        f"{name}: {source}",
        unseen="matrices are zeros, messages not valid",
        instead="the last calibration that could be used",
        silent_s=silence_s("liveCalibration"),
        marks=True,
        silence_marks=True,
    )


# Margin added to openpilot's calibration limits (newest device of 2026). openpilot clips the angles
# that it publishes; the margin is for the mounts of other software.
_MARGIN_RAD: Final = 0.05
ANGLES: Final = (
    _angle(0, "roll", -0.1, 0.1, "openpilot sets 0; twice the margin"),
    _angle(1, "pitch", -0.1431 - _MARGIN_RAD, 0.22236 + _MARGIN_RAD,
           "openpilot's limits of 2026 and 0.05 rad"),
    _angle(2, "yaw", -0.06912 - _MARGIN_RAD, 0.06912 + _MARGIN_RAD,
           "openpilot's limits and 0.05 rad"),
)  # fmt: skip
CALIBRATION_STATUS: Final = InputRule(
    "liveCalibration",
    "calStatus",
    None,
    "",
    "not `invalid`: the device is mounted beyond the limits",
    unseen="messages not valid",
    instead="the angles are still used",
    marks=True,
)
SPEED: Final = InputRule(
    "carState",
    "vEgo",
    (-20.0, 100.0),
    "m/s",
    "no car reverses or drives faster",
    unseen="0, as openpilot",
    instead="0 if out of range, the last value after a timeout",
    silent_s=silence_s("carState"),
    marks=True,
    silence_marks=True,
)
TORQUE: Final = InputRule(
    "carState",
    "steeringTorque",
    (-1e6, 1e6),
    "of the car",
    "finite; the unit differs from car to car",
    unseen="0",
    instead="0: nobody steers",
)
SWITCHES: Final = InputRule(
    "carState",
    "leftBlinker, rightBlinker, steeringPressed, leftBlindspot, rightBlindspot",
    None,
    "",
    "any",
    unseen="off",
    instead="off after a timeout",
    silent_s=silence_s("carState"),
)
LATERAL_ACTIVE: Final = InputRule(
    "carControl",
    "latActive",
    None,
    "",
    "any",
    unseen="not active",
    instead="not active after a timeout: lane changes end",
    silent_s=silence_s("carControl"),
)
LATERAL_DELAY: Final = InputRule(
    "liveDelay",
    "lateralDelay",
    (0.0, 2.0),
    "s",
    "no steering is slower; 5 s is the end of what a user may set",
    unseen="0, as openpilot",
    instead="0 if out of range, else the last value",
    marks=True,
)
DRIVER_SIDE: Final = InputRule(
    "driverMonitoringState",
    "isRHD",
    None,
    "",
    "any",
    unseen="left-hand drive, as openpilot",
    instead="the last value",
)
DEVICE: Final = InputRule(
    "deviceState",
    "deviceType",
    None,
    "",
    "in the table of cameras, with the sensor; unused with configured cameras",
    unseen="calibrations are not used, messages not valid",
    instead="the last value",
)
SENSOR: Final = InputRule(
    "roadCameraState",
    "sensor",
    None,
    "",
    "in the table of cameras, with the device; unused with configured cameras",
    unseen="calibrations are not used, messages not valid",
    instead="the last value",
)
ANNOUNCED: Final = InputRule(
    "roadCameraState",
    "frameId",
    None,
    "",
    "any",
    unseen="`frameAge` is 0",
    instead="`frameAge` is 0 if it is behind the frame in use",
)


def _actuator(field: str) -> InputRule:
    return InputRule(
        "carParams",
        field,
        (0.0, 5.0),
        "s",
        "the end of what a user may set of a delay; no actuator is slower",
        unseen="the daemon waits for the car",
        instead="0 if out of range, for this car",
        marks=True,
    )


LONGITUDINAL_ACTUATOR: Final = _actuator("longitudinalActuatorDelay")
STEER_ACTUATOR: Final = _actuator("steerActuatorDelay")
INPUTS: Final = (
    *ANGLES,
    CALIBRATION_STATUS,
    SPEED,
    TORQUE,
    SWITCHES,
    LATERAL_ACTIVE,
    LATERAL_DELAY,
    DRIVER_SIDE,
    DEVICE,
    SENSOR,
    ANNOUNCED,
    LONGITUDINAL_ACTUATOR,
    STEER_ACTUATOR,
)


class Received(Protocol):
    """The part of ``cereal.pubsub.SubMaster`` that reports the arrival of messages."""

    @property
    def seen(self) -> Mapping[str, bool]:
        """Whether any message has arrived, by service."""

    @property
    def updated(self) -> Mapping[str, bool]:
        """Whether a message arrived with the last update, by service."""

    @property
    def mono_time_ns(self) -> Mapping[str, int]:
        """The sender's stamp of the newest message, by service; 0 if the sender sets none."""


class Freshness:
    """Measures how long services have been silent since their last message.

    A message with the same stamp as its predecessor is a repetition and does not count. If not
    `enabled`, because simulated time is uneven, no service is ever silent.
    """

    def __init__(self, messages: Received, *, enabled: bool = True) -> None:
        self._messages = messages
        # Stamp and time of arrival of the newest message, by service.
        self._heard: dict[str, tuple[int, int]] = {}
        watched = {rule.service for rule in INPUTS if rule.silent_s is not None}
        self._services = sorted(watched & set(messages.seen)) if enabled else []

    def update(self, now_ns: int) -> None:
        """Record the messages of the last bus update; call once per frame with the loop's time."""
        messages = self._messages
        for name in self._services:
            if messages.updated[name]:
                stamp_ns, before = messages.mono_time_ns[name], self._heard.get(name)
                if before is None or stamp_ns != before[0] or stamp_ns == 0:
                    self._heard[name] = (stamp_ns, now_ns)

    def silent_for_s(self, rule: InputRule, now_ns: int) -> float:
        """Return the time in s since the last message if the rule's timeout is over, else 0."""
        heard = self._heard.get(rule.service)
        if heard is None or rule.silent_s is None:
            return 0.0
        age_s = (now_ns - heard[1]) / NS_PER_S
        return age_s if age_s >= rule.silent_s else 0.0


def silence(rule: InputRule, age_s: float) -> Reason:
    """Return the reason that a service has been silent for `age_s`."""
    return Reason(f"no {rule.service}", f"no {rule.service} since {age_s:.1f} s")


@dataclass(slots=True)
class ValidityLog:
    """Logs why messages are invalid, and stores the reasons in `state`.

    It logs one line for each change in the kinds of reasons, at most one a second.
    """

    logger: logging.Logger
    state: LoopState
    _logged: frozenset[str] | None = None
    _logged_ns: int | None = None
    _since_ns: int = 0
    _good_ns: int = 0

    def update(self, reasons: Sequence[Reason], now_ns: int) -> None:
        """Record the reasons against the current messages; an empty list if they are valid."""
        if reasons:
            self.state.reasons = tuple(reason.text for reason in reasons)
        elif self.state.reasons or self._logged is None:
            self.state.reasons, self._good_ns = (), now_ns
        elif not self._logged:
            return
        kinds = frozenset(reason.kind for reason in reasons)
        is_early = self._logged_ns is not None and 0 <= now_ns - self._logged_ns < SHORTEST_NS
        if kinds == self._logged or is_early:
            return
        if kinds:
            if not self._logged:
                self._since_ns = now_ns
            self.logger.warning("not valid: %s", "; ".join(self.state.reasons))
        elif self._logged is None:
            self._logged = kinds
            self.logger.info("valid")
            return
        else:
            lasted_s = (self._good_ns - self._since_ns) / NS_PER_S
            self.logger.warning("valid again after %.1f s", lasted_s)
        self._logged, self._logged_ns = kinds, now_ns
