"""Two messages of possibly different shapes beside each other: which value belongs to which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tools.compare.fields import Layout, Place
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
class PairLayout:
    """What stands where in the messages of two shapes.

    Attributes:
        left: (c,) index of each number in the left message; those of a field stand together.
        right: (c,) the same in the right message.
        places: of each number, with indices.
        rows: (f,) number of each field that occurs.
        starts: (f,) first column of each.
        absolute: (c,) tolerance.
        relative: (c,) tolerance.
        discrete: indices of a discrete value in both messages, its place and tolerance.
        lengths: lists of other lengths, or other union members, with both.
    """

    left: NDArray[np.intp]
    right: NDArray[np.intp]
    places: Sequence[str]
    rows: NDArray[np.intp]
    starts: NDArray[np.intp]
    absolute: NDArray[np.float64]
    relative: NDArray[np.float64]
    discrete: Sequence[tuple[int, int, Place, Tolerance]]
    lengths: Sequence[tuple[Place, int | str, int | str]]


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
    sizes = {place.exact: size for place, size in other.sizes}
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
        lengths=[
            (place, size, sizes[place.exact])
            for place, size in one.sizes
            if sizes.get(place.exact, size) != size and not fields.tolerance(place.pattern).ignore
        ],
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
