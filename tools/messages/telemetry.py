"""The car's state for a video, from a CSV file or constant.

Columns (header row required): ``t_s,speed_mps`` and optionally ``steering_angle_deg`` (positive to
the left), ``left_blinker``, ``right_blinker``. ``t_s`` is the time since the first video frame.
Numbers are interpolated between rows; a switch has the value of the latest row. Before the first
and after the last row, the values of that row are used. An empty cell or ``nan`` is an unmeasured
value and is filled in from the neighboring rows.
"""

from __future__ import annotations

import csv
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from runtime.texts import count_text, float_of
from tools.errors import TelemetryError
from tools.lib.given_data import GivenText

logger = logging.getLogger(__name__)

# Speed without a telemetry file: 20 m/s (72 km/h), an ordinary highway speed.
DEFAULT_SPEED_MPS = 20.0
# Longer gaps between rows are interpolated with a warning. In 2 s, a logger that writes once a
# second can lose one row, and a car that brakes hard changes its speed by 15 m/s.
MAX_GAP_S = 2.0

REQUIRED_COLUMNS = ("t_s", "speed_mps")
OPTIONAL_COLUMNS = ("steering_angle_deg", "left_blinker", "right_blinker")
# Largest accepted number: far beyond any time, speed or angle of a car, but within float32.
MAX_VALUE = 1e9
# Largest accepted file. Ten hours at 100 Hz need less than half of it.
MAX_BYTES = 256 << 20
COLUMNS = REQUIRED_COLUMNS + OPTIONAL_COLUMNS

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class CarSample:
    """The car's state at one moment."""

    speed_mps: float
    steering_angle_deg: float  # positive to the left
    left_blinker: bool
    right_blinker: bool


@dataclass(frozen=True, slots=True)
class Series:
    """One measured quantity over time."""

    times_s: Floats  # (n,) strictly increasing, from the first video frame; n >= 1
    values: Floats  # (n,) finite

    def interpolated(self, time_s: float) -> float:
        """Return the interpolated value at a time; outside the series, its first or last value."""
        return float(np.interp(time_s, self.times_s, self.values))

    def held(self, time_s: float) -> bool:
        """Return the last switch position at a time; before the first sample, the first one."""
        row = int(np.searchsorted(self.times_s, time_s, side="right")) - 1
        return bool(self.values[max(row, 0)])


# The default of an unmeasured quantity: always 0.
_STRAIGHT_ON = Series(np.zeros(1), np.zeros(1))


@dataclass(frozen=True, slots=True)
class Telemetry:
    """The car's state over time."""

    name: str  # for messages
    speed_mps: Series
    steering_angle_deg: Series = _STRAIGHT_ON  # positive to the left
    left_blinker: Series = _STRAIGHT_ON  # 0 or 1
    right_blinker: Series = _STRAIGHT_ON  # 0 or 1
    is_constant: bool = False  # the state never changes, so it covers any video

    def at(self, time_s: float) -> CarSample:
        """Return the car's state `time_s` after the first video frame."""
        return CarSample(
            speed_mps=self.speed_mps.interpolated(time_s),
            steering_angle_deg=self.steering_angle_deg.interpolated(time_s),
            left_blinker=self.left_blinker.held(time_s),
            right_blinker=self.right_blinker.held(time_s),
        )

    def check_covers(self, video: str, end_s: float) -> None:
        """Check that the times overlap the video, which ends at `end_s`; warn about gaps.

        Raises:
            TelemetryError: No time of the telemetry is within the video.
        """
        if self.is_constant:
            return
        first_s, last_s = float(self.speed_mps.times_s[0]), float(self.speed_mps.times_s[-1])
        if last_s < 0.0 or first_s > end_s:
            raise TelemetryError(
                f"{self.name}: expected times within those of {video}, 0 to {end_s:.2f} s from its "
                f"first frame, found {first_s:.2f} to {last_s:.2f} s; times count from the first "
                "video frame: subtract its time"
            )
        for text, missing_s in (("starts", first_s), ("ends", end_s - last_s)):
            if missing_s > MAX_GAP_S:
                logger.warning(
                    "%s: %s %.2f s %s %s does; its %s values hold there",
                    self.name,
                    text,
                    missing_s,
                    "after" if text == "starts" else "before",
                    video,
                    "first" if text == "starts" else "last",
                )
        self._warn_of_gaps("speed_mps", self.speed_mps.times_s, end_s)
        # Columns with the same times have the same gaps, so warn only once.
        if not np.array_equal(self.steering_angle_deg.times_s, self.speed_mps.times_s):
            self._warn_of_gaps("steering_angle_deg", self.steering_angle_deg.times_s, end_s)

    def _warn_of_gaps(self, quantity: str, times_s: Floats, end_s: float) -> None:
        is_gap = np.diff(times_s) > MAX_GAP_S
        is_gap &= (times_s[1:] > 0.0) & (times_s[:-1] < end_s)
        if is_gap.any():
            start = int(np.argmax(np.where(is_gap, np.diff(times_s), 0.0)))
            logger.warning(
                "%s: %s has %s longer than %g s, the longest from %.2f to %.2f s; "
                "interpolated across",
                self.name,
                quantity,
                count_text(int(is_gap.sum()), "gap"),
                MAX_GAP_S,
                times_s[start],
                times_s[start + 1],
            )


def constant_telemetry(speed_mps: float = DEFAULT_SPEED_MPS) -> Telemetry:
    """Return the telemetry of a car that drives straight at a constant speed."""
    speed = Series(np.zeros(1), np.array([speed_mps]))
    return Telemetry("constant car state", speed, is_constant=True)


def read_telemetry(path: Path) -> Telemetry:
    """Read a telemetry CSV file.

    Raises:
        TelemetryError: A column is missing, unknown or empty, a cell is not a number, the times do
            not increase, or there is no row. The message names the file and the line.
    """
    text = GivenText(path, TelemetryError, MAX_BYTES).text()
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
    speed, steering, left, right = (
        measured_series(path, name, table[:, 0], table[:, column])
        if name in header
        else _STRAIGHT_ON
        for column, name in enumerate(COLUMNS)
        if column
    )
    return Telemetry(path.name, speed, steering, left, right)


def measured_series(path: Path, name: str, times_s: Floats, values: Floats) -> Series:
    """Return the series of (n,) values at (n,) increasing times, without NaN values.

    Raises:
        TelemetryError: Every value is NaN, or one exceeds MAX_VALUE.
    """
    if (np.abs(values) > MAX_VALUE).any():
        raise TelemetryError(
            f"{path}: {name}: expected finite numbers of at most {MAX_VALUE:g}, found "
            f"{values[np.abs(values) > MAX_VALUE][0]:g}; leave the value empty if it is none"
        )
    is_measured = ~np.isnan(values)
    if not is_measured.any():
        raise TelemetryError(
            f"{path}: {name}: expected at least one number, found none in "
            f"{count_text(values.size, 'row')}; leave the column out"
        )
    return Series(times_s[is_measured], values[is_measured])


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
        # Each row needs a time; any other value can be missing.
        if value is None or not (abs(value) <= MAX_VALUE or (math.isnan(value) and name != "t_s")):
            raise TelemetryError(
                f"{path}: line {line}: column {name}: expected a finite number of at most "
                f"{MAX_VALUE:g}, found {cell[:40]!r}"
            )
        values[name] = value
    return [values[name] for name in COLUMNS]


def _parse_number(cell: str) -> float | None:
    if not cell:
        return math.nan
    if cell.lower() in ("true", "false"):
        return float(cell.lower() == "true")
    try:
        return float_of(cell)
    except ValueError:
        return None
