"""Flattens messages to one array of numbers and one list of other values.

    laneLines[1].y: [0.5, 0.6], valid: true   ->   numbers [0.5, 0.6], discrete [true]

Messages of one shape (equal paths and list lengths) have the same field at the same index, so that
many frames can be compared as arrays. The layout, the field at each index, is determined once per
shape. Fields come from the schema (`tools.messages.message_values`), so new fields are included.

`pair_layout` matches the values of two messages, whose shapes can differ. `cleared` returns the
bytes of a message with some fields zeroed, so that equal messages can be recognized without
reading them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cereal.schema import log
from tools.compare.tolerances import Tolerance, Tolerances
from tools.messages.event_bytes import Span, Structure, span_of, structure_at
from tools.messages.message_values import flatten_message, has_field

Discrete = bool | int | str | bytes
# The path of each field of a message, and the length of its list (-1 for a single value).
Shape = tuple[tuple[str, ...], tuple[int, ...]]

# A field of bytes that hold little-endian float32 values.
_FLOAT_BYTES = "rawPredictions"
_SINGLE = -1


@dataclass(frozen=True, slots=True)
class Place:
    """The path of a value in its message."""

    pattern: str  # without indices: ``laneLines[].y``
    exact: str  # with indices: ``laneLines[1].y[32]``


@dataclass(frozen=True, slots=True)
class Flat:
    """The values of one message."""

    numbers: NDArray[np.float64]  # (n,) all numbers that a float64 represents exactly
    # Flags, enumerants, texts, bytes, and integers too large for a float64.
    discrete: list[Discrete]
    shape: Shape  # messages of equal shapes have equal layouts


@dataclass(slots=True)
class Layout:
    """The places of the values in all messages of one shape."""

    numbers: list[Place] = field(default_factory=list)  # place of each number
    discrete: list[Place] = field(default_factory=list)  # place of each discrete value
    lists: dict[str, int] = field(default_factory=dict)  # exact path of each list -> its length
    paths: list[str] = field(default_factory=list)  # exact path of each field


@cache
def has_frame_id(service: str) -> bool:
    """Return whether messages of a service belong to a camera frame."""
    return has_field(service, "frameId")


@cache
def pattern_of(path: str) -> str:
    """Return a path without indices: ``laneLines[1].y`` -> ``laneLines[].y``."""
    return re.sub(r"\[\d+\]", "[]", path)


def flatten(event: Any) -> Flat:
    """Return the values of a message, given the reader of its Event.

    Raises:
        MessageError: the message is damaged.
    """
    arrays: list[NDArray[Any]] = []
    scalars: list[float] = []
    discrete: list[Discrete] = []
    sizes: list[int] = []
    values = flatten_message(event)
    for path, value in values.items():
        if isinstance(value, np.ndarray):
            sizes.append(len(value))
            if _fits_double(value.dtype):
                arrays.append(value)
            else:
                discrete.extend(value.tolist())
        elif isinstance(value, float):
            sizes.append(_SINGLE)
            scalars.append(value)
        elif isinstance(value, list):
            sizes.append(len(value))
            discrete.extend(value)
        elif path == _FLOAT_BYTES and isinstance(value, bytes):
            count = len(value) // 4
            sizes.append(count)
            arrays.append(np.frombuffer(value, "<f4", count))
            discrete.append(value[4 * count :])
        else:
            sizes.append(_SINGLE)
            discrete.append(value)
    numbers = np.concatenate([np.zeros(0), *arrays, scalars])
    return Flat(numbers, discrete, (tuple(values), tuple(sizes)))


def _fits_double(dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "f" or (dtype.kind in "iu" and dtype.itemsize <= 4)


def layout_of(event: Any) -> Layout:
    """Return the layout of a message, which all messages of its shape share.

    Raises:
        MessageError: the message is damaged.
    """
    layout = Layout()
    scalars: list[Place] = []
    for path, value in flatten_message(event).items():
        layout.paths.append(path)
        _count_lists(path, layout.lists)
        place = Place(pattern_of(path), path)
        if isinstance(value, np.ndarray | list):
            layout.lists[path] = len(value)
            fits = isinstance(value, np.ndarray) and _fits_double(value.dtype)
            (layout.numbers if fits else layout.discrete).extend(_elements(place, len(value)))
        elif isinstance(value, float):
            scalars.append(place)
        elif path == _FLOAT_BYTES and isinstance(value, bytes):
            layout.lists[path] = len(value) // 4
            layout.numbers.extend(_elements(place, len(value) // 4))
            layout.discrete.append(place)
        else:
            layout.discrete.append(place)
    layout.numbers.extend(scalars)
    return layout


def _elements(place: Place, count: int) -> list[Place]:
    return [Place(place.pattern, f"{place.exact}[{index}]") for index in range(count)]


def _count_lists(path: str, lists: dict[str, int]) -> None:
    """Update the lengths of lists of structures: ``laneLines[3].y`` implies four ``laneLines``."""
    for found in re.finditer(r"\[(\d+)\]", path):
        name = path[: found.start()]
        lists[name] = max(lists.get(name, 0), int(found[1]) + 1)


class Fields:
    """The fields of a service: a row number for each numeric one, and their tolerances."""

    def __init__(self, service: str, tolerances: Tolerances) -> None:
        self.service = service
        self.rows: dict[str, int] = {}
        self._tolerances = tolerances
        self._known: dict[str, Tolerance] = {}

    def tolerance(self, pattern: str) -> Tolerance:
        """Return the tolerance of a field, given its path without indices."""
        if pattern not in self._known:
            self._known[pattern] = self._tolerances.of(self.service, pattern)
        return self._known[pattern]

    def row(self, pattern: str) -> int:
        """Return the row number of a field; a new field gets the next number."""
        return self.rows.setdefault(pattern, len(self.rows))


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A structural difference of two messages."""

    is_length: bool  # True: lists of different lengths; False: different members of a union
    place: Place
    left: str  # length or presence in the left message, as text
    right: str  # the same of the right message


