"""Encodes pictures as ``qcamera.ts``: small, H.264 in a transport stream, stamped by end of frame.

The same pictures give the same bytes: sums of whole numbers scale them, one thread encodes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tools.drives.qcamera import SIZE
from tools.render.hevc import RATE_HZ, Packet, fill_plane
from tools.world.painting.sky import Picture
from tools.world.view import Bytes

# Of transport streams.
_CLOCK_HZ = 90_000
# About the 256 kbit/s of a device.
_OPTIONS = {
    "preset": "ultrafast",
    "qp": "30",
    "x264-params": "keyint=15:min-keyint=15:scenecut=0:bframes=0:threads=1:log-level=0",
}


def encode_small(path: Path, pictures: Iterable[Picture], ends_ns: Sequence[int]) -> list[Packet]:
    """Write the small pictures of a segment.

    Args:
        path: the file; overwritten.
        pictures: of the full size, in order.
        ends_ns: end of exposure of each.

    Returns:
        One packet for each picture, as its encoder made it.

    Raises:
        OSError: it cannot be written.
    """
    import av

    packets: list[Packet] = []
    with path.open("wb") as file, av.open(file, "w", format="mpegts") as container:
        stream: Any = container.add_stream("libx264", rate=RATE_HZ)
        stream.width, stream.height = SIZE
        stream.pix_fmt, stream.options = "yuv420p", _OPTIONS
        stream.time_base = stream.codec_context.time_base = Fraction(1, _CLOCK_HZ)

        def write(encoded: Iterable[Any]) -> None:
            for packet in encoded:
                packets.append(Packet(packet.size, bool(packet.is_keyframe)))
                container.mux(packet)

        for picture, end_ns in zip(pictures, ends_ns, strict=True):
            frame: Any = av.VideoFrame(*SIZE, "yuv420p")
            for plane, values in zip(frame.planes, picture, strict=True):
                fill_plane(plane, scale_plane(values, plane.width, plane.height))
            frame.pts = end_ns * _CLOCK_HZ // 1_000_000_000
            write(stream.encode(frame))
        write(stream.encode(None))
    return packets


def scale_plane(plane: Bytes, width: int, height: int) -> Bytes:
    """Return a plane scaled down: each value is the mean of what it covers, exactly."""
    rows, columns = plane.shape
    total = _sums(_sums(plane.astype(np.int64), height).T, width).T
    area = rows * columns
    return np.asarray((total + area // 2) // area, np.uint8)


def _sums(values: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Return `count` times the sums over equal spans of the first axis."""
    length = len(values)
    whole, part = np.divmod(np.arange(count + 1) * length, count)
    padded = np.concatenate([values, np.zeros_like(values[:1])])
    below = np.concatenate([np.zeros_like(values[:1]), np.cumsum(values, axis=0)])
    return np.asarray(np.diff(below[whole] * count + padded[whole] * part[:, None], axis=0))
