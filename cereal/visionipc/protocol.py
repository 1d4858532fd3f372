"""The protocol of VisionIPC: the bytes of its messages, and the requests to a server.

All numbers are little endian; offsets are those of x86-64 and aarch64:

    description  0 size, 8 mapped bytes, 16 a pointer, 24 descriptor, 32 a pointer, 40 width,
                 48 height, 56 stride, 64 uv_offset, 72 and 80 pointers, 88 server id, 96 idx,
                 104 stream (uint32), 108 padding
    packet       0 server id, 8 idx, 16 frame id (uint32), 24 start and 32 end of the exposure,
                 40 valid (a byte), 48 bytes in all
"""

import array
import errno
import os
import re
import select
import socket
import stat
import struct
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple, Self

from cereal.access import why_refused
from cereal.errors import FrameError
from cereal.frame_ring import FrameFormat, is_sound
from cereal.frames import STREAMS
from cereal.stacks import VISION_ENDPOINT

DIRECTORY: Final = Path("/tmp")  # noqa: S108 -- where VisionIPC has its sockets
STREAM_NUMBERS: Final[Mapping[str, int]] = MappingProxyType({"road": 0, "driver": 1, "wideRoad": 2})
STREAM_NAMES: Final = MappingProxyType({number: name for name, number in STREAM_NUMBERS.items()})

LIST_REQUESTS: Final = (0xFFFFFFFF, 4)
"""Requests for the list of streams: since August 2026, and before. No stream has these numbers."""
REQUEST: Final = struct.Struct("<I")
MAX_STREAMS: Final = 64
MAX_BUFFERS: Final = 127

BUFFER_SIZES: Final = (112, 136)
"""Sizes of a description: since February 2026, and before. They differ only in the padding."""
_BUFFER: Final = struct.Struct("<QQ16xi4x4Q16xQQI")
FRAME_ID: Final = struct.Struct("<Q")
"""The ID of the frame in a buffer, which follows the buffer's payload."""

_PACKET: Final = struct.Struct("<QQI4xQQ?7x")
PACKET_BYTES: Final = _PACKET.size

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
# Limit of unix(7), without the terminator.
_MAX_PATH: Final = 107


class Packet(NamedTuple):
    """The announcement of a frame."""

    server_id: int  # random number that identifies a run of the server
    idx: int  # index of the buffer that holds the frame
    frame_id: int  # the camera's frame counter, 32 bits
    sof_ns: int  # start of the exposure, ns of the monotonic clock
    eof_ns: int  # end of the exposure, ns of the monotonic clock
    valid: bool  # ignored, because camera processes use it differently

    def pack(self) -> bytes:
        """Return the bytes of the packet."""
        return _PACKET.pack(*self)

    @classmethod
    def unpack(cls, data: bytes) -> Self | None:
        """Parse a packet; return None if `data` has another length."""
        return cls(*_PACKET.unpack(data)) if len(data) == PACKET_BYTES else None


class Description(NamedTuple):
    """A server's description of one buffer. The frame layout is explained in `FrameFormat`."""

    size: int  # size of the payload, bytes
    mapped_bytes: int  # size of the payload and the frame ID
    descriptor: int  # the server's own file descriptor, meaningless to other processes
    width: int
    height: int
    stride: int
    uv_offset: int
    server_id: int  # same as in `Packet`
    idx: int  # index among the stream's buffers
    stream: int  # number of the stream

    @property
    def format(self) -> FrameFormat:
        """Layout of the frames."""
        return FrameFormat(self.width, self.height, self.stride, self.uv_offset, self.size)

    def pack(self, struct_bytes: int) -> bytes:
        """Return the description as a structure of `struct_bytes` bytes."""
        return _BUFFER.pack(*self).ljust(struct_bytes, b"\0")


def parse_descriptions(data: bytes, count: int, stream: str, where: Path) -> list[Description]:
    """Parse the descriptions in a reply that came with `count` file descriptors.

    Raises FrameError if their number or size is wrong, or their values are impossible.
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
                f"others, got {one}, which is impossible; fix the camera process"
            )
    return found


def parse_streams(data: bytes, where: Path) -> set[str]:
    """Parse a list of streams, ignoring unknown ones; raise FrameError if it is malformed."""
    if len(data) % REQUEST.size or len(data) > MAX_STREAMS * REQUEST.size:
        raise FrameError(
            f"{where}: expected a list of at most {MAX_STREAMS} streams of {REQUEST.size} bytes, "
            f"got {len(data)} bytes; fix the camera process"
        )
    numbers = {number for (number,) in REQUEST.iter_unpack(data)}
    return {name for name in STREAMS if STREAM_NUMBERS[name] in numbers}


def endpoint(name: str, stream: str) -> str:
    """Return the name of the endpoint that announces the frames of a stream."""
    return f"{VISION_ENDPOINT}{name}_{STREAM_NUMBERS[stream]}"


def socket_path(name: str, prefix: str, directory: Path) -> Path:
    """Return the socket path of the camera process `name`; `prefix` is OPENPILOT_PREFIX.

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


# --- Requests: one request, one answer with descriptors ---------------------------------------
# C++ servers do not expect a client to disconnect: closing a connection before its answer kills the
# camera process (SIGPIPE, or a failed assertion, docs/formats/bus.md). Therefore the connection of
# a late answer stays open, and the next call waits for that answer again.

