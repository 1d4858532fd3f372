"""The wire: layout, framing and round trips of messages."""

import struct
from typing import Any

import capnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cereal.errors import MessageError
from cereal.schema import (
    SCHEMA_PATH,
    content,
    log,
    member_name,
    message_size,
    new_event,
    read_event,
    read_events,
)

car: Any = capnp.load(str(SCHEMA_PATH.with_name("car.capnp")))

# (structure, id, data words, pointers) as openpilot's own compiled schema has them.
LAYOUTS = [
    (log.Event, 0xD314CFD957229C11, 2, 1),
    (log.XYZTData, 0xC3CBAE1FD505AE80, 0, 7),
    (log.ModelDataV2, 0xC4713F6B0D36ABE9, 6, 17),
    (log.ModelDataV2.LeadDataV3, 0xD698881AD0CE7FEB, 1, 9),
    (log.ModelDataV2.MetaData, 0xD1646AB3B45CFABD, 3, 3),
    (log.ModelDataV2.DisengagePredictions, 0x860AA5DDBCDC8D25, 0, 9),
    (log.ModelDataV2.Pose, 0xFB3EC0702E67884F, 0, 4),
    (log.ModelDataV2.Action, 0x94D0BCB35A764584, 2, 0),
    # 2 words until 2025; `big` @8 opened the third.
    (log.DrivingModelData, 0xE8F9BA819993A776, 3, 4),
    (log.DrivingModelData.PolyPath, 0xCA1E4710874D12B5, 0, 3),
    (log.DrivingModelData.LaneLineMeta, 0x996EF0369D7E5625, 2, 0),
    (log.DrivingModelData.MetaData, 0xA0CFCFA4ED19AC5D, 1, 0),
    (log.CameraOdometry, 0xFA9A296B9FD41A96, 2, 8),
    (log.DriverStateV2, 0xFC010C40147563B0, 3, 3),
    (log.DriverStateV2.DriverData, 0xC9F73BB1CDF28A6A, 5, 6),
    (log.FrameData, 0xEA0245F695AE0A33, 12, 7),
    (log.LiveCalibrationData, 0x96DF70754D8390BC, 2, 8),
    (log.DriverMonitoringStateV1, 0xB83CDA094A1DA284, 7, 2),
    (log.DriverMonitoringState, 0xA0DF507D7DF1052D, 2, 3),
    (log.LiveDelayData, 0x98DFDB22C44DF8D4, 3, 1),
    (log.DeviceState, 0xA4D8B5AF2AA492EB, 15, 11),
    (log.ChestnutState, 0x8FD70F1CB19DC3AA, 4, 0),
    (log.EncodeIndex, 0x89D394E3541735FC, 6, 0),
    (log.Thumbnail, 0xB65FCE64120AF7D3, 2, 1),
    (log.CanData, 0x8785009A964C7C59, 1, 1),
    (log.Sentinel, 0xEF0382D244F56E38, 1, 0),
    (log.InitData, 0xE71008CAEB3FB65C, 2, 21),
    (log.ManagerState, 0xCF7154B31A69635B, 0, 1),
    (log.ManagerState.ProcessState, 0x869A54D2708469EA, 2, 1),
    (car.CarState, 0x9DA4FA09E052903C, 10, 6),
    (car.CarState.CruiseState, 0xE64E81478E6E60AF, 2, 0),
    (car.CarState.ButtonEvent, 0xFF5CA6835B4ACEF6, 1, 0),
    (car.CarControl, 0xF78829049AB814AF, 4, 6),
    (car.CarControl.Actuators, 0xE97275A919432828, 5, 0),
    (car.CarParams, 0x8C69372490AAA9DA, 18, 14),
]

# Offsets in units of the field's own width, counted by hand: fields fill holes in ordinal order.
OFFSETS = [
    # Seven float32 and bools precede: vEgo is float 0; the bools begin in the third word, bit 64.
    (car.CarState, "vEgo", 0),
    (car.CarState, "gasPressed", 64),
    (car.CarState, "brakePressed", 65),
    (car.CarState, "steeringPressed", 66),
    (car.CarState, "brakeLights", 68),
    (car.CarState, "leftBlinker", 69),
    (car.CarState, "rightBlinker", 70),
    (car.CarState, "canValid", 74),
    (car.CarState, "clutchPressed", 75),
    (car.CarState, "espDisabled", 79),
    # Bits 64..79 are full and gearShifter has 80..95: a new 32-bit hole was opened at 352.
    (car.CarState, "leftBlindspot", 352),
    (car.CarState, "rightBlindspot", 353),
    (car.CarState, "canRcvTimeout", 363),
    (car.CarState, "engineRpm", 15),
    (car.CarControl, "latActive", 2),
    (log.FrameData, "frameId", 0),
    (log.FrameData, "timestampEof", 1),
    (log.ModelDataV2, "frameId", 0),
    (log.ModelDataV2, "timestampEof", 2),
    (log.Event, "logMonoTime", 0),
    (log.Event, "valid", 80),
]


