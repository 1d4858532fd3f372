"""Reads and writes single fields of an Event directly in its bytes, without pycapnp.

A minute of a drive has 100 000 events, of which a few thousand are used. Creating a reader for each
would take longer than decoding the pictures. pycapnp's builder is unsuitable for writing: it copies
the message, which can crash the process if the message is damaged, and loses data that is newer
than our schema.

Source: Cap'n Proto encoding, "Structs" and "Serialization over a stream".
"""

from __future__ import annotations

import struct
from typing import Any, Final, NamedTuple

from cereal.errors import MessageError
from cereal.schema import log, member_name, read_event

# A struct pointer: distance and kind, words of data, number of pointers.
POINTER: Final = struct.Struct("<iHH")
# Low three bits of a far pointer, which refers to a pointer in another segment.
_FAR: Final = 2
# Type of a plain field -> its size in bytes. Fields of other types are not supported.
_SIZES: Final = {
    **dict.fromkeys(("int64", "uint64", "float64"), 8),
    **dict.fromkeys(("int32", "uint32", "float32"), 4),
    **dict.fromkeys(("enum", "uint16"), 2),
}

Span = tuple[int, int]
"""Offset in a structure's data section and size, in bytes."""


class Structure(NamedTuple):
    """The position of a structure in a message. Offsets are in bytes."""

    pointer: int  # offset of the pointer to the structure
    start: int  # offset of its data section
    pointers_start: int  # offset of its pointer section
    data_words: int  # size of the data section in words
    pointers: int  # number of pointers


def span_of(field: Any) -> Span | None:
    """Return the position of a schema's field; None if its type is not plain."""
    size = _SIZES.get(str(field.proto.slot.type.which()))
    return None if size is None else (int(field.proto.slot.offset) * size, size)


def structure_at(data: bytes, pointer: int = 0) -> Structure | None:
    """Return the structure that a pointer refers to, directly or by one far pointer.

    Returns None if the framing is damaged, or the pointer does not lead to a structure.

    Args:
        data: The framed message.
        pointer: Offset of the pointer in bytes; 0: the root pointer.
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
    """Return start and end of each segment in bytes; an empty list if the framing is damaged."""
    count = int.from_bytes(data[:4], "little") + 1
    at = (4 * (count + 1) + 7) & ~7
    if at > len(data):
        return []
    segments = []
    for words in struct.unpack_from(f"<{count}I", data, 4):
        segments.append((at, at + 8 * words))
        at += 8 * words
    return segments if at == len(data) else []


# --- Reading the time and the member of an Event from its first words -------------------------

_SCHEMA: Final = log.Event.schema.node.struct
# Offset of the union's discriminant in the data section. The schema counts in units of 16 bits.
_DISCRIMINANT_BYTE: Final = 2 * int(_SCHEMA.discriminantOffset)
_DATA_WORDS: Final = _DISCRIMINANT_BYTE // 8 + 1
# The usual beginning of an Event: number of segments - 1, size of the first in words, root pointer
# (distance and kind, words of data, number of pointers), and the first word of data, logMonoTime.
_USUAL: Final = struct.Struct("<IIiHHQ")
_NUMBER: Final = struct.Struct("<H")
_NO_DISCRIMINANT: Final = 0xFFFF
_MEMBERS: Final[dict[int, str]] = {
    int(field.discriminantValue): str(field.name)
    for field in _SCHEMA.fields
    if int(field.discriminantValue) != _NO_DISCRIMINANT
}


class EventHeader(NamedTuple):
    """The facts about an Event that are known without reading its message."""

    # Name of the union's member. A member newer than our schema is named by its number in the
    # union, as in ``unknown-157``.
    service: str
    mono_time_ns: int  # ``logMonoTime``


def read_header(data: bytes) -> EventHeader | None:
    """Return the header of the framed Event in `data`; None if its root is damaged.

    Source: Cap'n Proto encoding. A struct pointer has 2 bits of kind, the signed distance to the
    structure in words, and the sizes of its two sections in words. Distance and kind are usually 0.
    """
    if len(data) >= _USUAL.size:
        more_segments, words, offset, data_words, pointers, time_ns = _USUAL.unpack_from(data)
        # Usual: one segment, the root directly after its pointer, and the root is complete.
        is_usual = more_segments == 0 and offset == 0 and data_words >= _DATA_WORDS
        if is_usual and 1 + data_words + pointers <= words and 8 + 8 * words <= len(data):
            (number,) = _NUMBER.unpack_from(data, _USUAL.size - 8 + _DISCRIMINANT_BYTE)
            return EventHeader(_MEMBERS.get(number) or f"unknown-{number}", time_ns)
    return _read_slowly(data)


def _read_slowly(data: bytes) -> EventHeader | None:
    """Return the header of an Event with another layout, read with pycapnp."""
    try:
        event = read_event(data)
    except MessageError:
        return None
    name = member_name(event)
    return None if name is None else EventHeader(name, int(event.logMonoTime))


# --- Writing one number into a recorded Event -------------------------------------------------


def write_field(data: bytes, service: str, name: str, value: int) -> bytes | None:
    """Return the Event with one field of its message changed; all other values stay.

    A message of older software, which did not know the field, becomes longer. Returns None if the
    message is damaged, or if it has several segments and no room for the field.

    Args:
        data: The framed Event.
        service: The member of the Event, a structure.
        name: A field of that structure, an integer or enumeration whose default is 0.
        value: The number to write.
    """
    member = log.Event.schema.fields[service]
    event = structure_at(data)
    offset = int(member.proto.slot.offset)
    if event is None or offset >= event.pointers:
        return None
    body = structure_at(data, event.pointers_start + 8 * offset)
    return _written(data, body, member.schema.fields[name], value)


def write_stamp(data: bytes, mono_time_ns: int) -> bytes | None:
    """Return the Event with another ``logMonoTime``, 0 or more; None if its root is damaged."""
    return _written(data, structure_at(data), log.Event.schema.fields["logMonoTime"], mono_time_ns)


def _written(data: bytes, body: Structure | None, field: Any, value: int) -> bytes | None:
    """Return the message with a number written into a structure; None if that is impossible."""
    span = span_of(field)
    assert span is not None
    if body is None:
        return None
    offset, size = span
    result = bytearray(data)
    if offset + size > 8 * body.data_words:
        # Only a message with a single segment can be made longer.
        if any(data[:4]):
            return None
        body = _lengthen(result, body, (offset + size + 7) // 8)
    at = body.start + offset
    result[at : at + size] = value.to_bytes(size, "little")
    return bytes(result)


def _lengthen(message: bytearray, body: Structure, data_words: int) -> Structure:
    """Move a structure to the end of the message, with more words of data; return it."""
    start, old = len(message), body.pointers_start
    new = start + 8 * data_words
    message += message[body.start : old]
    message += bytes(8 * (data_words - body.data_words))
    for at in range(0, 8 * body.pointers, 8):
        word = bytes(message[old + at : old + at + 8])
        low = int.from_bytes(word[:4], "little", signed=True)
        # Pointers to structures and lists are relative, so adjust them; far and null pointers not.
        if any(word) and low & 3 in (0, 1):
            distance = (low >> 2) - (new - old) // 8
            word = ((distance << 2 | low & 3) & 0xFFFFFFFF).to_bytes(4, "little") + word[4:]
        message += word
    distance = (start - body.pointer - 8) // 8
    POINTER.pack_into(message, body.pointer, distance << 2, data_words, body.pointers)
    struct.pack_into("<I", message, 4, (len(message) - 8) // 8)
    return Structure(body.pointer, start, new, data_words, body.pointers)
