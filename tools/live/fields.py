"""Finds fields of messages by path: lists all fields with units, and reads their values.

A path is written as in `modeld inspect --dump`, after the name of the service, with an index for
each list: ``carState.vEgo``, ``modelV2.laneLines[1].y[0]``. Without its last index, a path denotes
a whole list. The path of a structure denotes all of its fields.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from cereal.errors import MessageError, TransportError
from cereal.schema import SCHEMA_PATH, log, member_name, read_event
from cereal.services import SERVICES
from cereal.transport.base import Subscriber, Transport
from tools.messages.message_values import Field as SchemaField
from tools.messages.message_values import (
    Selection,
    Type,
    Value,
    fields_of,
    flatten_message,
    has_field,
)

# --- Comments of fields, read from the `.capnp` files, since pycapnp's schema lacks them ------

_OPENING: Final = re.compile(r"(?:(struct|enum|union)\s*(\w+)?|(\w+)\s*:group)\b[^{]*\{")
_FIELD: Final = re.compile(r"(\w+)\s*(?:@\d+\s*)?:(?:\w|\()[^;{]*[;{]\s*#\s*(.+)")
# Units that can start a comment, followed by a space or punctuation. Longer ones come first.
_UNITS: Final = (
    "degrees Celsius", "degrees/s", "degrees", "m/s^3", "m/s^2", "m/s", "rad/s", "N/rad", "1/m",
    "1/s", "rad", "kbit/s", "uWh", "mV", "mA", "uT", "mg", "dBHz", "dB", "Hz", "kg", "MB", "ms",
    "us", "ns", "Nm", "m", "s", "V", "W", "%", "bytes", "pixels", "cycles",
)  # fmt: skip
_UNIT: Final = re.compile(f"({'|'.join(map(re.escape, _UNITS))})(?=$|[\\s,;:.])")
_SHOWN: Final = {
    "degrees": "°", "degrees/s": "°/s", "degrees Celsius": "°C", "m/s^2": "m/s²", "m/s^3": "m/s³",
    "uT": "µT",
}  # fmt: skip
# Units by the ending of a field's name, as documented at the top of the schema.
_ENDINGS: Final = {"Deg": "°", "MonoTime": "ns", "Ms": "ms", "Nanos": "ns", "TempC": "°C"}


def schema_notes() -> Mapping[tuple[str, str, str], str]:
    """Return the comments of fields: (file, structure (``A.B``), field) -> comment.

    A comment behind a structure's opening brace applies to all its fields; its field is "".
    """
    notes: dict[tuple[str, str, str], str] = {}
    for path in sorted(SCHEMA_PATH.parent.glob("*.capnp")):
        notes.update(_notes_in(path))
    return notes


def _notes_in(path: Path) -> dict[tuple[str, str, str], str]:
    found: dict[tuple[str, str, str], str] = {}
    inside: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        field = _FIELD.search(line)
        if field:
            where = ".".join(filter(None, inside))
            found[path.name, where, field.group(1)] = field.group(2).strip()
        code = line.partition("#")[0]
        opening = _OPENING.search(code)
        if opening:
            inside.append(opening.group(2) or opening.group(3) or "")
            if "#" in line:
                where = ".".join(filter(None, inside))
                found[path.name, where, ""] = line.partition("#")[2].strip()
        if "}" in code:
            inside.pop()
    return found


def unit_of(name: str, note: str) -> str:
    """Return the unit of a field from its comment or its name; "" if neither contains one."""
    found = _UNIT.match(note)
    if found:
        return _SHOWN.get(found.group(1), found.group(1))
    return next((unit for ending, unit in _ENDINGS.items() if name.endswith(ending)), "")


Shown = bool | int | float | str | None
"""A value for the page; None if the message has no such value, or if it is not finite."""

MAX_FIELDS: Final = 16
MAX_PATH: Final = 200
# Maximum number of elements and characters of a value that is shown as text.
_MAX_ELEMENTS, _MAX_TEXT = 40, 240
# Maximum number of levels of nested structures; the schema itself has fewer.
_MAX_DEPTH: Final = 8
_PATH: Final = re.compile(r"([a-zA-Z]\w*)((?:\.[a-zA-Z]\w*|\[\d{1,5}\])*)")
_LAST_INDEX: Final = re.compile(r"(.*)\[(\d+)\]")


@dataclass(frozen=True, slots=True)
class FieldPath:
    """A selected field."""

    text: str  # the path as given
    service: str  # the service whose messages contain the field
    path: str  # path in the message, without a final index; "": the whole message
    index: int | None  # the final index; None if there is none

    def value(self, values: Mapping[str, Value]) -> Shown:
        """Return the field's value from the result of `flatten_message`."""
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
    """Return the field of a path; None if the schema has no such field."""
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
    """Return the known fields of a list from outside, at most `MAX_FIELDS`."""
    if not isinstance(texts, list):
        return ()
    found = (parse_field(text) for text in texts[:MAX_FIELDS])
    return tuple({one.text: one for one in found if one is not None}.values())


