"""The messages of a rendered segment, as the processes of a car would have logged them.

Every message is stamped with the time at which it would have been published. Slow services start
again with each segment, so that a segment can be played by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cereal.schema import content, new_event
from tools.drives.drive import Message
from tools.render.picture_files import Packet
from tools.render.script import TICK_NS, ScriptedDrive
from tools.render.spec import FRAME_NS, SMALL, START_NS, DriveSpec
from tools.world.car import FAMILY_CAR, CarModel
from tools.world.expert import LEFT
from tools.world.view import rotation

# --- The messages of a simulated car, as the processes of a real one would publish them -------
#
# The motion is in the road's directions, positive to the right; messages have the car's. They can
# be wrong on purpose: `Told` is what they claim.

# Frames between two messages of slow services.
CALIBRATION_FRAMES, DEVICE_FRAMES = 5, 10
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


@dataclass(frozen=True, slots=True)
class Told:
    """The content of messages that a fault may falsify.

    `rpy_rad` is ``liveCalibration.rpyCalib``, `lateral_delay_s` is ``liveDelay.lateralDelay`` and
    ``carParams.steerActuatorDelay``, `speed_mps` is ``carState.vEgo``.
    """

    rpy_rad: Angles
    lateral_delay_s: float
    speed_mps: float


@dataclass(frozen=True, slots=True)
class CarReport:
    """Everything that the messages of a moment are made from.

    Attributes:
        rpy_rad: how the cameras are mounted; `height_m` is theirs over the road.
        set_speed_mps: of cruise control.
        device: the car's, since it was started.
    """

    motion: Motion
    wanted: Control
    told: Told
    rpy_rad: Angles
    height_m: float
    set_speed_mps: float
    device: str
    started_ns: int = 0
    model: CarModel = FAMILY_CAR

    def of_start(self, time_ns: int) -> list[Message]:
        """Return carParams."""
        delays_s = (self.told.lateral_delay_s, self.model.longitudinal_delay_s)
        return [
            message_of("carParams", time_ns, lambda m: fill_car_params(m, self.model, delays_s))
        ]

    def of_tick(self, time_ns: int) -> list[Message]:
        """Return carState and carControl, which come every 10 ms."""

        def state(message: Any) -> None:
            fill_car_state(
                message,
                self.motion,
                self.told.speed_mps,
                is_engaged=self.wanted.is_engaged,
                set_speed_mps=self.set_speed_mps,
            )

        return [
            message_of("carState", time_ns, state),
            message_of(
                "carControl", time_ns, lambda m: fill_car_control(m, self.motion, self.wanted)
            ),
        ]

    def of_frame(self, frame: int, time_ns: int) -> list[Message]:
        """Return the messages of a frame; slower ones with every fifth and tenth, 0 the first."""
        fills: dict[str, Callable[[Any], None]] = {
            "driverMonitoringState": fill_driver_monitoring,
            "livePose": lambda m: fill_live_pose(m, self.motion, self.rpy_rad),
        }
        if frame % CALIBRATION_FRAMES == 0:
            told = self.told
            fills["liveCalibration"] = lambda m: fill_live_calibration(
                m, told.rpy_rad, self.height_m
            )
            fills["liveDelay"] = lambda m: fill_live_delay(m, told.lateral_delay_s)
        if frame % DEVICE_FRAMES == 0:
            fills["deviceState"] = self._fill_device
        return [message_of(service, time_ns, fill) for service, fill in fills.items()]

    def _fill_device(self, state: Any) -> None:
        state.deviceType = self.device
        state.started = True
        state.startedMonoTime = self.started_ns


def message_of(service: str, time_ns: int, fill: Callable[[Any], None]) -> Message:
    """Return a valid event whose message `fill` fills."""
    event = new_event(service, mono_time_ns=time_ns, valid=True)
    fill(getattr(event, service))
    return Message(service, time_ns, event.to_bytes())


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


# ----------------------------------------------------------------------------------------------

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
# From the end of a frame to its state, and to its packet. The wide camera speaks first: when the
# road frame wakes the daemon, both are there.
_STATE_LATER_NS = {"road": 1_000_000, "wide": 800_000, "driver": 1_000_000, SMALL: 1_000_000}
_PACKET_LATER_NS = 9_000_000
_KEY_FRAME_FLAG = 8
_WALL_TIME_NS = 1_750_000_000_000_000_000


def segment_messages(
    spec: DriveSpec, drive: ScriptedDrive, segment: int, packets: Mapping[str, list[Packet]]
) -> list[Message]:
    """Return the messages of a segment in time order, sentinels not included.

    `packets` holds, by stream, what its encoder made of the delivered frames.
    """
    messages: list[Message] = []
    for position, frame in enumerate(spec.frame_ids(segment)):
        first_ns = START_NS + frame * FRAME_NS
        for time_ns in range(first_ns, first_ns + FRAME_NS, TICK_NS):
            report = _report(spec, drive, time_ns)
            if time_ns == first_ns:
                messages += report.of_start(time_ns) if position == 0 else []
                messages += report.of_frame(position, time_ns)
            messages += report.of_tick(time_ns)
    for stream, encoded in packets.items():
        messages += _camera_messages(spec, stream, segment, encoded)
    messages.sort(key=lambda message: message.mono_time_ns)
    return messages


def _report(spec: DriveSpec, drive: ScriptedDrive, time_ns: int) -> CarReport:
    body, _, blinker, nudge = drive.moment((time_ns - START_NS) // TICK_NS)
    angle_deg = FAMILY_CAR.steering_angle_deg(body.curvature_1pm)
    return CarReport(
        motion=Motion(
            speed_mps=body.speed_mps,
            acceleration_mps2=body.acceleration_mps2,
            curvature_1pm=body.curvature_1pm,
            rpy_rad=(body.roll_rad, body.pitch_rad, body.heading_rad),
            steering_angle_deg=angle_deg,
            blinker=blinker,
            nudge=nudge,
        ),
        # It does at once what it is told.
        wanted=Control(
            is_engaged=True,
            acceleration_mps2=body.acceleration_mps2,
            curvature_1pm=body.curvature_1pm,
            steering_angle_deg=angle_deg,
        ),
        told=Told(spec.rpy_rad, FAMILY_CAR.lateral_delay_s, body.speed_mps),
        rpy_rad=spec.rpy_rad,
        height_m=spec.height_m,
        set_speed_mps=drive.world.speed_limit_mps,
        device=spec.device,
        started_ns=START_NS,
    )


def init_event(spec: DriveSpec) -> bytes:
    """Return initData, the same bytes in each file of the drive."""
    event = new_event("initData", mono_time_ns=START_NS - TICK_NS, valid=True)
    data = event.initData
    data.deviceType = spec.device
    data.version = "rendered"
    data.dongleId = "0000000000000000"
    data.passive = False
    # A fixed day: equal drives are equal files.
    data.wallTimeNanos = _WALL_TIME_NS
    data.gitBranch = "modeld make-drive"
    entries = data.params.init("entries", 1)
    entries[0].key = "RenderedDrive"
    entries[0].value = spec.route.encode()
    return bytes(event.to_bytes())


def _camera_messages(
    spec: DriveSpec, stream: str, segment: int, packets: list[Packet]
) -> Iterator[Message]:
    """Yield the state and the index of each frame that a camera delivered."""
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
    """Fill the EncodeIndex of a picture: `encode_id` is its number in the drive.

    `segment` and `position` name its file and its place there.
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
