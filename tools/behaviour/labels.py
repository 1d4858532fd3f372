"""Reads hand-labelled lane lines of video frames, and converts them between pixels and the road.

`read_labels` returns `Labels`: the lines of the car's lane in some frames of a clip, and its
camera. In pixel coordinates, column u points right, row v down, and whole numbers are centres of
pixels. Road coordinates are x forward and y right in the calibrated frame, in metres from the point
below the camera.
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

# --- A level road below a calibrated camera ---------------------------------------------------


@dataclass(frozen=True, slots=True)
class RoadPlane:
    """The road as a plane below the camera, parallel to x and y of the calibrated frame."""

    camera: Camera  # the pinhole
    rpy_rad: tuple[float, float, float]  # device_from_calib as roll, pitch, yaw
    height_m: float  # height of the camera above the plane

    def on_road(self, pixels: Floats) -> Floats:
        """Return the points at which the rays of pixels meet the road.

        `pixels` is (n, 2): column and row. The result is (n, 2): x forward and y right in metres;
        NaN at and above the horizon.
        """
        ones = np.ones((len(pixels), 1))
        view = np.concatenate([pixels, ones], axis=1) @ np.linalg.inv(self.camera.intrinsics).T
        # The inverse of a rotation is its transpose: rows times the matrix itself.
        rays = view @ VIEW_FROM_DEVICE @ rot_from_euler(self.rpy_rad)
        down = np.where(rays[:, 2] > 0.0, rays[:, 2], np.nan)
        return np.asarray(rays[:, :2] * (self.height_m / down)[:, None])

    def columns(self, curve_m: Floats, rows_px: Floats) -> Floats:
        """Return the (rows,) columns at which a curve crosses rows of the picture.

        `curve_m` is (n, 3) in the calibrated frame, near to far; `rows_px` is (rows,). The result
        is NaN if the curve does not cross a row in front of the camera.
        """
        pixels = project(curve_m, self.camera, self.rpy_rad)
        return where_crossed(pixels[:, 1], pixels[:, 0], rows_px)


def where_crossed(along: Floats, across: Floats, at: Floats) -> Floats:
    """Return the second coordinate of a polyline at given values of its first coordinate.

    Args:
        along: (n,) first coordinates of the points, in any order. NaN breaks the line.
        across: (n,) second coordinates of the points.
        at: (m,) values of the first coordinate.

    Returns:
        (m,) second coordinates at the first crossing from the line's start; NaN without one.
    """
    before, after = along[:-1, None], along[1:, None]
    is_crossed = (np.minimum(before, after) <= at) & (at <= np.maximum(before, after))
    segment = np.argmax(is_crossed, axis=0)
    start, stop = along[segment], along[segment + 1]
    length = np.where(stop == start, 1.0, stop - start)
    found = across[segment] + (across[segment + 1] - across[segment]) * (at - start) / length
    return np.where(is_crossed.any(axis=0), found, np.nan)


SIDES = ("left", "right")
# A parabola needs three points.
MIN_ROWS = 3
MAX_BYTES = 64 << 20

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LabelledFrame:
    """The labels of one frame."""

    number: int  # number of the clip's frame, from 0
    # (2, rows) columns of the left and the right line's centre; NaN if it cannot be seen.
    columns_px: Floats
    # (2, rows) whether paint is visible; False in gaps of dashed lines.
    is_paint: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Labels:
    """All labelled frames of a clip, and the camera that filmed it."""

    path: Path  # file of the labels
    clip: str  # file name of the clip
    sha256: str  # digest of the clip, 64 hex digits
    size: tuple[int, int]  # (width, height) in pixels
    lane_width_m: float  # assumed distance between the centres of the lines
    video_camera: VideoCamera  # the camera's mounting and focal length
    rows_px: Floats  # (rows,) labelled rows, near to far
    frames: tuple[LabelledFrame, ...]  # at least one, by increasing number
    pixel_aspect: float = 1.0  # width / height of a pixel

    @property
    def camera(self) -> Camera:
        """The pinhole that filmed the clip."""
        return stand_in_camera(*self.size, self.video_camera.focal_px, self.pixel_aspect)

    @property
    def plane(self) -> RoadPlane:
        """The road below this camera."""
        return RoadPlane(self.camera, self.video_camera.rpy_rad, self.video_camera.height_m)

    @property
    def ahead_m(self) -> Floats:
        """The (rows,) distances of the labelled rows in the picture's middle column, in metres."""
        middle = np.full(self.rows_px.size, self.size[0] / 2)
        return self.plane.on_road(np.stack([middle, self.rows_px], axis=-1))[:, 0]

    def on_road(self, frame: LabelledFrame) -> Floats:
        """Return the labels of a frame on the road, (2, rows, 2): x, y; NaN without a label."""
        rows = np.broadcast_to(self.rows_px, frame.columns_px.shape)
        pixels = np.stack([frame.columns_px, rows], axis=-1)
        return self.plane.on_road(pixels.reshape(-1, 2)).reshape(pixels.shape)

    def check_clip(self, clip: Path) -> None:
        """Check that a file is the labelled clip.

        Raises:
            LabelsError: the file is another clip, or cannot be read.
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
        LabelsError: the file cannot be read, or a value is missing or invalid.
    """
    content = GivenText(path, LabelsError, MAX_BYTES).json()
    try:
        return _parse(path, content)
    except UsageError as error:  # invalid camera, here from a file and not from an option
        raise LabelsError(str(error)) from error
    except (KeyError, TypeError, ValueError) as error:
        raise LabelsError(
            f"{path}: expected labels as docs/footage.md describes them, found: "
            f"{type(error).__name__}: {error}"
        ) from error


def _numbers(values: Any, *, or_none: bool = False) -> Floats:
    """Return JSON numbers as an array; null becomes NaN with `or_none`, others are TypeErrors."""
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
