"""Structures and plain fields in a framed Cap'n Proto message, found by its bytes alone.

A library that copied a damaged message, as a builder does, could end the process; and what is newer
than our schema must survive.

Source: Cap'n Proto encoding, "Structs" and "Serialization over a stream".
"""

from __future__ import annotations

import struct
from typing import Any, Final, NamedTuple

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
