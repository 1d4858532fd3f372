"""The time and the kind of an Event, read from its first words.

A minute of a drive holds 100 000 events, of which a drive reads a few thousand; making a reader for
each would cost more than decoding the pictures.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from cereal.errors import MessageError
from cereal.schema import log, member_name, read_event

_SCHEMA: Final = log.Event.schema.node.struct
# Where the union's number lies in the data section: the schema counts in its own 16 bits.
_DISCRIMINANT_BYTE: Final = 2 * int(_SCHEMA.discriminantOffset)
_DATA_BYTES: Final = max(8, _DISCRIMINANT_BYTE + 2)
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
    struct in words, and the words of its two sections.
    """
    segments = int.from_bytes(data[:4], "little") + 1
    frame = (4 * (segments + 1) + 7) & ~7
    if len(data) >= frame + 8:
        offset, data_words, pointers = struct.unpack_from("<iHH", data, frame)
        start = frame + 8 + 8 * (offset >> 2)
        end = start + 8 * (data_words + pointers)
        first_segment_end = frame + 8 * int.from_bytes(data[4:8], "little")
        inside = frame + 8 <= start and end <= first_segment_end <= len(data)
        if offset & 3 == 0 and inside and 8 * data_words >= _DATA_BYTES:
            (time_ns,) = struct.unpack_from("<Q", data, start)
            (number,) = struct.unpack_from("<H", data, start + _DISCRIMINANT_BYTE)
            return EventHeader(_MEMBERS.get(number) or f"unknown-{number}", time_ns)
    return _read_slowly(data)


def _read_slowly(data: bytes) -> EventHeader | None:
    """For roots in other segments and structs with fewer words than usual."""
    try:
        event = read_event(data)
    except MessageError:
        return None
    name = member_name(event)
    return None if name is None else EventHeader(name, int(event.logMonoTime))
