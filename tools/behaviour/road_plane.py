"""A level road as a calibrated camera sees it: pixels to metres, and curves to columns of rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from modeld.vehicle.calibration import Camera
from modeld.vehicle.view_geometry import VIEW_FROM_DEVICE, rot_from_euler
from tools.messages.camera import project

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RoadPlane:
    """The plane that lies under the camera, parallel to the calibrated frame's x and y.

    Attributes:
        camera: the pinhole.
        rpy_rad: device_from_calib as roll, pitch, yaw.
        height_m: of the camera over the plane.
    """

    camera: Camera
    rpy_rad: tuple[float, float, float]
    height_m: float

    def on_road(self, pixels: Floats) -> Floats:
        """Return where the rays of pixels meet the road.

        Args:
            pixels: (n, 2) float64, column and row.

        Returns:
            (n, 2) float64, x forward and y right in m; NaN at and above the horizon.
        """
        ones = np.ones((len(pixels), 1))
        view = np.concatenate([pixels, ones], axis=1) @ np.linalg.inv(self.camera.intrinsics).T
        # The inverse of a rotation is its transpose: rows times the matrix itself.
        rays = view @ VIEW_FROM_DEVICE @ rot_from_euler(self.rpy_rad)
        down = np.where(rays[:, 2] > 0.0, rays[:, 2], np.nan)
        return np.asarray(rays[:, :2] * (self.height_m / down)[:, None])

    def columns(self, curve_m: Floats, rows_px: Floats) -> Floats:
        """Return the columns at which a curve crosses rows of the picture.

        Args:
            curve_m: (n, 3) float64, calibrated frame, near to far.
            rows_px: (rows,) float64.

        Returns:
            (rows,) float64; NaN where the curve does not cross the row in front of the camera.
        """
        pixels = project(curve_m, self.camera, self.rpy_rad)
        return where_crossed(pixels[:, 1], pixels[:, 0], rows_px)


def where_crossed(along: Floats, across: Floats, at: Floats) -> Floats:
    """Return the second coordinate of a polyline where its first one has given values.

    Args:
        along: (n,) first coordinate of the corners, in any order; NaN breaks the line.
        across: (n,) second coordinate.
        at: (m,) values of the first one.

    Returns:
        (m,) float64, of the first crossing from the line's start; NaN where there is none.
    """
    before, after = along[:-1, None], along[1:, None]
    is_crossed = (np.minimum(before, after) <= at) & (at <= np.maximum(before, after))
    segment = np.argmax(is_crossed, axis=0)
    start, stop = along[segment], along[segment + 1]
    length = np.where(stop == start, 1.0, stop - start)
    found = across[segment] + (across[segment + 1] - across[segment]) * (at - start) / length
    return np.where(is_crossed.any(axis=0), found, np.nan)
