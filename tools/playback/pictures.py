"""Keeps a few camera frames of a drive as small JPEG pictures while it is played.

They are saved next to the event log, so that a later report can show them.
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from modeld.daemon import StepResult
from modeld.errors import CameraConfigError
from modeld.vehicle.cameras import Camera, find_cameras
from runtime.files.user_file import whole_file
from tools.drives.drive import DriveInfo, Moment
from tools.lib.given_data import write_npz
from tools.playback.session import DAEMON_STREAMS
from tools.report.picture import PictureKeeper
from tools.video.video import read_planes

SUFFIX = ".pictures.npz"

# (frame id, JPEG)
Pictures = list[tuple[int, bytes]]


class FramePictures:
    """Selects pictures of frames with published outputs; pass `take` as `on_moment`."""

    def __init__(self, info: DriveInfo) -> None:
        self._stream = next((name for name in DAEMON_STREAMS if name in info.formats), "")
        self._keeper = PictureKeeper()
        self._frame_ids: list[int] = []

    def take(self, moment: Moment, result: StepResult | None) -> None:
        """Consider the main camera's frame of a moment."""
        frame = moment.frames.get(self._stream)
        if frame is None or result is None or not result.published:
            return
        # The daemon can process an earlier frame late, whose picture is no longer available.
        if frame.frame_id != result.frame_id:
            return
        position = len(self._frame_ids)
        self._keeper.offer(position, *read_planes(frame.data, frame.format))
        self._frame_ids.append(frame.frame_id)

    def choose(self, count: int) -> Pictures:
        """Return at most `count` pictures, spread over the drive."""
        return [(self._frame_ids[at], jpeg) for at, jpeg in self._keeper.choose(count)]


def pictures_path(log: Path) -> Path:
    """Return the path of a log's pictures."""
    return log.with_name(log.name + SUFFIX)


def save_pictures(path: Path, pictures: Pictures) -> None:
    """Save pictures next to a log, for a later report."""
    content = io.BytesIO()
    arrays = {str(frame_id): np.frombuffer(jpeg, np.uint8) for frame_id, jpeg in pictures}
    write_npz(content, arrays)
    with whole_file(path) as file:
        file.write(content.getvalue())


def load_pictures(path: Path) -> Pictures:
    """Return the pictures next to a log, or none if they cannot be read; they are optional."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return [(int(name), arrays[name].tobytes()) for name in arrays.files]
    except (OSError, ValueError, EOFError, KeyError):
        return []


def main_camera(info: DriveInfo) -> Camera | None:
    """Return the intrinsics of the main camera, or None if the device is unknown."""
    try:
        device = info.cameras or find_cameras(info.mounting.device_type, info.mounting.sensor)
    except CameraConfigError:
        return None
    return device.road if "road" in info.formats else device.wide
