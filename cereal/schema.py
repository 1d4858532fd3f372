"""Cap'n Proto messages are built and read here; only `schema_layout` imports pycapnp, too.

pycapnp has no types: builders and readers are `Any`, with the fields of `log.capnp` as attributes.
Wire format: one message = one unpacked, stream-framed message whose root is `Event`.
"""

import contextlib
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import capnp

from cereal.errors import MessageError
from cereal.services import member_of

capnp.remove_import_hook()

SCHEMA_PATH: Final = Path(__file__).with_name("log.capnp")
"""The schema; `car.capnp` lies beside it."""

log: Final[Any] = capnp.load(str(SCHEMA_PATH))
"""The pycapnp module of `log.capnp`: `log.Event`, `log.ModelDataV2`, ..."""

_CAR_PARAMS: Final[Any] = capnp.load(str(SCHEMA_PATH.with_name("car.capnp"))).CarParams

MESSAGE_LIMIT_BYTES: Final = 1 << 26
"""The largest message: 64 MiB, twenty times what openpilot's bus can carry. More is damage."""

TRAVERSAL_BYTES: Final = 1 << 23
"""Bytes that one reader may follow in all, besides 64 times those of its message: 8 MiB.

A list of empty elements takes no bytes, so that its announced length counts only here; and each
time that a pointer is followed counts. Who reads a message again and again makes a reader each
time: it takes microseconds, and restarts the count.
"""
_TRAVERSAL_FACTOR: Final = 64
_MAX_SEGMENTS: Final = 512  # limit of the reference implementation
DAMAGED: Final[tuple[type[Exception], type[ValueError]]] = (capnp.KjException, ValueError)
"""Errors of following a damaged pointer inside a message."""

_FIRST_FRAME_WORD: Final = struct.Struct("<II")  # segments - 1, words of the first
_LIST_OR_BLOB: Final = frozenset({"list", "text", "data"})
_MEMBER_KIND: Final[dict[str, str]] = {
    field.name: field.slot.type.which() for field in log.Event.schema.node.struct.fields
}


def new_event(
    service: str, *, mono_time_ns: int, valid: bool = False, size: int | None = None
) -> Any:
    """Build an Event that holds an empty message of `service`, which may be an Event member, too.

    Fill `event.<service>`, then send it with `PubMaster.send` or call `event.to_bytes()`.

    Args:
        service: Name of the service, or of the Event member.
        mono_time_ns: `logMonoTime`, ns of the monotonic clock.
        valid: Whether the content may be trusted. False until the sender says otherwise, although
            the schema's default is true.
        size: Number of elements (lists) or bytes (Text, Data); only for those members, default 0.

    Raises:
        MessageError: no such member, or a size for a structure.
    """
    member = member_of(service)
    kind = _MEMBER_KIND.get(member)
    if kind is None:
        raise MessageError(
            f"event: expected a member of Event, got {service!r}; see cereal/log.capnp"
        )
    event = log.Event.new_message(logMonoTime=mono_time_ns, valid=valid)
    if kind in _LIST_OR_BLOB:
        if kind == "list":
            event.init(member, size or 0)
        else:
            setattr(event, member, "" if kind == "text" else bytes(size or 0))
    elif size is not None:
        raise MessageError(
            f"event {service}: expected no size for a structure, got {size}; leave it out"
        )
    else:
        event.init(member)
    return event


def read_event(data: bytes | bytearray | memoryview) -> Any:
    """Return a reader of the one Event in `data`; it keeps what it needs of `data`.

    Any alignment and any number of segments. The frame and the root pointer are checked here; a
    pointer deeper inside is checked when it is followed: see `reading`. In all the reader follows
    `TRAVERSAL_BYTES` and 64 times the message, so that lists without end are an error. Raises
    MessageError if `data` is not one whole message.
    """
    return _read_root(log.Event, data, "event")


def read_car_params(data: bytes | bytearray | memoryview) -> Any:
    """Return a reader of the one CarParams in `data`, as the parameter of that name holds it.

    The framing and the error are those of `read_event`, but the root is the structure itself.
    """
    return _read_root(_CAR_PARAMS, data, "CarParams")