@pytest.mark.parametrize(("kind", "number", "words", "pointers"), LAYOUTS)
def test_layout_of_structures_is_the_published_one(
    kind: Any, number: int, words: int, pointers: int
) -> None:
    node = kind.schema.node
    assert (node.struct.dataWordCount, node.struct.pointerCount) == (words, pointers)
    assert node.id == number


@pytest.mark.parametrize(("kind", "field", "offset"), OFFSETS)
def test_offset_of_used_fields_is_the_published_one(kind: Any, field: str, offset: int) -> None:
    fields = {one.name: one for one in kind.schema.node.struct.fields}
    assert fields[field].slot.offset == offset


def test_event_declares_every_ordinal_from_0_to_154_once() -> None:
    ordinals = sorted(one.ordinal.explicit for one in log.Event.schema.node.struct.fields)
    assert ordinals == list(range(155))


@pytest.mark.parametrize(
    ("member", "ordinal"),
    [
        ("roadCameraState", 2),
        ("deviceState", 6),
        ("liveCalibration", 19),
        ("carState", 22),
        ("carControl", 23),
        ("cameraOdometry", 63),
        ("carParams", 69),
        ("driverMonitoringState", 71),
        ("wideRoadCameraState", 74),
        ("modelV2", 75),
        ("driverStateV2", 92),
        ("drivingModelData", 128),
        ("liveDelay", 146),
        ("driverMonitoringStateV2", 151),
    ],
)
def test_member_has_its_ordinal(member: str, ordinal: int) -> None:
    fields = {one.name: one for one in log.Event.schema.node.struct.fields}
    assert fields[member].ordinal.explicit == ordinal


def test_every_structure_declares_its_ordinals_without_gaps() -> None:
    for kind, *_ in LAYOUTS:
        ordinals = []
        for one in kind.schema.node.struct.fields:
            if one.which() == "group":
                # The one group: the union of CarParams.lateralTuning.
                assert one.name == "lateralTuning"
                ordinals += [26, 27, 40, 67]
            else:
                ordinals.append(one.ordinal.explicit)
        assert sorted(ordinals) == list(range(len(ordinals))), kind


def test_camera_odometry_has_the_words_computed_by_hand() -> None:
    event = new_event("cameraOdometry", mono_time_ns=0x1122334455667788, valid=False)
    event.cameraOdometry.frameId = 0xCAFE
    event.cameraOdometry.timestampEof = 7
    words = struct.unpack("<15Q", event.to_bytes())
    assert words == (
        14 << 32,  # one segment of 14 words
        0x0001_0002_0000_0000,  # root: 2 data words, 1 pointer, right behind
        0x1122334455667788,  # logMonoTime
        # The discriminant counts the union's members in order of ordinals: @1 is 0, so @63 is 62.
        62 | 1 << 16,  # and the inverted valid in bit 80
        0x0008_0002_0000_0000,  # CameraOdometry: 2 data words, 8 pointers, right behind
        0xCAFE,
        7,
        *[0] * 8,
    )


def test_valid_true_is_stored_as_a_cleared_bit() -> None:
    event = new_event("cameraOdometry", mono_time_ns=0, valid=True)
    words = struct.unpack_from("<4Q", event.to_bytes())
    assert words[3] == 62


def test_discriminant_skips_valid() -> None:
    # `valid` @67 stands among the members but is none: from @68 on the count is ordinal - 2.
    words = struct.unpack_from("<4Q", new_event("modelV2", mono_time_ns=0, valid=True).to_bytes())
    assert words[3] == 73


def test_new_event_is_not_valid_unless_told() -> None:
    assert not read_event(new_event("modelV2", mono_time_ns=1).to_bytes()).valid


@pytest.mark.parametrize("member", ["can", "onroadEvents", "logMessage", "ubloxRaw"])
def test_new_event_takes_a_size_for_lists_and_blobs(member: str) -> None:
    event = read_event(new_event(member, mono_time_ns=1, size=3).to_bytes())
    assert member_name(event) == member
    assert len(content(event)) == (0 if member == "logMessage" else 3)


def test_new_event_refuses_a_size_for_structures() -> None:
    with pytest.raises(MessageError, match="modelV2: expected no size"):
        new_event("modelV2", mono_time_ns=1, size=3)


def test_new_event_refuses_unknown_members() -> None:
    with pytest.raises(MessageError, match="got 'nothing'"):
        new_event("nothing", mono_time_ns=1)


def test_new_event_takes_the_names_of_2026() -> None:
    event = new_event("narrowRoadCameraState", mono_time_ns=1)
    assert member_name(event) == "roadCameraState"


def test_read_event_accepts_several_segments() -> None:
    event = log.Event.new_message(num_first_segment_words=1, logMonoTime=3)
    event.init("modelV2").frameId = 9
    event.modelV2.position.x = [1.0] * 5000
    data = event.to_bytes()
    assert struct.unpack_from("<I", data)[0] > 0
    assert message_size(data) == len(data)
    assert list(read_event(data).modelV2.position.x) == [1.0] * 5000


