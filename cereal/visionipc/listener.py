"""Listens for the clients of a VisionIPC server, in a thread of its own."""

import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from cereal.access import why_refused
from cereal.errors import FrameError
from cereal.visionipc.conversation import Conversation
from cereal.visionipc.layout import LIST_REQUESTS, REQUEST

# As of sockets of the bus: a client may look at pictures of people.
SOCKET_MODE: Final = 0o660
_BACKLOG: Final = 16
# The most clients that have connected without a request, and their longest wait.
_MAX_CLIENTS: Final = 64
_PATIENCE_S: Final = 1.0
# Where a client cannot be accepted now, as there is no descriptor for it.
_PAUSE_S: Final = 0.01


class Listener:
    """Answers clients until it is closed; a silent one keeps nobody waiting.

    `replies` has the bytes and descriptors that clients get, by the number of the stream. Raises
    FrameError if another server lives at the path, or it cannot be used.
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
        """End the thread, and remove the socket if it is still ours."""
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
        # The client may have gone.
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
    """Listen at a path, in place of a server that is gone."""
    if _lives(path):
        raise FrameError(
            f"{path}: expected no other camera process, got a living one; stop it or choose "
            "another name"
        )
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        path.unlink(missing_ok=True)
        listener.bind(str(path))
        # Before anybody can connect, and whatever the umask is.
        path.chmod(SOCKET_MODE)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise FrameError(
            f"{path}: expected to listen there, got {error.strerror}; {why_refused(path.parent)}"
        ) from error
    return listener


def _lives(path: Path) -> bool:
    """Return whether a server answers at a path; one that is only slow counts as living."""
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
