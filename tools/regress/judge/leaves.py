"""Converts events to columns of leaf values and back, and encodes columns compactly.

A message becomes a skeleton, which is its structure including list lengths, and the values of its
leaf fields in the skeleton's order. Messages of one service nearly always share a skeleton, so each
leaf becomes a column with one row per message. Integers are encoded as differences; floats are
first rounded to whole steps of their tolerance (`Scale`).
"""

from __future__ import annotations

import math
import zlib
from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import capnp
import numpy as np
from numpy.typing import NDArray

from cereal.schema import log
from tools.errors import ReferenceFormatError
from tools.lib.json_output import json_text

# Kinds of leaves, as they appear in skeletons.
FLOAT, INTEGER, BOOL, TEXT, DATA = "f", "i", "b", "s", "d"
KINDS: Final = (FLOAT, INTEGER, BOOL, TEXT, DATA)
_KIND_OF_TYPE: Final[dict[type, str]] = {
    float: FLOAT,
    int: INTEGER,
    bool: BOOL,
    str: TEXT,
    bytes: DATA,
}
_ZEROS: Final[dict[str, Any]] = {FLOAT: 0.0, INTEGER: 0, BOOL: False, TEXT: "", DATA: b""}

# (service, field) -> whether the field is measured in each run; such values are not stored.
IsMeasured = Callable[[str, str], bool]


@dataclass(slots=True)
class Leaves:
    """One message, split into structure and values."""

    service: str  # the Event's member
    skeleton: str  # the structure, as JSON text
    # Leaf path -> its values in order, lists concatenated; measured values are zero.
    values: dict[str, list[Any]] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)  # leaf path -> one of ``KINDS``

    def digest(self) -> int:
        """Return the CRC-32 of the exact content: the structure and every bit of every value."""
        # Remove spaces, so that the layout of the JSON text does not count. No name contains any.
        crc = zlib.crc32(self.skeleton.replace(" ", "").encode())
        for path, values in self.values.items():
            kind = self.kinds[path]
            exact = array("d", values).tobytes() if kind == FLOAT else repr(values).encode()
            crc = zlib.crc32(exact, crc)
        return crc


def split_event(event: Any, is_measured: IsMeasured) -> Leaves:
    """Return the leaves of an Event.

    `event`: an Event reader. `is_measured`: whether a leaf is set to zero, by service and path
    below it (``.valid`` for members of the Event itself).
    """
    content = event.to_dict()
    service = str(event.which())
    leaves = Leaves(service, "")
    walk = _Walk(service, leaves, is_measured)
    leaves.skeleton = json_text(walk.skeleton(content, ""))
    return leaves


class _Walk:
    """Builds a skeleton: {a: 0.5, b: [1, 2, 3]} -> {"a": "f", "b": ["i", 3]}."""

    def __init__(self, service: str, leaves: Leaves, is_measured: IsMeasured) -> None:
        self._service = service
        self._leaves = leaves
        self._is_measured = is_measured

    def skeleton(self, value: Any, path: str) -> Any:
        """Return the structure of a value and collect its leaves."""
        if isinstance(value, dict):
            return {
                key: self.skeleton(item, f"{path}.{key}" if path else key)
                for key, item in value.items()
            }
        if isinstance(value, list):
            if value and isinstance(value[0], dict | list):
                return [self.skeleton(item, f"{path}[]") for item in value]
            # An empty list shows no kind, and its kind does not matter.
            kind = _KIND_OF_TYPE[type(value[0])] if value else INTEGER
            self._collect(path, kind, value)
            return [kind, len(value)]
        kind = _KIND_OF_TYPE.get(type(value), TEXT)
        self._collect(path, kind, [value])
        return kind

    def _collect(self, path: str, kind: str, values: list[Any]) -> None:
        if not values:
            return
        if self._is_measured(self._service, field_of(self._service, path)):
            values = [_ZEROS[kind]] * len(values)
        if self._leaves.kinds.setdefault(path, kind) != kind:
            raise ReferenceFormatError(
                f"{path}: expected values of one kind, found {kind} and {self._leaves.kinds[path]}"
            )
        self._leaves.values.setdefault(path, []).extend(values)


def field_of(service: str, path: str) -> str:
    """Return the field name used in comparisons: below the service, or ``.valid`` for the Event."""
    if path == service:
        return ""
    if path.startswith(f"{service}."):
        return path[len(service) + 1 :]
    return f".{path}"


def leaf_places(skeleton: Any) -> Iterator[tuple[str, str, int]]:
    """Yield path, kind and number of values for each run of leaves, in the skeleton's order.

    Raises:
        ReferenceFormatError: the value is not a skeleton.
    """
    yield from _places(skeleton, "")


