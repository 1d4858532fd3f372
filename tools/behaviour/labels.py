"""Hand-labelled frames of a clip: the lines of the car's lane, in pixels and on the road.

Pixels: column u right, row v down, whole numbers are centres of pixels. On the road: x forward, y
right, in metres from the point under the camera, in the calibrated frame.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modeld.vehicle.cameras import VIEW_FROM_DEVICE, Camera, rot_from_euler
from tools.errors import LabelsError, UsageError
from tools.lib.given_data import GivenText
from tools.messages.camera import VideoCamera, parse_video_camera, project, stand_in_camera

# --- A level road under a calibrated camera: pixels to metres, curves to columns of rows ------


@dataclass(frozen=True, slots=True)
class RoadPlane:
    """The plane that lies under the camera, parallel to the calibrated frame's x and y."""

    camera: Camera  # the pinhole
    rpy_rad: tuple[float, float, float]  # device_from_calib as roll, pitch, yaw
    height_m: float  # of the camera over the plane

    def on_road(self, pixels: Floats) -> Floats:
        """Return where the rays of pixels meet the road.

        `pixels`: (n, 2) float64, column and row. The result is (n, 2) float64, x forward and y
        right in m; NaN at and above the horizon.
        """
        ones = np.ones((len(pixels), 1))
        view = np.concatenate([pixels, ones], axis=1) @ np.linalg.inv(self.camera.intrinsics).T
        # The inverse of a rotation is its transpose: rows times the matrix itself.
        rays = view @ VIEW_FROM_DEVICE @ rot_from_euler(self.rpy_rad)
        down = np.where(rays[:, 2] > 0.0, rays[:, 2], np.nan)
        return np.asarray(rays[:, :2] * (self.height_m / down)[:, None])

    def columns(self, curve_m: Floats, rows_px: Floats) -> Floats:
        """Return the columns at which a curve crosses rows of the picture.

        `curve_m`: (n, 3) float64, calibrated frame, near to far. `rows_px`: (rows,) float64. The
        result is (rows,) float64; NaN where the curve does not cross the row in front of the
        camera.
        """
        pixels = project(curve_m, self.camera, self.rpy_rad)
        return where_crossed(pixels[:, 1], pixels[:, 0], rows_px)


def where_crossed(along: Floats, across: Floats, at: Floats) -> Floats:
    """Return the second coordinate of a polyline where its first one has given values.

    `along`: (n,) first coordinate of the corners, in any order; NaN breaks the line. `across`: (n,)
    second coordinate. `at`: (m,) values of the first one. The result is (m,) float64, of the first
    crossing from the line's start; NaN where there is none.
    """
    before, after = along[:-1, None], along[1:, None]
    is_crossed = (np.minimum(before, after) <= at) & (at <= np.maximum(before, after))
    segment = np.argmax(is_crossed, axis=0)
    start, stop = along[segment], along[segment + 1]
    length = np.where(stop == start, 1.0, stop - start)
    found = across[segment] + (across[segment + 1] - across[segment]) * (at - start) / length
    return np.where(is_crossed.any(axis=0), found, np.nan)


