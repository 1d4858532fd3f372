"""Reads the model's inputs other than images: the vehicle's messages and values computed from them.

Each message is read once and checked with the rules of `modeld.vehicle.validity`. A value out of
bounds is logged and counts as 0. If it makes the published messages invalid, the reason is returned
with the inputs.
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

# A fault is over after this time. Services send at 1 Hz or faster, so a lasting one recurs sooner.
_QUIET_NS: Final = 2 * NS_PER_S


@dataclass(frozen=True, slots=True)
class CarParameters:
    """The car's properties that the daemon needs."""

    longitudinal_actuator_delay_s: float  # delay from command to acceleration
    name: str  # car fingerprint, for the log
    steer_actuator_delay_s: float = 0.0  # estimated delay from command to curvature
    reasons: tuple[Reason, ...] = ()  # why messages that depend on the car are invalid


# The car used with --demo, with typical delays.
DEMO_CAR: Final = CarParameters(
    longitudinal_actuator_delay_s=0.5, name="demo", steer_actuator_delay_s=0.1
)


def read_car_parameters(car_params: Any) -> CarParameters:
    """Return the car in a ``carParams`` message.

    A delay out of bounds counts as 0 and makes messages invalid, see `CarParameters.reasons`.
    """
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
    """The inputs read from the bus for one frame."""

    vehicle: VehicleState
    is_rhd: bool  # right-hand drive: the driver sits on the right
    lateral_delay_s: float  # measured delay from steering command to curvature
    road_frame_id: int  # newest frame id announced by the camera daemon
    reasons: tuple[Reason, ...] = ()  # why messages that depend on these inputs are invalid


class MessageSource(Received, Protocol):
    """The part of ``cereal.pubsub.SubMaster`` that is read here."""

    @property
    def rejected(self) -> Mapping[str, int]:
        """Number of received data that were not messages of the service, by service."""

    @property
    def rejected_why(self) -> Mapping[str, str]:
        """Defect of the last rejected data, by service."""

    @property
    def frame(self) -> int:
        """Number of updates so far, from 0."""

    def __getitem__(self, service: str) -> Any:
        """Return the newest message of a service; before the first, one with default values."""


class BusReader:
    """Reads the newest messages, each once. A service without a message has schema defaults.

    `freshness` is updated by `read`. `clip_speed` is that of the model's `ActionRule`, and changes
    with the model. `delay_to_use` is for stacks whose users can set the lateral delay: it is called
    with the delay measured by the stack, in s, and the number of the bus update, and returns the
    delay to use. None uses the measured delay.
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
        """Return the current inputs; `now_ns` is the time on the loop's clock."""
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
            # The last speed is the best guess. Without messages, blinkers and steering are off.
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
        """Return the value if the rule allows it; otherwise report it and return 0."""
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
        """Report data rejected since the last call; call once after each update of the bus."""
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


# --- Model inputs computed by the host --------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ActionTimes:
    """Times after the frame at which the actuators will have followed a command sent now."""

    lateral_s: float  # for curvature
    longitudinal_s: float  # for acceleration
    lateral_delay_s: float = 0.0  # part of `lateral_s` caused by steering and filter


def action_times(lateral_delay_s: float, car: CarParameters, rule: ActionRule) -> ActionTimes:
    """Return the times after the frame at which the plan is evaluated (see ADR 0021).

    They are sums of the actuator's delay, the time constant of the smoothing filter, which delays
    the command like an actuator, and the age of the outputs when they are applied,
    `rule.frame_delay_s`. For steering, the rule selects the measured `lateral_delay_s` of
    ``liveDelay`` or the car's estimate.
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
    """Converts a desire to a pulse of one frame at its beginning.

    `pulse` is the model input, (8,) float32, rewritten by every update.
    """

    pulse: NDArray[np.float32] = field(default_factory=lambda: np.zeros(DESIRE_LENGTH, np.float32))
    _previous: int = 0

    def update(self, desire: int) -> NDArray[np.float32]:
        """Return ``pulse`` for the index of the current desire; 0, no desire, never pulses."""
        self.pulse.fill(0.0)
        if desire != self._previous and 0 < desire < DESIRE_LENGTH:
            self.pulse[desire] = 1.0
        self._previous = desire
        return self.pulse

    def reset(self) -> None:
        """Forget the last desire, so a lasting one pulses again at the next update."""
        self._previous = 0


def _pair() -> NDArray[np.float32]:
    return np.zeros((1, 2), np.float32)


@dataclass(frozen=True, slots=True)
class HostInputs:
    """The other inputs computed by the host; each (1, 2) float32, rewritten for each frame.

    `traffic_convention` is one-hot: [1, 0] for a left-hand-drive car (right-hand traffic), [0, 1]
    for a right-hand-drive car. `lateral_control_params` has the speed in m/s and the lateral delay
    in s. `action_t` has the `ActionTimes` of curvature and acceleration in s.
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
