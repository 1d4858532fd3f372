"""JSON schemas of messages, made from the Cap'n Proto schema, in the form that viewers read.

What `tools.lib.message_values.to_plain` gives fits them. They use what viewers know of JSON Schema
and no more: one type for each field, objects with properties, no references. A number that is
not finite is null in a message, whatever its schema says; void fields and lists of lists are left
out of the schema, because a viewer would refuse all of it.
"""

from __future__ import annotations

from typing import Any

from cereal.schema import log
from tools.lib.message_values import Type, fields_of

# Beside the fields of a message; Cap'n Proto names never begin with an underscore.
VALID_KEY = "__valid"
# What a message is under if it is no structure: a viewer wants an object.
VALUE_KEY = "value"

_INTEGERS = ("i", "u")


def message_schema(service: str) -> dict[str, Any]:
    """Return the schema of what `as_object` makes of an Event.

    Args:
        service: a member of Event.
    """
    kind = next(field.type for field in fields_of(log.Event.schema) if field.name == service)
    schema = _schema_of(kind)
    if schema is None or schema["type"] != "object":
        schema = {"type": "object", "properties": {VALUE_KEY: schema} if schema else {}}
    schema["properties"] = {VALID_KEY: {"type": "boolean"}, **schema["properties"]}
    return {"title": service, **schema}


def as_object(plain: Any, *, is_valid: bool) -> dict[str, Any]:
    """Return the object that stands for a message.

    Args:
        plain: what `message_to_plain` made of it.
        is_valid: `valid` of the Event.
    """
    body = plain if isinstance(plain, dict) else {VALUE_KEY: plain}
    return {VALID_KEY: is_valid, **body}


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
