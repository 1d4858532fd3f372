"""Reads the truth of rendered drives: the output of a perfect model.

docs/formats/truth.md describes the files. Calibrated frame: x forward, y right, z down.
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
# Shape of a row of each key, besides the row of each frame.
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
# A day at 20 Hz; no array of a file may ask for more memory than its rows have.
_MAX_FRAMES: Final = 24 * 3600 * 20


@dataclass(frozen=True, slots=True)
class Truth:
    """The truth of n frames, as docs/formats/truth.md has it; NaN where there is nothing."""

    frame_id: NDArray[np.int64]  # (n,) int64
    # (33,) times of the path, rising from 0. They are the file's own: where the code's times are
    # not these, its messages are compared with the truth all the same.
    t_s: Floats
    x_m: Floats  # (33,) distances of lines and edges likewise
    speed_mps: Floats  # (n,) of the car
    acceleration_mps2: Floats  # (n,) of the car
    curvature_1pm: Floats  # (n,) of its path, positive to the right
    lane_line_y_m: Floats  # (n, 4, 33) at the distances ``x_m``
    road_edge_y_m: Floats  # (n, 2, 33) likewise
    lead_xyv: Floats  # (n, 3) rear of the car ahead: x, y, speed
    path_xy_m: Floats  # (n, 33, 2) where the camera will be at the times ``t_s``
    path_speed_mps: Floats  # (n, 33) its speed there
    path_yaw_rad: Floats  # (n, 33) its heading there, relative to now


def read_truth(path: Path) -> Truth:
    """Read the truth of a drive.

    `path`: a ``truth.npz``, a segment's directory, or one that holds segments' directories; theirs
    are taken together, by frame id.

    Raises:
        CompareError: there is none, or it is damaged.
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
        CompareError: they have not the same times and distances.
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
        # numpy would leave a damaged file open.
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