@dataclass(frozen=True, slots=True)
class PairLayout:
    """The common values of messages of two shapes: c numbers (columns) of f fields.

    The columns of one field are adjacent.
    """

    left: NDArray[np.intp]  # (c,) index of each number in the left message
    right: NDArray[np.intp]  # (c,) index of each number in the right message
    places: Sequence[str]  # exact path of each number
    rows: NDArray[np.intp]  # (f,) row number of each field
    starts: NDArray[np.intp]  # (f,) first column of each field
    absolute: NDArray[np.float64]  # (c,) absolute tolerance
    relative: NDArray[np.float64]  # (c,) relative tolerance
    # Index in the left and in the right message, place, and tolerance of each discrete value.
    discrete: Sequence[tuple[int, int, Place, Tolerance]]
    mismatches: Sequence[Mismatch]  # values that only one message has


def pair_layout(one: Layout, other: Layout, fields: Fields) -> PairLayout:
    """Return the common values and the mismatches of two layouts, without ignored fields."""
    numbers = _common(one.numbers, other.numbers, fields)
    for _, _, place in numbers:
        fields.row(place.pattern)
    # The sort is stable, so the values of a field keep their order.
    numbers.sort(key=lambda entry: fields.row(entry[2].pattern))
    rows = np.array([fields.row(place.pattern) for _, _, place in numbers], np.intp)
    starts = np.flatnonzero(np.diff(rows, prepend=-1)).astype(np.intp)
    allowed = [fields.tolerance(place.pattern) for _, _, place in numbers]
    mismatches = _other_lengths(one, other) + _other_members(one, other)
    return PairLayout(
        left=np.array([i for i, _, _ in numbers], np.intp),
        right=np.array([j for _, j, _ in numbers], np.intp),
        places=[place.exact for _, _, place in numbers],
        rows=rows[starts],
        starts=starts,
        absolute=np.array([tolerance.absolute for tolerance in allowed], np.float64),
        relative=np.array([tolerance.relative for tolerance in allowed], np.float64),
        discrete=[
            (i, j, place, fields.tolerance(place.pattern))
            for i, j, place in _common(one.discrete, other.discrete, fields)
        ],
        mismatches=[m for m in mismatches if not fields.tolerance(m.place.pattern).ignore],
    )


def _common(
    one: Sequence[Place], other: Sequence[Place], fields: Fields
) -> list[tuple[int, int, Place]]:
    """Return (index in one, index in the other, place) of the common places not ignored."""
    there = {place.exact: index for index, place in enumerate(other)}
    return [
        (index, there[place.exact], place)
        for index, place in enumerate(one)
        if place.exact in there and not fields.tolerance(place.pattern).ignore
    ]


def _other_lengths(one: Layout, other: Layout) -> list[Mismatch]:
    result = []
    for path in dict.fromkeys((*one.lists, *other.lists)):
        left, right = one.lists.get(path, 0), other.lists.get(path, 0)
        # If the parent is missing, only the parent is reported.
        if left != right and not _lacks_parent(path, one, other):
            place = Place(pattern_of(path), path)
            result.append(Mismatch(True, place, _items(left), _items(right)))
    return result


def _items(count: int) -> str:
    return "1 item" if count == 1 else f"{count} items"


def _lacks_parent(path: str, one: Layout, other: Layout) -> bool:
    """Return whether a path belongs to a list element that only one layout has."""
    end = path.rfind("]")
    while end >= 0:
        start = path.rfind("[", 0, end)
        name, index = path[:start], int(path[start + 1 : end])
        if min(one.lists.get(name, 0), other.lists.get(name, 0)) <= index:
            return True
        end = path.rfind("]", 0, start)
    return False


def _other_members(one: Layout, other: Layout) -> list[Mismatch]:
    """Return the paths outside of lists that only one has: they belong to another union member."""
    result = []
    for has, lacks, texts in (
        (one, other, ("there", "another member")),
        (other, one, ("another member", "there")),
    ):
        known = set(lacks.paths)
        for path in has.paths:
            if path not in known and not _lacks_parent(path, one, other):
                place = Place(pattern_of(path), path)
                result.append(Mismatch(False, place, *texts))
    return result


def spans_of(service: str, names: Sequence[str]) -> list[Span]:
    """Return the byte ranges of fixed-size fields in the messages of a service.

    Args:
        service: name of the Event member.
        names: top-level fields. Missing fields and fields of variable size are left out.
    """
    member = log.Event.schema.fields[service]
    if member.proto.slot.type.which() != "struct":
        return []
    fields = member.schema.fields
    spans = [span_of(fields[name]) for name in names if name in fields]
    return [span for span in spans if span is not None]


def cleared(data: bytes, spans: Sequence[Span]) -> bytes:
    """Return an Event's bytes with ``logMonoTime`` and the fields at `spans` zeroed.

    Args:
        data: the framed message. It is returned as it is if its structure has an unusual form.
        spans: byte ranges from `spans_of`.
    """
    result = bytearray(data)
    root = structure_at(data)
    if root is None:
        return data
    _clear(result, root, (0, 8))
    body = structure_at(data, root.pointers_start) if spans and root.pointers else None
    if body is not None:
        for span in spans:
            _clear(result, body, span)
    return bytes(result)


def _clear(result: bytearray, body: Structure, span: Span) -> None:
    """Zero a field, unless the writer's schema is older and lacks it."""
    at, size = body.start + span[0], span[1]
    if at + size <= body.pointers_start:
        result[at : at + size] = bytes(size)
