"""Projects points of the road plane into a camera's picture.

Calibrated frame of the car: x forward, y right, z down, origin in the camera; the road lies at
z = height. Pixel coordinates are those of the warp that cuts the model's view out: whole numbers
are the middles of pixels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from modeld.calibration import Camera
from tools.world.curves import Floats, sin_cos

Bytes = NDArray[np.uint8]

# Nearer than this to the plane of the lens, points are taken to lie at this depth.
_NEAREST_M = 0.05


@dataclass(frozen=True, slots=True)
class Mount:
    """A camera and how it is mounted.

    Attributes:
        camera: intrinsics.
        rpy_rad: roll, pitch, yaw as in ``liveCalibration.rpyCalib`` (device from calib).
        height_m: over the road.
    """

    camera: Camera
    rpy_rad: tuple[float, float, float]
    height_m: float


class View:
    """Projects points of the calibrated frame into one camera's picture.

    Args:
        mount: the camera.
    """

    def __init__(self, mount: Mount) -> None:
        self.camera = mount.camera
        self.height_m = mount.height_m
        # Rows of VIEW_FROM_DEVICE @ rot_from_euler: right, down, forward of the camera.
        forward, right, down = rotation(mount.rpy_rad)
        self._right, self._down, self._forward = right, down, forward

    def project(self, x_m: Floats, y_m: Floats, z_m: Floats | float) -> tuple[Floats, Floats]:
        """Return pixel columns and rows of points (any equal shapes), x forward, y right, z down.

        Points at or behind the lens are taken to be just before it, so that lines that pass the
        camera leave the picture on the right side.
        """
        camera = self.camera
        depth = _dot(self._forward, x_m, y_m, z_m)
        scale = camera.focal_px / np.maximum(depth, _NEAREST_M)
        columns = camera.width / 2 + scale * _dot(self._right, x_m, y_m, z_m)
        rows = camera.height / 2 + scale * _dot(self._down, x_m, y_m, z_m)
        return columns, rows

    def horizon_rows(self) -> Floats:
        """Return the row of the horizon in each column, (width,)."""
        camera = self.camera
        columns = (np.arange(camera.width) - camera.width / 2) / camera.focal_px
        # Rays in the road plane have no z in the calibrated frame: column 2 of the rotation.
        right, down, forward = self._right[2], self._down[2], self._forward[2]
        return np.asarray(camera.height / 2 - camera.focal_px * (forward + right * columns) / down)

    def azimuths(self) -> Floats:
        """Return the direction of each column's ray at the horizon, rad to the right, (width,)."""
        camera = self.camera
        column = (np.arange(camera.width) - camera.width / 2) / camera.focal_px
        row = (self.horizon_rows() - camera.height / 2) / camera.focal_px
        ahead = self._forward[0] + self._right[0] * column + self._down[0] * row
        aside = self._forward[1] + self._right[1] * column + self._down[1] * row
        # numpy's arctangent may differ in its last bits from one processor to the next.
        return np.asarray(np.rint(np.arctan2(aside, ahead) * 2.0**30) / 2.0**30)


def rotation(rpy_rad: tuple[float, float, float]) -> list[list[float]]:
    """Return ``rot_from_euler`` as rows, from the same figures on every processor."""
    (sr, sp, sy), (cr, cp, cy) = (part.tolist() for part in sin_cos(np.array(rpy_rad)))
    return [
        [cy * cp, cy * sp * sr - sy * cr, cy * sp * cr + sy * sr],
        [sy * cp, sy * sp * sr + cy * cr, sy * sp * cr - cy * sr],
        [-sp, cp * sr, cp * cr],
    ]


def _dot(row: list[float], x: Floats, y: Floats, z: Floats | float) -> Floats:
    return np.asarray(row[0] * x + row[1] * y + row[2] * z)
