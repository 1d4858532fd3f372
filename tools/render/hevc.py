"""Encodes pictures as the raw HEVC files of a segment; the same pictures give the same bytes."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from modeld.vehicle.cameras import Camera
from tools.world.painting.sky import Picture
from tools.world.view import Bytes

RATE_HZ = 20
# Key frames of the device's own encoder at its smaller picture.
KEY_FRAME_INTERVAL = 20
# Constant quantizer, no B frames, no lookahead, one thread: nothing is decided by rates, times or
# the number of processors. `info=0` leaves out a text that names the encoder's version.
_X265 = ":".join(
    (
        "log-level=none",
        "pools=none",
        "frame-threads=1",
        "wpp=0",
        "lookahead-slices=0",
        "rc-lookahead=0",
        "bframes=0",
        f"keyint={KEY_FRAME_INTERVAL}",
        f"min-keyint={KEY_FRAME_INTERVAL}",
        "scenecut=0",
        "open-gop=0",
        "aq-mode=0",
        "qp=26",
        # Skips what did not change without a second look: twice as fast, a few percent larger.
        "rd=1",
        "early-skip=1",
        "rskip=2",
        "rskip-edge-threshold=5",
        "info=0",
    )
)


class Packet(NamedTuple):
    """What the encoder made of one picture."""

    size_bytes: int
    is_key: bool


def encode_file(path: Path, camera: Camera, pictures: Iterable[Picture]) -> list[Packet]:
    """Write a raw HEVC file of pictures in order; return one packet for each.

    Parameter sets stand once, at the start of the file, and are not counted with a packet. An
    existing file is overwritten.

    Raises:
        OSError: it cannot be written.
    """
    import av

    codec: Any = av.CodecContext.create("libx265", "w")
    codec.width, codec.height = camera.width, camera.height
    codec.pix_fmt = "yuv420p"
    codec.time_base = Fraction(1, RATE_HZ)
    codec.framerate = Fraction(RATE_HZ, 1)
    codec.options = {"preset": "ultrafast", "x265-params": _X265, "flags": "+global_header"}
    packets: list[Packet] = []
    with path.open("wb") as file:

        def write(encoded: list[Any]) -> None:
            for packet in encoded:
                if not packets:
                    file.write(bytes(codec.extradata))
                data = bytes(packet)
                file.write(data)
                packets.append(Packet(len(data), bool(packet.is_keyframe)))

        for index, picture in enumerate(pictures):
            frame: Any = av.VideoFrame(camera.width, camera.height, "yuv420p")
            for plane, values in zip(frame.planes, picture, strict=True):
                fill_plane(plane, values)
            frame.pts = index
            write(codec.encode(frame))
        write(codec.encode(None))
    return packets


def fill_plane(plane: Any, values: Bytes) -> None:
    """Copy (height, width) values into a plane with padded rows."""
    rows = np.frombuffer(plane, np.uint8).reshape(plane.height, plane.line_size)
    rows[:, : values.shape[1]] = values
