"""Keeps the matrices that cut the model's view out of a frame, from the calibrations on the bus.

Frames of reference are those of `modeld.vehicle.cameras`.
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
    """Return ``liveCalibration.rpyCalib``, (3,) float32, roll, pitch, yaw in rad.

    A list of a wrong length is not read, as a damaged message may claim millions. Raises
    MessageError if it is not three finite angles within the bounds of `validity.ANGLES`.
    """
    length = len(rpy_rad)
    if length != ANGLE_COUNT:
        raise MessageError(
            f"liveCalibration.rpyCalib: expected {ANGLE_COUNT} finite angles, got {length} values; "
            "mend the calibration process"
        )
    with reading("liveCalibration.rpyCalib"):
        angles = np.asarray(list(rpy_rad), np.float32)
    if not np.isfinite(angles).all():
        raise MessageError(
            f"liveCalibration.rpyCalib: expected {ANGLE_COUNT} finite angles, got {angles}; mend "
            "the calibration process"
        )
    for rule, angle in zip(ANGLES, angles.tolist(), strict=True):
        if not rule.allows(angle):
            raise MessageError(f"{rule.describe(angle)}; mend the calibration process")
    return angles


@dataclass(frozen=True, slots=True)
class FrameSizes:
    """(width, height) in pixels of the frames that arrive, and whether the extra ones do."""

    main: tuple[int, int]
    extra: tuple[int, int]  # the main frames' if there are none
    lacks_extra: bool = False  # the extra camera is lost, the main frame replaces it


def sizes_of(main: FrameFormat, extra: FrameFormat, *, lacks_extra: bool = False) -> FrameSizes:
    """Return the sizes of frames of two formats."""
    return FrameSizes((main.width, main.height), (extra.width, extra.height), lacks_extra)


@dataclass(frozen=True, slots=True)
class CameraPlan:
    """Which cameras feed the two model views."""

    main_is_wide: bool  # the only camera is the wide one
    single: bool  # main and extra frame come from one camera
    override: DeviceCameras | None = None  # from the configuration, instead of the device table

    def views(self, readouts: Sequence[DeviceCameras], sizes: FrameSizes) -> tuple[Camera, Camera]:
        """Return the cameras behind the main and the extra frame (see ADR 0021).

        `readouts` are the possible cameras of the device; the size of its frames chooses each of
        road and wide camera. Raises CameraConfigError if a wide frame arrives but the device has no
        wide camera, or frames have a size that the camera does not have.
        """
        main = _camera_of_size(
            "main", [one.wide if self.main_is_wide else one.road for one in readouts], sizes.main
        )
        if self.single:
            return main, main
        # Also while its frames are missing: a device without one has nothing to come back.
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
    """A calibration that could be used: angles in rad, and of which device."""

    euler_rad: tuple[float, ...]
    device_type: str
    sensor: str


@dataclass(slots=True)
class Calibration:
    """The two warp matrices, kept up to date from calibration messages and sizes of frames.

    `main_transform` and `extra_transform` are (3, 3) float32, pixels of medmodel and sbigmodel to
    those of main and extra camera; zeros until `seen`.
    """

    plan: CameraPlan
    sizes: FrameSizes  # of the frames that the matrices are for
    seen: bool = False  # a usable calibration has arrived, and the matrices fit the frames
    refused: str = ""  # why the newest calibration, or the last one with these frames, is not used
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
        """Whether the device type and sensor must be known first."""
        return self.plan.override is None

    @property
    def has_wide(self) -> bool:
        """Whether a wide camera is known to be there, by configuration or device table."""
        override, accepted = self.plan.override, self._accepted
        if override is not None:
            return override.wide is not None
        return accepted is not None and any(
            one.wide for one in find_readouts(accepted.device_type, accepted.sensor)
        )

    def expect_extra(self) -> None:
        """Note that a single camera should not be one: the extra camera is lost from now."""
        self.plan = replace(self.plan, single=False)
        # The matrices stay, as both views are still of the main camera.
        self.sizes, self._checked = replace(self.sizes, lacks_extra=True), None

    def update(self, rpy_rad: Sequence[float], device_type: str, sensor: str) -> None:
        """Use one calibration message, ``liveCalibration.rpyCalib``; write the transforms in place.

        The angles are roll, pitch, yaw in rad. Device type and sensor are those of `find_cameras`,
        unused with configured cameras. An unusable message changes no matrix, and `refused` says
        why until a good one comes: meanwhile everything published is marked invalid (see ADR 0020).
        """
        try:
            accepted = _Accepted(tuple(read_angles(rpy_rad).tolist()), device_type, sensor)
            # Most calibrations repeat the one before.
            if not self.seen or accepted != self._accepted:
                self._compute(accepted)
        except (MessageError, CameraConfigError) as error:
            self.refused = str(error)
            return
        self._accepted, self.refused = accepted, ""

    def fit(self, sizes: FrameSizes) -> None:
        """Follow frames of another size, or an extra camera that is lost or back.

        The last angles hold for the new frames where the device has such a camera. Else the
        matrices are zeros, and nothing is seen, until a calibration comes that fits.
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
        """Raise CameraConfigError if frames are not of the configured cameras, if there are any."""
        override = self.plan.override
        if override is not None and sizes != self._checked:
            self.plan.views((override,), sizes)
            self._checked = sizes

    def _compute(self, calibration: _Accepted) -> None:
        """Write both matrices, or change nothing and raise if the frames are of other cameras."""
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


# --- Reading the bus, and the reasons why messages based on a calibration are not valid -------

SERVICE: Final = "liveCalibration"
# Calibrations come four times a second, in some recordings once.
CALIBRATION_REFUSED: Final = Kind(
    "calibration not used", fault=Fault.INPUT_REJECTED, quiet_ns=2 * NS_PER_S
)


class CalibrationMessages(Received, Protocol):
    """The part of ``cereal.pubsub.SubMaster`` that is read here."""

    def __getitem__(self, service: str) -> Any:
        """Return the newest message of a service."""


class CalibrationInput:
    """Keeps a calibration up to date from the bus.

    The validity of its Event is ignored: its sender waits for our messages.
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
        """Use the newest calibration, if one came with the last update of the bus."""
        messages, calibration = self._messages, self._calibration
        if not messages.updated[SERVICE]:
            return
        # The intrinsics depend on device and sensor, so both services must have sent a message.
        if calibration.needs_device and self._missing():
            return
        # A damaged list must not end the loop; a device newer than our schema is in no table.
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
        """Return why calibration makes messages invalid at `now_ns` of the loop's clock."""
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
        """Return the other needed services that have not sent a message yet."""
        seen = self._messages.seen
        return [name for name in ("deviceState", "roadCameraState") if not seen[name]]
