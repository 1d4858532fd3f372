"""Messages as one array of numbers and one list of other values, with their layout.

Messages of one shape have the same value at the same index, so that many frames can be compared as
arrays; what stands where is worked out once per shape. Which fields there are comes from the
schema (`tools.messages.message_values`): a field that is declared tomorrow is compared tomorrow.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tools.messages.message_values import flatten_message, has_field

Discrete = bool | int | str | bytes
# Of each column of a message its path, and the length of its list, -1 for a single value.
Shape = tuple[tuple[str, ...], tuple[int, ...]]

# Bytes that are float32 values, little endian.
_FLOAT_BYTES = "rawPredictions"
_SINGLE = -1


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value stands: ``laneLines[].y`` and ``laneLines[1].y[32]``."""

    pattern: str
    exact: str


@dataclass(frozen=True, slots=True)
class Flat:
    """The values of one message."""

    numbers: NDArray[np.float64]  # (n,) float64, all that a double holds exactly
    # Flags, enumerants, texts, bytes, and integers that a double may not hold.
    discrete: list[Discrete]
    shape: Shape  # equal shapes have equal layouts


@dataclass(slots=True)
class Layout:
    """What the values of all messages of one shape are."""

    numbers: list[Place] = field(default_factory=list)
    discrete: list[Place] = field(default_factory=list)  # of each discrete value
    lists: dict[str, int] = field(default_factory=dict)  # exact path of each list -> its length
    paths: list[str] = field(default_factory=list)  # of all columns


@cache
def has_frame_id(service: str) -> bool:
    """Return whether messages of a service belong to a camera frame."""
    return has_field(service, "frameId")


@cache
def pattern_of(path: str) -> str:
    """Return a path without indices: ``laneLines[1].y`` is one of ``laneLines[].y``."""
    return re.sub(r"\[\d+\]", "[]", path)


def flatten(event: Any) -> Flat:
    """Return the values of a message.

    `event`: its reader.

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
    """Return what stands where in a message, and so in all messages of its shape.

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
    """Note the lists of structures on the way to a path: ``laneLines[3].y`` makes four of them."""
    for found in re.finditer(r"\[(\d+)\]", path):
        name = path[: found.start()]
        lists[name] = max(lists.get(name, 0), int(found[1]) + 1)
