"""Fields of messages by their path: which there are, their units and names, and what they hold.

A path is as `modeld inspect --dump` has it, with the service before it and an index for each list:
``carState.vEgo``, ``modelV2.laneLines[1].y[0]``. Without its last index it is all of a list, and
where it names a structure all that is in it.
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

# --- Comments of fields, from the text of the `.capnp` files: pycapnp's schema has none -------

_OPENING: Final = re.compile(r"(?:(struct|enum|union)\s*(\w+)?|(\w+)\s*:group)\b[^{]*\{")
_FIELD: Final = re.compile(r"(\w+)\s*(?:@\d+\s*)?:(?:\w|\()[^;{]*[;{]\s*#\s*(.+)")
# Longer ones first. They begin the comment, and a space or a sign follows.
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
# Of names that say it themselves, as the schema's first lines have it.
_ENDINGS: Final = {"Deg": "°", "MonoTime": "ns", "Ms": "ms", "Nanos": "ns", "TempC": "°C"}


def schema_notes() -> Mapping[tuple[str, str, str], str]:
    """Return the comment of each field that has one, by file, structure (``A.B``) and field.

    One behind a structure's opening brace is of all its fields; its own name is "" there.
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
    """Return the unit of a field by its comment or its name; "" where neither says one."""
    found = _UNIT.match(note)
    if found:
        return _SHOWN.get(found.group(1), found.group(1))
    return next((unit for ending, unit in _ENDINGS.items() if name.endswith(ending)), "")


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
    """A field that somebody looks at."""

    text: str  # the path as it was given
    service: str  # whose messages have it
    path: str  # inside the message, without an index at its end; "": all of it
    index: int | None  # at its end; None: none

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

    `data`: the Event.

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


# --- Fields of any service on the bus, heard while somebody looks at them ---------------------

logger = logging.getLogger(__name__)

Sample = tuple[str, float, Shown]
"""A field's text, seconds since the view's start, and its value."""

# Of messages of one service that are read at once: more than a second of any.
_AT_ONCE: Final = 200
# Samples that wait to be taken; older ones are dropped.
_MAX_WAITING: Final = 20_000


class FieldEar:
    """Subscribers of services, each while one of its fields is looked at; used by one thread.

    `transport`: the bus.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._subscribers: dict[str, Subscriber] = {}
        self._refused: set[str] = set()
        self._samples: list[Sample] = []

    def listen(self, fields: Mapping[str, FieldPath], now_s: float) -> None:
        """Read what has come of these fields' services, and of no others.

        `fields`: that somebody looks at. `now_s`: time of what came.
        """
        # Members of Event that are no service any more have fields, too.
        wanted = {one.service for one in fields.values()} & SERVICES.keys() - self._refused
        for service in self._subscribers.keys() - wanted:
            self._subscribers.pop(service).close()
        for service in sorted(wanted):
            subscriber = self._subscriber(service)
            if subscriber is None:
                continue
            mine = [one for one in fields.values() if one.service == service]
            for _ in range(_AT_ONCE):
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
            # The feed counts damage of its own services, and a plot has a gap.
            return
        if len(self._samples) < _MAX_WAITING:
            self._samples += [(text, round(now_s, 3), value) for text, value in values.items()]
