import contextlib
import json
import random
import struct
from typing import Any

import numpy as np
import pytest

from cereal.errors import MessageError
from cereal.schema import content, log, new_event, read_event
from tools.lib.json_output import json_text
from tools.messages import message_values
from tools.messages.message_values import (
    Selection,
    flatten,
    flatten_message,
    has_field,
    message_to_plain,
    to_plain,
)

# Raise it after changes of what walks through messages: 100 000 take a minute.
MUTATIONS = 1500


def _model() -> Any:
    event = new_event("modelV2", mono_time_ns=7, valid=True)
    message = event.modelV2
    message.frameId = 12
    message.position.x = [0.5, -1.0, float("inf")]
    for index, line in enumerate(message.init("laneLines", 2)):
        line.y = [float(index), 2.0]
    message.confidence = "green"
    message.rawPredictions = b"\x00\xff\x80"
    message.action.shouldStop = True
    message.meta.laneChangeState = "laneChangeStarting"
    return event


def _reader(event: Any) -> Any:
    return read_event(event.to_bytes())


def test_columns_have_the_values_and_types_of_the_schema() -> None:
    values = flatten_message(_reader(_model()))
    assert values["frameId"] == 12
    x: Any = values["position.x"]
    assert x.dtype == np.float32
    assert x.tolist() == [0.5, -1.0, float("inf")]
    y: Any = values["laneLines[1].y"]
    assert y.tolist() == [1.0, 2.0]
    assert values["confidence"] == "green"
    assert values["rawPredictions"] == b"\x00\xff\x80"
    assert values["action.shouldStop"] is True
    assert values["meta.laneChangeState"] == "laneChangeStarting"
    # What was not set has its default.
    velocity: Any = values["velocity.x"]
    assert velocity.shape == (0,)
    assert values["frameDropPerc"] == 0.0
    assert not any(path.startswith("laneLines[2]") for path in values)


def test_readers_builders_and_both_entry_points_agree() -> None:
    event = _model()
    reader = _reader(event)
    for values in (flatten(event.modelV2), flatten(content(reader)), flatten_message(event)):
        expected = flatten_message(reader)
        assert list(values) == list(expected)
        for path, value in values.items():
            np.testing.assert_array_equal(value, expected[path])
    assert to_plain(content(reader)) == message_to_plain(reader)


def test_plain_data_is_json() -> None:
    plain = message_to_plain(_reader(_model()))
    assert plain["position"]["x"] == [0.5, -1.0, float("inf")]
    assert plain["laneLines"][1]["y"] == [1.0, 2.0]
    assert plain["rawPredictions"] == {"bytes": 3}
    assert message_to_plain(_reader(_model()), "base64")["rawPredictions"] == "AP+A"
    assert '"x": [0.5, -1.0, null]' in json_text(plain)


def test_lists_texts_and_maps() -> None:
    can = new_event("can", mono_time_ns=1, size=2)
    can.can[1].address = 0x123
    can.can[1].dat = b"ab"
    reader = _reader(can)
    values = flatten_message(reader)
    assert (values["[1].address"], values["[1].dat"], values["[0].src"]) == (0x123, b"ab", 0)
    assert message_to_plain(reader)[1]["dat"] == {"bytes": 2}
    assert list(flatten_message(reader, Selection(["address"]))) == ["[0].address", "[1].address"]
    text = new_event("logMessage", mono_time_ns=1)
    text.logMessage = "grüße"
    reader = _reader(text)
    assert flatten_message(reader) == {"": "grüße"}
    assert message_to_plain(reader) == "grüße"
    init = new_event("initData", mono_time_ns=1)
    entry = init.initData.params.init("entries", 1)[0]
    entry.key, entry.value = "DongleId", b"\x01\x02"
    reader = _reader(init)
    values = flatten_message(reader)
    assert values["params.entries[0].key"] == "DongleId"
    assert values["params.entries[0].value"] == b"\x01\x02"
    assert message_to_plain(reader)["params"] == {
        "entries": [{"key": "DongleId", "value": {"bytes": 2}}]
    }


def test_of_a_union_the_member_that_is_set() -> None:
    params = new_event("carParams", mono_time_ns=1)
    params.carParams.lateralTuning.init("torque")
    reader = _reader(params)
    assert not any(path.startswith("lateralTuning.pid") for path in flatten_message(reader))
    assert list(message_to_plain(reader)["lateralTuning"]) == ["torque"]


