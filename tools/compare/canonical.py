"""Bytes of messages without what is ignored, so that equal messages are seen without reading them.

Works on the wire format alone: a library that copied a damaged message could end the process. What
cannot be found where messages of ours have it is left as it is; equal bytes are equal in any case.

Source: Cap'n Proto encoding, "Structs" and "Serialization over a stream".
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from cereal.schema import log

# Sizes in bytes of the types that measured durations have.
_SIZES = {"float32": 4, "float64": 8, "int32": 4, "uint32": 4, "int64": 8, "uint64": 8}

Span = tuple[int, int]
"""Offset in a structure's data section, and size, in bytes."""


def spans_of(service: str, names: Sequence[str]) -> list[Span]:
    """Return where plain fields stand in the messages of a service; those of other types nowhere.

    Args:
        service: name of the Event member.
        names: fields at the top of its message; ones that it does not have are left out.
    """
    member = log.Event.schema.fields[service]
    if member.proto.slot.type.which() != "struct":
        return []
    fields = member.schema.fields
    spans = []
    for name in names:
        if name in fields:
            slot = fields[name].proto.slot
            size = _SIZES.get(str(slot.type.which()))
            if size is not None:
                spans.append((slot.offset * size, size))
    return spans


def cleared(data: bytes, spans: Sequence[Span]) -> bytes:
    """Return an Event's bytes with ``logMonoTime`` and some of its message's fields zeroed.

    Args:
        data: the framed message.
        spans: from `spans_of`.
    """
    result = bytearray(data)
    first = 4 * (struct.unpack_from("<I", data)[0] + 2) + 7 & ~7
    root = _struct_at(data, first)
    if root is None:
        return data
    at, words = root
    _clear(result, root, (0, 8))
    body = _struct_at(data, at + 8 * words) if spans else None
    if body is not None:
        for span in spans:
            _clear(result, body, span)
    return bytes(result)


def _struct_at(data: bytes, pointer: int) -> tuple[int, int] | None:
    """Return where a structure's data begin and how many words they are; None if not near by."""
    if pointer + 8 > len(data):
        return None
    low, words = struct.unpack_from("<iH", data, pointer)
    if low & 3 or not (low or words):
        return None  # no structure, in another segment, or null
    at = pointer + 8 + 8 * (low >> 2)
    return (at, words) if at >= 0 and at + 8 * words <= len(data) else None


def _clear(result: bytearray, section: tuple[int, int], span: Span) -> None:
    """Zero a field, unless the writer's structure is older and ends before it."""
    (at, words), (offset, size) = section, span
    if offset + size <= 8 * words:
        result[at + offset : at + offset + size] = bytes(size)
