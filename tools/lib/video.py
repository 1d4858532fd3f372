"""Video files as NV12 camera frames, through PyAV.

Imports ``av`` only when a video is opened, so that a machine without the ``replay`` extra can still
use every other tool. Called by ``tools.replay``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cereal.frames import FrameFormat
from tools.errors import VideoError

# Without timestamps in the file, frames are taken to come at this rate (comma cameras, 20 Hz).
FALLBACK_FPS = 20.0
# Elementary streams have no timestamps; FFmpeg makes some up, at 25 frames/s.
UNTIMED_FORMATS = frozenset({"hevc", "h264"})
# A container that states a duration but no frame count may round it to whole milliseconds, and its
# last frame has no duration of its own: two frame intervals are the tolerance.
DURATION_SLACK_FRAMES = 2.0


@dataclass(frozen=True, slots=True)
class VideoInfo:
    """What a video's header says.

    Attributes:
        path: the file.
        width: luma columns in pixels, even.
        height: luma rows in pixels, even.
        fps: average frames per second.
        frame_count: frames the container declares; 0 when it does not say.
        duration_s: seconds the container declares; 0.0 when it does not say or only guesses.
    """

    path: Path
    width: int
    height: int
    fps: float
    frame_count: int
    duration_s: float


@dataclass(frozen=True, slots=True)
class VideoFrame:
    """One decoded picture.

    Attributes:
        index: position in presentation order, from 0.
        time_s: presentation time relative to the first frame.
        luma: (height, width) uint8.
        chroma: (height/2, width) uint8, U and V interleaved.
    """

    index: int
    time_s: float
    luma: NDArray[np.uint8]
    chroma: NDArray[np.uint8]

    def write_nv12(self, target: NDArray[np.uint8], layout: FrameFormat) -> None:
        """Write the picture into a padded NV12 buffer.

        Args:
            target: (>= layout.payload_bytes,) uint8, modified; padding bytes are left as they are.
            layout: size, stride and chroma offset of the buffer.
        """
        write_planes(self.luma, self.chroma, target, layout)


def write_planes(
    luma: NDArray[np.uint8],
    chroma: NDArray[np.uint8],
    target: NDArray[np.uint8],
    layout: FrameFormat,
) -> None:
    """Copy (height, width) luma and (height/2, width) interleaved chroma into padded NV12 rows."""
    luma_rows, chroma_rows = read_planes(target, layout)
    luma_rows[...] = luma
    chroma_rows[...] = chroma


def read_planes(
    data: NDArray[np.uint8], layout: FrameFormat
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return (height, width) luma and (height/2, width) interleaved chroma of padded NV12 rows.

    Args:
        data: (>= layout.payload_bytes,) uint8, which the results are views of.
        layout: size, stride and chroma offset of the buffer.
    """
    height, width, stride = layout.height, layout.width, layout.stride
    rows = data[: stride * height].reshape(height, stride)
    chroma_end = layout.uv_offset + stride * (height // 2)
    chroma_rows = data[layout.uv_offset : chroma_end].reshape(height // 2, stride)
    return rows[:, :width], chroma_rows[:, :width]


class Video:
    """An open video; iterate ``frames()`` once.

    Raises:
        VideoError: from the constructor when the file is no readable video, from ``frames()`` when
            it ends before its header says or a picture in it is damaged.
    """

    def __init__(self, path: Path) -> None:
        import av

        if not path.is_file():
            found = "something that is no file" if path.exists() else "nothing"
            raise VideoError(f"{path}: expected a video file, found {found}; check the path")
        try:
            self._container: Any = av.open(str(path))
        except (av.FFmpegError, OSError) as error:
            raise VideoError(
                f"{path}: expected a video, found a file that cannot be opened as one "
                f"({_reason(error)}); is it complete?"
            ) from error
        if not self._container.streams.video:
            self._container.close()
            raise VideoError(f"{path}: expected a video stream, found none; check the file")
        self._stream = self._container.streams.video[0]
        # Threads reorder nothing here: PyAV returns pictures in presentation order either way.
        self._stream.thread_type = "AUTO"
        self._is_timed = self._container.format.name not in UNTIMED_FORMATS
        self.info = self._read_info(path)
        if self.info.width % 2 or self.info.height % 2:
            self._container.close()
            raise VideoError(
                f"{path}: expected an even width and height (NV12 halves both), found "
                f"{self.info.width}x{self.info.height}; crop or scale the video"
            )

    def __enter__(self) -> Video:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the decoder; further frames cannot be read."""
        self._container.close()

    def frames(self) -> Iterator[VideoFrame]:
        """Yield every picture in presentation order; check at the end that none is missing.

        Raises:
            VideoError: naming how many frames were decoded before the video ended or broke.
        """
        import av

        first_time_s: float | None = None
        packets = decoded = 0
        time_s = 0.0
        damaged = False
        try:
            for packet in self._container.demux(self._stream):
                packets += bool(packet.size)
                # The last packet of a cut file: decoders conceal what its picture lacks. Those
                # before it are whole; some are still in the decoder, and leave it with the empty
                # packet at the end.
                damaged = damaged or bool(packet.is_corrupt)
                if damaged and packet.size:
                    continue
                for picture in packet.decode():
                    if picture.is_corrupt:
                        raise VideoError(self._describe_end(decoded, "a damaged picture"))
                    stamp = picture.time if self._is_timed else None
                    stamp = decoded / self.info.fps if stamp is None else stamp
                    first_time_s = stamp if first_time_s is None else first_time_s
                    time_s = stamp - first_time_s
                    luma, chroma = _planes(picture)
                    yield VideoFrame(decoded, time_s, luma, chroma)
                    decoded += 1
        except av.FFmpegError as error:
            raise VideoError(self._describe_end(decoded, _reason(error))) from error
        if damaged:
            raise VideoError(self._describe_end(decoded, "a damaged packet"))
        self._check_complete(packets, decoded, time_s)

    def _check_complete(self, packets: int, decoded: int, last_time_s: float) -> None:
        info = self.info
        # Packets, not pictures: an edit list may rightly hide some pictures of a sound file.
        if info.frame_count and packets < info.frame_count:
            raise VideoError(self._describe_end(decoded, "the end of the file"))
        slack_s = DURATION_SLACK_FRAMES / info.fps
        if not info.frame_count and last_time_s + slack_s < info.duration_s:
            raise VideoError(self._describe_end(decoded, f"the end at {last_time_s:.2f} s,"))
        if decoded == 0:
            raise VideoError(self._describe_end(0, "no picture at all"))

    def _describe_end(self, decoded: int, found: str) -> str:
        info = self.info
        if info.frame_count:
            expected = f"{info.frame_count} frames"
        elif info.duration_s:
            expected = f"{info.duration_s:.2f} s"
        else:
            expected = "frames to the end of the file"
        return (
            f"{info.path}: expected {expected}, found {found} after {decoded} decoded frames; "
            "the video is damaged or incomplete: fetch it again, or stop before the damage with "
            "--limit"
        )

    def _read_info(self, path: Path) -> VideoInfo:
        stream, container = self._stream, self._container
        rate = (stream.average_rate or stream.guessed_rate) if self._is_timed else None
        # Only Matroska writes a duration without a frame count; elsewhere it is FFmpeg's guess.
        stated = "matroska" in container.format.name and container.duration
        return VideoInfo(
            path=path,
            width=stream.width,
            height=stream.height,
            fps=float(rate) if rate else FALLBACK_FPS,
            frame_count=int(stream.frames),
            duration_s=container.duration / 1e6 if stated else 0.0,
        )


def _planes(picture: Any) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return luma (h, w) and interleaved chroma (h/2, w) of a picture of any pixel format."""
    if picture.format.name in ("yuv420p", "yuvj420p"):
        # Interleaving is exact; FFmpeg's own conversion would rescale full-range yuvj420p.
        luma = _plane(picture.planes[0])
        chroma = np.empty((luma.shape[0] // 2, luma.shape[1]), np.uint8)
        chroma[:, 0::2] = _plane(picture.planes[1])
        chroma[:, 1::2] = _plane(picture.planes[2])
        return luma, chroma
    converted = picture if picture.format.name == "nv12" else picture.reformat(format="nv12")
    luma = _plane(converted.planes[0])
    # PyAV counts a chroma plane's width in UV pairs.
    pairs = np.frombuffer(converted.planes[1], np.uint8)
    chroma = pairs.reshape(converted.planes[1].height, converted.planes[1].line_size)
    return luma, chroma[:, : luma.shape[1]]


def _plane(plane: Any) -> NDArray[np.uint8]:
    rows: NDArray[np.uint8] = np.frombuffer(plane, np.uint8).reshape(plane.height, plane.line_size)
    return rows[:, : plane.width]


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
