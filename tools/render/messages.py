"""The messages of a rendered segment, as the processes of a car would have logged them.

Every message is stamped with the time at which it would have been published. Slow services start
again with each segment, so that a segment can be played by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cereal.schema import content, new_event
from tools.drives.drive import Message
from tools.render.car_messages import CarReport, Control, Motion, Told, fill_camera_state
from tools.render.hevc import Packet
from tools.render.script import TICK_NS
from tools.render.scripted_drive import ScriptedDrive
from tools.render.spec import FRAME_NS, SMALL, START_NS, DriveSpec
from tools.world.car import FAMILY_CAR

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
