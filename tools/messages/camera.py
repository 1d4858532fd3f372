"""The camera of a video, measured or assumed, and the projection of points into its pictures.

Coordinates: the calibrated frame is x forward, y right, z down, in metres; pixels are u right, v
down. A measured camera is read from the table `camera` of a TOML or JSON file, given by the option
``--camera`` of drives or in the labels of ``modeld footage``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from modeld.vehicle.cameras import VIEW_FROM_DEVICE, Camera, rot_from_euler
from modeld.vehicle.validity import ANGLES
from tools.errors import UsageError
from tools.lib.given_data import GivenText

# Assumed focal length, because a video has no calibration. 0.9 widths give a horizontal field of
# view of 2 atan(1 / (2 * 0.9)) = 58 degrees, typical of dashcams and phones (50 to 70).
DEFAULT_FOCAL_PER_WIDTH = 0.9
# Closer points are at or behind the lens and are not projected.
MIN_DEPTH_M = 0.5
# Assumed height over the road: behind the mirror of a passenger car.
DEFAULT_HEIGHT_M = 1.22
# Largest size of a camera file.
MAX_BYTES: Final = 1 << 20


def stand_in_camera(
    width: int, height: int, focal_px: float | None, pixel_aspect: float = 1.0
) -> Camera:
    """Return the assumed camera of a video.

    If `focal_px` is None, the focal length is ``DEFAULT_FOCAL_PER_WIDTH`` widths. `pixel_aspect` is
    the width of a pixel divided by its height.

    Raises:
        UsageError: The focal length is not positive and finite.
    """
    focal = DEFAULT_FOCAL_PER_WIDTH * width if focal_px is None else focal_px
    if not 0.0 < focal < np.inf:
        raise UsageError(f"--focal-px: expected a positive number of pixels, found {focal_px}")
    return Camera(width, height, focal, None if pixel_aspect == 1.0 else focal * pixel_aspect)


def project(
    points_m: NDArray[np.float64], camera: Camera, rpy_rad: tuple[float, float, float]
) -> NDArray[np.float64]:
    """Project points of the calibrated frame into the picture; return pixels (n, 2) float64.

    `points_m` is (n, 3) float64, x forward, y right, z down from the camera. Points nearer than
    ``MIN_DEPTH_M`` become NaN. `rpy_rad` is device_from_calib as roll, pitch, yaw
    (``liveCalibration.rpyCalib``).
    """
    view = points_m @ (VIEW_FROM_DEVICE @ rot_from_euler(rpy_rad)).T
    depth = np.where(view[:, 2] > MIN_DEPTH_M, view[:, 2], np.nan)
    pixels = view @ camera.intrinsics.T
    return np.asarray(pixels[:, :2] / depth[:, None])


@dataclass(frozen=True, slots=True)
class VideoCamera:
    """Focal length, orientation and height of a camera. Its principal point is the image center.

    Attributes:
        focal_px: Focal length in pixels of the video; None: 0.9 widths.
        roll_deg: Positive if the right side of the road is lower in the picture.
        pitch_deg: Positive if the camera looks down, so the horizon is above the center.
        yaw_deg: Positive if the camera looks left, so the car's direction is right of the center.
        height_m: Height over the road.
    """

    focal_px: float | None = None
    roll_deg: float = 0.0
    pitch_deg: float = 0.0
    yaw_deg: float = 0.0
    height_m: float = DEFAULT_HEIGHT_M

    @property
    def rpy_rad(self) -> tuple[float, float, float]:
        """The rotation device_from_calib as roll, pitch, yaw in rad."""
        return (
            math.radians(self.roll_deg),
            math.radians(self.pitch_deg),
            math.radians(self.yaw_deg),
        )


def read_video_camera(path: Path) -> VideoCamera:
    """Return the camera in the table `camera` of a TOML file, or of a JSON file (suffix .json).

    Raises:
        UsageError: The file has no such table, or a value in it is invalid.
    """
    given = GivenText(path, UsageError, MAX_BYTES, "--camera")
    content = given.json() if path.suffix == ".json" else given.toml()
    table = content.get("camera") if isinstance(content, dict) else None
    if not isinstance(table, dict):
        raise UsageError(f"--camera {path}: expected a table 'camera', found none; add one")
    return parse_video_camera(f"--camera {path}", table)


def parse_video_camera(where: str, table: Mapping[str, Any]) -> VideoCamera:
    """Return the camera in a table; `where` names the table in messages.

    Raises:
        UsageError: A name is unknown, or a value is not a number or out of bounds.
    """
    known = [field.name for field in fields(VideoCamera)]
    for name, value in table.items():
        if name not in known:
            raise UsageError(
                f"{where}: camera.{name}: expected one of {', '.join(known)}; remove it"
            )
        if isinstance(value, bool) or not isinstance(value, int | float) or not _is_finite(value):
            raise UsageError(f"{where}: camera.{name}: expected a finite number, found {value!r}")
        if name in ("focal_px", "height_m") and value <= 0.0:
            raise UsageError(f"{where}: camera.{name}: expected more than 0, found {value!r}")
    camera = VideoCamera(**{name: float(value) for name, value in table.items()})
    for rule, name, angle in zip(ANGLES, known[1:4], camera.rpy_rad, strict=True):
        if not rule.allows(angle):
            raise UsageError(
                f"{where}: camera.{name}: {rule.describe(angle)}; the daemon would refuse it"
            )
    return camera


def _is_finite(value: float) -> bool:
    return abs(value) < float("inf")
