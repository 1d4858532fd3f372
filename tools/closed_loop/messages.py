"""The messages of the simulated car, as the processes of a real one would publish them.

What they say can be wrong on purpose: `Told` is what is told, the simulation is what is true.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cereal.schema import new_event
from modeld.startup import ROAD_STREAM, WIDE_STREAM
from tools.closed_loop.simulation import Simulation
from tools.closed_loop.trial import LEFT, Angles
from tools.drives.drive import Message
from tools.world.car import CarModel
from tools.world.view import rotation

# What the simulated car's device is: the smallest current one, as of the demo.
DEVICE, SENSOR = "mici", "os04c10"
# Before a picture is announced, it was read out, which takes that sensor 11 ms.
ENDED_BEFORE_NS = 1_000_000
EXPOSED_BEFORE_NS = 12_000_000
STATE_SERVICES = {WIDE_STREAM: "wideRoadCameraState", ROAD_STREAM: "roadCameraState"}
# The driver's hand at the wheel, in the car's unit.
NUDGE_TORQUE = 2.5
# Frames between two messages of slow services.
CALIBRATION_FRAMES, DEVICE_FRAMES = 5, 10


@dataclass(frozen=True, slots=True)
class Told:
    """What messages say of the car that a fault may falsify.

    Attributes:
        rpy_rad: ``liveCalibration.rpyCalib``.
        lateral_delay_s: ``liveDelay.lateralDelay`` and ``carParams.steerActuatorDelay``.
        speed_mps: ``carState.vEgo``.
    """

    rpy_rad: Angles
    lateral_delay_s: float
    speed_mps: float


Falsify = Callable[[Told], Told]


class CarMessages:
    """Builds the messages of one drive.

    Args:
        simulation: the drive.
        falsify: what is told instead of the truth; None: the truth.
    """

    def __init__(self, simulation: Simulation, falsify: Falsify | None = None) -> None:
        self._simulation = simulation
        self._falsify = falsify

    def told(self) -> Told:
        """Return what is told now."""
        simulation = self._simulation
        truth = Told(
            simulation.trial.told_rpy_rad(simulation.time_s),
            simulation.car.model.lateral_delay_s,
            simulation.car.speed_mps,
        )
        return truth if self._falsify is None else self._falsify(truth)

    def car_params(self, time_ns: int) -> list[Message]:
        """Return carParams."""
        model, told = self._simulation.car.model, self.told()
        return [_message("carParams", time_ns, lambda car: _fill_car_params(car, model, told))]

    def of_tick(self, time_ns: int) -> list[Message]:
        """Return carState and carControl."""
        return [
            _message("carState", time_ns, self._car_state),
            _message("carControl", time_ns, self._car_control),
        ]

    def of_frame(self, time_ns: int) -> list[Message]:
        """Return what comes with frames or more rarely; everything with the first frame."""
        frame = self._simulation.frame
        messages = [
            _message("driverMonitoringState", time_ns, _driver),
            _message("livePose", time_ns, self._pose),
        ]
        if frame % CALIBRATION_FRAMES == 0:
            messages.append(_message("liveCalibration", time_ns, self._calibration))
            messages.append(_message("liveDelay", time_ns, self._delay))
        if frame % DEVICE_FRAMES == 0:
            messages.append(_message("deviceState", time_ns, _device))
        return messages

    def _car_state(self, state: Any) -> None:
        simulation = self._simulation
        car, told = simulation.car, self.told()
        state.vEgo = state.vEgoRaw = state.vEgoCluster = told.speed_mps
        state.aEgo = car.acceleration_mps2
        wheels = state.wheelSpeeds
        wheels.fl = wheels.fr = wheels.rl = wheels.rr = told.speed_mps
        state.steeringAngleDeg = car.model.steering_angle_deg(car.curvature_1pm)
        # Positive to the left, as the angle.
        state.steeringTorque = -NUDGE_TORQUE * simulation.nudge
        state.steeringPressed = simulation.nudge != 0
        state.leftBlinker = simulation.blinker == LEFT
        state.rightBlinker = simulation.blinker == -LEFT
        state.yawRate = -car.curvature_1pm * car.speed_mps
        state.standstill = car.speed_mps < 0.1
        state.gearShifter = "drive"
        state.cruiseState.available = True
        state.cruiseState.enabled = simulation.is_engaged
        state.cruiseState.speed = simulation.set_speed_mps
        state.canValid = True

    def _car_control(self, control: Any) -> None:
        simulation = self._simulation
        car, engaged = simulation.car, simulation.is_engaged
        control.enabled = control.latActive = control.longActive = engaged
        control.leftBlinker = simulation.blinker == LEFT
        control.rightBlinker = simulation.blinker == -LEFT
        control.actuators.accel = simulation.action.acceleration_mps2
        control.actuators.speed = car.speed_mps
        control.actuators.curvature = simulation.action.curvature_1pm
        control.actuators.steeringAngleDeg = car.model.steering_angle_deg(
            simulation.action.curvature_1pm
        )
        control.currentCurvature = car.curvature_1pm
        control.orientationNED = [0.0, 0.0, math.remainder(car.heading_rad, 2.0 * math.pi)]
        control.angularVelocity = [0.0, 0.0, car.curvature_1pm * car.speed_mps]

    def _pose(self, pose: Any) -> None:
        """Fill in the true motion in the device frame, as it would have been estimated."""
        simulation = self._simulation
        car, body = simulation.car, simulation.body
        # Columns of device from calib: straight ahead, and down.
        turn = rotation(simulation.trial.rpy_rad)
        ahead, down = ([row[column] for row in turn] for column in (0, 2))
        yaw_rate = car.curvature_1pm * car.speed_mps
        heading = math.remainder(car.heading_rad, 2.0 * math.pi)
        for measurement, values in (
            (pose.orientationNED, (body.roll_rad, body.pitch_rad, heading)),
            (pose.velocityDevice, [car.speed_mps * part for part in ahead]),
            (pose.accelerationDevice, [car.acceleration_mps2 * part for part in ahead]),
            (pose.angularVelocityDevice, [yaw_rate * part for part in down]),
        ):
            measurement.x, measurement.y, measurement.z = values
            measurement.xStd = measurement.yStd = measurement.zStd = 0.01
            measurement.valid = True
        pose.inputsOK = pose.posenetOK = pose.sensorsOK = True

    def _calibration(self, calibration: Any) -> None:
        calibration.calStatus = "calibrated"
        calibration.calPerc = 100
        calibration.validBlocks = 50
        calibration.rpyCalib = list(self.told().rpy_rad)
        calibration.rpyCalibSpread = [0.0, 0.0, 0.0]
        calibration.wideFromDeviceEuler = [0.0, 0.0, 0.0]
        calibration.height = [self._simulation.trial.height_m]

    def _delay(self, delay: Any) -> None:
        delay.lateralDelay = delay.lateralDelayEstimate = self.told().lateral_delay_s
        delay.status = "estimated"
        delay.validBlocks = 50
        delay.calPerc = 100


def camera_message(stream: str, frame_id: int, now_ns: int) -> Message:
    """Return the state that announces a frame."""

    def fill(state: Any) -> None:
        state.frameId = state.frameIdSensor = state.requestId = frame_id
        state.timestampSof = now_ns - EXPOSED_BEFORE_NS
        state.timestampEof = now_ns - ENDED_BEFORE_NS
        state.processingTime = 1e-3
        state.sensor = SENSOR

    return _message(STATE_SERVICES[stream], now_ns, fill)


def _message(service: str, time_ns: int, fill: Callable[[Any], None]) -> Message:
    event = new_event(service, mono_time_ns=time_ns, valid=True)
    fill(getattr(event, service))
    return Message(service, time_ns, event.to_bytes())


def _fill_car_params(params: Any, model: CarModel, told: Told) -> None:
    params.brand = "mock"
    params.carFingerprint = "MOCK"
    params.mass = 1700.0
    params.wheelbase = model.wheelbase_m
    params.centerToFront = 0.45 * model.wheelbase_m
    params.steerRatio = model.steer_ratio
    params.steerActuatorDelay = told.lateral_delay_s
    params.longitudinalActuatorDelay = model.longitudinal_delay_s
    params.openpilotLongitudinalControl = True
    params.enableBsm = True


def _driver(state: Any) -> None:
    state.isRHD = False
    state.faceDetected = True
    state.awarenessStatus = 1.0


def _device(state: Any) -> None:
    state.deviceType = DEVICE
    state.started = True
