"""Computes the matrices that cut the model's view out of a frame from the calibrated angles.

Frames of reference: *device* is x forward, y right, z down, fixed to the camera mount; *calib* is
the device frame levelled with the road; *view* is x right, y down, z forward (OpenCV's). A matrix
``a_from_b`` takes coordinates in b to coordinates in a. Camera figures: openpilot's published
device table, 2024-2026.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from modeld.errors import CameraConfigError
from modeld.throttle import Throttle

logger = logging.getLogger(__name__)

VIEW_FROM_DEVICE: Final[NDArray[np.float64]] = np.array(
    [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]
)


def pinhole_matrix(focal_px: float, cx_px: float, cy_px: float) -> NDArray[np.float64]:
    """Return the 3x3 float64 intrinsic matrix with square pixels and no skew."""
    return np.array([[focal_px, 0.0, cx_px], [0.0, focal_px, cy_px], [0.0, 0.0, 1.0]])


# The two views of the network, both 512x256 pixels.
MED_MODEL_INTRINSICS: Final = pinhole_matrix(910.0, 256.0, 47.6)
SBIG_MODEL_INTRINSICS: Final = pinhole_matrix(455.0, 256.0, 0.5 * (256.0 + 47.6))


@dataclass(frozen=True, slots=True)
class Camera:
    """A camera whose principal point is the middle of its picture.

    Attributes:
        width: Picture width in pixels.
        height: Picture height in pixels.
        focal_px: Focal length in pixels.
    """

    width: int
    height: int
    focal_px: float

    @property
    def intrinsics(self) -> NDArray[np.float64]:
        """3x3 float64 matrix from view coordinates to pixels."""
        return pinhole_matrix(self.focal_px, self.width / 2, self.height / 2)


@dataclass(frozen=True, slots=True)
class DeviceCameras:
    """The outward cameras of a device; ``wide`` is None where there is only one."""

    road: Camera
    wide: Camera | None


_AR_OX: Final = DeviceCameras(Camera(1928, 1208, 2648.0), Camera(1928, 1208, 567.0))
_OS: Final = DeviceCameras(Camera(1344, 760, 1522.0 * 3 / 4), Camera(1344, 760, 567.0 * 3 / 4))
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


def find_cameras(device_type: str, sensor: str) -> DeviceCameras:
    """Look up the cameras of a device.

    Args:
        device_type: ``deviceState.deviceType`` as text.
        sensor: ``roadCameraState.sensor`` as text.

    Raises:
        CameraConfigError: The pair is not in the table.
    """
    cameras = DEVICE_CAMERAS.get((device_type, sensor))
    if cameras is None:
        known = ", ".join(sorted(f"{device}/{name}" for device, name in DEVICE_CAMERAS))
        raise CameraConfigError(
            f"camera table: no cameras for device {device_type!r} with sensor {sensor!r}, "
            f"known are {known}; set [camera.road] in the configuration"
        )
    return cameras


def rot_from_euler(euler_rad: Sequence[float] | NDArray[np.floating]) -> NDArray[np.float64]:
    """Return ``Rz(yaw) @ Ry(pitch) @ Rx(roll)``, 3x3 float64, for (roll, pitch, yaw) in rad."""
    cr, cp, cy = np.cos(np.asarray(euler_rad, dtype=np.float64))
    sr, sp, sy = np.sin(np.asarray(euler_rad, dtype=np.float64))
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
    """Return the matrix from model pixels to camera pixels.

    ``K_camera @ view_from_device @ R(euler) @ inv(K_model @ view_from_device)``: the inverse map,
    which a warp evaluates once per destination pixel. The product is formed in float64.

    Args:
        device_from_calib_euler_rad: (roll, pitch, yaw), as in ``liveCalibration.rpyCalib``.
        camera_intrinsics: 3x3, view coordinates to camera pixels.
        model_intrinsics: 3x3, view coordinates to model pixels.

    Returns:
        (3, 3) float32, row-major.
    """
    calib_from_model = np.linalg.inv(model_intrinsics @ VIEW_FROM_DEVICE)
    rotation = rot_from_euler(device_from_calib_euler_rad)
    camera_from_model = camera_intrinsics @ VIEW_FROM_DEVICE @ rotation @ calib_from_model
    return camera_from_model.astype(np.float32)


@dataclass(frozen=True, slots=True)
class CameraPlan:
    """Which cameras feed the two model views.

    Attributes:
        main_is_wide: The only camera is the wide one.
        single: Main and extra frame come from one camera.
        frame_size: (width, height) of the frames that arrive.
        override: Cameras from the configuration, used instead of the device table.
    """

    main_is_wide: bool
    single: bool
    frame_size: tuple[int, int]
    override: DeviceCameras | None = None

    def views(self, device: DeviceCameras) -> tuple[Camera, Camera]:
        """Return the cameras behind the main and the extra frame (see ADR 0021).

        Raises:
            CameraConfigError: A wide frame arrives but the device has no wide camera, or frames
                have another size than the camera.
        """
        wide = device.wide
        if wide is None and not (self.single and not self.main_is_wide):
            raise CameraConfigError(
                "cameras: a wide stream is connected but the device is known to have only a road "
                "camera; set [camera.wide] in the configuration"
            )
        main = wide if self.main_is_wide and wide is not None else device.road
        extra = main if self.single or wide is None else wide
        for name, camera in (("main", main), ("extra", extra)):
            if (camera.width, camera.height) != self.frame_size:
                raise CameraConfigError(
                    f"{name} camera: expected frames of {camera.width}x{camera.height} for this "
                    f"device and sensor, got {self.frame_size[0]}x{self.frame_size[1]}; set "
                    "[camera.road] in the configuration"
                )
        return main, extra


@dataclass(slots=True)
class Calibration:
    """The two warp matrices, kept up to date from calibration messages.

    Attributes:
        plan: Which cameras feed the views.
        seen: A usable calibration has arrived; never becomes False again.
        main_transform: (3, 3) float32, medmodel pixels to main camera pixels; zeros until seen.
        extra_transform: (3, 3) float32, sbigmodel pixels to extra camera pixels; zeros until seen.
    """

    plan: CameraPlan
    seen: bool = False
    main_transform: NDArray[np.float32] = field(
        default_factory=lambda: np.zeros((3, 3), np.float32)
    )
    extra_transform: NDArray[np.float32] = field(
        default_factory=lambda: np.zeros((3, 3), np.float32)
    )
    _rejected: Throttle = field(default_factory=lambda: Throttle(period=40))

    @property
    def needs_device(self) -> bool:
        """Whether the device type and sensor must be known first."""
        return self.plan.override is None

    def update(self, rpy_rad: Sequence[float], device_type: str, sensor: str) -> None:
        """Take one calibration message; writes the transforms in place.

        A message that cannot be used changes nothing and is logged: until a good one has come,
        everything published is marked invalid (see ADR 0023).

        Args:
            rpy_rad: ``liveCalibration.rpyCalib``, roll, pitch, yaw in rad.
            device_type: ``deviceState.deviceType`` as text; unused with configured cameras.
            sensor: ``roadCameraState.sensor`` as text; unused with configured cameras.
        """
        euler = np.asarray(rpy_rad, dtype=np.float32)
        if euler.shape != (3,) or not np.isfinite(euler).all():
            self._reject(f"liveCalibration.rpyCalib: expected 3 finite angles, got {euler}")
            return
        try:
            device = self.plan.override or find_cameras(device_type, sensor)
            main, extra = self.plan.views(device)
        except CameraConfigError as error:
            self._reject(str(error))
            return
        self.main_transform[...] = warp_matrix(euler, main.intrinsics, MED_MODEL_INTRINSICS)
        self.extra_transform[...] = warp_matrix(euler, extra.intrinsics, SBIG_MODEL_INTRINSICS)
        self.seen = True

    def _reject(self, reason: str) -> None:
        if self._rejected.hit():
            logger.error("calibration not used (%d so far): %s", self._rejected.total, reason)
