"""Camera projection: maps points of the world and of the calibrated frame to pixels.

World: x forward at the start of the road, y right, z down. Calibrated frame: x forward, y right,
z down, origin in the camera, aligned with the road under the car; that road is at z = height.
Pixel coordinates follow the warp that crops the model's view: integers are pixel centres.
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
# The rows of a 3x3 rotation matrix.
Rotation = list[list[float]]

# Depths below this are clamped to it, to keep the projection finite.
NEAREST_M = 0.05


@dataclass(frozen=True, slots=True)
class Lens:
    """A pinhole camera with square pixels and an arbitrary principal point.

    `cx_px` and `cy_px` are the column and the row of the principal point.
    """

    width: int
    height: int
    focal_px: float
    cx_px: float
    cy_px: float

    @classmethod
    def of(cls, camera: Camera) -> Lens:
        """Return the lens of a camera in the device table, with a central principal point."""
        return cls(
            camera.width, camera.height, camera.focal_px, camera.width / 2, camera.height / 2
        )


def _model_lens(intrinsics: NDArray[np.float64]) -> Lens:
    return Lens(512, 256, *(float(intrinsics[at]) for at in ((0, 0), (0, 2), (1, 2))))


# The model's two views, 512x256 each. Pictures rendered with these lenses need no warp.
MED_LENS = _model_lens(MED_MODEL_INTRINSICS)
WIDE_LENS = _model_lens(SBIG_MODEL_INTRINSICS)


@dataclass(frozen=True, slots=True)
class Mount:
    """A lens with its mounting.

    `rpy_rad` is roll, pitch, yaw as in ``liveCalibration.rpyCalib`` (device from calib).
    `height_m` is the height above the road.
    """

    lens: Lens
    rpy_rad: tuple[float, float, float]
    height_m: float


class Sight(NamedTuple):
    """The pose of a camera at one time.

    `right`, `down` and `forward` are the rows of the camera-from-world rotation: the directions of
    increasing columns and rows, and the optical axis.
    """

    lens: Lens
    origin_m: tuple[float, float, float]
    right: list[float]
    down: list[float]
    forward: list[float]

    def turn(
        self, x: Floats | float, y: Floats | float, z: Floats | float
    ) -> tuple[Floats, Floats, Floats]:
        """Return world vectors as right, down and forward components in the camera."""
        return _dot(self.right, x, y, z), _dot(self.down, x, y, z), _dot(self.forward, x, y, z)

    def reach(
        self, x_m: Floats | float, y_m: Floats | float, z_m: Floats | float
    ) -> tuple[Floats, Floats, Floats]:
        """Return world points as metres right, down and forward of the camera."""
        x, y, z = self.origin_m
        return self.turn(x_m - x, y_m - y, z_m - z)

    def project(
        self, x_m: Floats | float, y_m: Floats | float, z_m: Floats | float
    ) -> tuple[Floats, Floats, Floats]:
        """Return pixel columns, rows and depths (m) of world points.

        Points at or behind the lens are projected as if they were just in front of it.
        """
        right, down, forward = self.reach(x_m, y_m, z_m)
        scale = self.lens.focal_px / np.maximum(forward, NEAREST_M)
        return self.lens.cx_px + scale * right, self.lens.cy_px + scale * down, forward

    def horizon_rows(self, columns: Floats) -> Floats:
        """Return the row of the level horizon in each column."""
        lens = self.lens
        aside = (columns - lens.cx_px) / lens.focal_px
        # A ray (aside, row, 1) is level if its component along the world's down axis is 0.
        row = -(self.forward[2] + self.right[2] * aside) / self.down[2]
        return np.asarray(lens.cy_px + lens.focal_px * row)


class View:
    """A mounted camera: computes its rays, and its pose for a pose of the car."""

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
        # Rays parallel to the road have no z in the calibrated frame, column 2 of the rotation.
        row = -(self._forward[2] + self._right[2] * column) / self._down[2]
        ahead = self._forward[0] + self._right[0] * column + self._down[0] * row
        aside = self._forward[1] + self._right[1] * column + self._down[1] * row
        # Rounding hides that numpy's arctangent can differ in the last bits between processors.
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
        """Return the camera's pose for a state of the car."""
        turned = rotation((body.roll_rad, body.pitch_rad, body.heading_rad))
        # The camera is above the rear axle along the road's normal, the negated column 2 of the
        # rotation.
        place = (body.x_m, body.y_m, body.z_m)
        x, y, z = (at - self.height_m * row[2] for at, row in zip(place, turned, strict=True))
        # Combine camera from calib with calib from world.
        right, down, forward = (
            [one[0] * row[0] + one[1] * row[1] + one[2] * row[2] for row in turned]
            for one in (self._right, self._down, self._forward)
        )
        return Sight(self.lens, (x, y, z), right, down, forward)


def rotation(rpy_rad: tuple[float, float, float]) -> Rotation:
    """Return the rows of ``rot_from_euler``, bit-identical on every processor."""
    (sr, sp, sy), (cr, cp, cy) = (part.tolist() for part in sin_cos(np.array(rpy_rad)))
    return [
        [cy * cp, cy * sp * sr - sy * cr, cy * sp * cr + sy * sr],
        [sy * cp, sy * sp * sr + cy * cr, sy * sp * cr - cy * sr],
        [-sp, cp * sr, cp * cr],
    ]


def _dot(row: list[float], x: Floats | float, y: Floats | float, z: Floats | float) -> Floats:
    return np.asarray(row[0] * x + row[1] * y + row[2] * z)