# A server normally answers within 1 ms. The caller's loop has its own deadline.
_ANSWER_S: Final = 0.1
_MAX_BYTES: Final = max(BUFFER_SIZES) * MAX_BUFFERS
_INT: Final = array.array("i").itemsize
_ROOM: Final = socket.CMSG_SPACE(MAX_BUFFERS * _INT)
_GONE: Final = (errno.ECONNREFUSED, errno.ECONNRESET, errno.EPIPE, errno.ENOENT)
_DENIED: Final = (errno.EACCES, errno.EPERM)

Identity = tuple[int, int, int]


class Answer(NamedTuple):
    """A server's answer. As a context manager it closes the descriptors."""

    data: bytes  # empty if the server does not have the stream
    descriptors: list[int]
    identity: Identity  # identity of the server's socket; see `Conversation.identity`

    def __enter__(self) -> Self:
        """Do nothing."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the descriptors."""
        _close_all(self.descriptors)


class _Open(NamedTuple):
    socket: socket.socket
    request: int
    identity: Identity


class Conversation:
    """Requests to a server's socket, one at a time. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._open: _Open | None = None

    def ask(self, request: int) -> Answer | None:
        """Return the answer to a request; None if no server is running at the path.

        Raises FrameError if the path is not a socket or access is denied, or if the answer is late
        (call again) or too long.
        """
        with self._lock:
            deadline = time.monotonic() + _ANSWER_S
            identity = self.identity()
            held = self._open
            if held is not None and held.identity != identity:
                # The server of the held connection was replaced or removed.
                self._end()
            if identity is None:
                return None
            if self._open is not None and self._open.request != request:
                earlier = self._answer(deadline)
                if earlier is not None:
                    _close_all(earlier.descriptors)
            if self._open is None:
                self._open = self._connect(request, identity)
            return self._answer(deadline) if self._open is not None else None

    def identity(self) -> Identity | None:
        """Return a value that distinguishes the socket from later ones; None if it is missing.

        Raises FrameError if the path is not a socket.
        """
        try:
            status = self.path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise self._refused(error) from error
        if not stat.S_ISSOCK(status.st_mode):
            kinds = {stat.S_IFLNK: "a link", stat.S_IFREG: "a file", stat.S_IFDIR: "a directory"}
            found = kinds.get(stat.S_IFMT(status.st_mode), "something else")
            raise FrameError(f"{self.path}: expected a socket, got {found}; remove it")
        # The inode number of a removed file is reused immediately; its time is not.
        return status.st_dev, status.st_ino, status.st_ctime_ns

    def close(self) -> None:
        """Close the open connection, if any."""
        with self._lock:
            self._end()

    def _connect(self, request: int, identity: Identity) -> _Open | None:
        with ExitStack() as undo:
            try:
                connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                undo.callback(connection.close)
                connection.setblocking(False)
                connection.connect(str(self.path))
                # Send immediately: the server serves no other client meanwhile, and some versions
                # exit when a connection is closed without a request.
                connection.send(REQUEST.pack(request))
            except OSError as error:
                if error.errno in _GONE:
                    return None
                raise self._refused(error) from error
            undo.pop_all()
        return _Open(connection, request, identity)

    def _answer(self, deadline: float) -> Answer | None:
        """Receive the answer and close the connection; keep it open if no answer arrives."""
        assert self._open is not None  # both callers ensure it
        poll = select.poll()
        poll.register(self._open.socket, select.POLLIN)
        if not poll.poll(max(deadline - time.monotonic(), 0) * 1e3):
            raise FrameError(
                f"{self.path}: expected an answer within {_ANSWER_S * 1e3:.0f} ms, got none yet; "
                "check why the camera process does not respond"
            )
        connection, _, identity = self._open
        try:
            data, control, flags, _ = connection.recvmsg(_MAX_BYTES, _ROOM, socket.MSG_CMSG_CLOEXEC)
        except OSError as error:
            if error.errno in _GONE:
                return None
            raise self._refused(error) from error
        finally:
            self._end()
        descriptors: list[int] = []
        for level, kind, content in control:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                descriptors += array.array("i", content[: len(content) // _INT * _INT])
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            found = f"{len(data)} bytes with {len(descriptors)} and more"
            _close_all(descriptors)
            raise FrameError(
                f"{self.path}: expected at most {_MAX_BYTES} bytes and {MAX_BUFFERS} descriptors, "
                f"all of which this process may open, got {found}; raise the limit of open files, "
                "or fix the camera process"
            )
        return Answer(data, descriptors, identity)

    def _end(self) -> None:
        if self._open is not None:
            self._open.socket.close()
            self._open = None

    def _refused(self, error: OSError) -> FrameError:
        advice = "check why the camera process does not respond"
        if error.errno in _DENIED:
            advice = why_refused(self.path)
        elif error.errno in (errno.EMFILE, errno.ENFILE):
            advice = "let this process open more files"
        elif error.errno == errno.EPROTOTYPE:
            advice = "remove it, and start the camera process again"
        return FrameError(
            f"{self.path}: expected to contact a camera process, got {error.strerror}; {advice}"
        )


def _close_all(descriptors: list[int]) -> None:
    while descriptors:
        with suppress(OSError):
            os.close(descriptors.pop())
