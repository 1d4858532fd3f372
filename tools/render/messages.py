"""The messages of a rendered segment, as the processes of a car would have logged them.

Every message is stamped with the time at which it would have been published. Slow services start
again with each segment, so that a segment can be played by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from cereal.schema import new_event
from tools.render.hevc import Packet
from tools.render.spec import FRAME_NS, SMALL, START_NS, DriveSpec
from tools.render.world import TICK_NS, World
from tools.world.car import FAMILY_CAR
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
# A usual value after it has been learnt: a quarter of a second less the daemon's own share.
_LATERAL_DELAY_S = 0.2
# What carParams say of steering and drive.
_SAID_DELAYS_S = (0.1, 0.15)
_SET_SPEED_MPS = 30.0
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

    `packets` holds, by stream, what its encoder made of the delivered frames.
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
        for service, event in _car_messages(_motion(world, time_ns), time_ns):
            add(event, service)
    for time_ns in range(first_ns, last_ns, FRAME_NS):
        event = new_event("livePose", mono_time_ns=time_ns, valid=True)
        fill_live_pose(event.livePose, _motion(world, time_ns), spec.rpy_rad)
        add(event, "livePose")
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
    fill_car_params(event.carParams, FAMILY_CAR, _SAID_DELAYS_S)
    yield "carParams", event
    for time_ns in range(first_ns, last_ns, 500_000_000):
        event = new_event("deviceState", mono_time_ns=time_ns, valid=True)
        event.deviceState.deviceType = spec.device
        event.deviceState.started = True
        event.deviceState.startedMonoTime = START_NS
        yield "deviceState", event
    for time_ns in range(first_ns, last_ns, 250_000_000):
        event = new_event("liveCalibration", mono_time_ns=time_ns, valid=True)
        fill_live_calibration(event.liveCalibration, spec.rpy_rad, spec.height_m)
        yield "liveCalibration", event
        event = new_event("liveDelay", mono_time_ns=time_ns, valid=True)
        fill_live_delay(event.liveDelay, _LATERAL_DELAY_S)
        yield "liveDelay", event
    for time_ns in range(first_ns, last_ns, FRAME_NS):
        event = new_event("driverMonitoringState", mono_time_ns=time_ns, valid=True)
        fill_driver_monitoring(event.driverMonitoringState)
        yield "driverMonitoringState", event


def _car_messages(motion: Motion, time_ns: int) -> Iterator[tuple[str, Any]]:
    """Yield carState and carControl of one tick."""
    event = new_event("carState", mono_time_ns=time_ns, valid=True)
    fill_car_state(
        event.carState, motion, motion.speed_mps, is_engaged=True, set_speed_mps=_SET_SPEED_MPS
    )
    yield "carState", event
    event = new_event("carControl", mono_time_ns=time_ns, valid=True)
    # It does at once what it is told.
    wanted = Control(
        is_engaged=True,
        acceleration_mps2=motion.acceleration_mps2,
        curvature_1pm=motion.curvature_1pm,
        steering_angle_deg=motion.steering_angle_deg,
    )
    fill_car_control(event.carControl, motion, wanted)
    yield "carControl", event


def _motion(world: World, time_ns: int) -> Motion:
    """Return how the car moves, on its flat road."""
    car = world.state((time_ns - START_NS) // TICK_NS)
    return Motion(
        speed_mps=car.speed_mps,
        acceleration_mps2=car.acceleration_mps2,
        curvature_1pm=car.curvature_1pm,
        rpy_rad=(0.0, 0.0, car.heading_rad),
        steering_angle_deg=car.steering_angle_deg,
        blinker=car.blinker,
        nudge=car.nudge,
    )


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
        fill_camera_state(state, frame_id, (sof_ns, eof_ns), spec.sensor)
        yield service, event
        service = INDEX_SERVICES[stream]
        event = new_event(service, mono_time_ns=eof_ns + _PACKET_LATER_NS, valid=True)
        fill_encode_index(
            getattr(event, service), state, first_encode_id + index, segment, index, packet
        )
        if stream == SMALL:
            getattr(event, service).type = "qcameraH264"
        yield service, event


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
