"""A VisionIPC server: hands out buffers of shared memory, and announces frames in them."""

import contextlib
import mmap
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from cereal.errors import FrameError
from cereal.frame_ring import MAX_FRAME_ID, FrameFormat, is_sound
from cereal.stacks import DEFAULT_STACK, Stack
from cereal.transport.base import Publisher, Transport
from cereal.visionipc.layout import (
    DIRECTORY,
    FRAME_ID,
    MAX_BUFFERS,
    STREAM_NUMBERS,
    Description,
    Packet,
    check_stream,
    endpoint,
    socket_path,
)
from cereal.visionipc.listener import Listener


@dataclass(slots=True)
class _Stream:
    """The buffers of one stream."""

    descriptors: list[int]
    descriptions: list[Description]
    frames: list[NDArray[np.uint8]]
    frame_ids: list[NDArray[np.uint64]]
    packets: Publisher
    sent: int = 0
    is_filling: bool = False


class VisionIpcServer:
    """The server of a camera process; has any number of clients.

    Make all streams, then `start`. Per frame: fill `next_buffer(stream)`, then `send(...)`.

    Args:
        name: Of the camera process, such as "camerad".
        transport: Announces the frames: msgq, or zmq for stacks with it. The caller's to close.
        stack: Its clients expect their own size of structures.
        prefix: Value of OPENPILOT_PREFIX.
        directory: Of the socket; others look in /tmp.

    Raises:
        FrameError: the name or the prefix is not usable.
    """

    def __init__(
        self,
        name: str,
        transport: Transport,
        *,
        stack: Stack = DEFAULT_STACK,
        prefix: str = "",
        directory: Path = DIRECTORY,
    ) -> None:
        self.path = socket_path(name, prefix, directory)
        self.server_id = secrets.randbits(64)
        self._name = name
        self._transport = transport
        self._struct_bytes = stack.vision_buffer_bytes
        self._streams: dict[str, _Stream] = {}
        self._listener: Listener | None = None

    def __enter__(self) -> Self:
        """Return the server."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the server."""
        self.close()

    def create_buffers(
        self,
        stream: str,
        count: int,
        format: FrameFormat,  # noqa: A002 -- as in FrameRingWriter
    ) -> None:
        """Make `count` buffers (1 to 127) of a stream, one of STREAMS, before `start`.

        Camera processes have 18, replays 40.

        Raises:
            FrameError: it has some, an argument is out of range, or there is no memory.
            TransportError: another process announces frames of this stream.
        """
        check_stream(stream)
        is_late = self._listener is not None or stream in self._streams
        if is_late or not 1 <= count <= MAX_BUFFERS or not is_sound(format):
            raise FrameError(
                f"{self.path}: expected 1 to {MAX_BUFFERS} buffers of a sound format for a new "
                f"stream before the start, got {count} of {format} for {stream}"
            )
        with contextlib.ExitStack() as undo:
            made = _Stream([], [], [], [], self._transport.publisher(endpoint(self._name, stream)))
            undo.callback(_close, made)
            for idx in range(count):
                self._add_buffer(made, stream, idx, format)
            undo.pop_all()
        self._streams[stream] = made

    def start(self) -> None:
        """Listen in a thread; raise FrameError if another server has the path, or it is bad."""
        replies = {
            STREAM_NUMBERS[name]: (
                b"".join(one.pack(self._struct_bytes) for one in stream.descriptions),
                stream.descriptors,
            )
            for name, stream in self._streams.items()
        }
        self._listener = Listener(self.path, replies)

    def next_buffer(self, stream: str) -> NDArray[np.uint8]:
        """Return the buffer of the next frame to fill, (format.size,) uint8, with old content."""
        one = self._opened(stream)
        one.is_filling = True
        return one.frames[one.sent % len(one.frames)]

    def send(
        self, stream: str, frame_id: int, sof_ns: int, eof_ns: int, *, valid: bool = True
    ) -> None:
        """Announce the buffer of the last `next_buffer`.

        `frame_id` is the camera's 32-bit unsigned counter; the exposure's start and end are in ns
        of the monotonic clock; `valid` is passed on. Raises FrameError if no buffer was requested
        since the last frame, or the id is out of range.
        """
        one = self._opened(stream)
        if not one.is_filling or not 0 <= frame_id <= MAX_FRAME_ID:
            raise FrameError(
                f"{self.path}: expected next_buffer before each frame and an id of 0 to "
                f"{MAX_FRAME_ID}, got frame {frame_id} of {stream}; fill a buffer for each frame"
            )
        one.is_filling = False
        idx = one.sent % len(one.frames)
        one.sent += 1
        one.frame_ids[idx][0] = frame_id
        one.packets.send(Packet(self.server_id, idx, frame_id, sof_ns, eof_ns, valid).pack())

    def close(self) -> None:
        """Stop listening, remove the socket if it is still ours, and end the streams."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        while self._streams:
            _close(self._streams.popitem()[1])

    def _opened(self, stream: str) -> _Stream:
        found = self._streams.get(stream)
        if found is None:
            raise FrameError(
                f"{self.path}: expected one of the streams {sorted(self._streams)}, got "
                f"{stream!r}; create_buffers first"
            )
        return found

    def _add_buffer(self, made: _Stream, stream: str, idx: int, form: FrameFormat) -> None:
        mapped_bytes = form.size + FRAME_ID.size
        # Without a name, so that nothing is left behind; it lives as long as somebody maps it.
        descriptor = os.memfd_create(f"visionipc_{stream}_{idx}")
        made.descriptors.append(descriptor)
        try:
            os.posix_fallocate(descriptor, 0, mapped_bytes)
            memory = mmap.mmap(descriptor, mapped_bytes)
        except OSError as error:
            raise FrameError(
                f"{self.path}: expected {mapped_bytes} bytes of shared memory, got "
                f"{error.strerror}; free some, or make fewer buffers"
            ) from error
        made.frames.append(np.frombuffer(memory, np.uint8, form.size))
        made.frame_ids.append(np.frombuffer(memory, "<u8", 1, form.size))
        sides = (form.width, form.height, form.stride, form.uv_offset)
        where = (self.server_id, idx, STREAM_NUMBERS[stream])
        made.descriptions.append(Description(form.size, mapped_bytes, descriptor, *sides, *where))


def _close(stream: _Stream) -> None:
    stream.packets.close()
    while stream.descriptors:
        os.close(stream.descriptors.pop())
