"""Reads and writes single fields of an Event by its bytes alone.

A minute of a drive holds 100 000 events, of which a drive reads a few thousand; making a reader for
each would cost more than decoding the pictures. A library that copied a damaged message, as a
builder does, could end the process; and what is newer than our schema must survive.

Source: Cap'n Proto encoding, "Structs" and "Serialization over a stream".
"""

from __future__ import annotations

import struct
from typing import Any, Final, NamedTuple

from cereal.errors import MessageError
from cereal.schema import log, member_name, read_event

# Distance and kind; words of data; pointers.
POINTER: Final = struct.Struct("<iHH")
# The low three bits of a pointer to a pointer in another segment.
_FAR: Final = 2
# In bytes. Fields of other types are not plain.
_SIZES: Final = {
    **dict.fromkeys(("int64", "uint64", "float64"), 8),
    **dict.fromkeys(("int32", "uint32", "float32"), 4),
    **dict.fromkeys(("enum", "uint16"), 2),
}

Span = tuple[int, int]
"""Offset in a structure's data section, and size, in bytes."""


class Structure(NamedTuple):
    """A structure: where its pointer stands, where data and pointers begin, how many there are."""

    pointer: int
    start: int
    pointers_start: int
    data_words: int
    pointers: int


def span_of(field: Any) -> Span | None:
    """Return where a field of a schema stands; None where it is no plain one."""
    size = _SIZES.get(str(field.proto.slot.type.which()))
    return None if size is None else (int(field.proto.slot.offset) * size, size)


def structure_at(data: bytes, pointer: int = 0) -> Structure | None:
    """Follow a pointer to a structure, in its own segment or by one step into another.

    Args:
        data: the framed message.
        pointer: where it stands; 0: the root's.

    Returns:
        None where the frame is damaged, or the pointer leads to no structure in it.
    """
    segments = _segments(data)
    pointer = pointer or (segments[0][0] if segments else 0)
    home = next((one for one in segments if one[0] <= pointer < one[1]), None)
    if home is None:
        return None
    low, data_words, pointers = POINTER.unpack_from(data, pointer)
    if low & 7 == _FAR:
        number = data_words | pointers << 16
        pad = 8 * ((low & 0xFFFFFFFF) >> 3)
        if number >= len(segments) or segments[number][0] + pad >= segments[number][1]:
            return None
        home = segments[number]
        pointer = home[0] + pad
        low, data_words, pointers = POINTER.unpack_from(data, pointer)
    start = pointer + 8 + 8 * (low >> 2)
    found = Structure(pointer, start, start + 8 * data_words, data_words, pointers)
    is_null = not low and not data_words and not pointers
    if low & 3 or is_null or start < home[0] or found.pointers_start + 8 * pointers > home[1]:
        return None
    return found


def _segments(data: bytes) -> list[tuple[int, int]]:
    """Return where each segment begins and ends; none where the frame is damaged."""
    count = int.from_bytes(data[:4], "little") + 1
    at = (4 * (count + 1) + 7) & ~7
    if at > len(data):
        return []
    segments = []
    for words in struct.unpack_from(f"<{count}I", data, 4):
        segments.append((at, at + 8 * words))
        at += 8 * words
    return segments if at == len(data) else []


# --- The time and the kind of an Event, read from its first words -----------------------------

_SCHEMA: Final = log.Event.schema.node.struct
# Where the union's number lies in the data section: the schema counts in its own 16 bits.
_DISCRIMINANT_BYTE: Final = 2 * int(_SCHEMA.discriminantOffset)
_DATA_WORDS: Final = _DISCRIMINANT_BYTE // 8 + 1
# Segments beyond the first and words of that; the root pointer: distance and kind, words of data,
# pointers; the first word of data, which is logMonoTime.
_USUAL: Final = struct.Struct("<IIiHHQ")
_NUMBER: Final = struct.Struct("<H")
_NO_DISCRIMINANT: Final = 0xFFFF
_MEMBERS: Final[dict[int, str]] = {
    int(field.discriminantValue): str(field.name)
    for field in _SCHEMA.fields
    if int(field.discriminantValue) != _NO_DISCRIMINANT
}


