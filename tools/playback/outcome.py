"""The outcome of playing one drive, with a table of frames that is saved next to the log.

The file is ``<log>.frames.npz``. It holds the measured times, because the log must be the same in
every run. Only arrays of known names and types are read from it. Driver monitoring has its own
table in the same file, with names that begin with ``driver.``.
"""

from __future__ import annotations

import zipfile
import zlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modeld.daemon import StepResult
from modeld.monitoring import MonitoringStep
from runtime.files.user_file import whole_file
from runtime.format.interfaces import HOST_INPUTS
from tools.drives.drive import DriveInfo
from tools.errors import DriveError, UsageError
from tools.lib.given_data import write_npz

# Inputs of a driving program whose digests are recorded, if it has them.
INPUT_NAMES = (
    "road_frame",
    "wide_frame",
    "road_geometry",
    "wide_geometry",
    "road_transform",
    "wide_transform",
    "desire",
    *HOST_INPUTS,
)
# Name of the digest of all outputs, for programs with strict numerics.
OUTPUTS = "outputs"
MONITORING_INPUT_NAMES = ("driver_frame", "driver_geometry", "driver_transform", "calib")


SUFFIX = ".frames.npz"
_CRC, _DRIVER = "input_crc.", "driver."
_DTYPES: dict[str, type[np.generic]] = {
    "moment": np.int64,
    "frame_id": np.int64,
    "dropped": np.int64,
    "published": np.bool_,
    "valid": np.bool_,
    "execution_s": np.float64,
}


@dataclass(frozen=True, slots=True)
class FrameTable:
    """A table with one row for each frame that the daemon processed."""

    moment: NDArray[np.int64]  # (n,) int64, index of the drive's moment
    frame_id: NDArray[np.int64]  # (n,) int64, frame id of the main camera
    dropped: NDArray[np.int64]  # (n,) int64, number of missing frames just before this one
    published: NDArray[np.bool_]  # (n,) bool, whether the daemon published outputs
    valid: NDArray[np.bool_]  # (n,) bool, whether the outputs were marked valid
    # (n,) float64, measured time of the model in seconds; 0 if it did not run.
    execution_s: NDArray[np.float64]
    # Name of a program input -> (n,) uint32, CRC-32 of its bytes; empty if digests were not
    # requested. Their cost is not part of `execution_s`. With strict numerics, `OUTPUTS` is the
    # CRC-32 of all outputs in order of their names.
    input_crc: Mapping[str, NDArray[np.uint32]]
    # The table of driver monitoring and the driver camera; None if it did not run.
    driver: FrameTable | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of playing one drive to the daemons."""

    drive: DriveInfo  # the drive
    artifact_sha256: str  # digest of the driving artifact, or of driver monitoring if it ran alone
    device: str  # description of the OpenCL device, as in `Program.stats`
    log: Path  # the event log: the drive's messages and the daemons' outputs, in time order
    frames: FrameTable  # one row for each frame
    wall_s: float  # seconds from the first moment to the last message, without loading
    peak_rss_bytes: int  # peak resident memory of the process


class FrameRows:
    """Collects the rows of a frame table in packed columns.

    `inputs`: names of the inputs whose digests are kept; empty for none.
    """

    def __init__(self, inputs: Sequence[str] = ()) -> None:
        self._columns: dict[str, array[Any]] = {
            name: array("d" if dtype is np.float64 else "q") for name, dtype in _DTYPES.items()
        }
        self._crc = {name: array("L") for name in inputs}

    def __len__(self) -> int:
        return len(self._columns["moment"])

    def add(
        self,
        moment: int,
        result: StepResult | MonitoringStep,
        execution_s: float,
        crc: Mapping[str, int],
    ) -> None:
        """Append the result of a daemon for one frame.

        `moment`: index of the drive's moment. `execution_s`: time of the model, without the
        digests. `crc`: CRC-32 of each input; used only with digests.
        """
        columns = self._columns
        columns["moment"].append(moment)
        columns["frame_id"].append(result.frame_id)
        columns["dropped"].append(self._dropped(result))
        columns["published"].append(result.published)
        columns["valid"].append(result.valid)
        columns["execution_s"].append(execution_s)
        for name, column in self._crc.items():
            column.append(crc[name])

    def _dropped(self, result: StepResult | MonitoringStep) -> int:
        if isinstance(result, StepResult):
            return result.dropped
        # Monitoring is stateless and does not count dropped frames itself.
        earlier = self._columns["frame_id"][-2:-1]
        return max(0, result.frame_id - earlier[0] - 1) if earlier else 0

    def table(self, driver: FrameTable | None = None) -> FrameTable:
        """Return the rows so far as arrays.

        `driver`: the table of driver monitoring, or None.
        """
        arrays: dict[str, Any] = {
            name: np.array(column, _DTYPES[name]) for name, column in self._columns.items()
        }
        crc = {name: np.array(column, np.uint32) for name, column in self._crc.items()}
        return FrameTable(**arrays, input_crc=crc, driver=driver)


def frames_path(log: Path) -> Path:
    """Return the path of a log's frame table."""
    return log.with_name(log.name + SUFFIX)


