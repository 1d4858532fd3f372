"""A segment of the comma2k19 data set: one minute of video, CAN, IMU and pose.

Layout: `video.hevc` (1164x874, 20 Hz, focal length 910 px), `global_pose/*` with one row for each
frame, `processed_log/*/*/{t,value}`; all numbers are npy files without an ending. Times are boot
times of the phone in seconds; those returned here count from the first frame. The local frame is
forward, right, down. Sources: the data set's README, except that its quaternions take the local
frame to the earth's (with the usual formula), which the velocities confirm.
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
from tools.drives.drive import DriveInfo, FilmedDrive, Moment
from tools.drives.open_drive import DriveOptions
from tools.errors import DriveError
from tools.lib.named_file import tree
from tools.messages.drive_messages import FrameTimes, Mounting
from tools.messages.telemetry import CarSample, Series, Telemetry, measured_series
from tools.video.video import Video, VideoFrame

logger = logging.getLogger(__name__)

DEVICE, SENSOR = "neo", "unknown"
# Start to end of a frame of this sensor; the recorded time is taken for the start.
READOUT_NS = 18_000_000
# Slower, and the direction of motion is mostly noise of the pose.
MIN_CALIBRATION_SPEED_MPS = 7.0
# Counts in the identity of drives: changes whenever the same files yield other moments.
VERSION = 1

VIDEO = "video.hevc"
_NUMBER = re.compile(r"[0-9]{1,9}")
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Comma2k19Telemetry:
    """Everything of a segment except its pictures. Local frame: x forward, y right, z down."""

    path: Path  # the segment directory
    # Boot time of the phone at time 0: the first frame, or without a pose the first sample of the
    # speed.
    start_s: float
    speed_mps: Series  # from CAN, 83 Hz
    steering_angle_deg: Series  # of the steering wheel, positive to the left, from CAN
    # Front left, front right, rear left, rear right; None where not recorded.
    wheel_speed_mps: Samples | None
    # Specific force in the local frame: -9.8 down at rest; None likewise.
    accelerometer_mps2: Samples | None
    gyro_radps: Samples | None  # rotation about the local axes; None likewise
    # (n,) time of each frame from the first; empty without a pose, as the following.
    times_s: Floats
    positions_m: Floats  # (n, 3) of the camera, in the local frame of the first one
    # (n, 3, 3) rotation from the local frame of each camera to that of the first.
    orientations: Floats
    velocities_mps: Floats  # (n, 3) in the local frame of each camera
    # device_from_calib as roll, pitch, yaw: where the car drives, as seen from the camera; None
    # where it never drives fast enough to tell.
    rpy_calib_rad: tuple[float, float, float] | None

    def telemetry(self) -> Telemetry:
        """Return the car state; its time 0 is the first frame."""
        return Telemetry(
            self.path.name, speed_mps=self.speed_mps, steering_angle_deg=self.steering_angle_deg
        )

    def rotation_rates_radps(self) -> Floats:
        """Return (n - 1, 3) rotation between each frame and the next, about the local axes.

        The rotation vector of ``R_i^T R_(i+1)`` over the time between: what `cameraOdometry.rot`
        estimates; `velocities_mps` is what `cameraOdometry.trans` does.
        """
        steps = np.swapaxes(self.orientations[:-1], 1, 2) @ self.orientations[1:]
        return rotation_vectors(steps) / np.diff(self.times_s)[:, None]

    def path_m(self, frame: int) -> Floats:
        """Return (n, 3) where the camera was and will be, in the local frame at a frame."""
        return np.asarray((self.positions_m - self.positions_m[frame]) @ self.orientations[frame])


def read_comma2k19(path: Path) -> Comma2k19Telemetry:
    """Read the telemetry and the pose of a segment; its video is not needed.

    Raises:
        DriveError: speed or steering angle is missing, or a file is no array of numbers of the
            expected shape; the message names the file.
    """
    speed = read_samples(path, SPEED, 1)
    steering = read_samples(path, STEERING, 1)
    if speed is None or steering is None:
        raise DriveError(
            f"{path}: expected a comma2k19 segment with processed_log/{SPEED[0]} and "
            f"processed_log/{STEERING[0]}, found no {'speed' if speed is None else 'steering'}; "
            "name the directory of one segment, in which processed_log lies"
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
    """Return device_from_calib as roll, pitch, yaw from where the camera moves.

    The calibrated frame's x axis is the direction of motion: ``Rz(yaw) Ry(pitch) (1, 0, 0) =
    (cos yaw cos pitch, sin yaw cos pitch, -sin pitch)``. Roll cannot be seen from it and is 0.

    `velocities_mps`: (n, 3) in the device frame. The result is the mean direction over the
    frames faster than ``MIN_CALIBRATION_SPEED_MPS``; None where there is none.
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
    """Return (n, 3) rotation vectors (axis times angle in rad) of (n, 3, 3) small rotations.

    ``R - R^T = 2 sin(angle) [axis]``; below 90 degrees the arcsine is the angle.
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
    # sin(angle) / angle tends to 1: below this it is 1 in float64.
    scale = np.where(sines < 1e-8, 1.0, np.arcsin(np.minimum(sines, 1.0)) / np.maximum(sines, 1e-8))
    return np.asarray(skew / 2 * scale[:, None])


@dataclass(frozen=True, slots=True)
class Comma2k19Drive(FilmedDrive):
    """A segment as a drive: one moment a frame, stamped with the phone's boot time."""

    segment: Comma2k19Telemetry

    def moments(self, first: int = 0) -> Iterator[Moment]:
        """Yield the moments from number `first` on; everything before is decoded too.

        Raises:
            DriveError: the video has more frames than there are times. Where it has fewer, or is
                damaged, the moments end with a line in our own log.
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
                    # From boot, as recorded: rounding once keeps the microseconds.
                    sof_ns = round((self.segment.start_s + times_s[index]) * 1e9)
                    times = FrameTimes(index, sof_ns, sof_ns + READOUT_NS)
                    yield times, telemetry.at(times_s[index]), picture

        with Video(self.segment.path / VIDEO) as video:
            self._open.append(video)
            yield from self._filmed(shown(video), first)
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
    # Path.is_dir raises where a name is too long.
    return any(os.path.isdir(path / name) for name in names)  # noqa: PTH112


def expand(text: str, options: DriveOptions) -> list[str] | None:  # noqa: ARG001 - of all kinds
    """Return a segment itself, and of a drive's directory its segments, by number."""
    path = Path(text)
    if is_segment(path):
        return [text]
    if not os.path.isdir(path):  # noqa: PTH112 - of any name
        return None
    found = [one for one in path.iterdir() if _NUMBER.fullmatch(one.name) and is_segment(one)]
    return [str(one) for one in sorted(found, key=lambda one: int(one.name))] or None


def input_files(text: str, options: DriveOptions) -> list[Path]:
    """Return the segments' directories and all in them, and the directory that the text names."""
    return [path for one in expand(text, options) or [] for path in (Path(text), *tree(Path(one)))]


def open_drive(text: str, options: DriveOptions) -> Comma2k19Drive:
    """Open a segment with its video.

    Raises:
        DriveError: the video or the pose is missing, or the video is of another size.
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
    where = "assumed level: never fast enough to tell"
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