def test_read_event_accepts_any_alignment() -> None:
    event = new_event("modelV2", mono_time_ns=3)
    event.modelV2.frameId = 9
    data = event.to_bytes()
    for shift in range(8):
        shifted = memoryview(b"x" * shift + data)[shift:]
        assert read_event(shifted).modelV2.frameId == 9


def test_read_event_has_no_traversal_limit() -> None:
    event = new_event("modelV2", mono_time_ns=3)
    event.modelV2.rawPredictions = bytes(1 << 20)
    reader = read_event(event.to_bytes())
    # The default limit of 8 Mi words is used up by 64 looks at 1 MiB.
    assert sum(len(reader.modelV2.rawPredictions) for _ in range(100)) == 100 << 20


def test_reader_outlives_the_bytes() -> None:
    event = new_event("carState", mono_time_ns=3)
    event.carState.vEgo = 12.5
    reader = read_event(event.to_bytes()).carState
    del event
    np.ones(1 << 16)  # something to overwrite freed memory with
    assert reader.vEgo == 12.5


def test_read_event_refuses_every_truncation() -> None:
    event = new_event("modelV2", mono_time_ns=3)
    event.modelV2.position.x = [1.0, 2.0]
    data = event.to_bytes()
    for end in range(len(data)):
        with pytest.raises(MessageError):
            read_event(data[:end])


def test_content_of_a_member_newer_than_the_schema_is_an_error() -> None:
    data = bytearray(new_event("modelV2", mono_time_ns=3).to_bytes())
    struct.pack_into("<H", data, 24, 400)
    event = read_event(bytes(data))
    assert member_name(event) is None
    with pytest.raises(MessageError, match="skip the message"):
        content(event)


@given(st.binary(max_size=200))
@settings(deadline=None)
def test_read_event_never_fails_otherwise_on_garbage(data: bytes) -> None:
    try:
        event = read_event(data)
        name = member_name(event)
        if name is not None:
            content(event)
    except MessageError:
        pass


floats = st.lists(st.floats(width=32, allow_nan=False), max_size=40)
uint32 = st.integers(0, 2**32 - 1)
uint64 = st.integers(0, 2**64 - 1)


@given(
    uint32, uint64, st.floats(width=32, allow_nan=False), floats, st.lists(floats, max_size=4),
    st.binary(max_size=100),
)  # fmt: skip
@settings(deadline=None)
def test_model_round_trip(
    frame_id: int, eof: int, percent: float, xs: list[float], lanes: list[list[float]], raw: bytes
) -> None:
    event = new_event("modelV2", mono_time_ns=eof, valid=True)
    model = event.modelV2
    model.frameId = frame_id
    model.timestampEof = eof
    model.frameDropPerc = percent
    model.position.x = xs
    model.rawPredictions = raw
    model.confidence = "green"
    model.meta.laneChangeState = "laneChangeStarting"
    lines = model.init("laneLines", len(lanes))
    for line, values in zip(lines, lanes, strict=True):
        line.y = values
    data = event.to_bytes()
    back = read_event(data)
    assert back.valid
    assert back.logMonoTime == eof
    model = content(back)
    assert (model.frameId, model.timestampEof, model.frameDropPerc) == (frame_id, eof, percent)
    assert list(model.position.x) == xs
    assert [list(line.y) for line in model.laneLines] == lanes
    assert model.rawPredictions == raw
    assert model.confidence == "green"
    assert model.meta.laneChangeState == "laneChangeStarting"


@given(st.lists(st.tuples(uint32, uint64, st.sampled_from(["ar0231", "os04c10"])), max_size=8))
@settings(deadline=None)
def test_events_in_a_row_come_back_in_order(rows: list[tuple[int, int, str]]) -> None:
    data = b""
    for frame_id, sof, sensor in rows:
        event = new_event("roadCameraState", mono_time_ns=sof)
        event.roadCameraState.frameId = frame_id
        event.roadCameraState.timestampSof = sof
        event.roadCameraState.sensor = sensor
        data += event.to_bytes()
    states = [event.roadCameraState for event in read_events(data)]
    assert [(s.frameId, s.timestampSof, str(s.sensor)) for s in states] == rows


def test_events_that_end_inside_a_message_are_an_error_after_the_whole_ones() -> None:
    one = new_event("carState", mono_time_ns=1).to_bytes()
    events = read_events(one + one[:-8])
    assert next(events).logMonoTime == 1
    with pytest.raises(MessageError, match=f"at byte {len(one)}"):
        next(events)


def test_message_size_refuses_what_is_no_frame() -> None:
    with pytest.raises(MessageError, match="513 segments"):
        message_size(struct.pack("<II", 512, 1) + bytes(8))
    with pytest.raises(MessageError, match="0 words"):
        message_size(bytes(16))
    assert message_size(b"1234567") is None
    assert message_size(struct.pack("<II", 2, 1)) is None


def test_defaults_of_absent_data() -> None:
    assert log.Event.new_message().valid is True
    assert car.CarParams.new_message().radarTimeStep == pytest.approx(0.05)
