"""Reads the files of a comma2k19 segment as arrays with their boot times.

All numbers are npy arrays in files without an extension. `global_pose` has one row per video frame;
every log type in `processed_log` has its own times. `tools.drives.comma2k19` uses this module.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from runtime.files.user_file import read_given
from runtime.texts import count_text
from tools.errors import DriveError

# Maximum accepted deviation of a quaternion's norm from 1.
QUATERNION_TOLERANCE = 1e-3
# Directory names of each log type; the second is the one in the data set's README.
SPEED = ("CAN/speed", "CAN/car_speed")
STEERING = ("CAN/steering_angle",)
WHEEL_SPEED = ("CAN/wheel_speed", "CAN/wheel_speeds")
ACCELEROMETER = ("IMU/accelerometer", "IMU/acceleration")
GYRO = ("IMU/gyro",)
POSE = ("frame_times", "frame_positions", "frame_velocities", "frame_orientations")

# Far above any boot time in s, position on earth in m or speed in m/s, and safe to square.
MAX_VALUE = 1e9
# Maximum size of a file to read. A minute at 100 Hz with three numbers each is 144 KB.
MAX_BYTES = 64 << 20
# Headers as numpy writes them (numpy.lib.format, versions 1.0 and 2.0), for 1- to 8-byte numbers.
_NPY_HEADER = re.compile(
    rb"\x93NUMPY(?:\x01\x00..|\x02\x00....)\{'descr': '(?P<descr>[<>|](?:f[248]|[iu][1248]))', "
    rb"'fortran_order': (?P<order>True|False), 'shape': \((?P<shape>[0-9, ]{0,40})\), \} *\n",
    re.DOTALL,
)

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Samples:
    """The samples of one log type."""

    times_s: Floats  # (n,) float64, strictly increasing
    values: Floats  # (n, k) float64


def telemetry_files(path: Path) -> list[Path]:
    """Return the files of a segment that determine its telemetry, for digests."""
    logs = [_log_directory(path, names) for names in (SPEED, STEERING)]
    files = [log / part for log in logs if log is not None for part in ("t", "value")]
    pose = [path / "global_pose" / name for name in POSE]
    return files + [file for file in pose if file.is_file()]


def read_samples(path: Path, names: tuple[str, ...], columns: int) -> Samples | None:
    """Read one log type, with boot times; return None if it was not recorded."""
    directory = _log_directory(path, names)
    if directory is None:
        return None
    times_s, values = _load(directory / "t"), _load(directory / "value")
    is_sound = (
        times_s.ndim == 1
        and times_s.size > 0
        and values.size == times_s.size * columns
        and _are_times(times_s)
    )
    if not is_sound:
        raise DriveError(
            f"{directory}: expected times (n,) and values (n, {columns}) with n of at least 1 and "
            f"times from 0 to {MAX_VALUE:g} s, found {times_s.shape} and {values.shape}; "
            "the files are damaged: fetch them again"
        )
    # Messages in one CAN packet can have the same time; keep the first.
    times_s, rows = np.unique(times_s, return_index=True)
    return Samples(times_s, values.reshape(-1, columns)[rows])


def read_pose(path: Path) -> tuple[Floats, Floats, Floats, Floats] | None:
    """Return times (n,), positions (n, 3), velocities (n, 3) and quaternions (n, 4), or None."""
    directory = path / "global_pose"
    if not (directory / POSE[0]).exists():
        return None
    times_s, positions, velocities, quaternions = (_load(directory / name) for name in POSE)
    shapes = [array.shape for array in (times_s, positions, velocities, quaternions)]
    count = times_s.size
    is_sound = count > 0 and shapes == [(count,), (count, 3), (count, 3), (count, 4)]
    is_sound = is_sound and _are_times(times_s)
    # Comparisons with NaN are false, so this also rejects NaN.
    is_sound = is_sound and all(
        bool((np.abs(array) < MAX_VALUE).all()) for array in (positions, velocities, quaternions)
    )
    if not is_sound or not (np.diff(times_s) > 0).all():
        raise DriveError(
            f"{directory}: expected increasing frame_times (n,), positions and velocities (n, 3) "
            f"and orientations (n, 4) with n of at least 1, all below {MAX_VALUE:g}, found "
            f"{shapes}; the files are damaged: fetch them again"
        )
    if (np.abs(np.linalg.norm(quaternions, axis=1) - 1.0) > QUATERNION_TOLERANCE).any():
        raise DriveError(
            f"{directory / POSE[3]}: expected unit quaternions, found norms from "
            f"{np.linalg.norm(quaternions, axis=1).min():g}; the file is damaged: fetch it again"
        )
    return times_s, positions, velocities, quaternions


def _are_times(times_s: Floats) -> bool:
    """Return whether all values are plausible seconds since a phone's boot."""
    return bool(((times_s >= 0.0) & (times_s < MAX_VALUE)).all())


def _log_directory(path: Path, names: tuple[str, ...]) -> Path | None:
    for name in names:
        if (path / "processed_log" / name / "value").exists():
            return path / "processed_log" / name
    return None


def _load(file: Path) -> Floats:
    """Read an npy file of numbers as float64.

    numpy's own reader is not used: it evaluates the header, so a damaged file can raise any error
    or request any amount of memory.
    """
    try:
        content = read_given(file, MAX_BYTES)
    except OSError as error:
        raise DriveError(
            f"{file}: expected an npy array, found: {error.strerror or error}; fetch the file"
        ) from error
    match = _NPY_HEADER.match(content)
    if match is not None:
        dtype = np.dtype(match["descr"].decode("ascii"))
        shape = tuple(int(side) for side in match["shape"].replace(b",", b" ").split())
        data = content[match.end() :]
        if math.prod(shape) * dtype.itemsize == len(data):
            order: Literal["C", "F"] = "F" if match["order"] == b"True" else "C"
            return np.frombuffer(data, dtype).reshape(shape, order=order).astype(np.float64)
    raise DriveError(
        f"{file}: expected an npy array of numbers, found {count_text(len(content), 'byte')} that "
        "are none; the file is damaged: fetch it again"
    )
