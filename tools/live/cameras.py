"""Which camera took a picture: intrinsics by device, sensor and size of the frames."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from modeld.errors import CameraConfigError
from modeld.vehicle.calibration import Camera, DeviceCameras, find_readouts
from modeld.vehicle.view_geometry import rot_from_euler
from tools.live.newest import Surroundings
from tools.messages.camera import stand_in_camera
from tools.views.answer import Rpy

ROAD, WIDE = "road", "wideRoad"


@dataclass(frozen=True, slots=True)
class View:
    """How points come into a picture.

    Attributes:
        camera: the pinhole camera.
        rpy_rad: camera_from_calib as roll, pitch, yaw, before the axes are those of a picture.
    """

    camera: Camera
    rpy_rad: Rpy


@dataclass(frozen=True, slots=True)
class CameraTable:
    """Finds intrinsics.

    Attributes:
        given: cameras of a drive that knows them; they come before the table of devices.
        focal_px: of the road camera, as given by the user; before all others.
    """

    given: DeviceCameras | None = None
    focal_px: float | None = None

    def view(
        self, stream: str, size: tuple[int, int], around: Surroundings
    ) -> tuple[View | None, str]:
        """Return how points come into a stream's pictures, or why nobody knows.

        Args:
            stream: "road" or "wideRoad".
            size: width and height of the frames in pixels.
            around: calibration and device.
        """
        rpy_rad = around.rpy_rad
        if stream == WIDE and any(around.wide_rpy_rad):
            rpy_rad = _euler(rot_from_euler(around.wide_rpy_rad) @ rot_from_euler(rpy_rad))
        if self.focal_px is not None and stream == ROAD:
            aspect = 1.0 if self.given is None else self.given.road.pixel_aspect
            return View(stand_in_camera(*size, self.focal_px, aspect), rpy_rad), ""
        if self.given is not None:
            readouts: tuple[DeviceCameras, ...] = (self.given,)
        elif not around.device_type or not around.sensor:
            return None, "which camera it is, is not known before deviceState and roadCameraState"
        else:
            try:
                readouts = find_readouts(around.device_type, around.sensor)
            except CameraConfigError:
                return None, _unknown(around)
        for one in readouts:
            camera = one.road if stream == ROAD else one.wide
            if camera is not None and (camera.width, camera.height) == size:
                return View(camera, rpy_rad), ""
        return None, f"{_unknown(around)} and frames of {size[0]}x{size[1]}"


def _unknown(around: Surroundings) -> str:
    return (
        f"no drawing over it: no focal length is known (--focal-px) for device "
        f"{around.device_type} with sensor {around.sensor}"
    )


def _euler(rotation: NDArray[np.float64]) -> Rpy:
    """Return roll, pitch, yaw of a rotation: the inverse of ``rot_from_euler``."""
    pitch = math.asin(max(-1.0, min(1.0, -float(rotation[2, 0]))))
    roll = math.atan2(float(rotation[2, 1]), float(rotation[2, 2]))
    yaw = math.atan2(float(rotation[1, 0]), float(rotation[0, 0]))
    return roll, pitch, yaw
