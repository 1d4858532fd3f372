"""Projects points of the world and of the calibrated frame into a camera's picture.

World: x forward at the start, y right, z down. Calibrated frame: x forward, y right, z down,
origin in the camera, fixed to the car levelled with the road under it; that road lies at
z = height. Pixel coordinates are those of the warp that cuts the model's view out: whole numbers
are the middles of pixels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from modeld.vehicle.cameras import MED_MODEL_INTRINSICS, SBIG_MODEL_INTRINSICS, Camera
from tools.simulator.world.car import Body
from tools.simulator.world.curves import Floats, sin_cos

Bytes = NDArray[np.uint8]
# Three rows of a rotation.
Rotation = list[list[float]]

# Nearer than this to the plane of the lens, points are taken to lie at this depth.
NEAREST_M = 0.05


@dataclass(frozen=True, slots=True)
class Lens:
    """A pinhole camera with square pixels and a principal point anywhere.

    `cx_px` and `cy_px` are column and row of the principal point.
    """

    width: int
    height: int
    focal_px: float
    cx_px: float
    cy_px: float

    @classmethod
    def of(cls, camera: Camera) -> Lens:
        """Return the lens of a camera of the device table: its principal point is the middle."""
        return cls(
            camera.width, camera.height, camera.focal_px, camera.width / 2, camera.height / 2
        )


def _model_lens(intrinsics: NDArray[np.float64]) -> Lens:
    return Lens(512, 256, *(float(intrinsics[at]) for at in ((0, 0), (0, 2), (1, 2))))


# The model's two views, 512x256 each: pictures painted with them need no warp.
MED_LENS = _model_lens(MED_MODEL_INTRINSICS)
WIDE_LENS = _model_lens(SBIG_MODEL_INTRINSICS)


@dataclass(frozen=True, slots=True)
class Mount:
    """A lens and how it is mounted.

    `rpy_rad` is roll, pitch, yaw as in ``liveCalibration.rpyCalib`` (device from calib), `height_m`
    the height over the road.
    """

    lens: Lens
    rpy_rad: tuple[float, float, float]
    height_m: float


class Sight(NamedTuple):
    """A camera at one moment.

    `right`, `down` and `forward` (columns, rows, optical axis) are the rows of camera from world.
    """

    lens: Lens
    origin_m: tuple[float, float, float]
    right: list[float]
    down: list[float]
    forward: list[float]

    def turn(
        self, x: Floats | float, y: Floats | float, z: Floats | float
    ) -> tuple[Floats, Floats, Floats]:
        """Return vectors of the world as right, down and forward of the camera."""
        return _dot(self.right, x, y, z), _dot(self.down, x, y, z), _dot(self.forward, x, y, z)

    def reach(
        self, x_m: Floats | float, y_m: Floats | float, z_m: Floats | float
    ) -> tuple[Floats, Floats, Floats]:
        """Return points of the world as metres right, down and forward of the camera."""
        x, y, z = self.origin_m
        return self.turn(x_m - x, y_m - y, z_m - z)

    def project(
        self, x_m: Floats | float, y_m: Floats | float, z_m: Floats | float
    ) -> tuple[Floats, Floats, Floats]:
        """Return pixel columns, rows and depths (m) of points of the world.

        Points at or behind the lens are taken to be just before it.
        """
        right, down, forward = self.reach(x_m, y_m, z_m)
        scale = self.lens.focal_px / np.maximum(forward, NEAREST_M)
        return self.lens.cx_px + scale * right, self.lens.cy_px + scale * down, forward

    def horizon_rows(self, columns: Floats) -> Floats:
        """Return the row in which each column sees infinitely far on a level plane."""
        lens = self.lens
        aside = (columns - lens.cx_px) / lens.focal_px
        # A ray (aside, row, 1) is level where the world's down, column 2 of each row, is 0 in it.
        row = -(self.forward[2] + self.right[2] * aside) / self.down[2]
        return np.asarray(lens.cy_px + lens.focal_px * row)


class View:
    """Knows where a mounted camera looks."""

    def __init__(self, mount: Mount) -> None:
        self.lens = mount.lens
        self.height_m = mount.height_m
        # Rows of VIEW_FROM_DEVICE @ rot_from_euler: right, down, forward of the camera.
        forward, right, down = rotation(mount.rpy_rad)
        self._right, self._down, self._forward = right, down, forward

    def azimuths(self) -> Floats:
        """Return the direction of each column's ray at the horizon, rad to the right, (width,)."""
        lens = self.lens
        column = (np.arange(lens.width) - lens.cx_px) / lens.focal_px
        # Rays in the road plane have no z in the calibrated frame: column 2 of the rotation.
        row = -(self._forward[2] + self._right[2] * column) / self._down[2]
        ahead = self._forward[0] + self._right[0] * column + self._down[0] * row
        aside = self._forward[1] + self._right[1] * column + self._down[1] * row
        # numpy's arctangent may differ in its last bits from one processor to the next.
        return np.asarray(np.rint(np.arctan2(aside, ahead) * 2.0**30) / 2.0**30)

    def rays(self) -> tuple[Floats, Floats, Floats]:
        """Return each pixel's ray in the calibrated frame: ahead, right, down, (h, w) each."""
        lens = self.lens
        column = ((np.arange(lens.width) - lens.cx_px) / lens.focal_px)[None, :]
        row = ((np.arange(lens.height) - lens.cy_px) / lens.focal_px)[:, None]
        parts = [
            self._forward[axis] + self._right[axis] * column + self._down[axis] * row
            for axis in range(3)
        ]
        return parts[0], parts[1], parts[2]

    def sight(self, body: Body) -> Sight:
        """Return the camera of a car at a moment."""
        turned = rotation((body.roll_rad, body.pitch_rad, body.heading_rad))
        # The camera stands over the road, across to it: up is column 2 of world from calib, less.
        place = (body.x_m, body.y_m, body.z_m)
        x, y, z = (at - self.height_m * row[2] for at, row in zip(place, turned, strict=True))
        # Rows of camera from calib, turned to camera from world.
        right, down, forward = (
            [one[0] * row[0] + one[1] * row[1] + one[2] * row[2] for row in turned]
            for one in (self._right, self._down, self._forward)
        )
        return Sight(self.lens, (x, y, z), right, down, forward)


def rotation(rpy_rad: tuple[float, float, float]) -> Rotation:
    """Return ``rot_from_euler`` as rows, from the same figures on every processor."""
    (sr, sp, sy), (cr, cp, cy) = (part.tolist() for part in sin_cos(np.array(rpy_rad)))
    return [
        [cy * cp, cy * sp * sr - sy * cr, cy * sp * cr + sy * sr],
        [sy * cp, sy * sp * sr + cy * cr, sy * sp * cr - cy * sr],
        [-sp, cp * sr, cp * cr],
    ]


def _dot(row: list[float], x: Floats | float, y: Floats | float, z: Floats | float) -> Floats:
    return np.asarray(row[0] * x + row[1] * y + row[2] * z)