def test_every_member_of_the_schema_has_values() -> None:
    for member in log.Event.schema.union_fields:
        reader = _reader(new_event(member, mono_time_ns=1))
        flat, plain = flatten_message(reader), message_to_plain(reader)
        assert all(isinstance(name, str) for name in flat), member
        assert type(json.loads(json_text(plain))) is type(plain), member


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (["frameId"], ["frameId"]),
        (["position"], ["position.x", "position.y", "position.z"]),
        (["position.x", "frameId"], ["frameId", "position.x"]),
        (["laneLines.y"], ["laneLines[0].y", "laneLines[1].y"]),
        (["laneLines[1].y"], ["laneLines[1].y"]),
        (["laneLines[1].y", "laneLines.x"], ["laneLines[0].x", "laneLines[1].x", "laneLines[1].y"]),
        (["laneLine"], []),
    ],
)
def test_selection(wanted: list[str], expected: list[str]) -> None:
    values = flatten_message(_reader(_model()), Selection(wanted))
    assert [path for path in values if path[-1] != "t" and "Std" not in path] == expected


def test_fields_of_the_schema_are_known() -> None:
    assert has_field("modelV2", "position.x")
    assert has_field("modelV2", "laneLines[3].y")
    assert has_field("modelV2", "action")
    assert has_field("can", "address")
    assert has_field("can", "[0].address")
    assert not has_field("modelV2", "position.w")
    assert not has_field("modelV2", "frameId.x")
    assert not has_field("logMessage", "text")


def _with(data: bytes, position: int, value: int) -> bytes:
    return data[:position] + bytes([value]) + data[position + 1 :]


def test_enumerants_newer_than_the_schema_have_their_number() -> None:
    data = _model().to_bytes()
    texts = set()
    for position, value in enumerate(data):
        if value == log.ModelDataV2.ConfidenceClass.green and position > 24:
            # Some of these bytes are others than the enumeration's, and break the message.
            with contextlib.suppress(MessageError):
                texts.add(flatten_message(read_event(_with(data, position, 77)))["confidence"])
    assert "#77" in texts


def test_damage_is_one_error_or_values() -> None:
    """Whatever one does to the bytes of a message."""
    rng = random.Random(3)  # noqa: S311 - repeatable, not secret
    params = new_event("carParams", mono_time_ns=1)
    params.carParams.carFingerprint = "car"
    messages = [_model().to_bytes(), params.to_bytes()]
    failed = 0
    for _ in range(MUTATIONS):
        data = bytearray(rng.choice(messages))
        for _ in range(rng.randrange(1, 5)):
            data[rng.randrange(len(data))] = rng.choice((0, 1, 0xFF, rng.randrange(256)))
        for take in (flatten_message, message_to_plain):
            try:
                take(read_event(bytes(data)))
            except MessageError:
                failed += 1
    assert failed > MUTATIONS // 20


def test_overlapping_pointers_do_not_expand_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    # 20 lane lines whose y is one and the same list of 200 numbers.
    event = new_event("modelV2", mono_time_ns=1)
    lines = event.modelV2.init("laneLines", 20)
    lines[0].y = [1.0] * 200
    data = event.to_bytes()
    assert data[:4] == bytes(4)  # one segment, so that every pointer is an offset within it
    words = np.frombuffer(data[8:], np.uint64).copy()
    # A list pointer: offset << 2 | 1, then the number of elements << 3 | size code.
    (first,) = (i for i, word in enumerate(words.tolist()) if word & 3 == 1 and word >> 35 == 200)
    target = first + 1 + ((int(words[first]) & 0xFFFFFFFF) >> 2)
    size = lines[0].schema.node.struct.pointerCount  # in words, of which it has no others
    for at in range(first + size, first + 20 * size, size):
        offset = (target - at - 1) & 0x3FFFFFFF
        words[at] = (200 << 35) | (4 << 32) | (offset << 2) | 1
    reader = read_event(data[:8] + words.tobytes())
    last: Any = flatten_message(reader)["laneLines[19].y"]
    assert last.tolist() == [1.0] * 200
    monkeypatch.setattr(message_values, "MAX_BYTES", 14_000)
    for take in (flatten_message, message_to_plain):
        with pytest.raises(MessageError, match="its pointers overlap"):
            take(reader)
    one_list = read_event(data)
    flatten_message(one_list)


def test_endless_list_is_refused_and_takes_no_memory() -> None:
    """A list of half a billion elements of no size fits into one word."""
    endless = (2**29 - 1) << 3
    words = (4 << 32, 0x0001_0002_0000_0000, 9, 79, 1 | endless << 32)
    reader = read_event(struct.pack("<5Q", *words))
    for walk in (flatten_message, message_to_plain):
        with pytest.raises(MessageError, match="expected"):
            walk(reader)
