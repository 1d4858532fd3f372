"""Builds and reads the bus's Cap'n Proto messages.

Only this module and `schema_layout` import pycapnp. pycapnp has no static types, so builders and
readers are `Any`, with the fields of `log.capnp` as attributes. On the wire a message is unpacked
and stream-framed, and its root is an `Event`.
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
"""The schema of messages. `car.capnp` is next to it."""

log: Final[Any] = capnp.load(str(SCHEMA_PATH))
"""The pycapnp module of `log.capnp`: `log.Event`, `log.ModelDataV2`, ..."""

_CAR_PARAMS: Final[Any] = capnp.load(str(SCHEMA_PATH.with_name("car.capnp"))).CarParams

MESSAGE_LIMIT_BYTES: Final = 1 << 26
"""The largest message: 64 MiB, 20 times the limit of openpilot's bus. More means damaged data."""

TRAVERSAL_BYTES: Final = 1 << 23
"""Bytes that one reader may follow, in addition to 64 times its message's size: 8 MiB.

Each time a pointer is followed counts. A list of zero-sized elements takes no bytes in the message,
so only this limit bounds its announced length. To read a message many times, make a new reader each
time: that takes microseconds and restarts the count.
"""
_TRAVERSAL_FACTOR: Final = 64
_MAX_SEGMENTS: Final = 512  # limit of the reference implementation
DAMAGED: Final[tuple[type[Exception], type[ValueError]]] = (capnp.KjException, ValueError)
"""Exceptions that following a damaged pointer inside a message can raise."""

_FIRST_FRAME_WORD: Final = struct.Struct("<II")  # segments - 1, words of the first segment
_LIST_OR_BLOB: Final = frozenset({"list", "text", "data"})
_MEMBER_KIND: Final[dict[str, str]] = {
    field.name: field.slot.type.which() for field in log.Event.schema.node.struct.fields
}


def new_event(
    service: str, *, mono_time_ns: int, valid: bool = False, size: int | None = None
) -> Any:
    """Build an Event that holds an empty message of `service`.

    Fill `event.<service>`, then send it with `PubMaster.send` or call `event.to_bytes()`.

    Args:
        service: Name of the service, or of an Event member.
        mono_time_ns: `logMonoTime`, ns of the monotonic clock.
        valid: Whether the content can be trusted. False until the sender sets it, although the
            schema's default is true.
        size: Number of elements (lists) or bytes (Text, Data); only for those members, default 0.

    Raises:
        MessageError: there is no such member, or a size is given for a struct.
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
    """Return a reader of the one Event in `data`, which the caller can reuse afterwards.

    `data` can have any alignment and any number of segments. The frame and the root pointer are
    checked here. A pointer deeper inside is checked when it is followed; see `reading`. A limit on
    followed bytes (`TRAVERSAL_BYTES`) makes endless lists an error. Raises MessageError if `data`
    is not exactly one message.
    """
    return _read_root(log.Event, data, "event")


def read_car_params(data: bytes | bytearray | memoryview) -> Any:
    """Return a reader of the CarParams in `data`, the content of the parameter of that name.

    Framing and errors are those of `read_event`, but the root is the struct itself.
    """
    return _read_root(_CAR_PARAMS, data, "CarParams")


def _read_root(struct_type: Any, data: bytes | bytearray | memoryview, what: str) -> Any:
    if len(data) % 8:
        # pycapnp copies unaligned data itself, but rejects lengths that are not whole words.
        raise MessageError(
            f"{what}: expected a multiple of 8 bytes, got {len(data)}; the message is truncated"
        )
    limit_words = (TRAVERSAL_BYTES + _TRAVERSAL_FACTOR * len(data)) // 8
    try:
        # Of the ways to read one message, this takes a third of the time of `from_bytes`.
        return next(struct_type.read_multiple_bytes(bytes(data), limit_words))
    except (capnp.KjException, ValueError, StopIteration) as error:
        raise MessageError(
            f"{what}: expected one framed message in {len(data)} bytes, got {_first_line(error)}; "
            "the sender is not speaking this protocol or the bytes are damaged"
        ) from error


def read_events(data: bytes) -> Iterator[Any]:
    """Yield a reader for each message in `data`, which holds messages back to back.

    Raises MessageError after the last complete message if the rest is not a message.
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
    """Return the size of the framed message at `offset`, bytes; None if its frame is incomplete.

    Source: Cap'n Proto encoding, "Serialization over a stream": segment count - 1 and the words of
    each segment as uint32, padded to 8 bytes, then the segments. Raises MessageError if no message
    starts there: more than 512 segments, an empty first one, or over `MESSAGE_LIMIT_BYTES`.
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
    """Turn pycapnp's exceptions about damaged content into a MessageError about `where`.

    Causes are an invalid pointer, text that is not UTF-8, and a member or enumerant newer than our
    schema. `where` is a phrase such as "rlog, event 17".
    """
    try:
        yield
    except (capnp.KjException, UnicodeDecodeError, RuntimeError) as error:
        # pycapnp reports an unknown enumerant this way. Other RuntimeErrors have other causes.
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
    """Return the name of the message that the Event holds; None if newer than our schema."""
    try:
        return str(event.which())
    except (capnp.KjException, ValueError):
        return None


def enumerant_name(value: Any) -> str:
    """Return the name of an enumerant; ``#7`` for number 7 if our schema does not have it.

    pycapnp raises RuntimeError for an unknown one, even in a comparison with a string.
    """
    try:
        return str(value)
    except RuntimeError:
        return f"#{value.raw}"


def content(event: Any, member: str | None = None) -> Any:
    """Return the reader or builder of the message inside an Event.

    `member` is its name, if known. Raises MessageError if the member is newer than our schema or
    its pointer is damaged.
    """
    try:
        return getattr(event, str(event.which()) if member is None else member)
    except (capnp.KjException, ValueError) as error:
        raise MessageError(
            f"event: expected a member of our schema, got {_first_line(error)}; skip the message"
        ) from error
