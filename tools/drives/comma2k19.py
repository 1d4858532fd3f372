"""Reads a segment of the comma2k19 data set: one minute of video, CAN, IMU and pose.

Layout: `video.hevc` (1164x874, 20 Hz, focal length 910 px), `global_pose/*` with one row per frame,
and `processed_log/*/*/{t,value}`. All numbers are npy files without an extension. Recorded
times are the phone's boot time in seconds; times returned here start at the first frame. The local
frame is forward, right, down. Source: the data set's README, except for its quaternions. They
rotate the local frame to the earth's (with the usual formula), which the velocities confirm.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cereal.frames import nv12_format
from modeld.vehicle.cameras import DEVICE_CAMERAS, Camera, DeviceCameras
from runtime.texts import count_text
from tools.drives.comma2k19_files import (
    ACCELEROMETER,
    GYRO,
    SPEED,
    STEERING,
    WHEEL_SPEED,
    Samples,
    read_pose,
    read_samples,
    telemetry_files,
)
from tools.drives.drive import DriveInfo, Moment, SingleVideoDrive
from tools.drives.open_drive import DriveOptions
from tools.errors import DriveError
from tools.lib.named_file import tree
from tools.messages.drive_messages import FrameTimes, Mounting
from tools.messages.telemetry import CarSample, Series, Telemetry, measured_series
from tools.video.video import Video, VideoFrame

logger = logging.getLogger(__name__)

DEVICE, SENSOR = "neo", "unknown"
# Sensor read-out, from start to end of a frame. The recorded time is assumed to be the start.
READOUT_NS = 18_000_000
# At lower speeds the direction of motion is mostly noise of the pose.
MIN_CALIBRATION_SPEED_MPS = 7.0
# Part of a drive's identity. Raise it when the same files yield different moments.
VERSION = 1

VIDEO = "video.hevc"
_NUMBER = re.compile(r"[0-9]{1,9}")
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Comma2k19Telemetry:
    """The contents of a segment without its pictures. Local frame: x forward, y right, z down."""

    path: Path  # the segment directory
    # Boot time of the phone at time 0, which is the first frame, or the first speed sample if there
    # is no pose.
    start_s: float
    speed_mps: Series  # from CAN, 83 Hz
    steering_angle_deg: Series  # angle of the steering wheel, positive to the left, from CAN
    # Columns: front left, front right, rear left, rear right. None if not recorded.
    wheel_speed_mps: Samples | None
    # Specific force in the local frame, -9.8 down at rest. None if not recorded.
    accelerometer_mps2: Samples | None
    gyro_radps: Samples | None  # rotation rates about the local axes; None if not recorded
    # (n,) time of each frame since the first. Without a pose, this and the arrays below are empty.
    times_s: Floats
    positions_m: Floats  # (n, 3) camera positions in the local frame of the first frame
    # (n, 3, 3) rotations from each frame's local frame to that of the first frame.
    orientations: Floats
    velocities_mps: Floats  # (n, 3) camera velocities in each frame's local frame
    # device_from_calib as roll, pitch, yaw: the direction of travel as seen from the camera. None
    # if the car is never fast enough to determine it.
    rpy_calib_rad: tuple[float, float, float] | None

    def telemetry(self) -> Telemetry:
        """Return the car state; its time 0 is the first frame."""
        return Telemetry(
            self.path.name, speed_mps=self.speed_mps, steering_angle_deg=self.steering_angle_deg
        )

    def rotation_rates_radps(self) -> Floats:
        """Return the rotation rates (n - 1, 3) from each frame to the next, about the local axes.

        Each is the rotation vector of ``R_i^T R_(i+1)`` divided by the time step. These are the
        quantities that `cameraOdometry.rot` estimates; `cameraOdometry.trans` estimates
        `velocities_mps`.
        """
        steps = np.swapaxes(self.orientations[:-1], 1, 2) @ self.orientations[1:]
        return rotation_vectors(steps) / np.diff(self.times_s)[:, None]

    def path_m(self, frame: int) -> Floats:
        """Return the camera positions (n, 3) of all frames in the local frame of `frame`."""
        return np.asarray((self.positions_m - self.positions_m[frame]) @ self.orientations[frame])


def read_comma2k19(path: Path) -> Comma2k19Telemetry:
    """Read the telemetry and the pose of a segment; the video is not needed.

    Raises:
        DriveError: speed or steering angle is missing, or a file is not a numeric array of the
            expected shape; the message names the file.
    """
    speed = read_samples(path, SPEED, 1)
    steering = read_samples(path, STEERING, 1)
    if speed is None or steering is None:
        raise DriveError(
            f"{path}: expected a comma2k19 segment with processed_log/{SPEED[0]} and "
            f"processed_log/{STEERING[0]}, found no {'speed' if speed is None else 'steering'}; "
            "name the directory of one segment, which contains processed_log"
        )
    pose = read_pose(path)
    start_s = float(speed.times_s[0] if pose is None else pose[0][0])
    times_s, positions, velocities, quaternions = pose or _no_pose()
    earth_from_local = rotation_matrices(quaternions)
    first_from_earth = earth_from_local[0].T if times_s.size else np.eye(3)
    local_velocities = np.einsum("nij,ni->nj", earth_from_local, velocities)
    return Comma2k19Telemetry(
        path=path,
        start_s=start_s,
        speed_mps=_series(path, "speed", speed, start_s),
        steering_angle_deg=_series(path, "steering angle", steering, start_s),
        wheel_speed_mps=_shifted(read_samples(path, WHEEL_SPEED, 4), start_s),
        accelerometer_mps2=_shifted(read_samples(path, ACCELEROMETER, 3), start_s),
        gyro_radps=_shifted(read_samples(path, GYRO, 3), start_s),
        times_s=times_s - start_s,
        positions_m=(positions - positions[:1]) @ first_from_earth.T,
        orientations=first_from_earth @ earth_from_local,
        velocities_mps=local_velocities,
        rpy_calib_rad=calibration_of(local_velocities),
    )


def calibration_of(velocities_mps: Floats) -> tuple[float, float, float] | None:
    """Return device_from_calib as roll, pitch, yaw, from the direction of motion.

    The x axis of the calibrated frame is the direction of motion: ``Rz(yaw) Ry(pitch) (1, 0, 0) =
    (cos yaw cos pitch, sin yaw cos pitch, -sin pitch)``. Roll cannot be observed and is 0.

    `velocities_mps`: (n, 3) in the device frame. The result is the mean direction over frames
    faster than ``MIN_CALIBRATION_SPEED_MPS``, or None if there are no such frames.
    """
    speeds = np.linalg.norm(velocities_mps, axis=1)
    is_fast = speeds > MIN_CALIBRATION_SPEED_MPS
    if not is_fast.any():
        return None
    x, y, z = (velocities_mps[is_fast] / speeds[is_fast, None]).mean(axis=0)
    return 0.0, float(-np.arctan2(z, np.hypot(x, y))), float(np.arctan2(y, x))


def rotation_matrices(quaternions: Floats) -> Floats:
    """Return (n, 3, 3) rotation matrices of (n, 4) unit quaternions (w, x, y, z)."""
    w, x, y, z = (quaternions / np.linalg.norm(quaternions, axis=1, keepdims=True)).T
    rows = (
        (1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)),
        (2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)),
        (2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)),
    )
    return np.moveaxis(np.array(rows), 2, 0)


def rotation_vectors(rotations: Floats) -> Floats:
    """Return the (n, 3) rotation vectors (axis times angle in rad) of (n, 3, 3) small rotations.

    ``R - R^T = 2 sin(angle) [axis]``; below 90 degrees the arcsine of the sine is the angle.
    """
    skew = np.stack(
        [
            rotations[:, 2, 1] - rotations[:, 1, 2],
            rotations[:, 0, 2] - rotations[:, 2, 0],
            rotations[:, 1, 0] - rotations[:, 0, 1],
        ],
        axis=1,
    )
    sines = np.linalg.norm(skew, axis=1) / 2
    # sin(angle) / angle tends to 1; below 1e-8 it equals 1 in float64.
    scale = np.where(sines < 1e-8, 1.0, np.arcsin(np.minimum(sines, 1.0)) / np.maximum(sines, 1e-8))
    return np.asarray(skew / 2 * scale[:, None])


@dataclass(frozen=True, slots=True)
class Comma2k19Drive(SingleVideoDrive):
    """A segment as a drive: one moment per frame, stamped with the phone's boot time."""

    segment: Comma2k19Telemetry

    def moments(self, first: int = 0) -> Iterator[Moment]:
        """Yield the moments from number `first` on; all earlier frames are decoded too.

        If the video is damaged or has fewer frames than there are times, the moments end early and
        the reason is logged.

        Raises:
            DriveError: the video has more frames than there are times.
        """
        times_s, telemetry = self.segment.times_s, self.segment.telemetry()
        self.close()
        self._ends.clear()
        decoded = 0

        def shown(video: Video) -> Iterator[tuple[FrameTimes, CarSample, VideoFrame]]:
            nonlocal decoded
            for picture in video.frames():
                decoded += 1
                index = picture.index
                if index < times_s.size:
                    # Boot time, as recorded. Rounding only once keeps the microseconds.
                    sof_ns = round((self.segment.start_s + times_s[index]) * 1e9)
                    times = FrameTimes(index, sof_ns, sof_ns + READOUT_NS)
                    yield times, telemetry.at(times_s[index]), picture

        with Video(self.segment.path / VIDEO) as video:
            self._open.append(video)
            yield from self._moments_of(shown(video), first)
        problem = (
            f"{self.segment.path / VIDEO}: expected {count_text(times_s.size, 'frame')}, as "
            f"many as global_pose/frame_times holds, found {decoded}; the video is damaged or "
            "of another segment: fetch it again"
        )
        if decoded > times_s.size:
            raise DriveError(problem)
        is_short = decoded < times_s.size
        self._ends.append(video.damage or (problem if is_short else ""))
        if is_short and not video.damage:
            logger.warning("%s", problem)