SIDES = ("left", "right")
# Fewer and there is nothing to fit a parabola to.
MIN_ROWS = 3
MAX_BYTES = 64 << 20

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LabelledFrame:
    """One picture."""

    # Of the clip's frame, from 0.
    number: int  # of the clip's frame, from 0
    # (2, rows) float64, centres of the left and the right line; NaN where nobody can tell.
    columns_px: Floats
    # (2, rows) bool, paint was seen there; else the line was drawn through its dashes.
    is_paint: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Labels:
    """All labelled frames of a clip, and the camera that filmed it."""

    path: Path
    clip: str
    sha256: str  # of the clip, 64 hex digits
    size: tuple[int, int]  # (width, height) in pixels
    lane_width_m: float  # between the centres of its lines, as assumed
    video_camera: VideoCamera  # as drives take it
    rows_px: Floats  # (rows,) float64, the labelled rows, near to far
    frames: tuple[LabelledFrame, ...]  # at least one, by increasing number
    pixel_aspect: float = 1.0  # width of a pixel over its height

    @property
    def camera(self) -> Camera:
        """The pinhole that filmed the clip."""
        return stand_in_camera(*self.size, self.video_camera.focal_px, self.pixel_aspect)

    @property
    def plane(self) -> RoadPlane:
        """The road as this camera sees it."""
        return RoadPlane(self.camera, self.video_camera.rpy_rad, self.video_camera.height_m)

    @property
    def ahead_m(self) -> Floats:
        """(rows,) distances of the labelled rows, straight ahead."""
        middle = np.full(self.rows_px.size, self.size[0] / 2)
        return self.plane.on_road(np.stack([middle, self.rows_px], axis=-1))[:, 0]

    def on_road(self, frame: LabelledFrame) -> Floats:
        """Return where the labels of a frame lie, (2, rows, 2) float64: x, y; NaN as in them."""
        rows = np.broadcast_to(self.rows_px, frame.columns_px.shape)
        pixels = np.stack([frame.columns_px, rows], axis=-1)
        return self.plane.on_road(pixels.reshape(-1, 2)).reshape(pixels.shape)

    def check_clip(self, clip: Path) -> None:
        """Refuse another clip than the one that was labelled.

        Raises:
            LabelsError: it is another one, or cannot be read.
        """
        try:
            with clip.open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise LabelsError(
                f"{clip}: expected the clip {self.clip}, found: {error.strerror}; check the path"
            ) from error
        if found != self.sha256:
            raise LabelsError(
                f"{clip}: expected {self.clip} with sha256 {self.sha256[:16]}, found "
                f"{found[:16]}; {self.path} labels another clip"
            )


def read_labels(path: Path) -> Labels:
    """Read a file of labels; docs/footage.md has its format.

    Raises:
        LabelsError: it cannot be read, or something in it is missing or cannot be.
    """
    content = GivenText(path, LabelsError, MAX_BYTES).json()
    try:
        return _parse(path, content)
    except UsageError as error:  # of the camera: here it is no option that is wrong
        raise LabelsError(str(error)) from error
    except (KeyError, TypeError, ValueError) as error:
        raise LabelsError(
            f"{path}: expected labels as docs/footage.md describes them, found: "
            f"{type(error).__name__}: {error}"
        ) from error


def _numbers(values: Any, *, or_none: bool = False) -> Floats:
    """Return JSON's numbers, of which numpy would also make texts; null becomes NaN."""
    for value in values:
        if type(value) not in (int, float) and not (or_none and value is None):
            raise TypeError(f"expected a number, found {value!r}")
    return np.array(values, np.float64)


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"expected a whole number, found {value!r}")
    return value


def _parse(path: Path, content: Mapping[str, Any]) -> Labels:
    rows = _numbers(content["rows"])
    if rows.ndim != 1 or rows.size < MIN_ROWS or not (np.diff(rows) < 0.0).all():
        raise ValueError(f"rows: expected at least {MIN_ROWS} that decrease, found {rows.tolist()}")
    frames = tuple(_parse_frame(one, rows.size) for one in content["frames"])
    numbers = [frame.number for frame in frames]
    if not numbers or numbers[0] < 0 or (np.diff(numbers) <= 0).any():
        raise ValueError(f"frames: expected numbers that increase from 0, found {numbers}")
    labels = Labels(
        path=path,
        clip=str(content["clip"]),
        sha256=str(content["sha256"]),
        size=(_whole(content["width"]), _whole(content["height"])),
        lane_width_m=float(_numbers([content["lane_width_m"]])[0]),
        video_camera=parse_video_camera(str(path), content["camera"]),
        rows_px=rows,
        frames=frames,
    )
    if not np.isfinite(labels.ahead_m).all():
        raise ValueError(f"rows: expected rows below the horizon of the camera, found {rows[-1]:g}")
    return labels


def _parse_frame(one: Mapping[str, Any], rows: int) -> LabelledFrame:
    number = _whole(one["frame"])
    columns = np.array([_numbers(one[side], or_none=True) for side in SIDES])
    paint = [[mark == "1" for mark in one[f"{side}_paint"]] for side in SIDES]
    is_paint = np.array(paint, np.bool_)
    if columns.shape != (2, rows) or is_paint.shape != (2, rows):
        raise ValueError(f"frame {number}: expected {rows} columns and marks of each side")
    if np.isinf(columns).any() or (columns[0] >= columns[1]).any():
        raise ValueError(f"frame {number}: expected the left line to be left of the right one")
    return LabelledFrame(number, columns, is_paint)
