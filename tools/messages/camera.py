"""The camera of a video, measured or assumed, and projection into pictures.

Coordinates: calibrated frame x forward, y right, z down (metres); pixels u right, v down. A table
`camera` in a TOML or JSON file has the measured camera of a video; the drives (``--camera``) and
the labels of ``modeld footage`` read it.
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

# A video carries no calibration. 0.9 widths is a horizontal field of view of
# 2 atan(1 / (2 * 0.9)) = 58 degrees: the middle of what dashcams and phones film with (50 to 70).
DEFAULT_FOCAL_PER_WIDTH = 0.9
# Points closer than this are behind or at the lens; what is drawn starts further away.
MIN_DEPTH_M = 0.5
# Mounting height over the road where none is known: behind the mirror of a passenger car.
DEFAULT_HEIGHT_M = 1.22
# Of a file with a camera.
MAX_BYTES: Final = 1 << 20


def stand_in_camera(
    width: int, height: int, focal_px: float | None, pixel_aspect: float = 1.0
) -> Camera:
    """Return the assumed camera of a video.

    Without a focal length it has ``DEFAULT_FOCAL_PER_WIDTH`` widths; `pixel_aspect` is width over
    height.

    Raises:
        UsageError: the focal length is not positive and finite.
    """
    focal = DEFAULT_FOCAL_PER_WIDTH * width if focal_px is None else focal_px
    if not 0.0 < focal < np.inf:
        raise UsageError(f"--focal-px: expected a positive number of pixels, found {focal_px}")
    return Camera(width, height, focal, None if pixel_aspect == 1.0 else focal * pixel_aspect)


def project(
    points_m: NDArray[np.float64], camera: Camera, rpy_rad: tuple[float, float, float]
) -> NDArray[np.float64]:
    """Project points of the calibrated frame into the picture.

    From (n, 3) float64, x forward, y right, z down from the camera, to (n, 2) float64 pixels; NaN
    where a point is nearer than ``MIN_DEPTH_M``. `rpy_rad` is device_from_calib as roll, pitch, yaw
    (``liveCalibration.rpyCalib``).
    """
    view = points_m @ (VIEW_FROM_DEVICE @ rot_from_euler(rpy_rad)).T
    depth = np.where(view[:, 2] > MIN_DEPTH_M, view[:, 2], np.nan)
    pixels = view @ camera.intrinsics.T
    return np.asarray(pixels[:, :2] / depth[:, None])


@dataclass(frozen=True, slots=True)
class VideoCamera:
    """How a camera sees the road; the principal point is the middle of the picture.

    Attributes:
        focal_px: focal length in pixels of the video; None: 0.9 widths.
        roll_deg: positive where what is right of the car is lower in the picture.
        pitch_deg: positive where the camera looks down, which puts the horizon above the middle.
        yaw_deg: positive where the camera looks to the left, so that the car's direction is right
            of the middle.
        height_m: over the road.
    """

    focal_px: float | None = None
    roll_deg: float = 0.0
    pitch_deg: float = 0.0
    yaw_deg: float = 0.0
    height_m: float = DEFAULT_HEIGHT_M

    @property
    def rpy_rad(self) -> tuple[float, float, float]:
        """Return device_from_calib as roll, pitch, yaw in rad."""
        return (
            math.radians(self.roll_deg),
            math.radians(self.pitch_deg),
            math.radians(self.yaw_deg),
        )


def read_video_camera(path: Path) -> VideoCamera:
    """Read the table `camera` of a TOML file, or of a JSON file (ending .json).

    Raises:
        UsageError: there is none, or something in it cannot be.
    """
    given = GivenText(path, UsageError, MAX_BYTES, "--camera")
    content = given.json() if path.suffix == ".json" else given.toml()
    table = content.get("camera") if isinstance(content, dict) else None
    if not isinstance(table, dict):
        raise UsageError(f"--camera {path}: expected a table 'camera', found none; add one")
    return parse_video_camera(f"--camera {path}", table)


def parse_video_camera(where: str, table: Mapping[str, Any]) -> VideoCamera:
    """Check a table and return its camera; `where` names it in messages.

    Raises:
        UsageError: a name is unknown, or a value is no number or out of bounds.
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
