"""Messages: framing, round trips, and what becomes of damaged and of newer ones."""

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cereal.errors import MessageError
from cereal.log_reader import read_log, read_log_bytes
from cereal.schema import (
    TRAVERSAL_BYTES,
    content,
    enumerant_name,
    log,
    member_name,
    message_size,
    new_event,
    read_car_params,
    read_event,
    read_events,
    reading,
)
from tests.cereal.shared import model_event, write_log


def test_message_of_an_older_generation_is_read() -> None:
    """livePose before `timestamp`: one data word; what is missing has its default."""
    words = [
        10 << 32,  # one segment of 10 words
        0x0001_0002_0000_0000,  # root: 2 data words, 1 pointer
        9,  # logMonoTime
        129 - 2,  # which: @129, less logMonoTime and valid
        0x0005_0001_0000_0000,  # livePose: 1 data word, 5 pointers, right behind
        0b101,  # inputsOK, sensorsOK
    ]
    data = struct.pack("<6Q", *words) + bytes(40)  # five null pointers
    pose = read_event(data).livePose
    assert (pose.inputsOK, pose.posenetOK, pose.sensorsOK) == (True, False, True)
    assert pose.timestamp == 0
    assert pose.velocityDevice.x == 0.0


def test_message_of_a_newer_generation_is_read() -> None:
    """driverAssistance with a word that we do not know: it is passed over."""
    words = (6 << 32, 0x0001_0002_0000_0000, 9, 130, 0x0000_0002_0000_0000, 0b10, 0xFFFF)
    event = read_event(struct.pack("<7Q", *words))
    assert member_name(event) == "driverAssistance"
    assert event.driverAssistance.rightLaneDeparture
    assert not event.driverAssistance.leftLaneDeparture


def test_enumerant_newer_than_the_schema_passes_through_logs_and_has_a_number(
    tmp_path: Path,
) -> None:
    event = new_event("carParams", mono_time_ns=1)
    known, newer = event.carParams.init("safetyConfigs", 2)
    known.safetyModel, newer.safetyModel = "byd", 999
    data = bytes(event.to_bytes())
    copied = write_log(tmp_path / "b.zst", read_log_bytes(write_log(tmp_path / "a.zst", [data])))
    assert list(read_log_bytes(copied)) == [data]
    for one in read_log(copied):
        models = [config.safetyModel for config in one.carParams.safetyConfigs]
        assert [enumerant_name(model) for model in models] == ["byd", "#999"]


def test_enumerant_newer_than_the_schema_is_one_typed_error() -> None:
    event = new_event("onroadEvents", mono_time_ns=1, size=1)
    event.onroadEvents[0].name = "userBookmarkNotPaired"
    data = event.to_bytes()
    known = struct.pack("<H", 104)
    assert data.count(known) == 1
    newer = read_event(data.replace(known, struct.pack("<H", 999)))
    with pytest.raises(MessageError, match="here: expected a whole message"), reading("here"):
        str(newer.onroadEvents[0].name)


def test_damage_inside_a_message_is_one_typed_error() -> None:
    data = bytearray(model_event(1, words=100))
    place = data.index(struct.pack("<I", 100 << 3 | 4)) - 4  # of the pointer to 100 float32
    data[place : place + 4] = struct.pack("<I", (1 << 20) << 2 | 1)  # a million words further
    reader = read_event(bytes(data))
    with pytest.raises(MessageError, match=r"rlog, event 3: expected"), reading("rlog, event 3"):
        assert list(reader.modelV2.position.x)


def test_endless_list_is_refused() -> None:
    """A list of half a billion elements of no size fits into one word."""
    endless = (2**29 - 1) << 3
    words = (4 << 32, 0x0001_0002_0000_0000, 9, 79, 1 | endless << 32)
    event = read_event(struct.pack("<5Q", *words))
    assert member_name(event) == "pandaStates"
    with pytest.raises(MessageError, match="here: expected a whole message"), reading("here"):
        assert event.pandaStates


