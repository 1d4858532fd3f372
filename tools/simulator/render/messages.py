"""Generates the messages that a simulated car publishes, and all messages of a rendered segment.

Slow services restart their schedule in each segment, so a segment can be played on its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cereal.schema import content, new_event
from modeld.outputs.verdict import Action
from tools.drives.drive import Message
from tools.simulator.render.picture_files import Packet
from tools.simulator.render.script import TICK_NS, ScriptedDrive
from tools.simulator.render.spec import FRAME_NS, SMALL, START_NS, DriveSpec
from tools.simulator.world.car import FAMILY_CAR, CarModel
from tools.simulator.world.expert import LEFT
from tools.simulator.world.view import rotation

# Intervals of slow services, in frames.
CALIBRATION_FRAMES, DEVICE_FRAMES = 5, 10
# Torque of the driver's hand on the steering wheel, in carState's unit.
NUDGE_TORQUE = 2.5

Angles = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Motion:
    """The motion of a car at one time; lateral quantities are positive to the right.

    Attributes:
        curvature_1pm: curvature of the path.
        rpy_rad: roll, pitch and yaw of the car in the world; the yaw is not wrapped.
        blinker: ``LEFT``, ``RIGHT`` or 0.
        nudge: direction of the driver's torque on the wheel: ``LEFT``, ``RIGHT`` or 0.
    """

    speed_mps: float
    acceleration_mps2: float
    curvature_1pm: float
    rpy_rad: Angles
    blinker: int = 0
    nudge: int = 0

    @property
    def yaw_rate_radps(self) -> float:
        """Yaw rate, positive to the right."""
        return self.curvature_1pm * self.speed_mps

    @property
    def heading_rad(self) -> float:
        """Yaw, wrapped to half a turn on both sides."""
        return math.remainder(self.rpy_rad[2], 2.0 * math.pi)


@dataclass(frozen=True, slots=True)
class ReportedValues:
    """The reported values that a simulated fault may falsify.

    `rpy_rad` is ``liveCalibration.rpyCalib``. `lateral_delay_s` is ``liveDelay.lateralDelay`` and
    ``carParams.steerActuatorDelay``. `speed_mps` is ``carState.vEgo``.
    """

    rpy_rad: Angles
    lateral_delay_s: float
    speed_mps: float


@dataclass(frozen=True, slots=True)
class CarReport:
    """Builds the messages of a car at one time from its motion and command.

    Attributes:
        motion: true motion of the car.
        wanted: command to the car while `is_engaged`.
        reported: reported values; they can be wrong on purpose.
        rpy_rad: mounting angles of the cameras, device from calib.
        height_m: height of the cameras above the road.
        set_speed_mps: set speed of cruise control.
        device: device type in deviceState.
        started_ns: monotonic time at which the device was started.
    """

    motion: Motion
    wanted: Action
    reported: ReportedValues
    rpy_rad: Angles
    height_m: float
    set_speed_mps: float
    device: str
    started_ns: int = 0
    is_engaged: bool = True
    model: CarModel = FAMILY_CAR

    def start_messages(self, time_ns: int) -> list[Message]:
        """Return the message sent once at the start, carParams."""
        return [message_of("carParams", time_ns, self.fill_car_params)]

    def tick_messages(self, time_ns: int) -> list[Message]:
        """Return carState and carControl, which are sent every 10 ms."""
        fills = {"carState": self.fill_car_state, "carControl": self.fill_car_control}
        return [message_of(service, time_ns, fill) for service, fill in fills.items()]

    def frame_messages(self, frame: int, time_ns: int) -> list[Message]:
        """Return the messages of a frame; slow services send on every fifth or tenth, from 0 on."""
        fills = {
            "driverMonitoringState": _fill_driver_monitoring,
            "livePose": self.fill_live_pose,
        }
        if frame % CALIBRATION_FRAMES == 0:
            fills |= {
                "liveCalibration": self._fill_live_calibration,
                "liveDelay": self._fill_live_delay,
            }
        if frame % DEVICE_FRAMES == 0:
            fills["deviceState"] = self._fill_device_state
        return [message_of(service, time_ns, fill) for service, fill in fills.items()]

    def fill_car_params(self, params: Any) -> None:
        """Fill a CarParams."""
        model = self.model
        params.brand = "mock"
        params.carFingerprint = "MOCK"
        params.mass = 1700.0
        params.wheelbase = model.wheelbase_m
        params.centerToFront = 0.45 * model.wheelbase_m
        params.steerRatio = model.steer_ratio
        params.steerActuatorDelay = self.reported.lateral_delay_s
        params.longitudinalActuatorDelay = model.longitudinal_delay_s
        params.openpilotLongitudinalControl = True
        params.enableBsm = True

    def fill_car_state(self, state: Any) -> None:
        """Fill a CarState with the reported speed and the other true values."""
        motion, reported_mps = self.motion, self.reported.speed_mps
        state.vEgo = state.vEgoRaw = state.vEgoCluster = reported_mps
        state.aEgo = motion.acceleration_mps2
        wheels = state.wheelSpeeds
        wheels.fl = wheels.fr = wheels.rl = wheels.rr = reported_mps
        state.steeringAngleDeg = self.model.steering_angle_deg(motion.curvature_1pm)
        # Torque is positive to the left, like the steering angle.
        state.steeringTorque = -NUDGE_TORQUE * motion.nudge
        state.steeringPressed = motion.nudge != 0
        state.leftBlinker = motion.blinker == LEFT
        state.rightBlinker = motion.blinker == -LEFT
        state.yawRate = -motion.yaw_rate_radps
        state.standstill = motion.speed_mps < 0.1
        state.gearShifter = "drive"
        state.cruiseState.available = True
        state.cruiseState.enabled = self.is_engaged
        state.cruiseState.speed = self.set_speed_mps
        state.canValid = True

    def fill_car_control(self, control: Any) -> None:
        """Fill a CarControl."""
        motion, wanted = self.motion, self.wanted
        control.enabled = control.latActive = control.longActive = self.is_engaged
        control.leftBlinker = motion.blinker == LEFT
        control.rightBlinker = motion.blinker == -LEFT
        control.actuators.accel = wanted.acceleration_mps2
        control.actuators.speed = motion.speed_mps
        control.actuators.curvature = wanted.curvature_1pm
        control.actuators.steeringAngleDeg = self.model.steering_angle_deg(wanted.curvature_1pm)
        control.currentCurvature = motion.curvature_1pm
        control.orientationNED = [0.0, 0.0, motion.heading_rad]
        control.angularVelocity = [0.0, 0.0, motion.yaw_rate_radps]

    def fill_live_pose(self, pose: Any) -> None:
        """Fill a LivePose with the true motion in the device frame."""
        motion = self.motion
        # Columns 0 and 2 of the rotation device from calib: straight ahead, and down.
        ahead, down = ([row[column] for row in rotation(self.rpy_rad)] for column in (0, 2))
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

    def _fill_live_calibration(self, calibration: Any) -> None:
        calibration.calStatus = "calibrated"
        calibration.calPerc = 100
        calibration.validBlocks = 50
        calibration.rpyCalib = list(self.reported.rpy_rad)
        calibration.rpyCalibSpread = [0.0, 0.0, 0.0]
        calibration.wideFromDeviceEuler = [0.0, 0.0, 0.0]
        calibration.height = [self.height_m]

    def _fill_live_delay(self, delay: Any) -> None:
        delay.lateralDelay = delay.lateralDelayEstimate = self.reported.lateral_delay_s
        delay.status = "estimated"
        delay.validBlocks = 50
        delay.calPerc = 100

    def _fill_device_state(self, state: Any) -> None:
        state.deviceType = self.device
        state.started = True
        state.startedMonoTime = self.started_ns


def _fill_driver_monitoring(state: Any) -> None:
    """Report an attentive driver in a left-hand-drive car."""
    state.isRHD = False
    state.faceDetected = True
    state.awarenessStatus = 1.0


def message_of(service: str, time_ns: int, fill: Callable[[Any], None]) -> Message:
    """Return a valid event with its content set by `fill`."""
    event = new_event(service, mono_time_ns=time_ns, valid=True)
    fill(content(event, service))
    return Message(service, time_ns, event.to_bytes())


def fill_camera_state(state: Any, frame_id: int, exposed_ns: tuple[int, int], sensor: str) -> None:
    """Fill the camera state that announces a frame.

    `exposed_ns` is the start and the end of the exposure; `sensor` is the name of the sensor.
    """
    state.frameId = state.frameIdSensor = state.requestId = frame_id
    state.timestampSof, state.timestampEof = exposed_ns
    state.processingTime = 1e-3
    state.sensor = sensor


# --- The messages of a segment, with the times at which a device would publish them --------------

STATE_SERVICES = {
    "road": "roadCameraState",
    "wide": "wideRoadCameraState",
    "driver": "driverCameraState",
    SMALL: "roadCameraState",
}
INDEX_SERVICES = {
    "road": "roadEncodeIdx",
    "wide": "wideRoadEncodeIdx",
    "driver": "driverEncodeIdx",
    SMALL: "qRoadEncodeIdx",
}
# Delays from the end of a frame to its state and to its packet. The wide camera publishes first,
# so that both frames are available when the road frame wakes the daemon.
_STATE_LATER_NS = {"road": 1_000_000, "wide": 800_000, "driver": 1_000_000, SMALL: 1_000_000}
_PACKET_LATER_NS = 9_000_000
_KEY_FRAME_FLAG = 8
_WALL_TIME_NS = 1_750_000_000_000_000_000


def segment_messages(
    spec: DriveSpec, drive: ScriptedDrive, segment: int, packets: Mapping[str, list[Packet]]
) -> list[Message]:
    """Return the messages of a segment in time order, without sentinels.

    `packets` maps each stream to the encoded packets of its delivered frames.
    """
    messages: list[Message] = []
    for position, frame in enumerate(spec.frame_ids(segment)):
        first_ns = START_NS + frame * FRAME_NS
        for time_ns in range(first_ns, first_ns + FRAME_NS, TICK_NS):
            report = _report(spec, drive, time_ns)
            if time_ns == first_ns:
                messages += report.start_messages(time_ns) if position == 0 else []
                messages += report.frame_messages(position, time_ns)
            messages += report.tick_messages(time_ns)
    for stream, encoded in packets.items():
        messages += _camera_messages(spec, stream, segment, encoded)
    messages.sort(key=lambda message: message.mono_time_ns)
    return messages


def _report(spec: DriveSpec, drive: ScriptedDrive, time_ns: int) -> CarReport:
    body, _, blinker, nudge = drive.state_at((time_ns - START_NS) // TICK_NS)
    return CarReport(
        motion=Motion(
            speed_mps=body.speed_mps,
            acceleration_mps2=body.acceleration_mps2,
            curvature_1pm=body.curvature_1pm,
            rpy_rad=(body.roll_rad, body.pitch_rad, body.heading_rad),
            blinker=blinker,
            nudge=nudge,
        ),
        # A scripted car follows its command without delay.
        wanted=Action(body.curvature_1pm, body.acceleration_mps2),
        reported=ReportedValues(spec.rpy_rad, FAMILY_CAR.lateral_delay_s, body.speed_mps),
        rpy_rad=spec.rpy_rad,
        height_m=spec.height_m,
        set_speed_mps=drive.world.speed_limit_mps,
        device=spec.device,
        started_ns=START_NS,
    )


def init_event(spec: DriveSpec) -> bytes:
    """Return initData, the same bytes in each log of the drive."""
    event = new_event("initData", mono_time_ns=START_NS - TICK_NS, valid=True)
    data = event.initData
    data.deviceType = spec.device
    data.version = "rendered"
    data.dongleId = "0000000000000000"
    data.passive = False
    # The date is fixed so that equal drives have equal files.
    data.wallTimeNanos = _WALL_TIME_NS
    data.gitBranch = "modeld make-drive"
    entries = data.params.init("entries", 1)
    entries[0].key = "RenderedDrive"
    entries[0].value = spec.route.encode()
    return bytes(event.to_bytes())


def _camera_messages(
    spec: DriveSpec, stream: str, segment: int, packets: list[Packet]
) -> Iterator[Message]:
    """Yield the camera state and the encode index of each frame that a camera delivered."""
    first_encode_id = spec.first_encode_id(stream, segment)
    ids = spec.delivered(stream, segment)
    for index, (frame_id, packet) in enumerate(zip(ids, packets, strict=True)):
        sof_ns = spec.sof_ns(stream, frame_id)
        eof_ns = sof_ns + spec.readout_ns
        state_ns, index_ns = eof_ns + _STATE_LATER_NS[stream], eof_ns + _PACKET_LATER_NS
        state = new_event(STATE_SERVICES[stream], mono_time_ns=state_ns, valid=True)
        fill_camera_state(content(state), frame_id, (sof_ns, eof_ns), spec.sensor)
        entry = new_event(INDEX_SERVICES[stream], mono_time_ns=index_ns, valid=True)
        number = first_encode_id + index
        fill_encode_index(content(entry), content(state), number, segment, index, packet)
        if stream == SMALL:
            content(entry).type = "qcameraH264"
        for event in (state, entry):
            yield Message(str(event.which()), event.logMonoTime, event.to_bytes())


def fill_encode_index(
    entry: Any, state: Any, encode_id: int, segment: int, position: int, packet: Packet
) -> None:
    """Fill the EncodeIndex of a picture.

    `encode_id` is its number in the drive, `segment` its segment, and `position` its number in it.
    """
    entry.frameId = state.frameId
    entry.type = "fullHEVC"
    entry.encodeId = encode_id
    entry.segmentNum = segment
    entry.segmentId = entry.segmentIdEncode = position
    entry.timestampSof = state.timestampSof
    entry.timestampEof = state.timestampEof
    entry.flags = _KEY_FRAME_FLAG if packet.is_key else 0
    entry.len = packet.size_bytes
