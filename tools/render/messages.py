"""The messages of a rendered segment, as the processes of a car would have logged them.

Every message is stamped with the time at which it would have been published. Slow services start
anew with each segment, so that a segment can be played by itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from cereal.schema import new_event
from tools.render.hevc import Packet
from tools.render.spec import FRAME_NS, START_NS, DriveSpec
from tools.render.world import LEFT, NUDGE_TORQUE, STEER_RATIO, TICK_NS, WHEELBASE_M, World
from tools.world.view import rotation

STATE_SERVICES = {
    "road": "roadCameraState",
    "wide": "wideRoadCameraState",
    "driver": "driverCameraState",
}
INDEX_SERVICES = {"road": "roadEncodeIdx", "wide": "wideRoadEncodeIdx", "driver": "driverEncodeIdx"}
# From the end of a frame to its state, and to its packet. The wide camera speaks first: when the
# road frame wakes the daemon, both are there.
_STATE_LATER_NS = {"road": 1_000_000, "wide": 800_000, "driver": 1_000_000}
_PACKET_LATER_NS = 9_000_000
_KEY_FRAME_FLAG = 8
# A usual value after it has been learnt: a quarter of a second less the daemon's own share.
_LATERAL_DELAY_S = 0.2
_WALL_TIME_NS = 1_750_000_000_000_000_000


class Stamped(NamedTuple):
    """One message; `order` decides between equal times."""

    mono_time_ns: int
    order: int
    service: str
    data: bytes


def segment_messages(
    spec: DriveSpec, world: World, segment: int, packets: Mapping[str, list[Packet]]
) -> list[Stamped]:
    """Return the messages of a segment in time order, sentinels not included.

    Args:
        spec: the drive.
        world: what happens in it.
        segment: number.
        packets: stream -> what its encoder made of the frames it delivered.
    """
    ids = spec.frame_ids(segment)
    first_ns = START_NS + ids[0] * FRAME_NS
    last_ns = START_NS + (ids[-1] + 1) * FRAME_NS
    messages: list[Stamped] = []

    def add(event: Any, service: str) -> None:
        messages.append(Stamped(event.logMonoTime, len(messages), service, event.to_bytes()))

    for service, event in _slow_messages(spec, first_ns, last_ns):
        add(event, service)
    for time_ns in range(first_ns, last_ns, TICK_NS):
        for service, event in _car_messages(world, time_ns):
            add(event, service)
    for time_ns in range(first_ns, last_ns, FRAME_NS):
        add(_live_pose(spec, world, time_ns), "livePose")
    for stream, encoded in packets.items():
        for service, event in _camera_messages(spec, stream, segment, encoded):
            add(event, service)
    messages.sort()
    return messages


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


def _slow_messages(spec: DriveSpec, first_ns: int, last_ns: int) -> Iterator[tuple[str, Any]]:
    event = new_event("carParams", mono_time_ns=first_ns, valid=True)
    _fill_car_params(event.carParams)
    yield "carParams", event
    for time_ns in range(first_ns, last_ns, 500_000_000):
        event = new_event("deviceState", mono_time_ns=time_ns, valid=True)
        event.deviceState.deviceType = spec.device
        event.deviceState.started = True
        event.deviceState.startedMonoTime = START_NS
        yield "deviceState", event
    for time_ns in range(first_ns, last_ns, 250_000_000):
        event = new_event("liveCalibration", mono_time_ns=time_ns, valid=True)
        calibration = event.liveCalibration
        calibration.calStatus = "calibrated"
        calibration.calPerc = 100
        calibration.validBlocks = 50
        calibration.rpyCalib = list(spec.rpy_rad)
        calibration.rpyCalibSpread = [0.0, 0.0, 0.0]
        calibration.wideFromDeviceEuler = [0.0, 0.0, 0.0]
        calibration.height = [spec.height_m]
        yield "liveCalibration", event
        event = new_event("liveDelay", mono_time_ns=time_ns, valid=True)
        event.liveDelay.lateralDelay = _LATERAL_DELAY_S
        event.liveDelay.lateralDelayEstimate = _LATERAL_DELAY_S
        event.liveDelay.status = "estimated"
        event.liveDelay.validBlocks = 50
        event.liveDelay.calPerc = 100
        yield "liveDelay", event
    for time_ns in range(first_ns, last_ns, FRAME_NS):
        event = new_event("driverMonitoringState", mono_time_ns=time_ns, valid=True)
        event.driverMonitoringState.isRHD = False
        event.driverMonitoringState.faceDetected = True
        event.driverMonitoringState.awarenessStatus = 1.0
        yield "driverMonitoringState", event


def _fill_car_params(params: Any) -> None:
    params.brand = "mock"
    params.carFingerprint = "MOCK"
    params.mass = 1700.0
    params.wheelbase = WHEELBASE_M
    params.centerToFront = 0.45 * WHEELBASE_M
    params.steerRatio = STEER_RATIO
    params.steerActuatorDelay = 0.1
    params.longitudinalActuatorDelay = 0.15
    params.openpilotLongitudinalControl = True
    params.enableBsm = True


def _car_messages(world: World, time_ns: int) -> Iterator[tuple[str, Any]]:
    """Yield carState and carControl of one tick."""
    car = world.state((time_ns - START_NS) // TICK_NS)
    event = new_event("carState", mono_time_ns=time_ns, valid=True)
    state = event.carState
    state.vEgo = state.vEgoRaw = state.vEgoCluster = car.speed_mps
    state.aEgo = car.acceleration_mps2
    wheels = state.wheelSpeeds
    wheels.fl = wheels.fr = wheels.rl = wheels.rr = car.speed_mps
    state.steeringAngleDeg = car.steering_angle_deg
    # Positive to the left, as the angle.
    state.steeringTorque = -NUDGE_TORQUE * car.nudge
    state.steeringPressed = car.nudge != 0
    state.leftBlinker = car.blinker == LEFT
    state.rightBlinker = car.blinker == -LEFT
    state.yawRate = -car.curvature_1pm * car.speed_mps
    state.standstill = car.speed_mps < 0.1
    state.gearShifter = "drive"
    state.cruiseState.available = True
    state.cruiseState.enabled = True
    state.cruiseState.speed = 30.0
    state.canValid = True
    yield "carState", event
    event = new_event("carControl", mono_time_ns=time_ns, valid=True)
    control = event.carControl
    control.enabled = control.latActive = control.longActive = True
    control.leftBlinker = car.blinker == LEFT
    control.rightBlinker = car.blinker == -LEFT
    control.actuators.accel = car.acceleration_mps2
    control.actuators.speed = car.speed_mps
    control.actuators.curvature = car.curvature_1pm
    control.actuators.steeringAngleDeg = car.steering_angle_deg
    control.currentCurvature = car.curvature_1pm
    control.orientationNED = [0.0, 0.0, math.remainder(car.heading_rad, 2.0 * math.pi)]
    control.angularVelocity = [0.0, 0.0, car.curvature_1pm * car.speed_mps]
    yield "carControl", event


def _live_pose(spec: DriveSpec, world: World, time_ns: int) -> Any:
    """Return the true motion in the device frame, as `locationd` would estimate it."""
    car = world.state((time_ns - START_NS) // TICK_NS)
    event = new_event("livePose", mono_time_ns=time_ns, valid=True)
    pose = event.livePose
    # Columns of device from calib: straight ahead, and down.
    ahead, down = ([row[column] for row in rotation(spec.rpy_rad)] for column in (0, 2))
    yaw_rate = car.curvature_1pm * car.speed_mps
    heading = math.remainder(car.heading_rad, 2.0 * math.pi)
    for measurement, values in (
        (pose.orientationNED, (0.0, 0.0, heading)),
        (pose.velocityDevice, [car.speed_mps * part for part in ahead]),
        (pose.accelerationDevice, [car.acceleration_mps2 * part for part in ahead]),
        (pose.angularVelocityDevice, [yaw_rate * part for part in down]),
    ):
        measurement.x, measurement.y, measurement.z = values
        measurement.xStd = measurement.yStd = measurement.zStd = 0.01
        measurement.valid = True
    pose.inputsOK = pose.posenetOK = pose.sensorsOK = True
    return event


def _camera_messages(
    spec: DriveSpec, stream: str, segment: int, packets: list[Packet]
) -> Iterator[tuple[str, Any]]:
    """Yield the state and the index of each frame that a camera delivered."""
    first_encode_id = spec.first_encode_id(stream, segment)
    ids = spec.delivered(stream, segment)
    for index, (frame_id, packet) in enumerate(zip(ids, packets, strict=True)):
        sof_ns = spec.sof_ns(stream, frame_id)
        eof_ns = sof_ns + spec.readout_ns
        service = STATE_SERVICES[stream]
        event = new_event(service, mono_time_ns=eof_ns + _STATE_LATER_NS[stream], valid=True)
        state = getattr(event, service)
        state.frameId = frame_id
        state.frameIdSensor = frame_id
        state.requestId = frame_id
        state.timestampSof = sof_ns
        state.timestampEof = eof_ns
        state.processingTime = 1e-3
        state.sensor = spec.sensor
        yield service, event
        service = INDEX_SERVICES[stream]
        event = new_event(service, mono_time_ns=eof_ns + _PACKET_LATER_NS, valid=True)
        entry = getattr(event, service)
        entry.frameId = frame_id
        entry.type = "fullHEVC"
        entry.encodeId = first_encode_id + index
        entry.segmentNum = segment
        entry.segmentId = entry.segmentIdEncode = index
        entry.timestampSof = sof_ns
        entry.timestampEof = eof_ns
        entry.flags = _KEY_FRAME_FLAG if packet.is_key else 0
        entry.len = packet.size_bytes
        yield service, event
