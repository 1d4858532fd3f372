"""Reads the ground truth of rendered drives: the outputs that a perfect model would have.

`read_truth` returns the `Truth` of a ``truth.npz`` or of all segments of a drive.
docs/formats/truth.md describes the files. Coordinates are in the calibrated frame: x forward, y
right, z down.
"""

from __future__ import annotations

import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from modeld.constants import T_IDXS
from runtime.files.user_file import open_given
from tools.errors import CompareError

Floats = NDArray[np.float64]

FILE_NAME: Final = "truth.npz"
_POINTS: Final = len(T_IDXS)
# Shape of each array per frame.
_ROWS: Final[dict[str, tuple[int, ...]]] = {
    "speed_mps": (),
    "acceleration_mps2": (),
    "curvature_1pm": (),
    "lane_line_y_m": (4, _POINTS),
    "road_edge_y_m": (2, _POINTS),
    "lead_xyv": (3,),
    "path_xy_m": (_POINTS, 2),
    "path_speed_mps": (_POINTS,),
    "path_yaw_rad": (_POINTS,),
}
_GRIDS: Final = ("t_s", "x_m")
# One day at 20 Hz. The limit bounds the memory that a damaged file can request.
_MAX_FRAMES: Final = 24 * 3600 * 20


@dataclass(frozen=True, slots=True)
class Truth:
    """The ground truth of n frames (docs/formats/truth.md); NaN if a value does not exist.

    The file has its own times and distances, so that it can be compared with messages that use
    others.
    """

    frame_id: NDArray[np.int64]  # (n,)
    t_s: Floats  # (33,) times of the path, rising from 0
    x_m: Floats  # (33,) distances of lines and edges, rising from 0
    speed_mps: Floats  # (n,) the car's speed
    acceleration_mps2: Floats  # (n,) the car's acceleration
    curvature_1pm: Floats  # (n,) curvature of the car's path, positive to the right
    lane_line_y_m: Floats  # (n, 4, 33) y of the lane lines at the distances ``x_m``
    road_edge_y_m: Floats  # (n, 2, 33) y of the road edges at the distances ``x_m``
    lead_xyv: Floats  # (n, 3) rear of the car ahead: x, y, speed
    path_xy_m: Floats  # (n, 33, 2) positions of the camera at the times ``t_s``
    path_speed_mps: Floats  # (n, 33) speed at the times ``t_s``
    path_yaw_rad: Floats  # (n, 33) heading at the times ``t_s``, relative to the present


def read_truth(path: Path) -> Truth:
    """Read the truth of a drive.

    `path` is a ``truth.npz``, the directory of a segment, or a directory of segments, whose truths
    are joined.

    Raises:
        CompareError: there is no truth, or it is damaged.
    """
    files = [path] if path.is_file() else _files_in(path)
    if not files:
        raise CompareError(
            f"{path}: expected {FILE_NAME} of a rendered drive, found none; modeld make-drive "
            "writes one into each segment"
        )
    return joined([_read(file) for file in files])


def joined(parts: list[Truth]) -> Truth:
    """Return the truth of several segments as one.

    Raises:
        CompareError: the segments have different times or distances.
    """
    first = parts[0]
    for name in _GRIDS:
        if any(not np.array_equal(getattr(part, name), getattr(first, name)) for part in parts):
            raise CompareError(
                f"{FILE_NAME}: expected the same {name} in all segments of a drive, found others; "
                "judge segments of different renderers apart"
            )
    names = ("frame_id", *_ROWS)
    rows = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    return Truth(t_s=first.t_s, x_m=first.x_m, **rows)


def _files_in(path: Path) -> list[Path]:
    own = path / FILE_NAME
    return [own] if own.is_file() else sorted(path.glob(f"*/{FILE_NAME}"))


def _read(path: Path) -> Truth:
    try:
        # Opened here, because numpy does not close a damaged file.
        with open_given(path) as file, np.load(file, allow_pickle=False) as members:
            arrays = {name: members[name] for name in ("frame_id", *_GRIDS, *_ROWS)}
    except KeyError as error:
        raise _damaged(path, f"no key {error.args[0]}") from error
    except (OSError, ValueError, EOFError, MemoryError, zipfile.BadZipFile, zlib.error) as error:
        raise _damaged(path, f"{type(error).__name__}: {error}") from error
    for name in _GRIDS:
        grid = arrays[name]
        if grid.shape != (_POINTS,) or grid.dtype.kind != "f":
            raise _damaged(path, f"{name} of {grid.dtype}{list(grid.shape)}")
        if grid[0] != 0.0 or not np.isfinite(grid).all() or (np.diff(grid) <= 0.0).any():
            raise _damaged(path, f"{name} that does not rise from 0")
    ids = arrays["frame_id"]
    if ids.ndim != 1 or ids.dtype != np.int64 or ids.size > _MAX_FRAMES:
        raise _damaged(path, f"frame_id of {ids.dtype}{list(ids.shape)}")
    columns: dict[str, Any] = {"frame_id": ids}
    columns |= {name: arrays[name].astype(np.float64) for name in _GRIDS}
    for name, shape in _ROWS.items():
        found = arrays[name]
        if found.shape != (ids.size, *shape) or found.dtype.kind != "f":
            raise _damaged(path, f"{name} of {found.dtype}{list(found.shape)}")
        columns[name] = found.astype(np.float64)
    return Truth(**columns)


def _damaged(path: Path, what: str) -> CompareError:
    return CompareError(
        f"{path}: expected the truth of a rendered drive, found {what}; render it again with "
        "modeld make-drive"
    )
