"""Reads video files as NV12 camera frames, for all tools.

Frames appear as in a video player: rotation and edit lists are applied, and cover pictures are
ignored. Times are those of the file. Pixels are not resampled; `VideoInfo.pixel_aspect` gives their
shape. If a file is damaged, the frames before the damage are returned.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cereal.frames import FrameFormat
from tools.errors import PictureSizeError, VideoError
from tools.lib.named_file import what_is_at
from tools.video.video_decoder import (
    UPRIGHT,
    Decoder,
    Orientation,
    is_gray,
    nv12_planes,
    orientation_of,
)

# --- Seeking to a frame -----------------------------------------------------------------------
# The container's index gives the position of key frames. Frames are numbered in order of display,
# packets in order of decoding. At a key frame both numbers are equal, unless a later picture is
# shown before it. In that case, or if the index is incomplete, the number of a frame is unknown.


class SeekingDecoder:
    """A second decoder of a video that starts at a chosen frame.

    Raises:
        VideoError: The file has no video.
    """

    def __init__(self, path: Path) -> None:
        self._decoder = Decoder(path)
        self._packets: Iterator[Any] = iter(())

    def close(self) -> None:
        """Release the decoder."""
        self._decoder.close()

    def pictures(self, first: int) -> Iterator[Any] | None:
        """Return PyAV's pictures from number `first` to the end or the first damage.

        Returns None if the number of a picture cannot be determined from the index.
        """
        decoder = self._decoder
        # The index of other containers has key frames only.
        entries = [*decoder.stream.index_entries] if decoder.is_iso else []
        if any(one.is_discard or not one.size for one in entries):
            return None
        keys = [at for at, one in enumerate(entries[: first + 1]) if one.is_keyframe]
        if not keys:
            return None
        ends = (at for at in range(keys[-1] + 1, len(entries)) if entries[at].is_keyframe)
        length = next(ends, len(entries)) - keys[-1]
        group = self._group(entries[keys[-1]].timestamp, length)
        return None if group is None else self._from(group, first - keys[-1])

    def _group(self, timestamp: int, length: int) -> list[Any] | None:
        """Return the packets of a key frame and its successors; None if they are not as expected.

        `timestamp` and `length` are those in the index, up to the next key frame.
        """
        container, stream = self._decoder.container, self._decoder.stream
        container.seek(timestamp, stream=stream)
        self._packets = (one for one in container.demux(stream) if one.size)
        group = [one for _, one in zip(range(length), self._packets, strict=False)]
        is_there = len(group) == length and group[0].is_keyframe and group[0].dts == timestamp
        stamps = [one.pts for one in group]
        if not is_there or None in stamps or min(stamps) != stamps[0]:
            return None
        return group

    def _from(self, group: list[Any], skipped: int) -> Iterator[Any]:
        """Yield the pictures of a group and its successors, up to damage; omit the first ones."""
        for count, picture in enumerate(self._decoded(chain(group, self._packets))):
            if picture.is_corrupt:
                return
            if count >= skipped:
                yield picture

    def _decoded(self, packets: Iterator[Any]) -> Iterator[Any]:
        for packet in packets:
            if packet.is_corrupt:
                return
            yield from self._decoder.decode(packet)
            if self._decoder.cause:
                return
        yield from self._decoder.rest()


logger = logging.getLogger(__name__)

# Assumed frame rate if the file has no timestamps: that of comma cameras.
FALLBACK_FPS = 20.0
# Elementary streams have no timestamps; FFmpeg invents some at 25 frames/s.
UNTIMED_FORMATS = frozenset({"hevc", "h264"})
# Above this ratio of frame intervals, the rate varies. Rounding to the container's time unit, often
# milliseconds, also makes them differ.
STEADY_RATIO = 1.25


@dataclass(frozen=True, slots=True)
class VideoInfo:
    """Properties of a video that are known once its first picture is decoded."""

    path: Path
    width: int  # displayed width in pixels, even
    height: int  # displayed height in pixels, even
    fps: float
    frame_count: int  # number of displayed frames in the container's index; 0 if it has none
    last_time_s: float | None  # upper bound of the time from first to last frame; None if unknown
    pixel_aspect: float = 1.0  # displayed width of a pixel divided by its height
    notes: tuple[str, ...] = ()  # unusual properties, such as a rotation; one text each
    cut: str = ""  # where the file is truncated; "" if it is not, as far as known


@dataclass(frozen=True, slots=True)
class VideoFrame:
    """One decoded picture.

    Frames are numbered and timed in order of display, from the first frame.
    """

    index: int
    time_s: float
    luma: NDArray[np.uint8]  # (height, width)
    chroma: NDArray[np.uint8]  # (height / 2, width), U and V interleaved

    def write_nv12(self, target: NDArray[np.uint8], layout: FrameFormat) -> None:
        """Write the picture into a padded NV12 buffer without changing its padding bytes.

        `target` is uint8 with at least ``layout.payload_bytes``.
        """
        write_planes(self.luma, self.chroma, target, layout)


def write_planes(
    luma: NDArray[np.uint8],
    chroma: NDArray[np.uint8],
    target: NDArray[np.uint8],
    layout: FrameFormat,
) -> None:
    """Copy luma, (height, width), and chroma, (height / 2, width), into a padded NV12 buffer."""
    luma_rows, chroma_rows = read_planes(target, layout)
    luma_rows[...] = luma
    chroma_rows[...] = chroma


def read_planes(
    data: NDArray[np.uint8], layout: FrameFormat
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return luma, (height, width), and interleaved chroma, (height / 2, width), of an NV12 buffer.

    The results are views of `data`, uint8 with at least ``layout.payload_bytes``.
    """
    height, width, stride = layout.height, layout.width, layout.stride
    rows = data[: stride * height].reshape(height, stride)
    chroma_end = layout.uv_offset + stride * (height // 2)
    chroma_rows = data[layout.uv_offset : chroma_end].reshape(height // 2, stride)
    return rows[:, :width], chroma_rows[:, :width]


class Video:
    """An open video; iterate ``frames()`` once.

    Attributes:
        info: Properties of the video.
        damage: Why the frames ended too early, in one line; "" if they did not, or not yet.

    Raises:
        VideoError: The file is not a video, or it cannot be decoded or displayed.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise VideoError(
                f"{path}: expected a video file, found {what_is_at(path)}; check the path"
            )
        self._path, self.damage = path, ""
        self._seeking: SeekingDecoder | None = None
        self._decoder = Decoder(path)
        try:
            self._is_timed = self._decoder.format_name not in UNTIMED_FORMATS
            self._pictures = self._decoder.pictures()
            self._first = self._read_first()
            self._orientation = self._read_orientation(self._first)
            self.info = self._read_info(self._first)
        except VideoError:
            self.close()
            raise

    def __enter__(self) -> Video:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the decoder; no more frames can be read."""
        self._decoder.close()
        if self._seeking is not None:
            self._seeking.close()

    def frames_from(self, first: int) -> Iterator[VideoFrame] | None:
        """Return the frames from number `first` on, up to the first damage, by seeking.

        Returns None if the number of a frame cannot be determined from the container's index.
        """
        if self._seeking is not None:
            self._seeking.close()
        self._seeking = SeekingDecoder(self._path)
        pictures = self._seeking.pictures(first)
        if pictures is None or not self._is_timed:
            return None
        return self._numbered(first, pictures)

    def _numbered(self, first: int, pictures: Iterator[Any]) -> Iterator[VideoFrame]:
        base, size = self._decoder.stream.time_base, (self._first.width, self._first.height)
        for number, picture in enumerate(pictures, first):
            if (picture.width, picture.height) != size:
                return
            time_s = float((picture.pts - self._first.pts) * base)
            yield VideoFrame(number, time_s, *nv12_planes(picture, self._orientation))

    def frames(self) -> Iterator[VideoFrame]:
        """Yield every frame in order of display, up to the first damage.

        Missing or damaged data is logged in one line, which is also in ``damage``.

        Raises:
            PictureSizeError: The pictures change their size; those before have been yielded.
        """
        info, size = self.info, (self._first.width, self._first.height)
        base = self._decoder.stream.time_base
        start_s: float | None = None
        decoded, time_s, shift_s = 0, 0.0, 0.0
        for is_restart, picture in chain([(False, self._first)], self._pictures):
            if picture.is_corrupt:
                self._end(decoded, "a damaged picture")
                return
            if (picture.width, picture.height) != size:
                raise PictureSizeError(
                    f"{info.path}: frame {decoded}: expected a picture of {size[0]}x{size[1]} like "
                    f"those before it, found {picture.width}x{picture.height}; cut the video there"
                )
            if self._is_timed and picture.pts is not None:
                stamp_s = picture.pts * base.numerator / base.denominator
            else:
                stamp_s = decoded / info.fps
            if start_s is None:
                start_s = stamp_s
            elif is_restart:
                shift_s = start_s + time_s + 1.0 / info.fps - stamp_s
                logger.warning(
                    "%s: frame %d: times restart, as at a joint of streams; they continue one "
                    "frame interval after %.3f s",
                    *(info.path, decoded, time_s),
                )
            time_s = stamp_s + shift_s - start_s
            yield VideoFrame(decoded, time_s, *nv12_planes(picture, self._orientation))
            decoded += 1
        self._check_complete(decoded)

    def _read_first(self) -> Any:
        _, picture = next(self._pictures, (False, None))
        if picture is not None and not picture.is_corrupt:
            return picture
        cause = "a damaged picture" if picture is not None else self._decoder.cause
        raise VideoError(
            f"{self._path}: expected at least one picture, found {cause or 'the end of the file'} "
            "before the first; the video is damaged or incomplete: fetch it again"
        )

    def _check_complete(self, decoded: int) -> None:
        if self._decoder.cause:
            self._end(decoded, self._decoder.cause)
        elif self.info.cut:
            logger.warning("%s: found %s; no picture is missing", self._path, self.info.cut)

    def _end(self, decoded: int, found: str) -> None:
        count = self.info.frame_count
        expected = f"{count} frames" if count else "frames to the end of the file"
        self.damage = (
            f"{self._path}: expected {expected}, found {found} after {decoded} decoded frames; the "
            f"video is damaged or incomplete from frame {decoded} on: fetch it again"
        )
        logger.warning("%s", self.damage)

    def _read_orientation(self, picture: Any) -> Orientation:
        orientation = orientation_of(picture)
        if orientation is None:
            raise VideoError(
                f"{self._path}: expected pictures of {picture.width}x{picture.height} that are "
                f"shown turned by quarter turns, found by {picture.rotation} degrees; turn the "
                "video and re-encode it"
            )
        return orientation

    def _read_info(self, picture: Any) -> VideoInfo:
        decoder, stream, extent = self._decoder, self._decoder.stream, self._decoder.extent
        width, height = picture.width, picture.height
        aspect = float(stream.sample_aspect_ratio or 1.0)
        if self._orientation.is_transposed:
            width, height, aspect = height, width, 1.0 / aspect
        if width % 2 or height % 2:
            raise VideoError(
                f"{self._path}: expected an even width and height (NV12 halves both), found "
                f"{width}x{height}; crop or scale the video"
            )
        rate = (stream.average_rate or stream.guessed_rate) if self._is_timed else None
        fps = float(rate) if rate else FALLBACK_FPS
        index = decoder.index()
        # The index of an AVI is at its end, so it is missing in a truncated file. That of a
        # fragmented file is distributed over the file.
        is_whole = not (extent.is_fragmented or (extent.is_cut and not decoder.is_iso))
        times_s = index.times_s if index is not None and is_whole else np.zeros(0)
        notes = [decoder.note] if decoder.note else []
        if self._orientation != UPRIGHT:
            notes.append(str(self._orientation))
        if aspect != 1.0:
            notes.append(f"pixels {aspect:.6g} times as wide as high")
        if is_gray(picture):
            notes.append(f"without colour ({picture.format.name})")
        if 0 < times_s.size < stream.frames:
            notes.append(
                f"{times_s.size} of {stream.frames} frames shown, by the container's index"
            )
        steps_s = np.diff(times_s)
        last_s = float(times_s[-1] - times_s[0]) if times_s.size else None
        if steps_s.size and steps_s.max() > STEADY_RATIO * steps_s.min():
            notes.append("frames at varying intervals")
            if not decoder.is_iso:
                # AVI has a single rate and omits frames that do not follow it.
                fps = steps_s.size / float(times_s[-1] - times_s[0])
            if stream.codec_context.has_b_frames:
                # The index has decoding times. Here the last one is not that of the last frame.
                last_s = None
        if "matroska" in decoder.format_name:
            # For other containers this value would be FFmpeg's guess.
            last_s = decoder.end_s
        return VideoInfo(
            path=self._path,
            width=width,
            height=height,
            fps=fps,
            frame_count=int(times_s.size),
            last_time_s=last_s,
            pixel_aspect=aspect,
            notes=tuple(notes),
            cut=extent.cut,
        )