class EventHeader(NamedTuple):
    """What can be known of an Event without reading its message.

    Attributes:
        service: name of the union's member; ``unknown-157`` for a member newer than our schema,
            with its number in the union.
        mono_time_ns: ``logMonoTime``.
    """

    service: str
    mono_time_ns: int


def read_header(data: bytes) -> EventHeader | None:
    """Return the header of the one framed Event in `data`; None if its root is damaged.

    Source: Cap'n Proto encoding; a struct pointer holds 2 bits of kind, the signed distance to the
    struct in words, and the words of its two sections. Distance and kind are both 0 as a rule.
    """
    if len(data) >= _USUAL.size:
        more_segments, words, offset, data_words, pointers, time_ns = _USUAL.unpack_from(data)
        # One segment, the root where it usually stands, and all of it there.
        is_usual = more_segments == 0 and offset == 0 and data_words >= _DATA_WORDS
        if is_usual and 1 + data_words + pointers <= words and 8 + 8 * words <= len(data):
            (number,) = _NUMBER.unpack_from(data, _USUAL.size - 8 + _DISCRIMINANT_BYTE)
            return EventHeader(_MEMBERS.get(number) or f"unknown-{number}", time_ns)
    return _read_slowly(data)


def _read_slowly(data: bytes) -> EventHeader | None:
    """For roots that stand elsewhere and structs with fewer words than usual."""
    try:
        event = read_event(data)
    except MessageError:
        return None
    name = member_name(event)
    return None if name is None else EventHeader(name, int(event.logMonoTime))


# --- Writing one number into a recorded Event; all other bytes stay as they are ---------------


def write_field(data: bytes, service: str, name: str, value: int) -> bytes | None:
    """Return the Event with one field of its message changed.

    A message of software that did not know the field yet becomes longer.

    Args:
        data: the framed Event.
        service: the Event member that it holds, a structure.
        name: a field of that with an integer or enumeration, whose default is 0.
        value: what to write.

    Returns:
        None where the message is damaged, or lies in several segments and has no room for the
        field: nothing to be changed.
    """
    member = log.Event.schema.fields[service]
    event = structure_at(data)
    offset = int(member.proto.slot.offset)
    if event is None or offset >= event.pointers:
        return None
    body = structure_at(data, event.pointers_start + 8 * offset)
    return _written(data, body, member.schema.fields[name], value)


def write_stamp(data: bytes, mono_time_ns: int) -> bytes | None:
    """Return the Event with another ``logMonoTime``; None where its root is damaged.

    Args:
        data: the framed Event.
        mono_time_ns: 0 or more.
    """
    return _written(data, structure_at(data), log.Event.schema.fields["logMonoTime"], mono_time_ns)


def _written(data: bytes, body: Structure | None, field: Any, value: int) -> bytes | None:
    """Write a number into a structure of a message."""
    span = span_of(field)
    assert span is not None
    if body is None:
        return None
    offset, size = span
    result = bytearray(data)
    if offset + size > 8 * body.data_words:
        # Only a message in one segment can become longer.
        if any(data[:4]):
            return None
        body = _lengthen(result, body, (offset + size + 7) // 8)
    at = body.start + offset
    result[at : at + size] = value.to_bytes(size, "little")
    return bytes(result)


def _lengthen(message: bytearray, body: Structure, data_words: int) -> Structure:
    """Move a structure to the end of the message, with more words of data."""
    start, old = len(message), body.pointers_start
    new = start + 8 * data_words
    message += message[body.start : old]
    message += bytes(8 * (data_words - body.data_words))
    for at in range(0, 8 * body.pointers, 8):
        word = bytes(message[old + at : old + at + 8])
        low = int.from_bytes(word[:4], "little", signed=True)
        # Structures and lists are pointed to by distance; far pointers and null are not.
        if any(word) and low & 3 in (0, 1):
            distance = (low >> 2) - (new - old) // 8
            word = ((distance << 2 | low & 3) & 0xFFFFFFFF).to_bytes(4, "little") + word[4:]
        message += word
    distance = (start - body.pointer - 8) // 8
    POINTER.pack_into(message, body.pointer, distance << 2, data_words, body.pointers)
    struct.pack_into("<I", message, 4, (len(message) - 8) // 8)
    return Structure(body.pointer, start, new, data_words, body.pointers)
