"""Plays any video as a drive: its frames, with generated messages of a car and a camera.

A video has no calibration and no car state. By default the camera is a level pinhole camera, 1.22 m
over the road, with a focal length of 0.9 widths; options change it. Car state comes from telemetry;
without it, the car drives straight on at 20 m/s. Every frame becomes a moment. From videos with 40
frames/s or more, only every n-th frame does. With a rate, it is the frame nearest to each multiple
of the interval.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cereal.frames import Frame, nv12_format
from modeld.vehicle.cameras import Camera, DeviceCameras
from tools.drives.comma2k19 import read_comma2k19
from tools.drives.comma2k19_files import telemetry_files
from tools.drives.drive import DriveInfo, Moment, SingleVideoDrive
from tools.drives.open_drive import DriveOptions
from tools.errors import DriveError, UsageError
from tools.lib.named_file import NOUNS, what_is_at
from tools.messages.camera import VideoCamera, stand_in_camera
from tools.messages.drive_messages import MIN_INTERVAL_NS, FrameClock, FrameTimes, Mounting
from tools.messages.telemetry import CarSample, Telemetry, constant_telemetry, read_telemetry
from tools.video.video import Video, VideoFrame, VideoInfo

logger = logging.getLogger(__name__)

MODEL_HZ = 20
# At higher rates frames would have to be delayed to keep timestamps apart.
MAX_RATE_HZ = 1e9 / MIN_INTERVAL_NS
# Part of a drive's identity. Raise it when the same options yield different moments.
VERSION = 1


@dataclass(frozen=True, slots=True)
class VideoDrive(SingleVideoDrive):
    """A video file as a drive."""

    _path: Path
    _telemetry: Telemetry
    _rate_hz: float | None

    def moments(self, first: int = 0) -> Iterator[Moment]:
        """Yield the moments from number `first` on.

        All earlier frames are decoded too, since frame numbers are only exact when counted from the
        start. If the video is damaged, the moments end early and the reason is logged.

        Raises:
            PictureSizeError: the pictures change their size; earlier moments were yielded.
            TelemetryError: the video ends before its telemetry starts.
        """
        clock = FrameClock()
        self.close()
        self._ends.clear()
        time_s = 0.0

        def shown(video: Video) -> Iterator[tuple[FrameTimes, CarSample, VideoFrame]]:
            nonlocal time_s
            for index, (time_s, picture) in enumerate(self._chosen(video)):
                yield clock.stamp(index, time_s), self._telemetry.at(time_s), picture

        with Video(self._path) as video:
            self._open.append(video)
            yield from self._moments_of(shown(video), first)
            self._ends.append(video.damage)
            if video.info.last_time_s is None:
                self._telemetry.check_covers(self._path.name, time_s)

    def frames_from(self, first: int) -> Iterator[Frame] | None:
        """Return the frames from moment `first` on, without messages.

        Return None if frames can only be counted from the start.
        """
        if self._rate_hz is not None:
            return None
        self.close()
        video = Video(self._path)
        self._open.append(video)
        stride = _stride(video.info)
        found = video.frames_from(first * stride)
        return None if found is None else self._seen(found, stride)

    def _seen(self, found: Iterator[VideoFrame], stride: int) -> Iterator[Frame]:
        layout = self.info.formats["road"]
        for frame in found:
            if frame.index % stride == 0:
                buffer = np.zeros(layout.size, np.uint8)
                frame.write_nv12(buffer, layout)
                time_ns = int(1e9 * frame.time_s)
                yield Frame(buffer, layout, frame.index // stride, time_ns, time_ns)

    def numbers(self) -> list[int]:
        """Decode the whole video and return the video frame number of each moment.

        Raises:
            PictureSizeError: the pictures change their size.
        """
        with Video(self._path) as video:
            return [picture.index for _, picture in self._chosen(video)]

    def _chosen(self, video: Video) -> Iterator[tuple[float, VideoFrame]]:
        """Yield (time in s from the first frame, frame) of each moment."""
        if self._rate_hz is not None:
            return resample(video.frames(), self._rate_hz)
        stride = _stride(video.info)
        return ((f.time_s, f) for f in video.frames() if f.index % stride == 0)


def expand(text: str, options: DriveOptions) -> list[str] | None:  # noqa: ARG001 - of all kinds
    """Return the path of a file; None for directories and paths that do not exist."""
    return [text] if os.path.isfile(text) else None  # noqa: PTH113 - of any name, too long ones


def input_files(text: str, options: DriveOptions) -> list[Path]:
    """Return the path of the video."""
    return [Path(one) for one in expand(text, options) or []]


def open_drive(text: str, options: DriveOptions) -> VideoDrive:
    """Open a video.

    Raises:
        UsageError: the focal length or the rate is out of range.
        VideoError: the video is not readable.
        TelemetryError: the telemetry is not readable, or does not overlap the video.
    """
    path = Path(text)
    _check_rate(options.rate_hz)
    if what_is_at(path) == NOUNS["log"]:
        raise DriveError(
            f"{path}: expected a segment, a route, a comma2k19 segment or a video, found an event "
            "log by itself; name the directory that has its cameras' videos, too"
        )
    with Video(path) as video:
        header = video.info
    known = options.camera or VideoCamera()
    focal_px = known.focal_px if options.focal_px is None else options.focal_px
    camera = stand_in_camera(header.width, header.height, focal_px, header.pixel_aspect)
    telemetry = open_telemetry(options.telemetry)
    if header.last_time_s is not None:
        telemetry.check_covers(path.name, header.last_time_s)
    shown = "; ".join(header.notes)
    if shown:
        logger.warning("%s: %s", path, shown)
    mounting = Mounting(rpy_rad=known.rpy_rad, height_m=known.height_m)
    stride = _stride(header)
    info = DriveInfo(
        name=path.name,
        kind="video",
        identity=_identity(path, options, shown),
        formats={"road": nv12_format(header.width, header.height)},
        cameras=DeviceCameras(road=camera, wide=None),
        mounting=mounting,
        moments=_count(header, options.rate_hz),
        rate_hz=header.fps / stride if options.rate_hz is None else options.rate_hz,
        facts={
            "video": f"{path.name}, {header.width}x{header.height}, {header.fps:g} frames/s"
            + _describe_choice(stride, options.rate_hz),
            **({"shown as": shown} if shown else {}),
            **({"damage": header.cut} if header.cut else {}),
            "camera": _describe_camera(camera, is_given=focal_px is not None, known=known),
            "car state": options.telemetry.name if options.telemetry else "constant, straight on",
        },
    )
    return VideoDrive(info, path, telemetry, options.rate_hz)


def open_telemetry(path: Path | None) -> Telemetry:
    """Read a telemetry CSV or a comma2k19 segment; None: the car drives straight on.

    Raises:
        TelemetryError: the telemetry cannot be read.
    """
    if path is None:
        return constant_telemetry()
    return read_comma2k19(path).telemetry() if path.is_dir() else read_telemetry(path)


def resample(frames: Iterator[VideoFrame], rate_hz: float) -> Iterator[tuple[float, VideoFrame]]:
    """Yield the frame nearest to each time k / rate, up to the time of the last frame.

    The nearest frame is at most half a frame interval off, and neither early nor late on average,
    so pictures match the car state of the same time. Of two equally near frames, the earlier is
    used. If the video is slower than the rate, frames are repeated.

    `frames`: frames in presentation order, times from 0. `rate_hz`: above 0.
    """
    before: VideoFrame | None = None
    index = 0
    for frame in frames:
        # Times are rounded, so a difference below 1 ns counts as equal.
        while index / rate_hz <= frame.time_s + 1e-9:
            time_s = index / rate_hz
            is_nearer = before is None or frame.time_s - time_s < time_s - before.time_s - 1e-9
            yield time_s, frame if is_nearer or before is None else before
            index += 1
        before = frame


def _check_rate(rate_hz: float | None) -> None:
    if rate_hz is not None and not 0.0 < rate_hz <= MAX_RATE_HZ:
        raise UsageError(
            f"--rate: expected frames/s above 0 and at most {MAX_RATE_HZ:g}, found {rate_hz:g}; "
            f"models are trained on {MODEL_HZ}"
        )


def _stride(header: VideoInfo) -> int:
    """Return n for using every n-th frame, at the lowest rate that is at least the model's."""
    return max(1, int(header.fps // MODEL_HZ))


def _count(header: VideoInfo, rate_hz: float | None) -> int | None:
    if not header.frame_count:
        return None
    if rate_hz is None:
        return -(-header.frame_count // _stride(header))
    if header.last_time_s is None:
        return None
    return math.floor(header.last_time_s * rate_hz + 1e-6) + 1


def _describe_choice(stride: int, rate_hz: float | None) -> str:
    if rate_hz is not None:
        return f", the frame nearest to each multiple of {1e3 / rate_hz:g} ms"
    return f", every {stride}th frame" if stride > 1 else ""


def _describe_camera(camera: Camera, *, is_given: bool, known: VideoCamera) -> str:
    given = "given" if is_given else "assumed: the video has no calibration"
    field_of_view = 2.0 * math.degrees(math.atan(camera.width / 2 / camera.focal_px))
    angles = (known.roll_deg, known.pitch_deg, known.yaw_deg)
    turned = "roll {:g}, pitch {:g}, yaw {:g} degrees".format(*angles) if any(angles) else "level"
    vertical = f" x {camera.focal_y_px:g}" if camera.focal_y_px else ""
    return (
        f"focal length {camera.focal_px:g}{vertical} px ({field_of_view:.0f} degrees, {given}), "
        f"{turned}, {known.height_m:g} m over the road; also stands in for the wide camera"
    )


def _identity(path: Path, options: DriveOptions, shown: str) -> str:
    """Return the digest of everything that determines the drive's moments."""
    digest = hashlib.sha256(
        f"video {VERSION} focal {options.focal_px!r} rate {options.rate_hz!r}".encode()
    )
    if options.camera is not None:  # keeps identities without a camera stable
        digest.update(repr(options.camera).encode())
    digest.update(shown.encode())  # empty for unmodified videos, which keeps identities stable
    files = [path]
    if options.telemetry is not None:
        is_directory = options.telemetry.is_dir()
        files += telemetry_files(options.telemetry) if is_directory else [options.telemetry]
    for file in files:
        try:
            with file.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
        except OSError as error:
            raise DriveError(
                f"{file}: expected a readable file, found: {error.strerror}; check the path"
            ) from error
    return digest.hexdigest()
