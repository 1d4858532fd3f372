"""Decodes the pictures of a video's best stream with PyAV, up to the first damage.

`Decoder` yields PyAV's pictures; `nv12_planes` converts one to NV12 in its displayed orientation.
``av`` is imported only when a video is opened, so all other tools work without the ``replay``
extra.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tools.errors import VideoError
from tools.video.video_container import TS_PACKET, damaged_from, read_extent

# Formats whose files can be concatenated. Times restart after the joint.
JOINED_FORMATS: Final = frozenset({"mpegts", "mpeg"})
# FFmpeg's AV_DISPOSITION_ATTACHED_PIC.
ATTACHED_PICTURE: Final = 0x400
# Upper bound of the packets by which decoding and display order differ. H.264 and HEVC allow 16.
_REORDERED: Final = 32


@dataclass(frozen=True, slots=True)
class Index:
    """A container's index of pictures, with its edit list applied."""

    packets: int  # number of packets
    times_s: NDArray[np.float64]  # (n,) times of the displayed pictures, increasing


class Decoder:
    """An open video; iterate `pictures` once.

    Attributes:
        extent: Expected and actual size of the file.
        note: Text that says which stream was chosen; "" for the first.
        cause: Why the pictures ended too early; "" if they did not.

    Raises:
        VideoError: The file has no video.
    """

    def __init__(self, path: Path) -> None:
        import av

        self._path = path
        self._fault: type[Exception] = av.FFmpegError
        try:
            # Give the protocol, because a file name can contain a colon.
            self.container: Any = av.open(f"file:{path}")
        except (av.FFmpegError, OSError) as error:
            raise VideoError(
                f"{path}: expected a video, found a file that cannot be opened as one "
                f"({_reason(error)}); is it complete?"
            ) from error
        self.format_name: str = self.container.format.name
        self.stream: Any = _best_stream(self.container)
        if self.stream is None:
            self.container.close()
            raise VideoError(f"{path}: expected a video stream, found none; check the file")
        self.extent = read_extent(path, self.format_name)
        self.note = _describe_choice(self.container, self.stream)
        # Threads that each decode a picture would hide errors in the last pictures, and pictures
        # that they have already decoded would be lost.
        self.stream.thread_type = "SLICE"
        self.cause = ""
        self._seen = 0
        self._dts: list[int | None] = [None, None]  # decoding times of the last two packets
        self._is_searched = False
        self._damaged_from: int | None = None

    @property
    def is_iso(self) -> bool:
        """Whether it is an MP4 or MOV file."""
        return "mp4" in self.format_name

    def index(self) -> Index | None:
        """Return the index of pictures as far as it is known by now; None if there is none."""
        # The index of other formats has key frames only, or is missing.
        if not (self.is_iso or self.format_name == "avi"):
            return None
        entries = [one for one in self.stream.index_entries if one.size > 0]
        shown = [one.timestamp for one in entries if not one.is_discard]
        return Index(
            len(entries), np.sort(np.array(shown, np.float64)) * float(self.stream.time_base)
        )

    @property
    def end_s(self) -> float | None:
        """Duration in s according to the container; can be a guess. None if unknown."""
        duration, start = self.container.duration, self.container.start_time
        return (duration - (start or 0)) / 1e6 if duration else None

    def close(self) -> None:
        """Release the decoder."""
        self.container.close()

    def pictures(self) -> Iterator[tuple[bool, Any]]:
        """Yield (whether times restart, picture) in order of display."""
        packets = self._packets()
        is_restart, hole = False, None
        for packet in packets:
            if self._is_damaged(packet):
                self.cause = "a damaged packet"
            elif self._is_joint(packet):
                yield from ((False, picture) for picture in self.rest(None))
                self.stream.codec_context.flush_buffers()
                is_restart = True
            decoded = [] if self.cause else self.decode(packet)
            if self.cause:
                hole = _earliest([packet, *islice(packets, _REORDERED)])
                break
            for picture in decoded:
                yield is_restart, picture
                is_restart = False
        if self._lacks_packets() or (self._damaged_from is not None and not self.cause):
            self.cause = self.cause or self.extent.cut or "the end of the file"
            hole = self._before_next(hole)
        for picture in self.rest(hole):
            yield is_restart, picture
            is_restart = False

    def _lacks_packets(self) -> bool:
        index = self.index() if self.is_iso else None
        # Count packets, not pictures: some are decoded only as references and not displayed.
        return self.extent.is_cut if index is None else self._seen < index.packets

    def _before_next(self, hole: int | None) -> int | None:
        """Return a bound on the times of pictures before a missing packet.

        A picture is never displayed before it is decoded.
        """
        before, last = self._dts
        if before is None or last is None:
            return hole
        # Another picture can be displayed at the moment when the missing one is decoded.
        bound = 2 * last - before + 1
        return bound if hole is None else min(hole, bound)

    def _packets(self) -> Iterator[Any]:
        """Yield the packets that are not empty; an empty one would end the decoder."""
        try:
            for packet in self.container.demux(self.stream):
                if packet.size:
                    self._seen += 1
                    yield packet
        except self._fault as error:
            self.cause = self.cause or _reason(error)

    def decode(self, packet: Any) -> list[Any]:
        """Return the pictures that a packet completes; on an error, set ``cause``."""
        try:
            return list(packet.decode())
        except self._fault as error:
            self.cause = _reason(error)
            return []

    def rest(self, hole: int | None = None) -> list[Any]:
        """Return the pictures left in the decoder, up to the time `hole` of a missing one."""
        try:
            rest = list(self.stream.codec_context.decode(None))
        except self._fault as error:
            self.cause = self.cause or _reason(error)
            return []
        return [one for one in rest if hole is None or one.pts is None or one.pts < hole]

    def _is_damaged(self, packet: Any) -> bool:
        """Return whether a packet lacks bytes; in transport streams FFmpeg marks the wrong one."""
        if self.format_name != "mpegts":
            return bool(packet.is_corrupt)
        if not self._is_searched and (packet.is_corrupt or self._path.stat().st_size % TS_PACKET):
            self._is_searched = True
            self._damaged_from = damaged_from(self._path, self.stream.id)
        start = self._damaged_from
        # For packets with a checksum, FFmpeg gives the position of their end.
        return start is not None and packet.pos is not None and packet.pos > start - TS_PACKET

    def _is_joint(self, packet: Any) -> bool:
        self._dts = [last, dts] = [self._dts[1], packet.dts]
        if self.format_name not in JOINED_FORMATS or last is None or dts is None:
            return False
        return bool(packet.is_keyframe and dts < last)


