"""Collects the columns of a table of messages, and writes them as an npz file of arrays.

Arrays are built in files next to the output, so memory does not grow with the log.
"""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import ItemsView, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from tools.errors import UsageError
from tools.messages.message_values import Value

# A modelV2 message with all fields has 3000 numbers; spreadsheets have at most 16384 columns.
MAX_CELLS = 16384
# Columns of the Event envelope. No schema name begins with an underscore, so a message's own
# ``valid`` is a different column.
TIME = "__logMonoTime"
VALID = "__valid"
# Bytes of all columns that are buffered before they are written to their files.
BUFFER_BYTES = 8 << 20


@dataclass(slots=True)
class Column:
    """A column."""

    service: str  # name of the service
    is_list: bool  # whether values are lists
    length: int  # length of the longest list; 1 without lists
    dtype: np.dtype[Any]  # type that fits all values
    lengths_differ: bool = False  # whether list lengths vary, or some messages lack the column
    count: int = 1  # number of messages that have it


def column_name(service: str, path: str) -> str:
    """Return ``service.path``; elements of a list message follow directly, a text message has none.

    Names are unique: members and fields are identifiers that are unambiguous in their parent and
    contain no ``.``, ``[`` or ``]``.
    """
    return f"{service}.{path}" if path and not path.startswith("[") else service + path


class Columns:
    """The columns of a table, in the order of their first appearance."""

    def __init__(self) -> None:
        self._columns: dict[str, Column] = {}
        self.rows: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._columns)

    def items(self) -> ItemsView[str, Column]:
        """Return names and columns."""
        return self._columns.items()

    def add(self, service: str, values: dict[str, Value]) -> None:
        """Record the columns of one message.

        Raises:
            UsageError: there are more than MAX_CELLS columns.
        """
        self.rows[service] = self.rows.get(service, 0) + 1
        for name, value in values.items():
            is_list = isinstance(value, list | np.ndarray)
            array = np.asarray(value)
            if array.dtype.kind == "U" or (array.size == 0 and isinstance(value, list)):
                # Text. An empty array would be numeric, and an empty text would have no width.
                array = array.astype(np.result_type(array.astype(np.str_).dtype, "U1"))
            length = array.size if is_list else 1
            column = self._columns.get(name)
            if column is None:
                self._columns[name] = Column(service, is_list, length, array.dtype)
                continue
            column.lengths_differ |= length != column.length
            column.length = max(column.length, length)
            column.dtype = _wider(column.dtype, array.dtype)
            column.count += 1
        if len(self._columns) > MAX_CELLS:
            raise UsageError(
                f"--dump: expected at most {MAX_CELLS} columns, found more; choose some with "
                "--service and --field, or take JSON lines"
            )

    def cells(self) -> list[str]:
        """Return the names of single cells; a list has one for each element.

        Raises:
            UsageError: there are more than MAX_CELLS cells.
        """
        names = [
            cell
            for name, column in self._columns.items()
            for cell in (
                [f"{name}[{i}]" for i in range(column.length)] if column.is_list else [name]
            )
        ]
        if len(names) > MAX_CELLS:
            raise UsageError(
                f"--dump: expected at most {MAX_CELLS} columns, found {len(names)}; choose some "
                "with --service and --field, or take npz or JSON lines"
            )
        return names


class _Spool:
    """Rows of many arrays, appended to one file each."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._buffers: dict[str, bytearray] = {}
        self._numbers: dict[str, int] = {}
        self._held = 0

    def append(self, name: str, row: bytes) -> None:
        self._buffers.setdefault(name, bytearray()).extend(row)
        self._held += len(row)
        if self._held > BUFFER_BYTES:
            self._flush()

    def _flush(self) -> None:
        for name, buffer in self._buffers.items():
            with self.path(name).open("ab") as file:
                file.write(buffer)
        self._buffers.clear()
        self._held = 0

    def path(self, name: str) -> Path:
        """Return the file of an array; field names are not valid file names."""
        return self._folder / str(self._numbers.setdefault(name, len(self._numbers)))

    def copy_to(self, name: str, target: Any) -> None:
        self._flush()
        path = self.path(name)
        if path.exists():
            with path.open("rb") as file:
                while piece := file.read(1 << 20):
                    target.write(piece)


def write_npz(
    file: BinaryIO,
    columns: Columns,
    rows: Iterator[tuple[str, int, bool, dict[str, Value]]],
    folder: Path,
) -> None:
    """Write one array per column, with one row per message of its service.

    Lists give (n, k) arrays, where k is the length of the longest. If lengths differ, the rest is
    NaN (0 or empty if the type has none) and ``NAME.length`` has the lengths; no field has that
    name, because values have no fields. ``SERVICE.__logMonoTime`` and ``SERVICE.__valid`` of the
    Event always exist.

    `rows` are service, logMonoTime, valid and values; `folder` is for temporary files.
    """
    by_service: dict[str, list[tuple[str, Column]]] = {}
    for name, column in columns.items():
        by_service.setdefault(column.service, []).append((name, column))
    for service, count in columns.rows.items():
        for _, column in by_service.get(service, []):
            column.lengths_differ |= column.count < count
    with tempfile.TemporaryDirectory(dir=folder, prefix=".dump.") as temporary:
        spool = _Spool(Path(temporary))
        for service, mono_time_ns, is_valid, values in rows:
            spool.append(f"{service}.{TIME}", np.uint64(mono_time_ns).tobytes())
            spool.append(f"{service}.{VALID}", np.bool_(is_valid).tobytes())
            for name, column in by_service.get(service, []):
                value = values.get(name)
                row = np.full(column.length, _filler(column.dtype), column.dtype)
                items = np.asarray([] if value is None else value).reshape(-1)
                if items.size:
                    row[: items.size] = items
                spool.append(name, row.tobytes())
                if column.lengths_differ:
                    spool.append(f"{name}.length", np.int64(items.size).tobytes())
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, allowZip64=True) as archive:
            for service, count in columns.rows.items():
                _add(archive, spool, f"{service}.{TIME}", np.dtype(np.uint64), (count,))
                _add(archive, spool, f"{service}.{VALID}", np.dtype(np.bool_), (count,))
                for name, column in by_service.get(service, []):
                    shape = (count, column.length) if column.is_list else (count,)
                    _add(archive, spool, name, column.dtype, shape)
                    if column.lengths_differ:
                        _add(archive, spool, f"{name}.length", np.dtype(np.int64), (count,))


def _wider(one: np.dtype[Any], other: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type that values of both fit; numpy would give float64 for int64 with uint64."""
    if {one.kind, other.kind} == {"i", "u"}:
        return np.dtype(np.uint64)
    return np.result_type(one, other)


def _filler(dtype: np.dtype[Any]) -> Any:
    if dtype.kind == "f":
        return np.nan
    return "" if dtype.kind == "U" else 0


def _add(
    archive: zipfile.ZipFile,
    spool: _Spool,
    name: str,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
) -> None:
    # A fixed date, so that the same log gives the same file.
    entry = zipfile.ZipInfo(f"{name}.npy")
    entry.compress_type = zipfile.ZIP_DEFLATED
    with archive.open(entry, "w", force_zip64=True) as target:
        header = {"descr": dtype.str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_2_0(target, header)
        spool.copy_to(name, target)