def save_frames(path: Path, table: FrameTable) -> None:
    """Write a frame table; the file appears complete or not at all.

    Raises:
        UsageError: the file cannot be written.
    """
    arrays = _arrays_of(table)
    if table.driver is not None:
        arrays |= {_DRIVER + name: column for name, column in _arrays_of(table.driver).items()}
    try:
        with whole_file(path) as file:
            write_npz(file, arrays, compress=True)
    except OSError as error:
        raise UsageError(
            f"{path}: the frame table cannot be written ({error.strerror or error}); free some "
            "disk space or name another output"
        ) from error


def _arrays_of(table: FrameTable) -> dict[str, NDArray[Any]]:
    arrays: dict[str, NDArray[Any]] = {name: getattr(table, name) for name in _DTYPES}
    return arrays | {_CRC + name: column for name, column in table.input_crc.items()}


def load_frames(path: Path) -> FrameTable:
    """Read a frame table.

    Raises:
        DriveError: the file is missing or damaged.
    """
    try:
        # np.load would leave a damaged file open.
        with path.open("rb") as file, zipfile.ZipFile(file) as members:
            arrays = {
                name.removesuffix(".npy"): _read_array(members, name) for name in members.namelist()
            }
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, KeyError) as error:
        raise DriveError(
            f"{path}: expected the frame table of a replay, found {error}; replay the drive again"
        ) from error
    driver = {
        name.removeprefix(_DRIVER): arrays.pop(name)
        for name in [*arrays]
        if name.startswith(_DRIVER)
    }
    return _table_of(path, arrays, _table_of(path, driver) if driver else None)


def _table_of(
    path: Path, arrays: Mapping[str, NDArray[Any]], driver: FrameTable | None = None
) -> FrameTable:
    """Check the arrays of a file and return them as a table."""
    rows = arrays["moment"].size if "moment" in arrays else 0
    crc = {name.removeprefix(_CRC): a for name, a in arrays.items() if name.startswith(_CRC)}
    expected: dict[str, type[np.generic]] = {**_DTYPES, **{_CRC + n: np.uint32 for n in crc}}
    for name, dtype in expected.items():
        found = arrays.get(name)
        if found is None or found.dtype != dtype or found.shape != (rows,):
            raise DriveError(
                f"{path}: {name}: expected {rows} values of {np.dtype(dtype)}, found "
                f"{'none' if found is None else f'{found.dtype} {found.shape}'}; replay the drive "
                "again"
            )
    columns: dict[str, Any] = {name: arrays[name] for name in _DTYPES}
    return FrameTable(**columns, input_crc=crc, driver=driver)


def _read_array(members: zipfile.ZipFile, name: str) -> NDArray[Any]:
    with members.open(name) as member:
        found: NDArray[Any] = np.lib.format.read_array(member, allow_pickle=False)
        return found
