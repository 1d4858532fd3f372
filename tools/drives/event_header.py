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
