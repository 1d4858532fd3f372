"""An MCAP file that is written as it goes: JSON messages, schemas, compressed chunks, an index.

The only module that imports `mcap` (extra ``replay``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cereal.schema import log
from runtime.files.user_file import whole_file
from tools.lib.json_output import finite_json_text, json_text
from tools.messages.message_values import Type, fields_of

# --- JSON schemas of messages, for viewers --------------------------------------------------------
# Viewers know one type for each field, objects with properties, and no references or nulls. So a
# number that is not finite, or a list with one, stands apart in its object. Viewers refuse a schema
# with void fields or lists of lists, so these are left out.

# Beside the fields of a message; Cap'n Proto names never begin with an underscore.
VALID_KEY = "__valid"
# Of an object: what is not finite in it, or lists of numbers that are not all finite, by name, with
# "nan", "inf" and "-inf" for what JSON has no number for.
NOT_FINITE_KEY = "__notFinite"
# What a message is under if it is no structure: a viewer wants an object.
VALUE_KEY = "value"

_INTEGERS = ("i", "u")


def message_schema(service: str) -> dict[str, Any]:
    """Return the schema of what `as_object` makes of an Event.

    `service`: a member of Event.
    """
    kind = next(field.type for field in fields_of(log.Event.schema) if field.name == service)
    schema = _schema_of(kind)
    if schema is None or schema["type"] != "object":
        schema = {"type": "object", "properties": {VALUE_KEY: schema} if schema else {}}
    schema["properties"] = {VALID_KEY: {"type": "boolean"}, **schema["properties"]}
    return {"title": service, **schema}


def as_object(plain: Any, *, is_valid: bool) -> dict[str, Any]:
    """Return the object that stands for a message.

    `plain`: what `message_to_plain` made of it. `is_valid`: `valid` of the Event.
    """
    body = plain if isinstance(plain, dict) else {VALUE_KEY: plain}
    return {VALID_KEY: is_valid, **body}


def message_text(message: Mapping[str, Any]) -> str:
    """Return a message as strict JSON; what is not finite is under `NOT_FINITE_KEY`."""
    try:
        # Nearly always: to look at every number beforehand takes longer than this.
        return finite_json_text(message)
    except ValueError:
        return finite_json_text(_apart(message))


def _apart(value: Any) -> Any:
    if isinstance(value, list):
        return [_apart(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    moved = {name: one for name, one in value.items() if not _is_finite(one)}
    result = {name: _apart(one) for name, one in value.items() if name not in moved}
    return {**result, NOT_FINITE_KEY: _texts(moved)} if moved else result


def _is_finite(value: Any) -> bool:
    """Whether it is no number, and no list of numbers, that JSON lacks."""
    if isinstance(value, list):
        return all(map(_is_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def _texts(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _texts(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_texts(one) for one in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _schema_of(kind: Type) -> dict[str, Any] | None:
    """Return the schema of a type; None for what has none."""
    if kind.kind == "struct":
        properties = {field.name: _schema_of(field.type) for field in fields_of(kind.schema)}
        return {
            "type": "object",
            "properties": {name: one for name, one in properties.items() if one is not None},
        }
    if kind.kind == "list" and kind.element is not None:
        items = _schema_of(kind.element)
        if items is None or items["type"] == "array":
            return None
        # Viewers decode base64 in fields, not in the elements of lists.
        return {"type": "array", "items": {k: v for k, v in items.items() if k != _ENCODING}}
    if kind.dtype is not None:
        return {"type": _number_type(kind.dtype.kind)}
    if kind.kind in ("enum", "text"):
        return {"type": "string"}
    if kind.kind == "data":
        return {"type": "string", _ENCODING: "base64"}
    return None


_ENCODING = "contentEncoding"


def _number_type(numpy_kind: str) -> str:
    if numpy_kind == "b":
        return "boolean"
    return "integer" if numpy_kind in _INTEGERS else "number"


# Decompressed at a time by a viewer that seeks.
CHUNK_BYTES = 1 << 20


class McapFile:
    """Channels are made at their first message."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer
        self._channels: dict[str, int] = {}
        self._schemas: dict[str, int] = {}
        self.counts: dict[str, int] = {}

    def has(self, topic: str) -> bool:
        """Return whether a channel exists."""
        return topic in self._channels

    def open_channel(
        self, topic: str, schema_name: str, schema: Mapping[str, Any], facts: Mapping[str, str]
    ) -> None:
        """Make a channel of JSON messages.

        `schema_name`: by which viewers know what the messages are. `facts`: what is said about the
        channel.
        """
        if schema_name not in self._schemas:
            text = json_text({"title": schema_name, **schema}).encode()
            self._schemas[schema_name] = self._writer.register_schema(
                schema_name, "jsonschema", text
            )
        self._channels[topic] = self._writer.register_channel(
            topic, "json", self._schemas[schema_name], dict(facts)
        )
        self.counts[topic] = 0

    def write(
        self,
        topic: str,
        log_time_ns: int,
        message: Mapping[str, Any],
        publish_time_ns: int | None = None,
    ) -> None:
        """Write a message to an open channel.

        `log_time_ns`: where viewers show it. `message`: its content. `publish_time_ns`: when it was
        sent; None: then.
        """
        self._writer.add_message(
            channel_id=self._channels[topic],
            log_time=log_time_ns,
            data=message_text(message).encode(),
            publish_time=log_time_ns if publish_time_ns is None else publish_time_ns,
            sequence=self.counts[topic],
        )
        self.counts[topic] += 1

    def add_facts(self, name: str, facts: Mapping[str, str]) -> None:
        """Write a metadata record."""
        self._writer.add_metadata(name, dict(facts))


@contextmanager
def mcap_file(path: Path) -> Iterator[McapFile]:
    """Open a new MCAP file, which appears in full or not at all.

    Raises:
        ModuleNotFoundError: the extra ``replay`` is not installed.
        OSError: the file cannot be written; nothing is left.
    """
    from mcap.writer import CompressionType, Writer

    with whole_file(path) as file:
        # Its methods have no types of their own.
        writer: Any = Writer(file, chunk_size=CHUNK_BYTES, compression=CompressionType.ZSTD)
        writer.start(profile="", library="modeld")
        yield McapFile(writer)
        writer.finish()