def read_fields(data: bytes, fields: Iterable[FieldPath]) -> dict[str, Shown]:
    """Return the values of fields of one service in one of its messages, by field text.

    `data`: the bytes of the Event.

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
    """Return all fields of services, for the page's search.

    Each has ``field`` (with ``[]`` in place of list indices) and ``kind``. Optional keys are
    ``unit``, ``about`` (the schema's comment) and ``names`` (of an enumeration, by number).
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
        """Yield the fields at and below a path; `unit` is inherited from the parent."""
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
        # Probabilities, and times next to coordinates, do not inherit the parent's unit.
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
        # Seven digits are all that a float32 has; more would be conversion noise.
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


# --- Fields of any service on the bus, received while a viewer selects them -------------------

logger = logging.getLogger(__name__)

Sample = tuple[str, float, Shown]
"""A field's text, seconds since the start of the view, and the field's value."""

# Maximum number of messages of one service read in one pass: more than any service sends in a
# second.
_MAX_PER_PASS: Final = 200
# The maximum number of samples that can wait; further ones are dropped.
_MAX_WAITING: Final = 20_000


class FieldSubscriptions:
    """Subscribers of services, each kept while one of its fields is selected; for one thread.

    `transport`: the bus.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._subscribers: dict[str, Subscriber] = {}
        self._refused: set[str] = set()
        self._samples: list[Sample] = []

    def listen(self, fields: Mapping[str, FieldPath], now_s: float) -> None:
        """Receive new messages of these fields' services, and unsubscribe from all others.

        `fields`: the selected fields. `now_s`: the time given to the new samples.
        """
        # Fields can also belong to members of Event that are no longer services.
        wanted = {one.service for one in fields.values()} & SERVICES.keys() - self._refused
        for service in self._subscribers.keys() - wanted:
            self._subscribers.pop(service).close()
        for service in sorted(wanted):
            subscriber = self._subscriber(service)
            if subscriber is None:
                continue
            mine = [one for one in fields.values() if one.service == service]
            for _ in range(_MAX_PER_PASS):
                data = subscriber.receive()
                if data is None:
                    break
                self._take(data, mine, now_s)

    def take(self) -> list[Sample]:
        """Return the samples since the last call."""
        samples, self._samples = self._samples, []
        return samples

    def _subscriber(self, service: str) -> Subscriber | None:
        found = self._subscribers.get(service)
        if found is None:
            try:
                found = self._subscribers[service] = self._transport.subscriber(service)
            except TransportError as error:
                logger.warning("fields of %s cannot be shown: %s", service, error)
                self._refused.add(service)
        return found

    def _take(self, data: bytes, fields: list[FieldPath], now_s: float) -> None:
        try:
            values = read_fields(data, fields)
        except MessageError:
            # The feed counts damaged messages of its own services; a plot shows a gap.
            return
        if len(self._samples) < _MAX_WAITING:
            self._samples += [(text, round(now_s, 3), value) for text, value in values.items()]
