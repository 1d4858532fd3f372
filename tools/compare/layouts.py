"""Matches the values of two messages of possibly different shapes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tools.compare.fields import Layout, Place, pattern_of
from tools.compare.tolerances import Tolerance, Tolerances


class Fields:
    """The numeric fields of a service, numbered as they appear, with their tolerances."""

    def __init__(self, service: str, tolerances: Tolerances) -> None:
        self.service = service
        self.rows: dict[str, int] = {}
        self._tolerances = tolerances
        self._known: dict[str, Tolerance] = {}

    def tolerance(self, pattern: str) -> Tolerance:
        """Return what is allowed of a field."""
        if pattern not in self._known:
            self._known[pattern] = self._tolerances.of(self.service, pattern)
        return self._known[pattern]

    def row(self, pattern: str) -> int:
        """Return the number of a field."""
        return self.rows.setdefault(pattern, len(self.rows))


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Something that one message has and the other has not."""

    is_length: bool  # lists of other lengths, else other members of a union
    place: Place
    left: str  # what the left message has, as text
    right: str


@dataclass(frozen=True, slots=True)
class PairLayout:
    """What stands where in the messages of two shapes."""

    # (c,) index of each number in the left message; those of a field stand together.
    left: NDArray[np.intp]
    right: NDArray[np.intp]  # (c,) the same in the right message
    places: Sequence[str]  # of each number, with indices
    rows: NDArray[np.intp]  # (f,) number of each field that occurs
    starts: NDArray[np.intp]  # (f,) first column of each
    absolute: NDArray[np.float64]  # (c,) tolerance
    relative: NDArray[np.float64]  # (c,) tolerance
    # Indices of a discrete value in both messages, its place and tolerance.
    discrete: Sequence[tuple[int, int, Place, Tolerance]]
    mismatches: Sequence[Mismatch]  # what only one of them has


def pair_layout(one: Layout, other: Layout, fields: Fields) -> PairLayout:
    """Put the layouts of two shapes beside each other; fields that are ignored are left out."""
    numbers = _common(one.numbers, other.numbers, fields)
    for _, _, place in numbers:
        fields.row(place.pattern)
    # Stable, so that the values of a field stay in their order.
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
    """Return the places that both have and that are compared, with their indices."""
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
        # What is missing with its parent is not said again.
        if left != right and not _lacks_parent(path, one, other):
            place = Place(pattern_of(path), path)
            result.append(Mismatch(True, place, _items(left), _items(right)))
    return result


def _items(count: int) -> str:
    return "1 item" if count == 1 else f"{count} items"


def _lacks_parent(path: str, one: Layout, other: Layout) -> bool:
    """Return whether a path lies in an element of a list that only one of them has."""
    end = path.rfind("]")
    while end >= 0:
        start = path.rfind("[", 0, end)
        name, index = path[:start], int(path[start + 1 : end])
        if min(one.lists.get(name, 0), other.lists.get(name, 0)) <= index:
            return True
        end = path.rfind("]", 0, start)
    return False


def _other_members(one: Layout, other: Layout) -> list[Mismatch]:
    """Return what only one has although it is in no list: it is of another union member."""
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
