"""Pinhole models of the devices' cameras, and the matrices from a model's views to their pixels.

Frames of reference: *device* is x forward, y right, z down, fixed to the camera mount. *calib* is
the device frame aligned with the road. *view* is x right, y down, z forward, as in OpenCV. A matrix
``a_from_b`` converts coordinates in b to coordinates in a. Source of camera data: openpilot's
published device table, 2024-2026.

Matrix products and inverses are written as sums that round identically on all processors. The last
bits of numpy's linear algebra differ between CPU models. For an entry that should be 0 these bits
are the whole value, so a drive's inputs would appear to have changed.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from modeld.errors import CameraConfigError

logger = logging.getLogger(__name__)

# Axis of the device frame for each axis of the view frame.
_VIEW_AXES: Final = [1, 2, 0]
VIEW_FROM_DEVICE: Final[NDArray[np.float64]] = np.eye(3)[_VIEW_AXES]


def pinhole_matrix(
    focal_px: float, cx_px: float, cy_px: float, focal_y_px: float | None = None
) -> NDArray[np.float64]:
    """Return the intrinsic matrix of a pinhole camera, 3x3 float64, without skew.

    `focal_px` and `focal_y_px` are the horizontal and the vertical focal length; the latter is None
    if pixels are square. (`cx_px`, `cy_px`) is the principal point.
    """
    vertical_px = focal_px if focal_y_px is None else focal_y_px
    return np.array([[focal_px, 0.0, cx_px], [0.0, vertical_px, cy_px], [0.0, 0.0, 1.0]])


# The medium and the big view of the network, both 512x256 pixels.
MED_MODEL_INTRINSICS: Final = pinhole_matrix(910.0, 256.0, 47.6)
SBIG_MODEL_INTRINSICS: Final = pinhole_matrix(455.0, 256.0, 0.5 * (256.0 + 47.6))


def rot_from_euler(euler_rad: Sequence[float] | NDArray[np.floating]) -> NDArray[np.float64]:
    """Return ``Rz(yaw) @ Ry(pitch) @ Rx(roll)``, 3x3 float64, for (roll, pitch, yaw) in rad."""
    angles = [float(angle) for angle in euler_rad]
    cr, cp, cy = (math.cos(angle) for angle in angles)
    sr, sp, sy = (math.sin(angle) for angle in angles)
    return np.array(
        [
            [cy * cp, cy * sp * sr - sy * cr, cy * sp * cr + sy * sr],
            [sy * cp, sy * sp * sr + cy * cr, sy * sp * cr - cy * sr],
            [-sp, cp * sr, cp * cr],
        ]
    )


def warp_matrix(
    device_from_calib_euler_rad: Sequence[float] | NDArray[np.floating],
    camera_intrinsics: NDArray[np.float64],
    model_intrinsics: NDArray[np.float64],
) -> NDArray[np.float32]:
    """Return the matrix from model pixels to camera pixels, (3, 3) float32, row-major.

    It is ``K_camera @ view_from_device @ R(euler) @ inv(K_model @ view_from_device)``, the inverse
    map, which a warp evaluates once per destination pixel. The angles are (roll, pitch, yaw) in
    rad, as in ``liveCalibration.rpyCalib``. The intrinsics are matrices from `pinhole_matrix`; the
    model's pixels must be square. The product is computed in float64.
    """
    rotation = rot_from_euler(device_from_calib_euler_rad)[np.ix_(_VIEW_AXES, _VIEW_AXES)]
    camera_from_view = matrix_product(camera_intrinsics, rotation)
    return matrix_product(camera_from_view, inverse_pinhole(model_intrinsics)).astype(np.float32)


def inverse_pinhole(intrinsics: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the matrix from square pixels to view coordinates, 3x3 float64."""
    focal_px, cx_px, cy_px = intrinsics[0, 0], intrinsics[0, 2], intrinsics[1, 2]
    return pinhole_matrix(1.0 / focal_px, -cx_px / focal_px, -cy_px / focal_px)


