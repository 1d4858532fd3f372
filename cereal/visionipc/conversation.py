"""Asks a VisionIPC server: one request, one answer with descriptors, and never too early an end.

Servers in C++ answer without guarding against a client that has gone: a connection that is closed
before its answer ends the camera process (SIGPIPE, or a failed assertion, docs/formats/bus.md).
So an answer that is late is waited for again with the next call, and its connection kept.
"""

import array
import errno
import os
import select
import socket
import stat
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final, NamedTuple, Self

from cereal.access import why_refused
from cereal.errors import FrameError
from cereal.visionipc.layout import BUFFER_SIZES, MAX_BUFFERS, REQUEST

# A server answers within a millisecond; the loop that waits here has a deadline of its own.
_ANSWER_S: Final = 0.1
_MAX_BYTES: Final = max(BUFFER_SIZES) * MAX_BUFFERS
_INT: Final = array.array("i").itemsize
_ROOM: Final = socket.CMSG_SPACE(MAX_BUFFERS * _INT)
_GONE: Final = (errno.ECONNREFUSED, errno.ECONNRESET, errno.EPIPE, errno.ENOENT)
_DENIED: Final = (errno.EACCES, errno.EPERM)

Identity = tuple[int, int, int]


class Answer(NamedTuple):
    """A server's answer; as a context it closes the descriptors."""

    data: bytes  # empty if it knows no such stream
    descriptors: list[int]
    identity: Identity  # of the socket that was asked, see `Conversation.identity`

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
    """Requests to the server's socket, one at a time; may be used from several threads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._open: _Open | None = None

    def ask(self, request: int) -> Answer | None:
        """Return the answer to a request; None if no server lives at the path.

        Raises FrameError if the path is no socket, may not be used, or its server answers too late
        (ask again) or too much.
        """
        with self._lock:
            deadline = time.monotonic() + _ANSWER_S
            identity = self.identity()
            held = self._open
            if held is not None and held.identity != identity:
                # Its server has been replaced, or removed.
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
        """Return what distinguishes the socket from a later one; None if there is none.

        Raises FrameError if there is something else.
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
        # The number of a file that was removed is given again at once; its time is not.
        return status.st_dev, status.st_ino, status.st_ctime_ns

    def close(self) -> None:
        """End an open connection."""
        with self._lock:
            self._end()

    def _connect(self, request: int, identity: Identity) -> _Open | None:
        with ExitStack() as undo:
            try:
                connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                undo.callback(connection.close)
                connection.setblocking(False)
                connection.connect(str(self.path))
                # At once: a server waits for nothing else meanwhile, and some versions end where a
                # connection is closed without a request.
                connection.send(REQUEST.pack(request))
            except OSError as error:
                if error.errno in _GONE:
                    return None
                raise self._refused(error) from error
            undo.pop_all()
        return _Open(connection, request, identity)

    def _answer(self, deadline: float) -> Answer | None:
        """Receive the answer of the open connection and end it; leave it open if none comes."""
        assert self._open is not None  # both callers have seen to it
        poll = select.poll()
        poll.register(self._open.socket, select.POLLIN)
        if not poll.poll(max(deadline - time.monotonic(), 0) * 1e3):
            raise FrameError(
                f"{self.path}: expected an answer within {_ANSWER_S * 1e3:.0f} ms, got none yet; "
                "see what keeps the camera process"
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
                "or mend the camera process"
            )
        return Answer(data, descriptors, identity)

    def _end(self) -> None:
        if self._open is not None:
            self._open.socket.close()
            self._open = None

    def _refused(self, error: OSError) -> FrameError:
        advice = "see what keeps the camera process"
        if error.errno in _DENIED:
            advice = why_refused(self.path)
        elif error.errno in (errno.EMFILE, errno.ENFILE):
            advice = "let this process open more files"
        elif error.errno == errno.EPROTOTYPE:
            advice = "remove it, and start the camera process again"
        return FrameError(
            f"{self.path}: expected to ask a camera process, got {error.strerror}; {advice}"
        )


def _close_all(descriptors: list[int]) -> None:
    while descriptors:
        with suppress(OSError):
            os.close(descriptors.pop())
