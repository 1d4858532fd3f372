"""Packs the outputs of one drive into reproducible bytes: messages and frame table.

The same messages give the same bytes in every process, and on every machine with the same lzma.
Values are rounded to a fraction of their tolerances. The layout is in
docs/formats/regression-reference.md. Jobs call `pack`; comparisons call `unpack`.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cereal.schema import read_event
from tools.compare.tolerances import Tolerances, read_tolerances
from tools.errors import ReferenceFormatError
from tools.lib.json_output import json_text
from tools.playback.outcome import FrameTable
from tools.regress.judge.leaves import (
    BOOL,
    DATA,
    FLOAT,
    INTEGER,
    Leaves,
    Scale,
    decode_column,
    encode_column,
    field_of,
    join_event,
    leaf_places,
    split_event,
)

VERSION: Final = 1
# Limit of memory for damaged files; a ten-minute drive needs a tenth of it.
MAX_BYTES: Final = 1 << 30
# Low bits of values are noise, so literal contexts, meant for text, cost 1 % (measured).
_FILTERS: Final = [{"id": lzma.FILTER_LZMA2, "preset": 6, "lc": 0, "lp": 0, "pb": 0}]
_LENGTH: Final = struct.Struct("<I")
# Prefix of the columns of the driver monitoring model's frame table.
_DRIVER: Final = "driver."
# Columns of a frame table, apart from its input checksums.
_TABLE: Final = ("moment", "frame_id", "dropped", "published", "valid")

Integers = NDArray[np.int64]


class FieldRule(NamedTuple):
    """How a field is stored: its rounding, and whether it is measured in each run."""

    scale: Scale
    measured: bool = False  # such values are stored as zero


# (service, field below it) -> its rule.
RuleOf = Callable[[str, str], FieldRule]


@dataclass(frozen=True, slots=True)
class Packed:
    """The contents of a packed drive."""

    # Event bytes in the log's order, with values rounded and measured ones zero.
    messages: tuple[bytes, ...]
    services: tuple[str, ...]  # service of each message
    digests: NDArray[np.uint32]  # checksum of each message's exact content, before rounding
    frames: FrameTable  # the frame table, with execution times of zero


class _Column(NamedTuple):
    """The index entry of one column."""

    name: str
    shape: tuple[int, int]
    prediction: int
    width: int
    scale: tuple[float, float] | None = None
    beyond: tuple[tuple[int, int], ...] = ()


def pack(messages: Iterable[bytes], frames: FrameTable, rule_of: RuleOf) -> bytes:
    """Return messages and frame table as bytes.

    `messages`: Event bytes, in the log's order. `frames`: one row per frame; execution times are
    omitted, since they are measured. `rule_of`: returns how a field is stored.
    """
    writer = _Writer()
    groups: dict[tuple[str, str], list[Leaves]] = {}
    order, digests = [], []
    for data in messages:
        leaves = split_event(read_event(data), lambda *names: rule_of(*names).measured)
        group = groups.setdefault((leaves.service, leaves.skeleton), [])
        # `order` has the group of each message; a group is a service with one skeleton.
        order.append(list(groups).index((leaves.service, leaves.skeleton)))
        digests.append(leaves.digest())
        group.append(leaves)
    writer.integers("order", np.array(order, np.int64))
    writer.integers("digests", np.array(digests, np.int64))
    for prefix, table in (("", frames), (_DRIVER, frames.driver)):
        if table is None:
            continue
        for name in _TABLE:
            writer.integers(f"{prefix}frames.{name}", getattr(table, name).astype(np.int64))
        for name in sorted(table.input_crc):
            writer.integers(f"{prefix}inputs.{name}", table.input_crc[name].astype(np.int64))
    described = []
    for number, ((service, skeleton), group) in enumerate(groups.items()):
        texts = _add_group(writer, number, group, rule_of)
        described.append({"service": service, "skeleton": json.loads(skeleton), "texts": texts})
    index = {"version": VERSION, "groups": described, "columns": writer.columns}
    text = json_text(index).encode()
    content = b"".join([_LENGTH.pack(len(text)), text, *writer.parts])
    return lzma.compress(content, lzma.FORMAT_XZ, lzma.CHECK_CRC32, filters=_FILTERS)


def content_digest(data: bytes) -> str:
    """Return the sha256 of the uncompressed content, which does not depend on the lzma library.

    Raises:
        ReferenceFormatError: the data is damaged.
    """
    return hashlib.sha256(_decompressed(data)).hexdigest()


def _add_group(
    writer: _Writer, number: int, group: list[Leaves], rule_of: RuleOf
) -> dict[str, list[Any]]:
    """Write the numeric columns of messages with one skeleton; return the other ones as texts."""
    texts: dict[str, list[Any]] = {}
    for path, kind in group[0].kinds.items():
        rows = [leaves.values[path] for leaves in group]
        if kind == FLOAT:
            scale = rule_of(group[0].service, field_of(group[0].service, path)).scale
            writer.floats(f"{number}:{path}", np.array(rows, np.float64), scale)
        elif kind in (INTEGER, BOOL) and _fit_int64(rows):
            writer.integers(f"{number}:{path}", np.array(rows, np.int64))
        else:
            texts[path] = _runs(rows, kind)
    return texts


def _fit_int64(rows: list[list[int]]) -> bool:
    """Return whether all numbers fit; their differences can wrap."""
    return max(max(row) for row in rows) <= np.iinfo(np.int64).max


def _runs(rows: list[list[Any]], kind: str) -> list[Any]:
    """Return the rows run-length encoded, as [count, row] pairs: enumerants rarely change."""
    runs: list[Any] = []
    for row in rows:
        plain = [value.hex() for value in row] if kind == DATA else row
        if runs and runs[-1][1] == plain:
            runs[-1][0] += 1
        else:
            runs.append([1, plain])
    return runs


class _Writer:
    def __init__(self) -> None:
        self.columns: list[_Column] = []
        self.parts: list[bytes] = []

    def integers(self, name: str, values: Integers) -> None:
        self._add(name, values if values.ndim == 2 else values.reshape(-1, 1))

    def floats(self, name: str, values: NDArray[np.float64], scale: Scale) -> None:
        steps, beyond = scale.steps(values)
        exact = values.view(np.int64).ravel()
        kept = tuple((int(at), int(exact[at])) for at in np.flatnonzero(beyond))
        self._add(name, steps, (scale.absolute, scale.relative), kept)

    def _add(
        self,
        name: str,
        values: Integers,
        scale: tuple[float, float] | None = None,
        beyond: tuple[tuple[int, int], ...] = (),
    ) -> None:
        prediction, width, data = encode_column(values)
        rows, places = values.shape
        self.columns.append(_Column(name, (rows, places), prediction, width, scale, beyond))
        self.parts.append(data)


def unpack(data: bytes) -> Packed:
    """Return the packed messages and frame table, with rounded values.

    Raises:
        ReferenceFormatError: the bytes are damaged or have another version.
    """
    try:
        return _Reader(data).packed()
    except (KeyError, IndexError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ReferenceFormatError(
            f"packed drive: expected the layout of version {VERSION}, found "
            f"{type(error).__name__}: {error}; the data is damaged"
        ) from error


class _Reader:
    def __init__(self, data: bytes) -> None:
        content = _decompressed(data)
        (size,) = _LENGTH.unpack_from(content.ljust(_LENGTH.size, b"\0"))
        at = _LENGTH.size + size
        index = json.loads(content[_LENGTH.size : at])
        if index["version"] != VERSION:
            raise ReferenceFormatError(
                f"packed drive: expected version {VERSION}, found {index['version']!r}; write it "
                "again with --update"
            )
        self._groups = index["groups"]
        self._columns: dict[str, Integers | NDArray[np.float64]] = {}
        for entry in index["columns"]:
            column = _Column(*entry)
            rows, places = (int(count) for count in column.shape)
            length = rows * places * column.width
            if rows < 0 or places < 0 or length > len(content) - at:
                raise ReferenceFormatError(f"packed drive: {column.name} is cut off")
            self._columns[column.name] = _read_column(content[at : at + length], column)
            at += length

    def packed(self) -> Packed:
        """Return the decoded drive."""
        order = self._line("order")
        values = [self._values(number, group) for number, group in enumerate(self._groups)]
        messages = tuple(
            join_event(self._groups[number]["skeleton"], values[number]) for number in order
        )
        services = tuple(str(self._groups[number]["service"]) for number in order)
        digests = self._line("digests").astype(np.uint32)
        if len(digests) != len(messages):
            raise ReferenceFormatError(
                f"packed drive: expected {len(messages)} digests, found {len(digests)}"
            )
        frames = self._frames("")
        if f"{_DRIVER}frames.moment" in self._columns:
            frames = replace(frames, driver=self._frames(_DRIVER))
        return Packed(messages, services, digests, frames)

    def _values(self, number: int, group: Mapping[str, Any]) -> dict[str, Iterator[Any]]:
        values: dict[str, Iterator[Any]] = {}
        for path, kind, _ in leaf_places(group["skeleton"]):
            if path in values:
                continue
            name = f"{number}:{path}"
            if path in group["texts"]:
                values[path] = _texts(group["texts"][path], kind)
            elif name in self._columns:
                values[path] = iter(_plain(self._columns[name].ravel(), kind))
        return values

    def _line(self, name: str) -> Integers:
        return np.asarray(self._columns[name], np.int64).ravel()

    def _frames(self, prefix: str) -> FrameTable:
        moment, frame_id, dropped, published, valid = (
            self._line(f"{prefix}frames.{name}") for name in _TABLE
        )
        inputs = f"{prefix}inputs."
        return FrameTable(
            moment=moment,
            frame_id=frame_id,
            dropped=dropped,
            published=published.astype(np.bool_),
            valid=valid.astype(np.bool_),
            execution_s=np.zeros(len(moment)),
            input_crc={
                name.removeprefix(inputs): self._line(name).astype(np.uint32)
                for name in self._columns
                if name.startswith(inputs)
            },
        )


def _decompressed(data: bytes) -> bytes:
    try:
        decompressor = lzma.LZMADecompressor(lzma.FORMAT_XZ)
        content = decompressor.decompress(data, MAX_BYTES)
    except (lzma.LZMAError, EOFError) as error:
        raise ReferenceFormatError(f"packed drive: {error}; the data is damaged") from error
    if not decompressor.eof or decompressor.unused_data:
        raise ReferenceFormatError("packed drive: expected one whole xz stream; it is damaged")
    return content


def _read_column(data: bytes, column: _Column) -> Integers | NDArray[np.float64]:
    rows, places = column.shape
    numbers = decode_column(data, (rows, places), column.prediction, column.width)
    if column.scale is None:
        return numbers
    values = Scale(*column.scale).values(numbers)
    flat = values.ravel()
    for at, exact in column.beyond:
        flat[at] = np.int64(exact).view(np.float64)
    return flat.reshape(values.shape)


def _texts(runs: list[Any], kind: str) -> Iterator[Any]:
    """Yield texts one by one, so that a damaged count does not allocate a long list."""
    for count, row in runs:
        for _ in range(count):
            for text in row:
                yield bytes.fromhex(text) if kind == DATA else text


def _plain(values: Integers | NDArray[np.float64], kind: str) -> list[Any]:
    if kind == BOOL:
        return [bool(value) for value in values]
    return list(values.tolist())


# --- How each field is stored in a reference: the comparison's own table ----------------------

# The comparison ignores this field, since other programs stamp messages differently. It is stored
# because our stamps are reproducible and a log needs them.
_STAMP: Final = ".logMonoTime"


@cache
def rule_of(service: str, field: str) -> FieldRule:
    """Return how a field is stored; fields that the package's table ignores are not.

    A user's own tolerances affect comparisons, not references.

    `service`: e.g. ``modelV2``. `field`: path below it, with lists as ``[]``.
    """
    tolerance = _table().of(service, field)
    measured = tolerance.ignore and field != _STAMP
    return FieldRule(Scale(tolerance.absolute, tolerance.relative), measured)


@cache
def _table() -> Tolerances:
    return read_tolerances()
