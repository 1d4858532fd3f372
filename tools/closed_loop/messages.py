"""The messages of the simulated car, as the processes of a real one would publish them.

They can be wrong on purpose: `Told` is what they claim, the simulation is what is true.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cereal.schema import new_event
from modeld.startup import ROAD_STREAM, WIDE_STREAM
from tools.closed_loop.simulation import Simulation
from tools.closed_loop.trial import Angles
from tools.drives.drive import Message
from tools.world.car_messages import (
    Control,
    Motion,
    fill_camera_state,
    fill_car_control,
    fill_car_params,
    fill_car_state,
    fill_driver_monitoring,
    fill_live_calibration,
    fill_live_delay,
    fill_live_pose,
)

# What the simulated car's device is: the smallest current one, so that it runs anywhere.
DEVICE, SENSOR = "mici", "os04c10"
# Before a picture is announced, it was read out, which takes that sensor 11 ms.
ENDED_BEFORE_NS = 1_000_000
EXPOSED_BEFORE_NS = 12_000_000
STATE_SERVICES = {WIDE_STREAM: "wideRoadCameraState", ROAD_STREAM: "roadCameraState"}
# Frames between two messages of slow services.
CALIBRATION_FRAMES, DEVICE_FRAMES = 5, 10


@dataclass(frozen=True, slots=True)
class Told:
    """The content of messages that a fault may falsify.

    `rpy_rad` is ``liveCalibration.rpyCalib``, `lateral_delay_s` is ``liveDelay.lateralDelay`` and
    ``carParams.steerActuatorDelay``, `speed_mps` is ``carState.vEgo``.
    """

    rpy_rad: Angles
    lateral_delay_s: float
    speed_mps: float


Falsify = Callable[[Told], Told]


class CarMessages:
    """Builds the messages of one drive.

    `falsify` changes what is told.
    """

    def __init__(self, simulation: Simulation, falsify: Falsify | None = None) -> None:
        self._simulation = simulation
        self._falsify = falsify

    def told(self) -> Told:
        """Return the current content."""
        simulation = self._simulation
        truth = Told(
            simulation.trial.told_rpy_rad(simulation.time_s),
            simulation.car.model.lateral_delay_s,
            simulation.car.speed_mps,
        )
        return truth if self._falsify is None else self._falsify(truth)

    def car_params(self, time_ns: int) -> list[Message]:
        """Return carParams."""
        return [_message("carParams", time_ns, self._car_params)]

    def of_tick(self, time_ns: int) -> list[Message]:
        """Return carState and carControl."""
        return [
            _message("carState", time_ns, self._car_state),
            _message("carControl", time_ns, self._car_control),
        ]

    def of_frame(self, time_ns: int) -> list[Message]:
        """Return the messages of a frame, slower ones now and then; all with the first frame."""
        frame = self._simulation.frame
        messages = [
            _message("driverMonitoringState", time_ns, fill_driver_monitoring),
            _message("livePose", time_ns, self._pose),
        ]
        if frame % CALIBRATION_FRAMES == 0:
            messages.append(_message("liveCalibration", time_ns, self._calibration))
            messages.append(_message("liveDelay", time_ns, self._delay))
        if frame % DEVICE_FRAMES == 0:
            messages.append(_message("deviceState", time_ns, _device))
        return messages

    def _motion(self) -> Motion:
        simulation = self._simulation
        car, body = simulation.car, simulation.body
        return Motion(
            speed_mps=car.speed_mps,
            acceleration_mps2=car.acceleration_mps2,
            curvature_1pm=car.curvature_1pm,
            rpy_rad=(body.roll_rad, body.pitch_rad, car.heading_rad),
            steering_angle_deg=car.model.steering_angle_deg(car.curvature_1pm),
            blinker=simulation.blinker,
            nudge=simulation.nudge,
        )

    def _car_params(self, params: Any) -> None:
        model = self._simulation.car.model
        delays_s = (self.told().lateral_delay_s, model.longitudinal_delay_s)
        fill_car_params(params, model, delays_s)

    def _car_state(self, state: Any) -> None:
        simulation = self._simulation
        fill_car_state(
            state,
            self._motion(),
            self.told().speed_mps,
            is_engaged=simulation.is_engaged,
            set_speed_mps=simulation.set_speed_mps,
        )

    def _car_control(self, control: Any) -> None:
        simulation = self._simulation
        action = simulation.action
        angle_deg = simulation.car.model.steering_angle_deg(action.curvature_1pm)
        wanted = Control(
            simulation.is_engaged, action.acceleration_mps2, action.curvature_1pm, angle_deg
        )
        fill_car_control(control, self._motion(), wanted)

    def _pose(self, pose: Any) -> None:
        fill_live_pose(pose, self._motion(), self._simulation.trial.rpy_rad)

    def _calibration(self, calibration: Any) -> None:
        height_m = self._simulation.trial.height_m
        fill_live_calibration(calibration, self.told().rpy_rad, height_m)

    def _delay(self, delay: Any) -> None:
        fill_live_delay(delay, self.told().lateral_delay_s)


def camera_message(stream: str, frame_id: int, now_ns: int) -> Message:
    """Return the state that announces a frame."""
    exposed_ns = (now_ns - EXPOSED_BEFORE_NS, now_ns - ENDED_BEFORE_NS)

    def fill(state: Any) -> None:
        fill_camera_state(state, frame_id, exposed_ns, SENSOR)

    return _message(STATE_SERVICES[stream], now_ns, fill)


def _message(service: str, time_ns: int, fill: Callable[[Any], None]) -> Message:
    event = new_event(service, mono_time_ns=time_ns, valid=True)
    fill(getattr(event, service))
    return Message(service, time_ns, event.to_bytes())


def _device(state: Any) -> None:
    state.deviceType = DEVICE
    state.started = True
