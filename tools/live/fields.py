"""Fields of messages by their path: which there are, their units and names, and what they hold.

A path is as `modeld inspect --dump` has it, with the service before it and an index for each list:
``carState.vEgo``, ``modelV2.laneLines[1].y[0]``. Without its last index it is all of a list, and
where it names a structure all that is in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from cereal.errors import MessageError
from cereal.schema import log, member_name, read_event
from tools.live.schema_notes import schema_notes, unit_of
from tools.messages.message_values import Field as SchemaField
from tools.messages.message_values import (
    Selection,
    Type,
    Value,
    fields_of,
    flatten_message,
    has_field,
)

Shown = bool | int | float | str | None
"""A value as the page gets it; None where a message has none there, or it is not finite."""

MAX_FIELDS: Final = 16
MAX_PATH: Final = 200
# Elements and characters of a value that is shown as text.
_MAX_ELEMENTS, _MAX_TEXT = 40, 240
# Structures within structures; the schema's own have less.
_MAX_DEPTH: Final = 8
_PATH: Final = re.compile(r"([a-zA-Z]\w*)((?:\.[a-zA-Z]\w*|\[\d{1,5}\])*)")
_LAST_INDEX: Final = re.compile(r"(.*)\[(\d+)\]")


@dataclass(frozen=True, slots=True)
class FieldPath:
    """A field that somebody looks at.

    Attributes:
        text: the path as it was given.
        service: whose messages have it.
        path: inside the message, without an index at its end; "": all of it.
        index: at its end; None: none.
    """

    text: str
    service: str
    path: str
    index: int | None

    def value(self, values: Mapping[str, Value]) -> Shown:
        """Return what is there, of `flatten_message`'s values."""
        whole = f"{self.path}[{self.index}]" if self.index is not None else self.path
        found = values.get(self.path)
        if found is not None and self.index is None:
            return _shown(found)
        if isinstance(found, list | np.ndarray):
            assert self.index is not None
            return _shown(found[self.index]) if self.index < len(found) else None
        below = {path: one for path, one in values.items() if not whole or _is_below(path, whole)}
        parts = [
            f"{path.removeprefix(whole).lstrip('.')} {_text(one)}" for path, one in below.items()
        ]
        return _cut(", ".join(parts[:_MAX_ELEMENTS])) if parts else None


def parse_field(text: object) -> FieldPath | None:
    """Return the field of a path; None where the schema has none of that name."""
    if not isinstance(text, str) or len(text) > MAX_PATH:
        return None
    matched = _PATH.fullmatch(text)
    if matched is None or matched.group(1) not in _members():
        return None
    service, path = matched.group(1), matched.group(2).removeprefix(".")
    if not has_field(service, path):
        return None
    indexed = _LAST_INDEX.fullmatch(path)
    if indexed is None:
        return FieldPath(text, service, path, None)
    return FieldPath(text, service, indexed.group(1), int(indexed.group(2)))


def parse_fields(texts: object) -> tuple[FieldPath, ...]:
    """Return the fields of a list from elsewhere: at most `MAX_FIELDS`, without unknown ones."""
    if not isinstance(texts, list):
        return ()
    found = (parse_field(text) for text in texts[:MAX_FIELDS])
    return tuple({one.text: one for one in found if one is not None}.values())


def read_fields(data: bytes, fields: Iterable[FieldPath]) -> dict[str, Shown]:
    """Return the values of fields of one service in one of its messages, by their text.

    Args:
        data: the Event.
        fields: of the service of this message.

    Raises:
        MessageError: the message is damaged.
    """
    chosen = tuple(fields)
    selection = Selection([one.path for one in chosen])
    values = flatten_message(read_event(data), None if "" in selection.paths else selection)
    return {one.text: one.value(values) for one in chosen}


def service_of(data: bytes) -> str | None:
    """Return the service of an Event; None if it cannot be read."""
    try:
        return member_name(read_event(data))
    except MessageError:
        return None


def catalogue(services: Iterable[str]) -> list[dict[str, Any]]:
    """Return all fields of services, as the page searches them.

    Each has ``field`` (with ``[]`` where a list's index belongs), ``kind``, and where there are any
    ``unit``, ``about`` (the schema's comment) and ``names`` (of the enumeration, by number).
    """
    notes = schema_notes()
    kinds = _members()
    found: list[dict[str, Any]] = []
    for service in sorted(set(services) & kinds.keys()):
        found.extend(_Walk(notes).below(service, kinds[service], "", 0))
    return found


@dataclass(frozen=True, slots=True)
class _Walk:
    notes: Mapping[tuple[str, str, str], str]

    def below(self, path: str, kind: Type, unit: str, depth: int) -> Iterator[dict[str, Any]]:
        """Yield the fields at and below a path; `unit` is that of what holds them."""
        if kind.kind == "struct" and depth < _MAX_DEPTH:
            file, _, name = str(kind.schema.node.displayName).rpartition("/")[2].partition(":")
            unit = unit_of("", self.notes.get((file, name, ""), "")) or unit
            for field in fields_of(kind.schema):
                yield from self._field(path, (file, name), field, unit, depth)
        elif kind.kind == "list" and kind.element is not None:
            yield from self.below(f"{path}[]", kind.element, unit, depth + 1)
        elif kind.kind in ("number", "enum", "text", "data"):
            is_bool = kind.dtype is not None and kind.dtype.kind == "b"
            entry: dict[str, Any] = {"field": path, "kind": "bool" if is_bool else kind.kind}
            if unit and entry["kind"] == "number":
                entry["unit"] = unit
            if kind.enumerants:
                entry["names"] = list(kind.enumerants)
            yield entry

    def _field(
        self, path: str, owner: tuple[str, str], field: SchemaField, unit: str, depth: int
    ) -> Iterator[dict[str, Any]]:
        note = self.notes.get((*owner, field.name), "")
        # A time beside coordinates, and a probability, have not the unit of what holds them.
        own = unit_of(field.name, note) or ("" if "Prob" in field.name else unit)
        for entry in self.below(f"{path}.{field.name}", field.type, own, depth + 1):
            if note:
                entry.setdefault("about", note)
            yield entry


def _members() -> dict[str, Type]:
    return {field.name: field.type for field in fields_of(log.Event.schema) if field.in_union}


def _is_below(path: str, whole: str) -> bool:
    return path.startswith(whole) and path[len(whole) : len(whole) + 1] in ("", ".", "[")


def _shown(value: Any) -> Shown:
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        # Seven digits are all that a float32 has; more would be noise of its conversion.
        return float(f"{value:.9g}") if np.isfinite(value) else None
    return _text(value)


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    if isinstance(value, list | np.ndarray):
        parts = [_text(one) for one in value[:_MAX_ELEMENTS]]
        more = [f"... ({len(value)})"] if len(value) > _MAX_ELEMENTS else []
        return _cut(f"[{', '.join(parts + more)}]")
    if isinstance(value, float | np.floating):
        return f"{value:.6g}"
    return _cut(str(value))


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 1] + "…"
