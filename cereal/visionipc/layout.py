"""The bytes of VisionIPC: requests, descriptions of buffers, and the packets that announce frames.

All numbers are little endian; offsets are those of x86-64 and aarch64:

    description  0 size, 8 mapped bytes, 16 a pointer, 24 descriptor, 32 a pointer, 40 width,
                 48 height, 56 stride, 64 uv_offset, 72 and 80 pointers, 88 server id, 96 idx,
                 104 stream (uint32), 108 padding
    packet       0 server id, 8 idx, 16 frame id (uint32), 24 start and 32 end of the exposure,
                 40 valid (a byte), 48 bytes in all
"""

import re
import struct
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple, Self

from cereal.errors import FrameError
from cereal.frame_ring import FrameFormat, is_sound
from cereal.frames import STREAMS
from cereal.stacks import VISION_ENDPOINT

DIRECTORY: Final = Path("/tmp")  # noqa: S108 -- where VisionIPC has its sockets
STREAM_NUMBERS: Final[Mapping[str, int]] = MappingProxyType({"road": 0, "driver": 1, "wideRoad": 2})
STREAM_NAMES: Final = MappingProxyType({number: name for name, number in STREAM_NUMBERS.items()})

LIST_REQUESTS: Final = (0xFFFFFFFF, 4)
"""Requests of the streams: since August 2026, and before. Neither is a camera of ours."""
REQUEST: Final = struct.Struct("<I")
MAX_STREAMS: Final = 64
MAX_BUFFERS: Final = 127

BUFFER_SIZES: Final = (112, 136)
"""Sizes of a description: since February 2026, and before; only what follows byte 108 differs."""
_BUFFER: Final = struct.Struct("<QQ16xi4x4Q16xQQI")
FRAME_ID: Final = struct.Struct("<Q")
"""Follows the payload of a buffer: the id of the frame that it holds."""

_PACKET: Final = struct.Struct("<QQI4xQQ?7x")
PACKET_BYTES: Final = _PACKET.size

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
# Of unix(7), without the terminator.
_MAX_PATH: Final = 107


class Packet(NamedTuple):
    """The announcement of a frame."""

    server_id: int  # random number of the server's life
    idx: int  # of the buffer that holds the frame
    frame_id: int  # count of the camera, 32 bits
    sof_ns: int  # start of the exposure, ns of the monotonic clock
    eof_ns: int  # end of the exposure
    valid: bool  # ignored, as camera processes differ

    def pack(self) -> bytes:
        """Return the bytes of the packet."""
        return _PACKET.pack(*self)

    @classmethod
    def unpack(cls, data: bytes) -> Self | None:
        """Return what `data` says; None where it has another length."""
        return cls(*_PACKET.unpack(data)) if len(data) == PACKET_BYTES else None


class Description(NamedTuple):
    """A server's description of one buffer; the layout is as in `FrameFormat`."""

    size: int  # bytes of the payload
    mapped_bytes: int  # payload and frame id
    descriptor: int  # the server's own number, of no use to others
    width: int
    height: int
    stride: int
    uv_offset: int
    server_id: int  # as of `Packet`
    idx: int  # of the stream's buffers
    stream: int  # number of the stream

    @property
    def format(self) -> FrameFormat:
        """Layout of the frames."""
        return FrameFormat(self.width, self.height, self.stride, self.uv_offset, self.size)

    def pack(self, struct_bytes: int) -> bytes:
        """Return the description as a structure of this many bytes."""
        return _BUFFER.pack(*self).ljust(struct_bytes, b"\0")


def parse_descriptions(data: bytes, count: int, stream: str, where: Path) -> list[Description]:
    """Return the descriptions in a reply that came with `count` descriptors.

    Raises FrameError if their number or size is wrong, or they are impossible.
    """
    size = len(data) // count if count else 0
    if size not in BUFFER_SIZES or size * count != len(data):
        raise FrameError(
            f"{where}: expected descriptions of {' or '.join(map(str, BUFFER_SIZES))} bytes, one "
            f"for each descriptor, got {len(data)} bytes with {count} descriptors; update the "
            "camera process, or this one"
        )
    found = [Description(*_BUFFER.unpack_from(data, index * size)) for index in range(count)]
    first = found[0]
    for index, one in enumerate(found):
        sound = is_sound(one.format) and one.mapped_bytes >= one.size + FRAME_ID.size
        alike = one.format == first.format and one.server_id == first.server_id
        if not (sound and alike and (one.idx, one.stream) == (index, STREAM_NUMBERS[stream])):
            raise FrameError(
                f"{where}: expected buffer {index} of {count} of the stream {stream}, like the "
                f"others, got {one}, which cannot be; mend the camera process"
            )
    return found


def parse_streams(data: bytes, where: Path) -> set[str]:
    """Return the known streams of a list; raise FrameError if it is none."""
    if len(data) % REQUEST.size or len(data) > MAX_STREAMS * REQUEST.size:
        raise FrameError(
            f"{where}: expected a list of at most {MAX_STREAMS} streams of {REQUEST.size} bytes, "
            f"got {len(data)} bytes; mend the camera process"
        )
    numbers = {number for (number,) in REQUEST.iter_unpack(data)}
    return {name for name in STREAMS if STREAM_NUMBERS[name] in numbers}


def endpoint(name: str, stream: str) -> str:
    """Return the endpoint on which the frames of a stream are announced."""
    return f"{VISION_ENDPOINT}{name}_{STREAM_NUMBERS[stream]}"


def socket_path(name: str, prefix: str, directory: Path) -> Path:
    """Return where the camera process `name` listens; `prefix` is the value of OPENPILOT_PREFIX.

    Raises FrameError if the name is not usable, or the path is too long for a socket.
    """
    path = directory / f"{prefix and prefix + '_'}{VISION_ENDPOINT}{name}"
    if not _NAME.fullmatch(name) or "/" in prefix or len(bytes(path)) > _MAX_PATH:
        raise FrameError(
            f"VisionIPC: expected a name of letters, digits, - and _ (at most 64), a prefix "
            f"without / and a path of at most {_MAX_PATH} bytes, got {name!r}, {prefix!r} and "
            f"{path}; correct them"
        )
    return path


def check_stream(stream: str) -> None:
    """Raise FrameError for a stream that is not one of `STREAMS`."""
    if stream not in STREAM_NUMBERS:
        raise FrameError(f"VisionIPC: expected one of {STREAMS}, got {stream!r}; correct it")
