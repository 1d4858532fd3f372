"""The model's inputs besides pictures: the vehicle's messages, and values computed from them.

Each message is read once, and checked by the rules of `modeld.vehicle.validity`. An impossible
value counts as zero, and is logged; the reasons for invalid messages go with the read values.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from modeld.constants import DESIRE_LENGTH
from modeld.state.episodes import NS_PER_S, Episodes, Kind
from modeld.state.loop_state import Fault
from modeld.vehicle.desire import VehicleState
from modeld.vehicle.validity import (
    LATERAL_ACTIVE,
    LATERAL_DELAY,
    LONGITUDINAL_ACTUATOR,
    SPEED,
    STEER_ACTUATOR,
    TORQUE,
    Freshness,
    InputRule,
    Reason,
    Received,
    silence,
)
from runtime.format.interfaces import ActionRule

SUBSCRIPTIONS: Final = (
    *("deviceState", "carState", "roadCameraState", "liveCalibration"),
    *("driverMonitoringState", "carControl", "liveDelay"),
)

# Services of 1 Hz and more say it again before it counts as over.
_QUIET_NS: Final = 2 * NS_PER_S


@dataclass(frozen=True, slots=True)
class CarParameters:
    """The car's properties that the daemon needs."""

    longitudinal_actuator_delay_s: float  # from command to acceleration
    name: str  # car fingerprint, for the log
    steer_actuator_delay_s: float = 0.0  # from command to curvature, an estimate
    reasons: tuple[Reason, ...] = ()  # why messages that rest on it are not valid


# Stands in for a fingerprinted car with --demo; a common car with usual delays.
DEMO_CAR: Final = CarParameters(
    longitudinal_actuator_delay_s=0.5, name="demo", steer_actuator_delay_s=0.1
)


def read_car_parameters(car_params: Any) -> CarParameters:
    """Read a ``carParams`` message; a delay out of bounds counts as 0, with a reason."""
    delays_s, reasons = [], []
    for rule in (LONGITUDINAL_ACTUATOR, STEER_ACTUATOR):
        value = getattr(car_params, rule.field)
        if not rule.allows(value):
            kind = f"{rule.service}.{rule.field} out of bounds"
            reasons.append(Reason(kind, f"{rule.describe(value)}; it counts as 0"))
            value = 0.0
        delays_s.append(value)
    return CarParameters(
        longitudinal_actuator_delay_s=delays_s[0],
        name=str(car_params.carFingerprint),
        steer_actuator_delay_s=delays_s[1],
        reasons=tuple(reasons),
    )


@dataclass(frozen=True, slots=True)
class BusInputs:
    """One reading of the bus."""

    vehicle: VehicleState
    is_rhd: bool  # the driver sits on the right
    lateral_delay_s: float  # measured, from steering command to curvature
    road_frame_id: int  # newest that the camera daemon announced
    reasons: tuple[Reason, ...] = ()  # why messages that rest on it are not valid


class MessageSource(Received, Protocol):
    """The part of ``cereal.pubsub.SubMaster`` that is read here."""

    @property
    def rejected(self) -> Mapping[str, int]:
        """How many were no message of the service, by service."""

    @property
    def rejected_why(self) -> Mapping[str, str]:
        """The defect of the last of them, by service."""

    @property
    def frame(self) -> int:
        """Number of updates so far, from 0."""

    def __getitem__(self, service: str) -> Any:
        """Return the newest message of a service, default-initialised before the first."""


class BusReader:
    """Reads the newest messages, each once; those never received have their schema defaults.

    `clip_speed` is that of `ActionRule`; another model may change it. `read` brings `freshness` up
    to date. `delay_to_use` is for stacks whose users set the lateral delay: it gets the delay that
    the stack measures, in s, and the number of the update; None uses the measured one.
    """

    def __init__(
        self,
        messages: MessageSource,
        episodes: Episodes,
        *,
        freshness: Freshness,
        clip_speed: bool = True,
        delay_to_use: Callable[[float, int], float] | None = None,
    ) -> None:
        self._messages = messages
        self._episodes = episodes
        self.clip_speed = clip_speed
        self._freshness = freshness
        self._delay_to_use = delay_to_use
        self._car = VehicleState()
        self._lateral_active = False
        self._is_rhd = False
        self._delay_s = 0.0
        self._road_frame_id = 0
        self._broken: dict[InputRule, Reason] = {}
        self._garbage = GarbageWatch(messages, episodes)

    def read(self, now_ns: int) -> BusInputs:
        """Return the inputs that hold at `now_ns`, of the loop's clock."""
        messages, updated = self._messages, self._messages.updated
        self._garbage.look()
        if updated["carControl"]:
            self._lateral_active = messages["carControl"].latActive
        if updated["carState"]:
            self._take_car(messages["carState"])
        if updated["driverMonitoringState"]:
            self._is_rhd = messages["driverMonitoringState"].isRHD
        if updated["liveDelay"]:
            self._delay_s = self._checked(LATERAL_DELAY, messages["liveDelay"].lateralDelay)
        if updated["roadCameraState"]:
            self._road_frame_id = messages["roadCameraState"].frameId
        vehicle, reasons = self._car, tuple(self._broken.values())
        active = self._lateral_active
        freshness = self._freshness
        freshness.update(now_ns)
        active = active and not freshness.silent_for_s(LATERAL_ACTIVE, now_ns)
        silent_s = freshness.silent_for_s(SPEED, now_ns)
        if silent_s:
            # The last speed is the best guess; without a message the driver wants nothing.
            vehicle = VehicleState(v_ego_mps=vehicle.v_ego_mps)
            reasons = (*reasons, silence(SPEED, silent_s))
        if vehicle.lateral_active is not active:
            vehicle = replace(vehicle, lateral_active=active)
        delay_s = self._delay_s
        if self._delay_to_use is not None:
            delay_s = self._delay_to_use(delay_s, messages.frame)
        return BusInputs(vehicle, self._is_rhd, delay_s, self._road_frame_id, reasons)

    def _take_car(self, car: Any) -> None:
        speed_mps = self._checked(SPEED, car.vEgo)
        self._car = VehicleState(
            v_ego_mps=max(0.0, speed_mps) if self.clip_speed else speed_mps,
            left_blinker=car.leftBlinker,
            right_blinker=car.rightBlinker,
            steering_pressed=car.steeringPressed,
            steering_torque=self._checked(TORQUE, car.steeringTorque),
            left_blindspot=car.leftBlindspot,
            right_blindspot=car.rightBlindspot,
            lateral_active=self._lateral_active,
        )

    def _checked(self, rule: InputRule, value: float) -> float:
        """Return a value that the rule allows: itself or 0."""
        if rule.allows(value):
            if self._broken:
                self._broken.pop(rule, None)
            return value
        name, text = f"{rule.service}.{rule.field}", rule.describe(value)
        kind = Kind(f"{name} out of bounds", fault=Fault.INPUT_REJECTED, quiet_ns=_QUIET_NS)
        self._episodes.happen(kind, f"{text}; it counts as 0")
        if rule.marks:
            self._broken[rule] = Reason(kind.name, text)
        return 0.0


