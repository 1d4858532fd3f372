"""Numbers written into recorded messages, compared with what a reader says."""

import struct
from typing import Any

import capnp
import numpy as np
import pytest

from cereal.errors import MessageError
from cereal.schema import new_event, read_event
from tests.logs.mutate import mutate
from tests.tools.messages import event_of
from tools.messages.event_bytes import write_field, write_stamp

# A camera state as it was before timestampSof: four words of data, ours has more.
_OLD_SCHEMA = """@0xd0b4bdbe4f26ad64;
struct Frame {
  frameId @0 :UInt32; encodeId @1 :UInt32; timestampEof @2 :UInt64; frameLength @3 :Int32;
  integLines @4 :Int32; globalGain @5 :Int32; image @6 :Data; frameType @7 :UInt16;
}
struct Event {
  logMonoTime @0 :UInt64;
  union { initData @1 :Void; roadCameraState @2 :Frame; }
}
"""


@pytest.fixture(scope="module")
def old_schema(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("schema") / "old.capnp"
    path.write_text(_OLD_SCHEMA, encoding="utf-8")
    return capnp.load(str(path))


def _state() -> Any:
    event = new_event("roadCameraState", mono_time_ns=5, valid=True)
    state = event.roadCameraState
    state.frameId, state.timestampEof, state.requestId = 7, 11, 13
    state.transform, state.temperaturesC = [1.0, 2.0], [3.5]
    return event


def test_only_the_field_changes() -> None:
    data = _state().to_bytes()
    event = _state()
    event.roadCameraState.timestampSof = 2**63 + 1
    assert write_field(data, "roadCameraState", "timestampSof", 2**63 + 1) == event.to_bytes()
    assert data == _state().to_bytes()


def test_enumerations_are_numbers() -> None:
    changed = write_field(event_of("deviceState"), "deviceState", "deviceType", 6)
    assert changed is not None
    assert str(read_event(changed).deviceState.deviceType) == "tizi"


def test_message_of_older_software_becomes_longer(old_schema: Any) -> None:
    old = old_schema.Event.new_message(logMonoTime=5)
    state = old.init("roadCameraState")
    state.frameId, state.timestampEof, state.globalGain, state.image = 7, 11, -3, b"picture"
    state.frameType = 2
    data = old.to_bytes()
    changed = write_field(data, "roadCameraState", "timestampSof", 99)
    assert changed is not None
    # One word for each of data (5) and pointers (1) that were moved.
    assert len(changed) == len(data) + 8 * 6
    event = read_event(changed)
    found = event.roadCameraState
    assert (event.logMonoTime, found.frameId) == (5, 7)
    assert (found.timestampSof, found.timestampEof) == (99, 11)
    assert (found.globalGain, found.frameType, bytes(found.image)) == (-3, 2, b"picture")
    # Once more: now there is room.
    again = write_field(changed, "roadCameraState", "timestampSof", 100)
    assert again is not None
    assert len(again) == len(changed)
    assert read_event(again).roadCameraState.timestampSof == 100


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 8,
        b"\0\0\0\0\1\0\0\0" + b"\0" * 8,
        b"\0\0\0\0\1\0\0\0" + b"\xff" * 8,
        b"\1\0\0\0\1\0\0\0\1\0\0\0" + b"\0" * 20,
    ],
)
def test_what_cannot_be_followed_is_left_alone(data: bytes) -> None:
    assert write_field(data, "roadCameraState", "timestampSof", 1) is None


def test_damaged_messages_are_changed_or_left_alone(old_schema: Any) -> None:
    old = old_schema.Event.new_message(logMonoTime=5)
    old.init("roadCameraState").image = b"picture"
    rng = np.random.default_rng(5)
    for good in (_state().to_bytes(), old.to_bytes()):
        for _ in range(4000):
            changed = write_field(mutate(good, rng), "roadCameraState", "timestampSof", 77)
            if changed is None:
                continue
            assert len(changed) % 8 == 0
            try:
                event = read_event(changed)
                if str(event.which()) == "roadCameraState":
                    assert event.roadCameraState.timestampSof == 77
            except (MessageError, capnp.KjException, ValueError):
                pass


def test_messages_in_several_segments() -> None:
    # The camera state lies in a segment of its own, behind a far pointer.
    event = _state()
    event.roadCameraState.image = bytes(100_000)
    data = event.to_bytes()
    assert int.from_bytes(data[:4], "little") > 0
    changed = write_stamp(data, 2**64 - 1)
    assert changed is not None
    assert read_event(changed).logMonoTime == 2**64 - 1
    changed = write_field(changed, "roadCameraState", "timestampSof", 99)
    assert changed is not None
    found = read_event(changed).roadCameraState
    assert (found.timestampSof, found.frameId, len(found.image)) == (99, 7, 100_000)

    # The root itself in another segment: a far pointer, then what one segment would hold.
    (words,) = struct.unpack_from("<I", _state().to_bytes(), 4)
    moved = (
        struct.pack("<IIII", 1, 1, words, 0) + struct.pack("<II", 2, 1) + _state().to_bytes()[8:]
    )
    assert read_event(moved).roadCameraState.frameId == 7
    changed = write_field(moved, "roadCameraState", "timestampSof", 99)
    assert changed is not None
    assert read_event(changed).roadCameraState.timestampSof == 99
    assert write_stamp(moved[:-8], 5) is None