def is_segment(path: Path) -> bool:
    """Return whether a directory looks like one segment of the data set."""
    names = ("processed_log", "global_pose")
    # Path.is_dir raises an error if a name is too long.
    return any(os.path.isdir(path / name) for name in names)  # noqa: PTH112


def expand(text: str, options: DriveOptions) -> list[str] | None:  # noqa: ARG001 - of all kinds
    """Return a segment's path itself, or the segments of a drive's directory in order."""
    path = Path(text)
    if is_segment(path):
        return [text]
    if not os.path.isdir(path):  # noqa: PTH112 - of any name
        return None
    found = [one for one in path.iterdir() if _NUMBER.fullmatch(one.name) and is_segment(one)]
    return [str(one) for one in sorted(found, key=lambda one: int(one.name))] or None


def input_files(text: str, options: DriveOptions) -> list[Path]:
    """Return the segments' directories with their contents, and the directory named by `text`."""
    return [path for one in expand(text, options) or [] for path in (Path(text), *tree(Path(one)))]


def open_drive(text: str, options: DriveOptions) -> Comma2k19Drive:
    """Open a segment with its video.

    Raises:
        DriveError: the video or the pose is missing, or the video has an unexpected size.
        VideoError: the video cannot be decoded.
    """
    path = Path(text)
    if not (path / VIDEO).is_file():
        raise DriveError(
            f"{path}: expected {VIDEO} beside the telemetry, found none; fetch it, or take only "
            f"the telemetry: modeld make-drive --telemetry {path} renders its drive, "
            f"modeld replay VIDEO --telemetry {path} plays it beside another video"
        )
    segment = read_comma2k19(path)
    if not segment.times_s.size:
        raise DriveError(
            f"{path}: expected global_pose with a time for each frame, found none; fetch it"
        )
    with Video(path / VIDEO) as video:
        width, height = video.info.width, video.info.height
    rpy_rad = segment.rpy_calib_rad
    mounting = Mounting(DEVICE, SENSOR, rpy_rad or (0.0, 0.0, 0.0))
    frame_s = float(np.median(np.diff(segment.times_s))) if segment.times_s.size > 1 else 0.05
    where = "assumed level: the car is never fast enough"
    if rpy_rad is not None:
        where = f"from the pose: pitch {rpy_rad[1]:+.4f}, yaw {rpy_rad[2]:+.4f} rad"
    info = DriveInfo(
        name=f"{path.resolve().parent.name}/{path.resolve().name}",
        kind="comma2k19",
        identity=_identity(path, options),
        formats={"road": nv12_format(width, height)},
        cameras=_cameras(path, width, height, options.focal_px),
        mounting=mounting,
        moments=segment.times_s.size,
        rate_hz=round(1.0 / frame_s, 3),
        facts={
            "video": f"{VIDEO}, {width}x{height}, {1.0 / frame_s:.1f} frames/s",
            "camera": f"{DEVICE}, also stands in for the wide camera; calibration {where}",
            "car state": "speed and steering angle from CAN, interpolated at each frame",
        },
    )
    return Comma2k19Drive(info, segment)


def _cameras(path: Path, width: int, height: int, focal_px: float | None) -> DeviceCameras | None:
    if focal_px is not None:
        return DeviceCameras(road=Camera(width, height, focal_px), wide=None)
    known = DEVICE_CAMERAS[DEVICE, SENSOR].road
    if (width, height) != (known.width, known.height):
        raise DriveError(
            f"{path / VIDEO}: expected {known.width}x{known.height}, found {width}x{height}; "
            "for a scaled video set its focal length with --focal-px"
        )
    return None


def _identity(path: Path, options: DriveOptions) -> str:
    digest = hashlib.sha256(f"comma2k19 {VERSION} focal {options.focal_px!r}".encode())
    for file in [path / VIDEO, *telemetry_files(path)]:
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()


def _no_pose() -> tuple[Floats, Floats, Floats, Floats]:
    return np.zeros(0), np.zeros((0, 3)), np.zeros((0, 3)), np.zeros((0, 4))


def _series(path: Path, name: str, samples: Samples, start_s: float) -> Series:
    return measured_series(path, name, samples.times_s - start_s, samples.values[:, 0])


def _shifted(samples: Samples | None, start_s: float) -> Samples | None:
    return None if samples is None else Samples(samples.times_s - start_s, samples.values)