class GarbageWatch:
    """Reports services that send data other than their messages."""

    def __init__(self, messages: MessageSource, episodes: Episodes) -> None:
        self._messages = messages
        self._episodes = episodes
        self._known = dict(messages.rejected)

    def look(self) -> None:
        """Look at what has been rejected since the last look; once after each update."""
        messages = self._messages
        if messages.rejected == self._known:
            return
        for name, count in messages.rejected.items():
            if count != self._known[name]:
                self._known[name] = count
                kind = Kind(f"garbage {name}", fault=Fault.MESSAGE_REJECTED, quiet_ns=_QUIET_NS)
                self._episodes.happen(
                    kind, f"{name}: message rejected: {messages.rejected_why[name]}"
                )


# --- Values that the host computes ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ActionTimes:
    """When the actuators will have followed a command sent now, seconds from the frame."""

    lateral_s: float  # curvature
    longitudinal_s: float  # acceleration
    lateral_delay_s: float = 0.0  # the part of `lateral_s` due to steering and filter


def action_times(lateral_delay_s: float, car: CarParameters, rule: ActionRule) -> ActionTimes:
    """Return the times at which the plan is read out (see ADR 0021).

    The smoothing filters delay the command like an actuator does, and the model's answer is of some
    age when it is applied: `rule.frame_delay_s`. `lateral_delay_s` is the measured one of
    ``liveDelay``; the rule decides which delay counts, and has the time constants in force.
    """
    measured = rule.lateral_delay == "liveDelay"
    lateral_s = lateral_delay_s if measured else car.steer_actuator_delay_s
    lateral_s += rule.lateral_delay_extra_s + rule.lat_smooth_s
    longitudinal_s = car.longitudinal_actuator_delay_s + rule.long_smooth_s
    return ActionTimes(
        lateral_s=lateral_s + rule.frame_delay_s,
        longitudinal_s=longitudinal_s + rule.frame_delay_s,
        lateral_delay_s=lateral_s,
    )


@dataclass(slots=True)
class DesirePulse:
    """Turns the level of a desire into a pulse of one frame at its rising edge.

    `pulse` is the model input, (8,) float32, rewritten by every update.
    """

    pulse: NDArray[np.float32] = field(default_factory=lambda: np.zeros(DESIRE_LENGTH, np.float32))
    _previous: int = 0

    def update(self, desire: int) -> NDArray[np.float32]:
        """Return ``pulse`` for a desire's index; 0 is no desire and never pulses."""
        self.pulse.fill(0.0)
        if desire != self._previous and 0 < desire < DESIRE_LENGTH:
            self.pulse[desire] = 1.0
        self._previous = desire
        return self.pulse

    def reset(self) -> None:
        """Forget the level, so that a lasting desire pulses again at the next update."""
        self._previous = 0


def _pair() -> NDArray[np.float32]:
    return np.zeros((1, 2), np.float32)


@dataclass(frozen=True, slots=True)
class HostInputs:
    """Inputs that the host computes besides desires; each (1, 2) float32, rewritten each frame.

    `traffic_convention` is one-hot: [1, 0] is a left-hand-drive car (right-hand traffic), [0, 1] a
    right-hand-drive one. `lateral_control_params` are speed in m/s and lateral delay in s,
    `action_t` the times of curvature and acceleration in s.
    """

    traffic_convention: NDArray[np.float32] = field(default_factory=_pair)
    lateral_control_params: NDArray[np.float32] = field(default_factory=_pair)
    action_t: NDArray[np.float32] = field(default_factory=_pair)

    def update(self, bus: BusInputs, times: ActionTimes) -> None:
        """Write the values of one frame."""
        # Writing a few numbers one by one is faster than assigning a row.
        self.traffic_convention[0, 0] = not bus.is_rhd
        self.traffic_convention[0, 1] = bus.is_rhd
        self.lateral_control_params[0, 0] = bus.vehicle.v_ego_mps
        self.lateral_control_params[0, 1] = times.lateral_delay_s
        self.action_t[0, 0] = times.lateral_s
        self.action_t[0, 1] = times.longitudinal_s