def test_one_reader_follows_a_bounded_number_of_bytes() -> None:
    data = model_event(1, words=1000)
    reader = read_event(data)
    # Each time the list counts its 500 words, and the pointers to it a few.
    assert TRAVERSAL_BYTES == 8 << 20
    at_most = (TRAVERSAL_BYTES + 64 * len(data)) // 4000
    assert all(len(reader.modelV2.position.x) == 1000 for _ in range(at_most * 9 // 10))
    followed = (len(reader.modelV2.position.x) for _ in range(at_most // 10 + 2))
    with pytest.raises(MessageError, match="here: expected a whole message"), reading("here"):
        sum(followed)
    assert len(read_event(data).modelV2.position.x) == 1000


def test_car_params_are_read_without_an_event_around_them() -> None:
    event = new_event("carParams", mono_time_ns=1)
    event.carParams.carFingerprint = "HONDA CIVIC"
    event.carParams.longitudinalActuatorDelay = 0.25
    data = event.carParams.as_reader().as_builder().to_bytes()
    assert data != event.to_bytes()
    assert read_car_params(data).carFingerprint == "HONDA CIVIC"
    assert read_car_params(data).longitudinalActuatorDelay == 0.25
    with pytest.raises(MessageError, match="CarParams: expected"):
        read_car_params(b"garbage!")
    with pytest.raises(MessageError, match="multiple of 8"):
        read_car_params(data[:-3])


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


@pytest.mark.parametrize(
    ("member", "valid", "expected"),
    [
        # `valid` @67 stands among the members but is none: from @68 on the count is ordinal - 2.
        ("cameraOdometry", {"valid": True}, 62),
        ("modelV2", {"valid": True}, 73),
        # A cleared bit is true, and an event is not valid unless told.
        ("modelV2", {"valid": False}, 73 | 1 << 16),
        ("modelV2", {}, 73 | 1 << 16),
    ],
)
def test_word_of_the_member_and_valid(member: str, valid: dict[str, bool], expected: int) -> None:
    data = new_event(member, mono_time_ns=0, **valid).to_bytes()
    assert struct.unpack_from("<4Q", data)[3] == expected
    assert read_event(data).valid is valid.get("valid", False)


@pytest.mark.parametrize("member", ["can", "onroadEvents", "logMessage", "ubloxRaw"])
def test_new_event_takes_a_size_for_lists_and_blobs(member: str) -> None:
    event = read_event(new_event(member, mono_time_ns=1, size=3).to_bytes())
    assert member_name(event) == member
    assert len(content(event)) == (0 if member == "logMessage" else 3)


def test_new_event_refuses_a_size_for_structures_and_unknown_members() -> None:
    with pytest.raises(MessageError, match="modelV2: expected no size"):
        new_event("modelV2", mono_time_ns=1, size=3)
    with pytest.raises(MessageError, match="got 'nothing'"):
        new_event("nothing", mono_time_ns=1)


def test_read_event_accepts_several_segments() -> None:
    event = log.Event.new_message(num_first_segment_words=1, logMonoTime=3)
    event.init("modelV2").frameId = 9
    event.modelV2.position.x = [1.0] * 5000
    data = event.to_bytes()
    assert struct.unpack_from("<I", data)[0] > 0
    assert message_size(data) == len(data)
    assert list(read_event(data).modelV2.position.x) == [1.0] * 5000


def test_read_event_accepts_any_alignment() -> None:
    data = model_event(9)
    for shift in range(8):
        shifted = memoryview(b"x" * shift + data)[shift:]
        assert read_event(shifted).modelV2.frameId == 9


def test_reader_outlives_the_bytes() -> None:
    event = new_event("carState", mono_time_ns=3)
    event.carState.vEgo = 12.5
    reader = read_event(event.to_bytes()).carState
    del event
    np.ones(1 << 16)  # something to overwrite freed memory with
    assert reader.vEgo == 12.5


def test_read_event_refuses_every_truncation() -> None:
    data = model_event(3, words=2)
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


uint32, uint64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)


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


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"1234567", None),
        (struct.pack("<II", 0, 1), 16),
        # The table of lengths is padded to 8 bytes: of two and of three segments it takes 16.
        (struct.pack("<II", 1, 1), None),
        (struct.pack("<4I", 1, 1, 5, 0), 16 + 48),
        (struct.pack("<4I", 2, 1, 5, 7), 16 + 104),
        (struct.pack("<II", 2, 1), None),
        (struct.pack("<513I", 511, *[1] * 512) + bytes(4), 2056 + 4096),
        (struct.pack("<II", 512, 1) + bytes(8), "513 segments"),
        (bytes(16), "0 words"),
        (struct.pack("<II", 0, (1 << 23) - 1), 1 << 26),
        (struct.pack("<II", 0, 1 << 23), "at most 67108864 bytes, got 67108872 announced"),
    ],
)
def test_size_of_a_frame(data: bytes, expected: int | str | None) -> None:
    if isinstance(expected, str):
        with pytest.raises(MessageError, match=f"byte 0: .*{expected}"):
            message_size(data)
    else:
        assert message_size(data) == expected
        assert message_size(b"before!!" + data, 8) == expected
