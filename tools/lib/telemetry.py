"""Car state beside a video: a small CSV file, or constants where there is none.

Columns (header row required): ``t_s,speed_mps`` and optionally ``steering_angle_deg``,
``left_blinker``, ``right_blinker``; ``t_s`` counts from the first video frame. Called by
``tools.replay``.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from runtime.quantities import count_text
from tools.errors import TelemetryError

# Without a telemetry file: a steady 20 m/s (72 km/h) straight on, an ordinary highway speed.
DEFAULT_SPEED_MPS = 20.0

REQUIRED_COLUMNS = ("t_s", "speed_mps")
OPTIONAL_COLUMNS = ("steering_angle_deg", "left_blinker", "right_blinker")
# Far beyond any time, speed or angle of a car, and far within the float32 of the messages.
MAX_VALUE = 1e9
COLUMNS = REQUIRED_COLUMNS + OPTIONAL_COLUMNS


@dataclass(frozen=True, slots=True)
class CarSample:
    """The car at one moment."""

    speed_mps: float
    steering_angle_deg: float
    left_blinker: bool
    right_blinker: bool


class Telemetry:
    """Car state over time: numbers are interpolated, switches hold their last value.

    Args:
        times_s: (n,) float64, strictly increasing, n >= 1.
        columns: (n, 4) float64: speed, steering angle, left blinker, right blinker.
    """

    def __init__(self, times_s: NDArray[np.float64], columns: NDArray[np.float64]) -> None:
        self._times_s = times_s
        self._columns = columns

    def at(self, time_s: float) -> CarSample:
        """Return the car at a time; before the first and after the last row their values hold."""
        row = int(np.searchsorted(self._times_s, time_s, side="right")) - 1
        row = max(row, 0)
        return CarSample(
            speed_mps=float(np.interp(time_s, self._times_s, self._columns[:, 0])),
            steering_angle_deg=float(np.interp(time_s, self._times_s, self._columns[:, 1])),
            left_blinker=bool(self._columns[row, 2]),
            right_blinker=bool(self._columns[row, 3]),
        )


def constant_telemetry(speed_mps: float = DEFAULT_SPEED_MPS) -> Telemetry:
    """Return a car that goes straight on at one speed."""
    return Telemetry(np.zeros(1), np.array([[speed_mps, 0.0, 0.0, 0.0]]))


def read_telemetry(path: Path) -> Telemetry:
    """Read a telemetry CSV.

    Raises:
        TelemetryError: a column is missing or unknown, a cell is no finite number, the times do
            not increase, or there is no row; the message names the file and the line.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise TelemetryError(
            f"{path}: expected a telemetry CSV, found: {error.strerror}; check the path"
        ) from error
    except UnicodeDecodeError as error:
        raise TelemetryError(f"{path}: expected UTF-8 text, found binary data") from error
    reader = csv.reader(text.splitlines(), skipinitialspace=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        _check_header(path, header)
        rows = [
            _parse_row(path, reader.line_num, header, cells)
            for cells in reader
            if any(cell.strip() for cell in cells)
        ]
    except csv.Error as error:
        raise TelemetryError(
            f"{path}: line {reader.line_num}: expected comma-separated numbers, found: {error}"
        ) from error
    if not rows:
        raise TelemetryError(f"{path}: expected at least one row below the header, found none")
    table = np.array(rows)
    backwards = np.flatnonzero(np.diff(table[:, 0]) <= 0)
    if backwards.size:
        row = int(backwards[0]) + 1
        raise TelemetryError(
            f"{path}: data row {row + 1}: expected t_s above {table[row - 1, 0]:g}, "
            f"found {table[row, 0]:g}; sort the rows by time"
        )
    return Telemetry(table[:, 0], table[:, 1:])


def _check_header(path: Path, header: Sequence[str]) -> None:
    missing = [name for name in REQUIRED_COLUMNS if name not in header]
    unknown = [name for name in header if name not in COLUMNS]
    if missing or unknown or len(set(header)) != len(header):
        raise TelemetryError(
            f"{path}: line 1: expected the columns {','.join(REQUIRED_COLUMNS)} and optionally "
            f"{','.join(OPTIONAL_COLUMNS)}, found {','.join(header) or 'nothing'}; "
            "fix the header row"
        )


def _parse_row(path: Path, line: int, header: Sequence[str], cells: Sequence[str]) -> list[float]:
    if len(cells) != len(header):
        raise TelemetryError(
            f"{path}: line {line}: expected {count_text(len(header), 'cell')}, found {len(cells)}"
        )
    values = dict.fromkeys(COLUMNS, 0.0)
    for name, cell in zip(header, cells, strict=True):
        value = _parse_number(cell.strip())
        if not abs(value) <= MAX_VALUE:
            raise TelemetryError(
                f"{path}: line {line}: column {name}: expected a finite number of at most "
                f"{MAX_VALUE:g}, found {cell[:40]!r}"
            )
        values[name] = value
    return [values[name] for name in COLUMNS]


def _parse_number(cell: str) -> float:
    if cell.lower() in ("true", "false"):
        return float(cell.lower() == "true")
    try:
        return float(cell)
    except ValueError:
        return math.nan