def _places(node: Any, path: str) -> Iterator[tuple[str, str, int]]:
    if isinstance(node, dict):
        for key, item in node.items():
            yield from _places(item, f"{path}.{key}" if path else key)
    elif _is_leaf_list(node):
        yield path, node[0], node[1]
    elif isinstance(node, list):
        for item in node:
            yield from _places(item, f"{path}[]")
    elif node in KINDS:
        yield path, node, 1
    else:
        raise ReferenceFormatError(f"skeleton: {path}: found {node!r}, which is no leaf")


def _is_leaf_list(node: Any) -> bool:
    return (
        isinstance(node, list)
        and len(node) == 2
        and node[0] in KINDS
        and isinstance(node[1], int)
        and 0 <= node[1] < 1 << 24
    )


def join_event(skeleton: Any, values: Mapping[str, Iterator[Any]]) -> bytes:
    """Return the Event's bytes; the inverse of `split_event`.

    `skeleton`: the parsed JSON of a skeleton. `values`: leaf path -> iterator over its values,
    which is advanced past the message's values.

    Raises:
        ReferenceFormatError: there are too few values, or no Event has such fields.
    """
    try:
        event = log.Event.new_message(**_filled(skeleton, "", values))
        return bytes(event.to_bytes())
    except (capnp.KjException, ValueError, TypeError, OverflowError) as error:
        raise ReferenceFormatError(f"message: cannot be put together: {error}") from error


def _filled(node: Any, path: str, values: Mapping[str, Iterator[Any]]) -> Any:
    if isinstance(node, dict):
        return {
            key: _filled(item, f"{path}.{key}" if path else key, values)
            for key, item in node.items()
        }
    if _is_leaf_list(node):
        return [_next(path, values) for _ in range(node[1])]
    if isinstance(node, list):
        return [_filled(item, f"{path}[]", values) for item in node]
    return _next(path, values)


def _next(path: str, values: Mapping[str, Iterator[Any]]) -> Any:
    try:
        return next(values[path])
    except (KeyError, StopIteration) as error:
        raise ReferenceFormatError(f"message: expected another value of {path}") from error


# --- Lossless encoding of integers: differences, zigzag, one plane per byte -------------------

Integers = NDArray[np.int64]

# Predictions of a column, by number: how often neighbors are subtracted along (rows, places). Rows
# are frames. Places are points of a curve, which can be smooth enough for second differences.
PREDICTIONS: Final = tuple((rows, places) for rows in range(2) for places in range(4))
# Bytes per number that a column can have; 0 if all its differences are 0.
_WIDTHS: Final = (0, 1, 2, 3, 4, 8)


def encode_column(values: Integers) -> tuple[int, int, bytes]:
    """Return the number of the prediction, the bytes per number, and the encoded bytes.

    `values`: (rows, places) int64. Differences can wrap, which decoding reverses.
    """
    rests = [_differences(values, *prediction) for prediction in PREDICTIONS]
    number = min(range(len(rests)), key=lambda index: (_cost(rests[index]), index))
    rest = rests[number]
    codes = _zigzag(rest)
    largest = int(codes.max(initial=0))
    width = next(width for width in _WIDTHS if largest < 1 << (8 * width))
    # Ordered by place, so that the values of one place over time are contiguous.
    planes = codes.T.astype("<u8").reshape(-1, 1).view(np.uint8)[:, :width]
    return number, width, planes.T.tobytes()


def decode_column(data: bytes, shape: tuple[int, int], prediction: int, width: int) -> Integers:
    """Return the numbers that `encode_column` encoded.

    Raises:
        ReferenceFormatError: the bytes do not fit the shape, or there is no such prediction.
    """
    rows, places = shape
    if width not in _WIDTHS or not 0 <= prediction < len(PREDICTIONS):
        raise ReferenceFormatError(f"column: found prediction {prediction}, width {width}")
    if len(data) != rows * places * width:
        raise ReferenceFormatError(
            f"column: expected {rows * places * width} bytes, found {len(data)}"
        )
    wide = np.zeros((rows * places, 8), np.uint8)
    if width:
        wide[:, :width] = np.frombuffer(data, np.uint8).reshape(width, -1).T
    codes = wide.view("<u8").reshape(places, rows).T.astype(np.uint64)
    values = _unzigzag(codes)
    for axis, times in enumerate(PREDICTIONS[prediction]):
        for _ in range(times):
            values = np.cumsum(values, axis=axis)
    return values


def _differences(values: Integers, rows: int, places: int) -> Integers:
    for _ in range(rows):
        values = np.diff(values, axis=0, prepend=np.zeros_like(values[:1]))
    for _ in range(places):
        values = np.diff(values, axis=1, prepend=np.zeros_like(values[:, :1]))
    return values


def _cost(rest: Integers) -> float:
    """Estimate the encoded bits, as the sum of the logarithms of the differences."""
    return float(np.log2(1.0 + np.abs(rest.astype(np.float64))).sum())


def _zigzag(values: Integers) -> NDArray[np.uint64]:
    return ((values << 1) ^ (values >> 63)).view(np.uint64)


