"""A VisionIPC server: shares its frame buffers with clients and announces new frames.

A thread answers clients on a socket with the buffers' file descriptors. Frames are announced over
a transport.
"""

import contextlib
import mmap
import os
import secrets
import select
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from cereal.access import why_refused
from cereal.errors import FrameError
from cereal.frame_ring import MAX_FRAME_ID, FrameFormat, is_sound
from cereal.stacks import DEFAULT_STACK, Stack
from cereal.transport.base import Publisher, Transport
from cereal.visionipc.protocol import (
    DIRECTORY,
    FRAME_ID,
    LIST_REQUESTS,
    MAX_BUFFERS,
    REQUEST,
    STREAM_NUMBERS,
    Conversation,
    Description,
    Packet,
    check_stream,
    endpoint,
    socket_path,
)

# Same mode as the sockets of the bus, because frames can show people.
SOCKET_MODE: Final = 0o660
_BACKLOG: Final = 16
# The maximum number of clients that have connected but sent no request, and how long each may wait.
_MAX_CLIENTS: Final = 64
_PATIENCE_S: Final = 1.0
# Pause after a failed accept, for example when the process has no free file descriptor.
_PAUSE_S: Final = 0.01


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
    """The server of a camera process, for any number of clients.

    Create all streams, then call `start`. Per frame: fill `next_buffer(stream)`, then call
    `send(...)`.

    Args:
        name: Name of the camera process, such as "camerad".
        transport: Announces frames: msgq, or zmq if the stack uses it. The caller closes it.
        stack: The stack of the clients, which determines the size of descriptions.
        prefix: Value of OPENPILOT_PREFIX.
        directory: Directory of the socket; other programs look in /tmp.

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
        """Create `count` buffers (1 to 127) for a stream, one of STREAMS, before `start`.

        Camera processes have 18, replays 40.

        Raises:
            FrameError: the stream has buffers, an argument is out of range, or memory is short.
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
        """Start answering clients; raise FrameError if the path is in use or not usable."""
        replies = {
            STREAM_NUMBERS[name]: (
                b"".join(one.pack(self._struct_bytes) for one in stream.descriptions),
                stream.descriptors,
            )
            for name, stream in self._streams.items()
        }
        self._listener = Listener(self.path, replies)

    def next_buffer(self, stream: str) -> NDArray[np.uint8]:
        """Return the next buffer to fill, (format.size,) uint8. It holds an old frame."""
        one = self._opened(stream)
        one.is_filling = True
        return one.frames[one.sent % len(one.frames)]

    def send(
        self, stream: str, frame_id: int, sof_ns: int, eof_ns: int, *, valid: bool = True
    ) -> None:
        """Announce the frame in the buffer that `next_buffer` returned last.

        `frame_id` is the camera's 32-bit unsigned counter. The exposure's start and end are in ns
        of the monotonic clock. Clients receive `valid` unchanged. Raises FrameError if no buffer
        was requested since the last frame, or the ID is out of range.
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
        """Stop listening, remove the socket if it is still our own, and end the streams."""
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
        # The file has no name, so nothing is left behind. It exists as long as it is mapped.
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


class Listener:
    """Answers clients in a thread until it is closed. Clients that send nothing delay no others.

    `replies` maps the number of a stream to the bytes and descriptors of its answer. Raises
    FrameError if another server is running at the path, or the path cannot be used.
    """

    def __init__(self, path: Path, replies: Mapping[int, tuple[bytes, list[int]]]) -> None:
        self._path = path
        self._replies = replies
        self._socket = _bind(path)
        self._inode = path.lstat().st_ino
        self._clients: dict[int, tuple[socket.socket, float]] = {}
        self._wake = os.eventfd(0, os.EFD_CLOEXEC)
        self._poll = select.poll()
        self._thread = threading.Thread(target=self._listen, name="visionipc", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread, and remove the socket if it is still our own."""
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        os.close(self._wake)
        self._socket.close()
        with contextlib.suppress(FileNotFoundError):
            if self._path.lstat().st_ino == self._inode:
                self._path.unlink()

    def _listen(self) -> None:
        listening = self._socket.fileno()
        for descriptor in (listening, self._wake):
            self._poll.register(descriptor, select.POLLIN)
        ready: list[int] = []
        while self._wake not in ready:
            ready = [descriptor for descriptor, _ in self._poll.poll(_PATIENCE_S * 1e3)]
            for descriptor in ready:
                if descriptor == listening:
                    self._accept()
                elif descriptor in self._clients:
                    self._answer(self._clients[descriptor][0])
                    self._drop(descriptor)
            for descriptor, (_, until_s) in tuple(self._clients.items()):
                if until_s < time.monotonic() or len(self._clients) > _MAX_CLIENTS:
                    self._drop(descriptor)
        for descriptor in tuple(self._clients):
            self._drop(descriptor)

    def _accept(self) -> None:
        try:
            client, _ = self._socket.accept()
        except OSError:
            time.sleep(_PAUSE_S)
            return
        client.setblocking(False)
        self._clients[client.fileno()] = (client, time.monotonic() + _PATIENCE_S)
        self._poll.register(client, select.POLLIN)

    def _answer(self, client: socket.socket) -> None:
        # The client may have disconnected.
        with contextlib.suppress(OSError):
            data = client.recv(REQUEST.size + 1)
            if len(data) != REQUEST.size:
                return
            request: int = REQUEST.unpack(data)[0]
            if request in LIST_REQUESTS:
                client.send(b"".join(map(REQUEST.pack, self._replies)))
            elif request in self._replies:
                content, descriptors = self._replies[request]
                socket.send_fds(client, [content], descriptors)

    def _drop(self, descriptor: int) -> None:
        self._poll.unregister(descriptor)
        self._clients.pop(descriptor)[0].close()


def _bind(path: Path) -> socket.socket:
    """Listen at a path, replacing the socket of a dead server."""
    if _is_running(path):
        raise FrameError(
            f"{path}: expected no other camera process, got a running one; stop it or choose "
            "another name"
        )
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        path.unlink(missing_ok=True)
        listener.bind(str(path))
        # Set before any client can connect; the result does not depend on the umask.
        path.chmod(SOCKET_MODE)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise FrameError(
            f"{path}: expected to listen there, got {error.strerror}; {why_refused(path.parent)}"
        ) from error
    return listener


def _is_running(path: Path) -> bool:
    """Return whether a server is running at a path, even if it is slow to answer."""
    conversation = Conversation(path)
    try:
        if conversation.identity() is None:
            return False
        answer = conversation.ask(LIST_REQUESTS[0])
        if answer is not None:
            answer.__exit__()
    except FrameError:
        if path.is_socket():
            return True
        raise
    finally:
        conversation.close()
    return answer is not None
