"""Computes the warp matrices of the model's views from the calibrations on the bus.

A calibration is the rotation between the device and the road. A warp matrix maps pixels of a model
view to pixels of a camera frame. `modeld.vehicle.cameras` defines the frames of reference.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from cereal.errors import MessageError
from cereal.frames import FrameFormat
from cereal.schema import enumerant_name, reading
from modeld.errors import CameraConfigError
from modeld.state.episodes import NS_PER_S, Episodes, Kind
from modeld.state.loop_state import Fault
from modeld.vehicle.cameras import (
    MED_MODEL_INTRINSICS,
    SBIG_MODEL_INTRINSICS,
    Camera,
    DeviceCameras,
    find_readouts,
    warp_matrix,
)
from modeld.vehicle.validity import ANGLES, Freshness, Reason, Received, silence

ANGLE_COUNT: Final = len(ANGLES)


def read_angles(rpy_rad: Sequence[float]) -> NDArray[np.float32]:
    """Return ``liveCalibration.rpyCalib`` as float32 (3,): roll, pitch, yaw in rad.

    The length is checked before reading, because a damaged list can claim millions of elements.
    Raises MessageError unless there are three finite angles within the bounds of `validity.ANGLES`.
    """
    length = len(rpy_rad)
    if length != ANGLE_COUNT:
        raise MessageError(
            f"liveCalibration.rpyCalib: expected {ANGLE_COUNT} finite angles, got {length} values; "
            "fix the calibration process"
        )
    with reading("liveCalibration.rpyCalib"):
        angles = np.asarray(list(rpy_rad), np.float32)
    if not np.isfinite(angles).all():
        raise MessageError(
            f"liveCalibration.rpyCalib: expected {ANGLE_COUNT} finite angles, got {angles}; fix "
            "the calibration process"
        )
    for rule, angle in zip(ANGLES, angles.tolist(), strict=True):
        if not rule.allows(angle):
            raise MessageError(f"{rule.describe(angle)}; fix the calibration process")
    return angles


@dataclass(frozen=True, slots=True)
class FrameSizes:
    """The sizes of the arriving frames, (width, height) in pixels."""

    main: tuple[int, int]
    extra: tuple[int, int]  # the size of the main frames if there are no extra ones
    lacks_extra: bool = False  # the extra camera is lost, and main frames replace its frames


def sizes_of(main: FrameFormat, extra: FrameFormat, *, lacks_extra: bool = False) -> FrameSizes:
    """Return the sizes of main and extra frames with these formats."""
    return FrameSizes((main.width, main.height), (extra.width, extra.height), lacks_extra)


@dataclass(frozen=True, slots=True)
class CameraPlan:
    """The assignment of cameras to the two model views."""

    main_is_wide: bool  # the only camera is the wide one
    single: bool  # main and extra frame are from the same camera
    override: DeviceCameras | None = None  # configured cameras, which replace the device table

    def views(self, readouts: Sequence[DeviceCameras], sizes: FrameSizes) -> tuple[Camera, Camera]:
        """Return the cameras of the main and the extra frame (see ADR 0021).

        `readouts` are the possible cameras of the device; those with the size of the frames are
        chosen. Raises CameraConfigError if a wide frame arrives but the device has no wide camera,
        or if no camera has the size of the frames.
        """
        main = _camera_of_size(
            "main", [one.wide if self.main_is_wide else one.road for one in readouts], sizes.main
        )
        if self.single:
            return main, main
        # Only a device with a wide camera can have lost it.
        wide = [one.wide for one in readouts]
        if sizes.lacks_extra and any(wide):
            return main, main
        return main, _camera_of_size("extra", wide, sizes.extra)


def _camera_of_size(name: str, cameras: Sequence[Camera | None], size: tuple[int, int]) -> Camera:
    known = [camera for camera in cameras if camera is not None]
    if not known:
        raise CameraConfigError(
            "cameras: a wide stream is connected but the device is known to have only a road "
            "camera; set [camera.wide] in the configuration"
        )
    for camera in known:
        if (camera.width, camera.height) == size:
            return camera
    expected = " or ".join(f"{camera.width}x{camera.height}" for camera in known)
    table = "camera.road" if name == "main" else "camera.wide"
    raise CameraConfigError(
        f"{name} camera: expected frames of {expected} for this device and sensor, got "
        f"{size[0]}x{size[1]}; set [{table}] in the configuration"
    )


@dataclass(frozen=True, slots=True)
class _Accepted:
    """An accepted calibration and the device to which it applies."""

    euler_rad: tuple[float, ...]  # roll, pitch, yaw
    device_type: str
    sensor: str


@dataclass(slots=True)
class Calibration:
    """The two warp matrices, updated from calibration messages and frame sizes.

    `main_transform` and `extra_transform`, (3, 3) float32, map pixels of the model's medium and big
    view to pixels of the main and the extra camera. They are zeros until `seen`.
    """

    plan: CameraPlan
    sizes: FrameSizes  # frame sizes to which the matrices apply
    seen: bool = False  # a usable calibration has arrived, and the matrices fit the frames
    refused: str = ""  # why the newest calibration is not usable with these frames, or ""
    main_transform: NDArray[np.float32] = field(
        default_factory=lambda: np.zeros((3, 3), np.float32)
    )
    extra_transform: NDArray[np.float32] = field(
        default_factory=lambda: np.zeros((3, 3), np.float32)
    )
    _accepted: _Accepted | None = None
    _checked: FrameSizes | None = None

    @property
    def needs_device(self) -> bool:
        """Whether device type and sensor must be known, because no cameras are configured."""
        return self.plan.override is None

    @property
    def has_wide(self) -> bool:
        """Whether the device has a wide camera, according to configuration or device table."""
        override, accepted = self.plan.override, self._accepted
        if override is not None:
            return override.wide is not None
        return accepted is not None and any(
            one.wide for one in find_readouts(accepted.device_type, accepted.sensor)
        )

    def expect_extra(self) -> None:
        """Switch from a single camera to two, the extra one being lost for now."""
        self.plan = replace(self.plan, single=False)
        # The matrices do not change, because both views still show the main camera's frame.
        self.sizes, self._checked = replace(self.sizes, lacks_extra=True), None

    def update(self, rpy_rad: Sequence[float], device_type: str, sensor: str) -> None:
        """Use the angles of one calibration message; write the transforms in place.

        `rpy_rad` is ``liveCalibration.rpyCalib``: roll, pitch, yaw in rad. Device type and sensor
        are those of `find_cameras`, unused with configured cameras. An unusable message changes no
        matrix and sets `refused`; until a usable one arrives, all published messages are marked
        invalid (see ADR 0020).
        """
        try:
            accepted = _Accepted(tuple(read_angles(rpy_rad).tolist()), device_type, sensor)
            # Most calibrations are identical to the previous one.
            if not self.seen or accepted != self._accepted:
                self._compute(accepted)
        except (MessageError, CameraConfigError) as error:
            self.refused = str(error)
            return
        self._accepted, self.refused = accepted, ""

    def fit(self, sizes: FrameSizes) -> None:
        """Adapt to frames of another size, or to an extra camera that is lost or back.

        If the device has such a camera, the last angles are used for the new frames. Otherwise the
        matrices are zeros and `seen` is False until a calibration fits.
        """
        if sizes == self.sizes:
            return
        self.sizes = sizes
        if self._accepted is None:
            return
        was_seen = self.seen
        try:
            self._compute(self._accepted)
            if not was_seen:
                self.refused = ""
        except CameraConfigError as error:
            self.seen = False
            self.main_transform.fill(0.0)
            self.extra_transform.fill(0.0)
            self.refused = str(error)

    def check(self, sizes: FrameSizes) -> None:
        """Raise CameraConfigError if frames do not fit the configured cameras, if there are any."""
        override = self.plan.override
        if override is not None and sizes != self._checked:
            self.plan.views((override,), sizes)
            self._checked = sizes

    def _compute(self, calibration: _Accepted) -> None:
        """Write both matrices.

        Raises CameraConfigError and changes nothing if the frames do not fit the device's cameras.
        """
        override = self.plan.override
        if override is not None:
            readouts: tuple[DeviceCameras, ...] = (override,)
        else:
            readouts = find_readouts(calibration.device_type, calibration.sensor)
        main, extra = self.plan.views(readouts, self.sizes)
        euler = calibration.euler_rad
        self.main_transform[...] = warp_matrix(euler, main.intrinsics, MED_MODEL_INTRINSICS)
        self.extra_transform[...] = warp_matrix(euler, extra.intrinsics, SBIG_MODEL_INTRINSICS)
        self.seen = True


# --- Reading calibrations from the bus, and reasons why they make messages invalid ------------

SERVICE: Final = "liveCalibration"
# Calibrations are sent four times a second, in some recordings once; hence the quiet time.
CALIBRATION_REFUSED: Final = Kind(
    "calibration not used", fault=Fault.INPUT_REJECTED, quiet_ns=2 * NS_PER_S
)


class CalibrationMessages(Received, Protocol):
    """The part of ``cereal.pubsub.SubMaster`` that is read here."""

    def __getitem__(self, service: str) -> Any:
        """Return the newest message of a service."""


class CalibrationInput:
    """Updates a calibration from the bus.

    The ``valid`` flag of calibration messages is ignored: their sender sets it only once it
    receives our messages.
    """

    def __init__(
        self,
        calibration: Calibration,
        messages: CalibrationMessages,
        episodes: Episodes,
        freshness: Freshness,
    ) -> None:
        self._calibration = calibration
        self._messages = messages
        self._episodes = episodes
        self._freshness = freshness
        self._is_out_of_limits = False

    def update(self) -> None:
        """Use the newest calibration if the last update of the bus had one."""
        messages, calibration = self._messages, self._calibration
        if not messages.updated[SERVICE]:
            return
        # The intrinsics depend on device and sensor, so both services must have sent a message.
        if calibration.needs_device and self._missing():
            return
        # A damaged list must not end the loop. A device newer than our schema has no cameras.
        try:
            with reading("liveCalibration, deviceState or roadCameraState"):
                message = messages[SERVICE]
                rpy_rad = message.rpyCalib
                self._is_out_of_limits = enumerant_name(message.calStatus) == "invalid"
                device_type = enumerant_name(messages["deviceState"].deviceType)
                sensor = enumerant_name(messages["roadCameraState"].sensor)
        except MessageError as error:
            calibration.refused = str(error)
        else:
            calibration.update(rpy_rad, device_type, sensor)
        if calibration.refused:
            self._episodes.happen(
                CALIBRATION_REFUSED, f"calibration not used: {calibration.refused}"
            )

    def reason(self, now_ns: int) -> Reason | None:
        """Return why the calibration makes messages invalid, or None.

        `now_ns` is the time on the loop's clock.
        """
        calibration, messages = self._calibration, self._messages
        if calibration.refused:
            return Reason("calibration not used", calibration.refused)
        if not calibration.seen:
            missing = [*([] if messages.seen[SERVICE] else [SERVICE])]
            missing += self._missing() if calibration.needs_device else []
            what = " and ".join(missing) or SERVICE
            return Reason("not calibrated", f"no {what} yet")
        if self._is_out_of_limits:
            text = "liveCalibration.calStatus is invalid: the device is mounted beyond the limits"
            return Reason("calibration invalid", text)
        silent_s = self._freshness.silent_for_s(ANGLES[0], now_ns)
        return silence(ANGLES[0], silent_s) if silent_s else None

    def _missing(self) -> list[str]:
        """Return the services for device type and sensor that have not sent a message yet."""
        seen = self._messages.seen
        return [name for name in ("deviceState", "roadCameraState") if not seen[name]]
