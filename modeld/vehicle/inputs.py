"""The model's inputs besides pictures: vehicle state, and values computed by the host.

The messages of the vehicle are read, and checked, by ``modeld.vehicle.bus_reader``.
"""

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from modeld.constants import DESIRE_LENGTH
from modeld.vehicle.desire import VehicleState
from modeld.vehicle.validity import LONGITUDINAL_ACTUATOR, STEER_ACTUATOR, Reason
from runtime.format.driving_interface import ActionRule

SUBSCRIPTIONS: Final = (
    "deviceState",
    "carState",
    "roadCameraState",
    "liveCalibration",
    "driverMonitoringState",
    "carControl",
    "liveDelay",
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


def write_traffic_convention(out: NDArray[np.float32], *, is_rhd: bool) -> None:
    """Write the one-hot traffic convention into ``out``, (1, 2) float32.

    [1, 0] is a left-hand-drive car (right-hand traffic), the default; [0, 1] right-hand drive.
    """
    out[0, 0] = not is_rhd
    out[0, 1] = is_rhd


@dataclass(frozen=True, slots=True)
class ActionTimes:
    """When the actuators will have followed a command sent now, seconds from the frame."""

    lateral_s: float  # curvature
    longitudinal_s: float  # acceleration
    lateral_delay_s: float = 0.0  # the part of `lateral_s` due to steering and filter


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


@dataclass(frozen=True, slots=True)
class HostInputs:
    """Inputs that the host computes besides desires; each (1, 2) float32, rewritten each frame.

    `traffic_convention` is one-hot: left-hand-drive car, right-hand-drive car.
    `lateral_control_params` are speed in m/s and lateral delay in s, `action_t` the times of
    curvature and acceleration in s.
    """

    traffic_convention: NDArray[np.float32] = field(default_factory=_pair)
    lateral_control_params: NDArray[np.float32] = field(default_factory=_pair)
    action_t: NDArray[np.float32] = field(default_factory=_pair)

    def update(self, bus: BusInputs, times: ActionTimes) -> None:
        """Write the values of one frame."""
        write_traffic_convention(self.traffic_convention, is_rhd=bus.is_rhd)
        # Writing a few numbers one by one is faster than assigning a row.
        self.lateral_control_params[0, 0] = bus.vehicle.v_ego_mps
        self.lateral_control_params[0, 1] = times.lateral_delay_s
        self.action_t[0, 0] = times.lateral_s
        self.action_t[0, 1] = times.longitudinal_s
