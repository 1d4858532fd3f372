"""Cameras of a device as pinholes, known by its type and sensor.

Figures: openpilot's published device table, 2024-2026.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from modeld.errors import CameraConfigError
from modeld.vehicle.view_geometry import pinhole_matrix


@dataclass(frozen=True, slots=True)
class Camera:
    """A camera whose principal point is the middle of its picture; all in pixels."""

    width: int
    height: int
    focal_px: float
    focal_y_px: float | None = None  # of columns; None if pixels are square

    @property
    def pixel_aspect(self) -> float:
        """Width of a pixel over its height."""
        return 1.0 if self.focal_y_px is None else self.focal_y_px / self.focal_px

    @property
    def intrinsics(self) -> NDArray[np.float64]:
        """3x3 float64 matrix from view coordinates to pixels."""
        return pinhole_matrix(self.focal_px, self.width / 2, self.height / 2, self.focal_y_px)

    def scaled(self, width: int, height: int) -> "Camera":
        """Return the camera of these pictures scaled to another size, each axis by itself."""
        focal_y_px = self.focal_px if self.focal_y_px is None else self.focal_y_px
        return Camera(
            width,
            height,
            self.focal_px * width / self.width,
            focal_y_px * height / self.height,
        )


@dataclass(frozen=True, slots=True)
class DeviceCameras:
    """The outward cameras of a device; ``wide`` is None where there is only one."""

    road: Camera
    wide: Camera | None


_AR_OX: Final = DeviceCameras(Camera(1928, 1208, 2648.0), Camera(1928, 1208, 567.0))
_OS: Final = DeviceCameras(Camera(1344, 760, 1522.0 * 3 / 4), Camera(1344, 760, 567.0 * 3 / 4))
# The same sensor unbinned, as in 2024.
_OS_FULL: Final = DeviceCameras(
    Camera(2688, 1520, 2648.0 * 2 / 3), Camera(2688, 1520, 567.0 * 3 / 2)
)
_NEO: Final = DeviceCameras(Camera(1164, 874, 910.0), None)


def _camera_table() -> Mapping[tuple[str, str], DeviceCameras]:
    table = {
        (device, sensor): _AR_OX
        for device in ("tici", "tizi", "mici")
        for sensor in ("ar0231", "ox03c10")
    }
    table |= {(device, "os04c10"): _OS for device in ("tici", "tizi", "mici")}
    # Logs of early software name the sensor or the device "unknown".
    for key in (
        ("tici", "unknown"),
        ("unknown", "ar0231"),
        ("unknown", "ox03c10"),
        ("pc", "unknown"),
    ):
        table[key] = _AR_OX
    table["neo", "unknown"] = _NEO
    return MappingProxyType(table)


DEVICE_CAMERAS: Final = _camera_table()

# Sensor -> its other readouts; frames tell by their size which one it is.
_OTHER_READOUTS: Final[Mapping[str, tuple[DeviceCameras, ...]]] = MappingProxyType(
    {"os04c10": (_OS_FULL,)}
)


def find_cameras(device_type: str, sensor: str) -> DeviceCameras:
    """Look up the cameras of a device, with the readout that its sensor has today.

    The texts are ``deviceState.deviceType`` and ``roadCameraState.sensor``. Raises
    CameraConfigError if the pair is not in the table.
    """
    cameras = DEVICE_CAMERAS.get((device_type, sensor))
    if cameras is None:
        known = ", ".join(sorted(f"{device}/{name}" for device, name in DEVICE_CAMERAS))
        raise CameraConfigError(
            f"camera table: no cameras for device {device_type!r} with sensor {sensor!r}, "
            f"known are {known}; set [camera.road] in the configuration"
        )
    return cameras


def find_readouts(device_type: str, sensor: str) -> tuple[DeviceCameras, ...]:
    """Look up a device's cameras with each readout that its sensor has had, newest first.

    Raises CameraConfigError if the pair is not in the table.
    """
    return (find_cameras(device_type, sensor), *_OTHER_READOUTS.get(sensor, ()))