def _read_root(struct_type: Any, data: bytes | bytearray | memoryview, what: str) -> Any:
    if len(data) % 8:
        # pycapnp copies unaligned bytes itself, but refuses lengths that are no whole words.
        raise MessageError(
            f"{what}: expected a multiple of 8 bytes, got {len(data)}; the message is truncated"
        )
    limit_words = (TRAVERSAL_BYTES + _TRAVERSAL_FACTOR * len(data)) // 8
    try:
        # Of the ways to read one message this takes a third of the time of `from_bytes`.
        return next(struct_type.read_multiple_bytes(bytes(data), limit_words))
    except (capnp.KjException, ValueError, StopIteration) as error:
        raise MessageError(
            f"{what}: expected one framed message in {len(data)} bytes, got {_first_line(error)}; "
            "the sender is not speaking this protocol or the bytes are damaged"
        ) from error


def read_events(data: bytes) -> Iterator[Any]:
    """Yield a reader for each of the messages that follow each other in `data`.

    After the whole ones it raises MessageError if the rest is no message.
    """
    offset = 0
    while offset < len(data):
        size = message_size(data, offset)
        if size is None or offset + size > len(data):
            raise MessageError(
                f"events: expected a whole message at byte {offset} of {len(data)}, got its "
                "beginning only; the data is truncated"
            )
        yield read_event(data[offset : offset + size])
        offset += size


def message_size(data: bytes | bytearray | memoryview, offset: int = 0) -> int | None:
    """Return the bytes of the framed message that starts at `offset`, None if its frame is cut off.

    Source: Cap'n Proto encoding, "Serialization over a stream": segment count - 1 and the words of
    each segment as uint32, padded to 8 bytes, then the segments. Raises MessageError if none starts
    there (over 512 segments, an empty first one, or over `MESSAGE_LIMIT_BYTES`).
    """
    available = len(data) - offset
    if available < 8:
        return None
    last_segment: int
    words: int
    last_segment, words = _FIRST_FRAME_WORD.unpack_from(data, offset)
    if last_segment >= _MAX_SEGMENTS or words == 0:
        raise MessageError(
            f"message at byte {offset}: expected 1 to {_MAX_SEGMENTS} segments and a root, got "
            f"{last_segment + 1} segments, {words} words; the data is damaged or no message"
        )
    frame = (4 * (last_segment + 2) + 7) & ~7
    if available < frame:
        return None
    if last_segment:
        words += sum(struct.unpack_from(f"<{last_segment}I", data, offset + 8))
    size = frame + 8 * words
    if size > MESSAGE_LIMIT_BYTES:
        raise MessageError(
            f"message at byte {offset}: expected at most {MESSAGE_LIMIT_BYTES} bytes, got {size} "
            "announced; the data is damaged or no message"
        )
    return size


@contextlib.contextmanager
def reading(where: str) -> Iterator[None]:
    """Turn what pycapnp raises on damaged content into a MessageError about `where`.

    A pointer leads nowhere, a text is no UTF-8, or a member or an enumerant is newer than our
    schema. `where` reads like "rlog, event 17".
    """
    try:
        yield
    except (capnp.KjException, UnicodeDecodeError, RuntimeError) as error:
        # An unknown enumerant shows as this one; other RuntimeErrors are not ours.
        if isinstance(error, RuntimeError) and "Member was null" not in str(error):
            raise
        raise MessageError(
            f"{where}: expected a whole message, got {_first_line(error)}; the data is damaged or "
            "of a newer schema: skip the message"
        ) from error


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def member_name(event: Any) -> str | None:
    """Return which message the Event holds; None for members newer than our schema."""
    try:
        return str(event.which())
    except (capnp.KjException, ValueError):
        return None


def enumerant_name(value: Any) -> str:
    """Return the name of an enumerant; ``#7`` for number 7 if our schema lacks it.

    The library raises for such a one, even when it is compared with a text.
    """
    try:
        return str(value)
    except RuntimeError:
        return f"#{value.raw}"


def content(event: Any, member: str | None = None) -> Any:
    """Return the reader or builder of the message inside an Event; `member` is its name, if known.

    Raises MessageError if the member is newer than our schema, or its pointer is damaged.
    """
    try:
        return getattr(event, str(event.which()) if member is None else member)
    except (capnp.KjException, ValueError) as error:
        raise MessageError(
            f"event: expected a member of our schema, got {_first_line(error)}; skip the message"
        ) from error