def _unzigzag(codes: NDArray[np.uint64]) -> Integers:
    return (codes >> np.uint64(1)).view(np.int64) ^ -(codes & np.uint64(1)).view(np.int64)


# --- Rounding of numbers to whole steps of their tolerance ------------------------------------
# A step is a fraction of ``max(absolute, relative * |value|)``. Far from zero, the scale is the bit
# pattern of a double, which increases with the value (IEEE 754-2019, 3.4). No logarithm is
# computed, so steps do not depend on the library or the processor.

# Steps per tolerance. Rounding moves a value by at most half a step, in the same way on both sides
# of a comparison. One step has to stay below a systematic shift (`compare.running.SHIFT_SHARE`),
# since rounding can move a constant by one step. With 8 steps, references are a tenth larger.
STEPS_OF_TOLERANCE: Final = 5
_MANTISSA_BITS: Final = 52
# Without an absolute tolerance, the scale is linear below this value.
_SMALLEST: Final = 2.0**-40
# Values with more steps are stored exactly, since a double has no more digits.
_MOST_STEPS: Final = 2**52

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Scale:
    """The rounding of one field."""

    absolute: float  # tolerance near zero; if both are 0, values are stored bit by bit
    relative: float  # tolerance per unit of magnitude; the larger tolerance applies

    def __post_init__(self) -> None:
        for value in (self.absolute, self.relative):
            if not 0.0 <= value < math.inf:
                raise ValueError(f"scale: expected tolerances of at least 0, found {self}")

    def steps(self, values: Floats) -> tuple[Integers, NDArray[np.bool_]]:
        """Return the number of steps from zero to each value, and which values have none.

        `values`: float64 of any shape. The results have this shape: int64 steps, and True for
        values that are not finite or outside the scale, whose steps are 0.
        """
        values = np.asarray(values, np.float64)
        if not self.absolute and not self.relative:
            return values.view(np.int64).copy(), np.zeros(values.shape, np.bool_)
        beyond = ~np.isfinite(values)
        finite = np.where(beyond, 0.0, values)
        if not self.relative:
            beyond |= np.abs(finite) > _MOST_STEPS * self._even_step
            counts = np.rint(np.where(beyond, 0.0, finite) / self._even_step)
            return counts.astype(np.int64), beyond
        shift, origin, step = self._layout
        sizes = np.abs(finite)
        # The largest doubles are excluded: rounded up, they would have no number of steps.
        beyond |= sizes > np.finfo(np.float64).max / 2
        sizes = np.where(beyond, 0.0, sizes)
        near = np.rint(np.minimum(sizes, self._turn) / step).astype(np.int64)
        far = (sizes.view(np.int64) + (1 << (shift - 1))) >> shift
        counts = np.where(sizes < self._turn, near, far - origin)
        return np.where(finite < 0, -counts, counts), beyond

    def values(self, steps: Integers) -> Floats:
        """Return the values at the given steps from zero; the inverse of `steps`, up to rounding.

        `steps`: int64 of any shape. The result is float64 of this shape, with NaN for numbers that
        `steps` never returns.
        """
        if not self.absolute and not self.relative:
            return np.asarray(steps, np.int64).view(np.float64).copy()
        if not self.relative:
            return steps.astype(np.float64) * self._even_step
        shift, origin, step = self._layout
        largest = (int(np.float64(np.finfo(np.float64).max).view(np.int64)) >> shift) - origin
        counts = np.abs(steps)
        # Only damaged files contain more steps than there are doubles, or -2^63.
        outside = (counts > largest) | (counts < 0)
        near = counts < round(self._turn / step)
        far = (np.where(outside | near, 1, counts + origin) << shift).view(np.float64)
        sizes = np.where(near, counts * step, far)
        return np.where(outside, np.nan, np.where(steps < 0, -sizes, sizes))

    @property
    def _even_step(self) -> float:
        """The step size without a relative tolerance: a power of two, so multiples are exact."""
        return 2.0 ** math.floor(math.log2(self.absolute / STEPS_OF_TOLERANCE))

    @property
    def _turn(self) -> float:
        """The value below which steps are equal; a power of two."""
        return 2.0 ** math.floor(math.log2(max(self.absolute / self.relative, _SMALLEST)))

    @property
    def _layout(self) -> tuple[int, int, float]:
        """Number of dropped mantissa bits, offset of the bit patterns, step size near zero."""
        kept = math.ceil(math.log2(STEPS_OF_TOLERANCE / self.relative))
        kept = min(max(kept, 1), _MANTISSA_BITS - 1)
        shift = _MANTISSA_BITS - kept
        # Both parts of the scale give the same number at the turn.
        origin = (int(np.float64(self._turn).view(np.int64)) >> shift) - (1 << kept)
        return shift, origin, self._turn / (1 << kept)
