"""Fills the messages that a simulated car's own processes would send.

The motion is in the road's directions, positive to the right; messages have the car's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tools.world.car import CarModel
from tools.world.expert import LEFT
from tools.world.view import rotation

# The driver's hand at the wheel, in the car's unit.
NUDGE_TORQUE = 2.5

Angles = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Motion:
    """How a car moves at one moment.

    Attributes:
        curvature_1pm: of its path, positive to the right.
        rpy_rad: of its body in the world; yaw is its heading, of any number of turns.
        steering_angle_deg: at the steering wheel, positive to the left.
        blinker: ``LEFT``, ``RIGHT`` or 0.
        nudge: the same for the driver's hand at the wheel.
    """

    speed_mps: float
    acceleration_mps2: float
    curvature_1pm: float
    rpy_rad: Angles
    steering_angle_deg: float
    blinker: int = 0
    nudge: int = 0

    @property
    def yaw_rate_radps(self) -> float:
        """Positive to the right."""
        return self.curvature_1pm * self.speed_mps

    @property
    def heading_rad(self) -> float:
        """Yaw within half a turn."""
        return math.remainder(self.rpy_rad[2], 2.0 * math.pi)


@dataclass(frozen=True, slots=True)
class Control:
    """What a car is commanded to do; the steering angle belongs to the curvature."""

    is_engaged: bool
    acceleration_mps2: float
    curvature_1pm: float
    steering_angle_deg: float


def fill_car_params(params: Any, model: CarModel, delays_s: tuple[float, float]) -> None:
    """Fill a CarParams.

    `delays_s` are the assumed delays of steering and drive.
    """
    params.brand = "mock"
    params.carFingerprint = "MOCK"
    params.mass = 1700.0
    params.wheelbase = model.wheelbase_m
    params.centerToFront = 0.45 * model.wheelbase_m
    params.steerRatio = model.steer_ratio
    params.steerActuatorDelay, params.longitudinalActuatorDelay = delays_s
    params.openpilotLongitudinalControl = True
    params.enableBsm = True


def fill_car_state(
    state: Any, motion: Motion, said_mps: float, *, is_engaged: bool, set_speed_mps: float
) -> None:
    """Fill a CarState.

    `said_mps` is the speed by the wheels; engagement and set speed are those of cruise control.
    """
    state.vEgo = state.vEgoRaw = state.vEgoCluster = said_mps
    state.aEgo = motion.acceleration_mps2
    wheels = state.wheelSpeeds
    wheels.fl = wheels.fr = wheels.rl = wheels.rr = said_mps
    state.steeringAngleDeg = motion.steering_angle_deg
    # Positive to the left, as the angle.
    state.steeringTorque = -NUDGE_TORQUE * motion.nudge
    state.steeringPressed = motion.nudge != 0
    state.leftBlinker = motion.blinker == LEFT
    state.rightBlinker = motion.blinker == -LEFT
    state.yawRate = -motion.yaw_rate_radps
    state.standstill = motion.speed_mps < 0.1
    state.gearShifter = "drive"
    state.cruiseState.available = True
    state.cruiseState.enabled = is_engaged
    state.cruiseState.speed = set_speed_mps
    state.canValid = True


def fill_car_control(control: Any, motion: Motion, wanted: Control) -> None:
    """Fill a CarControl."""
    control.enabled = control.latActive = control.longActive = wanted.is_engaged
    control.leftBlinker = motion.blinker == LEFT
    control.rightBlinker = motion.blinker == -LEFT
    control.actuators.accel = wanted.acceleration_mps2
    control.actuators.speed = motion.speed_mps
    control.actuators.curvature = wanted.curvature_1pm
    control.actuators.steeringAngleDeg = wanted.steering_angle_deg
    control.currentCurvature = motion.curvature_1pm
    control.orientationNED = [0.0, 0.0, motion.heading_rad]
    control.angularVelocity = [0.0, 0.0, motion.yaw_rate_radps]


def fill_live_pose(pose: Any, motion: Motion, rpy_rad: Angles) -> None:
    """Fill a LivePose with the true motion in the device frame, as it would have been estimated.

    `rpy_rad` is device from calib.
    """
    # Columns of device from calib: straight ahead, and down.
    ahead, down = ([row[column] for row in rotation(rpy_rad)] for column in (0, 2))
    for measurement, values in (
        (pose.orientationNED, (*motion.rpy_rad[:2], motion.heading_rad)),
        (pose.velocityDevice, [motion.speed_mps * part for part in ahead]),
        (pose.accelerationDevice, [motion.acceleration_mps2 * part for part in ahead]),
        (pose.angularVelocityDevice, [motion.yaw_rate_radps * part for part in down]),
    ):
        measurement.x, measurement.y, measurement.z = values
        measurement.xStd = measurement.yStd = measurement.zStd = 0.01
        measurement.valid = True
    pose.inputsOK = pose.posenetOK = pose.sensorsOK = True


def fill_live_calibration(calibration: Any, rpy_rad: Angles, height_m: float) -> None:
    """Fill a LiveCalibration that is complete.

    `rpy_rad` is device from calib as estimated, `height_m` the camera's height over the road.
    """
    calibration.calStatus = "calibrated"
    calibration.calPerc = 100
    calibration.validBlocks = 50
    calibration.rpyCalib = list(rpy_rad)
    calibration.rpyCalibSpread = [0.0, 0.0, 0.0]
    calibration.wideFromDeviceEuler = [0.0, 0.0, 0.0]
    calibration.height = [height_m]


def fill_live_delay(delay: Any, lateral_delay_s: float) -> None:
    """Fill a LiveDelay that has been learnt."""
    delay.lateralDelay = delay.lateralDelayEstimate = lateral_delay_s
    delay.status = "estimated"
    delay.validBlocks = 50
    delay.calPerc = 100


def fill_driver_monitoring(state: Any) -> None:
    """Fill a DriverMonitoringState: somebody sits on the left and looks ahead."""
    state.isRHD = False
    state.faceDetected = True
    state.awarenessStatus = 1.0


def fill_camera_state(state: Any, frame_id: int, exposed_ns: tuple[int, int], sensor: str) -> None:
    """Fill the state of a camera, which announces a frame.

    `exposed_ns` are start and end of the exposure, `sensor` is the name of the camera's.
    """
    state.frameId = state.frameIdSensor = state.requestId = frame_id
    state.timestampSof, state.timestampEof = exposed_ns
    state.processingTime = 1e-3
    state.sensor = sensor
