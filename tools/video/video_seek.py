"""Enter a video at a frame by its container's table, without decoding all that precedes it.

Frames are numbered in the order in which they are shown, packets in the order in which they are
decoded. At a key frame both counts are the same, if no picture behind it is shown before it: then
all packets before it are pictures before it. Where that does not hold, or the table does not say
all, nobody knows the number of a frame that was not counted from the start.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from tools.video.video_decoder import Decoder


class SeekingDecoder:
    """A second decoder of a video, which begins where it is told.

    Args:
        path: of the video.

    Raises:
        VideoError: there is no video in the file.
    """

    def __init__(self, path: Path) -> None:
        self._decoder = Decoder(path)
        self._packets: Iterator[Any] = iter(())

    def close(self) -> None:
        """Release the decoder."""
        self._decoder.close()

    def pictures(self, first: int) -> Iterator[Any] | None:
        """Return PyAV's pictures from a number on, to the end or the first damage.

        Returns:
            None where the number of a picture cannot be known from the table.
        """
        decoder = self._decoder
        # Other containers list key frames only.
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
        """Return the packets from a key frame to the next; None where they are not as expected."""
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
        """Yield pictures, but for some at the begin, up to the first damage."""
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