def _best_stream(container: Any) -> Any:
    """Return the video stream that a player would show, or None. Cover pictures are ignored."""
    films = [one for one in container.streams.video if not one.disposition & ATTACHED_PICTURE]
    best = container.streams.best("video")
    return best if best in films else next(iter(films), None)


def _describe_choice(container: Any, stream: Any) -> str:
    videos = container.streams.video
    if videos[0].index == stream.index:
        return ""
    number = [one.index for one in videos].index(stream.index) + 1
    return f"video stream {number} of {len(videos)}, the best that is no cover"


def _earliest(packets: list[Any]) -> int | None:
    """Return the earliest display time of consecutive packets, up to a joint of streams."""
    known = [one for one in packets if one.pts is not None and one.dts is not None]
    return min((one.pts for one in known if one.dts >= known[0].dts), default=None)


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


Planes = tuple[NDArray[np.uint8], NDArray[np.uint8]]

# Chroma value without color.
NEUTRAL: Final = 128
# Tolerance of a display matrix for quarter turns, because its numbers are rounded.
_SKEW: Final = 0.01


@dataclass(frozen=True, slots=True)
class Orientation:
    """The orientation in which a picture is displayed: transposed, then mirrored."""

    is_transposed: bool = False
    flips_x: bool = False
    flips_y: bool = False

    def __str__(self) -> str:
        """Return a description, such as "rotated by 180 degrees"."""
        return _NAMES[self.is_transposed, self.flips_x, self.flips_y]

    def turn(self, rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return a view of (h, w, ...) rows in the displayed orientation."""
        turned = rows.swapaxes(0, 1) if self.is_transposed else rows
        return turned[:: -1 if self.flips_y else 1, :: -1 if self.flips_x else 1]


UPRIGHT: Final = Orientation()
_NAMES: Final = {
    (False, False, False): "upright",
    (False, True, True): "rotated by 180 degrees",
    (False, True, False): "mirrored left to right",
    (False, False, True): "mirrored top to bottom",
    (True, True, False): "rotated by 90 degrees clockwise",
    (True, False, True): "rotated by 90 degrees counterclockwise",
    (True, False, False): "rotated by 90 degrees clockwise and mirrored left to right",
    (True, True, True): "rotated by 90 degrees clockwise and mirrored top to bottom",
}


def orientation_of(picture: Any) -> Orientation | None:
    """Return the orientation of a decoded picture; None if it is not a multiple of 90 degrees.

    The display matrix ``[[a, b, u], [c, d, v], ...]`` maps a pixel (x, y), y down, to its displayed
    position ``x' = a x + c y, y' = b x + d y`` (ISO 14496-12, 8.3.2).
    """
    matrix = picture.side_data.get("DISPLAYMATRIX")
    if matrix is None:
        return UPRIGHT
    a, b, _, c, d = np.frombuffer(bytes(matrix), np.int32)[:5].astype(np.float64).tolist()
    straight, turned = min(abs(a), abs(d)), min(abs(b), abs(c))
    if max(abs(b), abs(c)) <= _SKEW * straight:
        return Orientation(False, a < 0.0, d < 0.0)
    if max(abs(a), abs(d)) <= _SKEW * turned:
        return Orientation(True, c < 0.0, b < 0.0)
    return None


def is_gray(picture: Any) -> bool:
    """Return whether a picture has luma only, as integers of 8 to 16 bits."""
    name, bits = picture.format.name, picture.format.components[0].bits
    return bool(name.startswith("gray") and not name.startswith("grayf") and 8 <= bits <= 16)


def nv12_planes(picture: Any, orientation: Orientation) -> Planes:
    """Return luma (h, w) and interleaved chroma (h / 2, w) of a picture, as displayed."""
    luma, pairs = _gray_planes(picture) if is_gray(picture) else _color_planes(picture)
    if orientation == UPRIGHT:
        return luma, pairs
    halves = pairs.reshape(pairs.shape[0], -1, 2)
    turned = np.asarray(orientation.turn(halves), order="C")
    return np.asarray(orientation.turn(luma), order="C"), turned.reshape(turned.shape[0], -1)


def _color_planes(picture: Any) -> Planes:
    if picture.format.name in ("yuv420p", "yuvj420p"):
        # Interleave here, which is exact. FFmpeg's conversion would rescale full-range yuvj420p.
        luma = _rows(picture.planes[0])
        chroma = np.empty((luma.shape[0] // 2, luma.shape[1]), np.uint8)
        chroma[:, 0::2] = _rows(picture.planes[1])
        chroma[:, 1::2] = _rows(picture.planes[2])
        return luma, chroma
    converted = picture if picture.format.name == "nv12" else picture.reformat(format="nv12")
    luma = _rows(converted.planes[0])
    # PyAV counts a chroma plane's width in UV pairs.
    pairs = np.frombuffer(converted.planes[1], np.uint8)
    chroma = pairs.reshape(converted.planes[1].height, converted.planes[1].line_size)
    return luma, chroma[:, : luma.shape[1]]


def _gray_planes(picture: Any) -> Planes:
    """Return the planes of a gray picture.

    FFmpeg's conversion would treat the plane as full range and compress it.
    """
    bits = picture.format.components[0].bits
    plane = picture.planes[0]
    if bits > 8:
        order = ">u2" if picture.format.is_big_endian else "<u2"
        rows = np.frombuffer(plane, order).reshape(plane.height, -1)[:, : plane.width]
        # The range is a power of two times that of 8 bits, so shift, rounding to nearest.
        rounded = rows.astype(np.uint32) + (1 << (bits - 9)) >> (bits - 8)
        luma = np.minimum(rounded, 255).astype(np.uint8)
    else:
        luma = _rows(plane)
    return luma, np.full((luma.shape[0] // 2, luma.shape[1]), NEUTRAL, np.uint8)


def _rows(plane: Any) -> NDArray[np.uint8]:
    rows: NDArray[np.uint8] = np.frombuffer(plane, np.uint8).reshape(plane.height, plane.line_size)
    return rows[:, : plane.width]
