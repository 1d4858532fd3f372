"""Encodes camera frames as small JPEG pictures for reports, and selects some of a drive.

PyAV (extra ``replay``) is imported only when a picture is encoded.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

# In pixels: wide enough for a column of the report on a high-density screen.
PICTURE_WIDTH = 960


def encode_jpeg(
    luma: NDArray[np.uint8], chroma: NDArray[np.uint8], *, width: int = PICTURE_WIDTH
) -> bytes:
    """Encode an NV12 picture as JPEG, scaled down to at most `width` pixels.

    `luma` is (h, w) uint8 in the limited range (16 to 235) of videos. `chroma` is (h/2, w) uint8
    with interleaved U and V.
    """
    import av

    rows = np.concatenate([luma, chroma])
    frame: Any = av.VideoFrame.from_ndarray(rows, format="nv12")
    size = jpeg_size(luma.shape[1], luma.shape[0], width=width)
    frame = frame.reformat(width=size[0], height=size[1], format="yuvj420p")
    codec: Any = av.CodecContext.create("mjpeg", "w")
    codec.width, codec.height = size
    codec.pix_fmt = "yuvj420p"
    codec.time_base = Fraction(1, 20)
    # MPEG quality from 2 (best) to 31. At 4, road texture shows no blocks.
    codec.options = {"qmin": "4", "qmax": "4"}
    packets = [*codec.encode(frame), *codec.encode(None)]
    return b"".join(bytes(packet) for packet in packets)


def jpeg_size(columns: int, rows: int, *, width: int = PICTURE_WIDTH) -> tuple[int, int]:
    """Return width and height of the JPEG for a picture of `columns` x `rows` pixels."""
    scale = min(1.0, width / columns)
    # 4:2:0 needs even sizes.
    return 2 * round(scale * columns / 2), 2 * round(scale * rows / 2)


class PictureKeeper:
    """Keeps a few evenly spaced frames of a drive of unknown length.

    Frames are kept at a fixed interval. When there are `most` of them, every other one is dropped
    and the interval doubles.
    """

    def __init__(self, most: int = 8) -> None:
        self._most = most
        self._stride = 1
        self._kept: list[tuple[int, bytes]] = []

    def offer(self, frame_id: int, luma: NDArray[np.uint8], chroma: NDArray[np.uint8]) -> None:
        """Keep an NV12 frame, as in `encode_jpeg`, if it is due. Frame ids must rise from 0."""
        if frame_id % self._stride:
            return
        self._kept.append((frame_id, encode_jpeg(luma, chroma)))
        if len(self._kept) == self._most:
            self._kept = self._kept[::2]
            self._stride *= 2

    def choose(self, count: int) -> list[tuple[int, bytes]]:
        """Return at most ``count`` (frame id, JPEG) pairs, spread over the drive."""
        if len(self._kept) <= count:
            return list(self._kept)
        rows = np.linspace(0, len(self._kept) - 1, count).round().astype(int)
        return [self._kept[row] for row in rows]
