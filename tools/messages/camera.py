"""The assumed camera of a video, and projection into pictures.

Coordinates: calibrated frame x forward, y right, z down (metres); pixels u right, v down.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from modeld.vehicle.cameras import VIEW_FROM_DEVICE, Camera, rot_from_euler
from tools.errors import UsageError

# A video carries no calibration. 0.9 widths is a horizontal field of view of
# 2 atan(1 / (2 * 0.9)) = 58 degrees: the middle of what dashcams and phones film with (50 to 70).
DEFAULT_FOCAL_PER_WIDTH = 0.9
# Points closer than this are behind or at the lens; what is drawn starts further away.
MIN_DEPTH_M = 0.5
# Mounting height over the road where none is known: behind the mirror of a passenger car.
DEFAULT_HEIGHT_M = 1.22


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
