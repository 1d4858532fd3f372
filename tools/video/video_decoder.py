"""One pass over the pictures of a video's best stream, through PyAV, up to the first damage.

Imports ``av`` only when a video is opened, so that a machine without the ``replay`` extra can still
use every other tool. Called by ``tools.video.video``.
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

# What may be joined end to end and is still a stream; times begin anew behind the joint.
JOINED_FORMATS: Final = frozenset({"mpegts", "mpeg"})
# FFmpeg's AV_DISPOSITION_ATTACHED_PIC.
ATTACHED_PICTURE: Final = 0x400
# Pictures are decoded at most this many packets before others that are shown earlier: 16 is the
# most that H.264 and HEVC allow.
_REORDERED: Final = 32


@dataclass(frozen=True, slots=True)
class Index:
    """A container's table of pictures, after its edit list.

    Attributes:
        packets: that are read for it.
        times_s: (n,) float64, rising, when packets whose picture is shown are decoded.
    """

    packets: int
    times_s: NDArray[np.float64]


class Decoder:
    """An open video; iterate `pictures` once.

    Args:
        path: of the file.

    Attributes:
        container: PyAV's.
        stream: PyAV's, the best one.
        format_name: of the container, as FFmpeg names it.
        extent: of the file.
        note: which one it is; "" where it is the first.
        cause: what ended the pictures too early; "" for nothing.

    Raises:
        VideoError: there is no video in the file.
    """

    def __init__(self, path: Path) -> None:
        import av

        self._path = path
        self._fault: type[Exception] = av.FFmpegError
        try:
            # With its protocol: a name may have a colon.
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
        # Threads for whole pictures would hide errors in the last ones, and what others decoded by
        # then would be lost.
        self.stream.thread_type = "SLICE"
        self.cause = ""
        self._seen = 0
        self._dts: list[int | None] = [None, None]  # of the last two packets
        self._is_searched = False
        self._damaged_from: int | None = None

    @property
    def is_iso(self) -> bool:
        """Whether it is an MP4 or MOV file."""
        return "mp4" in self.format_name

    def index(self) -> Index | None:
        """Return the table of pictures as far as it is known by now; None where there is none."""
        # Others list key frames only, or nothing.
        if not (self.is_iso or self.format_name == "avi"):
            return None
        entries = [one for one in self.stream.index_entries if one.size > 0]
        shown = [one.timestamp for one in entries if not one.is_discard]
        return Index(
            len(entries), np.sort(np.array(shown, np.float64)) * float(self.stream.time_base)
        )

    @property
    def end_s(self) -> float | None:
        """Seconds from the first time to the end, as the container has it; may be a guess."""
        duration, start = self.container.duration, self.container.start_time
        return (duration - (start or 0)) / 1e6 if duration else None

    def close(self) -> None:
        """Release the decoder."""
        self.container.close()

    def pictures(self) -> Iterator[tuple[bool, Any]]:
        """Yield (whether times begin anew, picture) in presentation order."""
        packets = self._packets()
        is_anew, hole = False, None
        for packet in packets:
            if self._is_damaged(packet):
                self.cause = "a damaged packet"
            elif self._is_joint(packet):
                yield from ((False, picture) for picture in self.rest(None))
                self.stream.codec_context.flush_buffers()
                is_anew = True
            decoded = [] if self.cause else self.decode(packet)
            if self.cause:
                hole = _earliest([packet, *islice(packets, _REORDERED)])
                break
            for picture in decoded:
                yield is_anew, picture
                is_anew = False
        if self._lacks_packets() or (self._damaged_from is not None and not self.cause):
            self.cause = self.cause or self.extent.cut or "the end of the file"
            hole = self._before_next(hole)
        for picture in self.rest(hole):
            yield is_anew, picture
            is_anew = False

    def _lacks_packets(self) -> bool:
        index = self.index() if self.is_iso else None
        # Packets, not pictures: some are decoded for others only, and not shown.
        return self.extent.is_cut if index is None else self._seen < index.packets

    def _before_next(self, hole: int | None) -> int | None:
        """Return what is surely shown before what the next packet, which is missing, would be.

        Nothing is shown before it is decoded, and packets are decoded in turn.
        """
        before, last = self._dts
        if before is None or last is None:
            return hole
        # Another frame may be shown the moment that the missing one is decoded.
        bound = 2 * last - before + 1
        return bound if hole is None else min(hole, bound)

    def _packets(self) -> Iterator[Any]:
        """Yield packets that have something in them; an empty one would end the decoder."""
        try:
            for packet in self.container.demux(self.stream):
                if packet.size:
                    self._seen += 1
                    yield packet
        except self._fault as error:
            self.cause = self.cause or _reason(error)

    def decode(self, packet: Any) -> list[Any]:
        """Return the pictures that a packet completes; ``cause`` says why there are no more."""
        try:
            return list(packet.decode())
        except self._fault as error:
            self.cause = _reason(error)
            return []

    def rest(self, hole: int | None = None) -> list[Any]:
        """Return what is still in the decoder and shown before the time of a missing picture."""
        try:
            rest = list(self.stream.codec_context.decode(None))
        except self._fault as error:
            self.cause = self.cause or _reason(error)
            return []
        return [one for one in rest if hole is None or one.pts is None or one.pts < hole]

    def _is_damaged(self, packet: Any) -> bool:
        """Tell whether a packet lacks some of its bytes: decoders conceal what its picture lacks.

        Of transport streams FFmpeg says it of the wrong packet, and of joints, too.
        """
        if self.format_name != "mpegts":
            return bool(packet.is_corrupt)
        if not self._is_searched and (packet.is_corrupt or self._path.stat().st_size % TS_PACKET):
            self._is_searched = True
            self._damaged_from = damaged_from(self._path, self.stream.id)
        start = self._damaged_from
        # Of packets with a checksum FFmpeg counts from their end.
        return start is not None and packet.pos is not None and packet.pos > start - TS_PACKET

    def _is_joint(self, packet: Any) -> bool:
        self._dts = [last, dts] = [self._dts[1], packet.dts]
        if self.format_name not in JOINED_FORMATS or last is None or dts is None:
            return False
        return bool(packet.is_keyframe and dts < last)


def _best_stream(container: Any) -> Any:
    """Return the stream that a player would show, or None: covers are no films."""
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
    """Return the first time at which one of some packets in a row is shown, up to a joint."""
    known = [one for one in packets if one.pts is not None and one.dts is not None]
    return min((one.pts for one in known if one.dts >= known[0].dts), default=None)


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