def matrix_product(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ``a @ b`` of 3x3 float64 matrices; products are rounded, then added left to right."""
    terms = a.T[:, :, None] * b[:, None, :]
    total: NDArray[np.float64] = (terms[0] + terms[1]) + terms[2]
    return total


# --- The road and wide cameras, by type and sensor of the device ------------------------------


@dataclass(frozen=True, slots=True)
class Camera:
    """A pinhole camera whose principal point is the center of the image. Units are pixels."""

    width: int
    height: int
    focal_px: float  # horizontal focal length
    focal_y_px: float | None = None  # vertical focal length; None if pixels are square

    @property
    def pixel_aspect(self) -> float:
        """Width of a pixel divided by its height."""
        return 1.0 if self.focal_y_px is None else self.focal_y_px / self.focal_px

    @property
    def intrinsics(self) -> NDArray[np.float64]:
        """The matrix from view coordinates to pixels, 3x3 float64."""
        return pinhole_matrix(self.focal_px, self.width / 2, self.height / 2, self.focal_y_px)

    def scaled(self, width: int, height: int) -> "Camera":
        """Return the camera for images resized to `width` x `height`, each axis separately."""
        focal_y_px = self.focal_px if self.focal_y_px is None else self.focal_y_px
        return Camera(
            width,
            height,
            self.focal_px * width / self.width,
            focal_y_px * height / self.height,
        )


@dataclass(frozen=True, slots=True)
class DeviceCameras:
    """The outward-facing cameras of a device."""

    road: Camera
    wide: Camera | None  # None if there is only one camera


_AR_OX: Final = DeviceCameras(Camera(1928, 1208, 2648.0), Camera(1928, 1208, 567.0))
_OS: Final = DeviceCameras(Camera(1344, 760, 1522.0 * 3 / 4), Camera(1344, 760, 567.0 * 3 / 4))
# The same sensor without binning, as in 2024.
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
    # In logs of early software, the sensor or the device is "unknown".
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

# Sensor -> its other readout modes. The size of the frames shows which mode is in use.
_OTHER_READOUTS: Final[Mapping[str, tuple[DeviceCameras, ...]]] = MappingProxyType(
    {"os04c10": (_OS_FULL,)}
)


def find_cameras(device_type: str, sensor: str) -> DeviceCameras:
    """Return the cameras of a device in its sensor's current readout mode.

    The arguments are ``deviceState.deviceType`` and ``roadCameraState.sensor``. Raises
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
    """Return the cameras of a device in each readout mode of its sensor, newest first.

    Raises CameraConfigError if the pair is not in the table.
    """
    return (find_cameras(device_type, sensor), *_OTHER_READOUTS.get(sensor, ()))


# --- The driver camera ------------------------------------------------------------------------
# The model's view has the camera's position and orientation, so the matrix has no rotation and
# depends only on the camera.

# Driver cameras by frame width, the only known property when the first frame arrives.
DRIVER_CAMERAS: Final[Mapping[int, Camera]] = MappingProxyType(
    {
        camera.width: camera
        for camera in (
            Camera(1928, 1208, 567.0),
            Camera(1344, 760, 567.0 * 3 / 4),
            Camera(2688, 1520, 567.0 * 3 / 2),
            Camera(816, 612, 650.0),
        )
    }
)
_REFERENCE: Final = DRIVER_CAMERAS[1928]
# Intrinsics of the model's view, 1440 x 960 pixels. The principal point is above the middle by half
# of the rows that the reference camera has in addition.
VIEW_INTRINSICS: Final = pinhole_matrix(567.0, 1440 / 2, 960 / 2 - (1208 - 960) / 2)


def find_driver_camera(width: int, height: int) -> Camera:
    """Return the driver camera with frames of this size.

    An unknown camera is logged and assumed to have the reference camera's horizontal field of view.
    """
    camera = DRIVER_CAMERAS.get(width)
    if camera is not None and camera.height == height:
        return camera
    focal_px = _REFERENCE.focal_px * width / _REFERENCE.width
    logger.warning(
        "driver camera %dx%d is not known: a focal length of %.1f px is assumed",
        width,
        height,
        focal_px,
    )
    return Camera(width, height, focal_px)


def driver_transform(camera: Camera) -> NDArray[np.float32]:
    """Return the matrix from view pixels to camera pixels, (3, 3) float32.

    It is ``K_camera @ inv(K_view)``, the inverse map, which a warp evaluates for each view pixel.
    """
    return matrix_product(camera.intrinsics, inverse_pinhole(VIEW_INTRINSICS)).astype(np.float32)
