"""Reads the small pictures of a segment, ``qcamera.ts``, which devices upload with the qlog.

The file is H.264 in a transport stream, optionally with an audio track, which is ignored. It shows
the full picture of the road camera, scaled to 526x330 whatever the camera's aspect ratio is.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cereal.frames import FrameFormat, nv12_format
from modeld.errors import CameraConfigError
from modeld.vehicle.cameras import Camera, DeviceCameras, find_cameras
from tools.drives.hevc_frames import MAX_PICTURES
from tools.errors import DriveError, MissingPackageError, VideoError
from tools.messages.drive_messages import Mounting
from tools.video.video import Video, VideoFrame

# Picture size that devices write (openpilot's encoder, 2020 to 2026).
SIZE: Final = (526, 330)
# More than the bytes before the first slice of a picture.
_HEAD_BYTES: Final = 1024
_START_CODE: Final = re.compile(b"\0?\0\0\x01")
_DELIMITER_TYPE: Final = 9
_PARAMETER_TYPES: Final = (7, 8)


@dataclass(frozen=True, slots=True)
class QCameraIndex:
    """The pictures of a file, from its packets."""

    path: Path
    sha256: bytes  # digest of the file
    is_key: NDArray[np.bool_]  # (n,) bool, whether decoding can start at the picture
    # (n,) int64, bytes of each picture, without the delimiter that muxers put before it.
    sizes_bytes: NDArray[np.int64]
    # (n,) int64, bytes of parameter sets in each picture, which muxers can repeat.
    parameters_bytes: NDArray[np.int64]
    trusted: int = MAX_PICTURES  # number of pictures before the first that is known to be damaged

    def __len__(self) -> int:
        return len(self.is_key)


def scan_qcamera(path: Path) -> QCameraIndex:
    """Find the pictures of a file, up to the first damaged one, without decoding.

    Raises:
        DriveError: the file is not a video, or contains more pictures than a segment can have.
        MissingPackageError: PyAV is not installed.
    """
    try:
        import av
    except ImportError as error:
        raise MissingPackageError(
            f"{path}: expected the package av for videos, found none; install it with: "
            'pip install "modeld[replay]"'
        ) from error
    keys: list[bool] = []
    sizes: list[tuple[int, int]] = []
    digest = b""
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").digest()
        with av.open(f"file:{path}") as container:
            for packet in container.demux(container.streams.video[0]):
                if packet.is_corrupt or len(keys) > MAX_PICTURES:
                    break
                if packet.size:
                    keys.append(bool(packet.is_keyframe))
                    delimiters, parameters = _leading_bytes(bytes(packet)[:_HEAD_BYTES])
                    sizes.append((packet.size - delimiters, parameters))
    except (av.FFmpegError, OSError, IndexError) as error:
        if not keys:
            raise DriveError(
                f"{path}: expected the small pictures of a segment, H.264 in MPEG-TS, found "
                f"{getattr(error, 'strerror', None) or 'no video in it'}; fetch it again"
            ) from error
    if len(keys) > MAX_PICTURES:
        raise DriveError(
            f"{path}: expected at most {MAX_PICTURES} pictures, found more; not a drive's segment"
        )
    columns = np.array(sizes, np.int64).reshape(-1, 2)
    return QCameraIndex(path, digest, np.array(keys, np.bool_), columns[:, 0], columns[:, 1])


def _leading_bytes(head: bytes) -> tuple[int, int]:
    """Return the bytes of delimiters and of parameter sets at the start of a picture.

    Source: ITU-T H.264, 7.4.1 (types of NAL units), Annex B (start codes).
    """
    counted = dict.fromkeys((*_PARAMETER_TYPES, _DELIMITER_TYPE), 0)
    units = list(_START_CODE.finditer(head))
    for unit, following in itertools.pairwise(units):
        kind = head[unit.end()] & 31
        if kind not in counted:
            break
        counted[kind] += following.start() - unit.start()
    return counted[_DELIMITER_TYPE], sum(counted[kind] for kind in _PARAMETER_TYPES)


class QCameraReader:
    """Decodes the pictures of one file; reading them in order is cheap.

    To read an earlier picture, decoding restarts from the beginning: about 1 s per minute of video.
    """

    def __init__(self, index: QCameraIndex) -> None:
        self._index = index
        self._video: Video | None = None
        self._frames: Iterator[VideoFrame] = iter(())
        self._next = 0

    def format_of(self, picture: int) -> FrameFormat:
        """Decode a picture and return its layout.

        Raises:
            DriveError: see `read`.
        """
        decoded = self._decode(picture)
        return nv12_format(decoded.luma.shape[1], decoded.luma.shape[0])

    def read(self, picture: int, target: NDArray[np.uint8], layout: FrameFormat) -> None:
        """Decode one picture into a padded NV12 buffer.

        `picture`: position in the file, from 0. `target`: (>= layout.payload_bytes,) uint8;
        modified. `layout`: the layout of the buffer.

        Raises:
            DriveError: the file ends before the picture, or the picture is damaged or of another
                size.
        """
        decoded = self._decode(picture)
        if decoded.luma.shape != (layout.height, layout.width):
            height, width = decoded.luma.shape
            raise self._error(
                picture, f"one of {layout.width}x{layout.height}, found {width}x{height}"
            )
        decoded.write_nv12(target, layout)

    def close(self) -> None:
        """Release the decoder and the file."""
        if self._video is not None:
            self._video.close()
            self._video = None

    def _decode(self, picture: int) -> VideoFrame:
        if picture >= self._index.trusted:
            raise self._error(picture, f"it whole, found damage at picture {self._index.trusted}")
        if not self._index.is_key[: picture + 1].any():
            raise self._error(picture, "a key frame at or before it, found none")
        try:
            if self._video is None or picture < self._next:
                self.close()
                self._video = Video(self._index.path)
                self._frames = self._video.frames()
            for frame in self._frames:
                self._next = frame.index + 1
                if frame.index == picture:
                    return frame
        except VideoError as error:
            self.close()
            raise self._error(picture, f"it, found damage ({error})") from error
        self.close()
        raise self._error(picture, f"it, found the end after {self._next}")

    def _error(self, picture: int, what: str) -> DriveError:
        return DriveError(
            f"{self._index.path}: picture {picture} of {len(self._index)}: expected {what}; the "
            "video is damaged or incomplete: fetch it again"
        )


def small_cameras(
    path: Path, mounting: Mounting, layout: FrameFormat, focal_px: float | None
) -> tuple[DeviceCameras, str]:
    """Return the camera of small pictures, and a description of its focal length.

    `path`: the drive's path, for messages. `mounting`: has the device and the sensor. `focal_px`:
    focal length given by the user; None: that of the device, scaled.

    Raises:
        DriveError: the device is unknown.
    """
    size = layout.width, layout.height
    if focal_px is not None:
        return DeviceCameras(Camera(*size, focal_px), None), f"focal length {focal_px:g} px, given"
    device, sensor = mounting.device_type, mounting.sensor
    try:
        full = find_cameras(device, sensor).road
    except CameraConfigError as error:
        raise DriveError(
            f"{path}: expected a device whose cameras are known, found {device} with sensor "
            f"{sensor}; set the focal length of the small pictures with --focal-px"
        ) from error
    camera = full.scaled(*size)
    return DeviceCameras(camera, None), (
        f"focal lengths {camera.focal_px:.1f} x {camera.focal_y_px:.1f} px, scaled from "
        f"{full.width}x{full.height} of {device} with {sensor}"
    )
