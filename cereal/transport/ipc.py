"""Socket files of the bus in a directory: their modes, locks, and who may use them.

Connecting needs permission to write the socket. ZeroMQ retries without a word where it is not
given, so it is looked for here (docs/formats/bus.md, ADR 0092).
"""

import errno
import fcntl
import os
import stat
from pathlib import Path
from typing import Final

from cereal.access import holder_of_lock, set_mode, why_refused
from cereal.errors import TransportError

# The owner and the group: nobody else may listen, or pretend to be a sensor.
SOCKET_MODE: Final = 0o660
_SCHEME: Final = "ipc://"
# Longest path of a unix socket is 108 bytes with the terminator (unix(7)).
_MAX_PATH: Final = 107
_LOCK_FLAGS: Final = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW


def path_of(endpoint: str) -> Path | None:
    """Return the socket file of an endpoint; None of one without."""
    return Path(endpoint.removeprefix(_SCHEME)) if endpoint.startswith(_SCHEME) else None


def check_directory(service: str, path: Path) -> None:
    """Raise TransportError for a directory that is missing, or that this process may not look into.

    Nothing makes it: with a misspelt address two processes would each talk to nobody.
    """
    directory = path.parent
    try:
        found = None if stat.S_ISDIR(directory.stat().st_mode) else "another file"
    except (FileNotFoundError, NotADirectoryError):
        found = "none"
    except OSError as error:
        raise _closed(service, directory, error.strerror) from error
    if found is not None:
        raise TransportError(
            f"zmq transport, {service}: expected the directory {directory}, found {found}; make "
            "it, or correct the address of the bus"
        )
    if not os.access(directory, os.X_OK, effective_ids=True):
        raise _closed(service, directory, os.strerror(errno.EACCES))


def why_no_connection(service: str, path: Path) -> str | None:
    """Return why this process may not connect to the socket at `path`; None if it may or is new."""
    if os.access(path, os.W_OK, effective_ids=True):
        return None
    try:
        path.lstat()
    except FileNotFoundError:
        return None
    except OSError as error:
        found = error.strerror
    else:
        found = os.strerror(errno.EACCES)
    return (
        f"zmq transport, {service}: expected to connect to {path}, got {found}; {why_refused(path)}"
    )


def claim(service: str, path: Path) -> int:
    """Take the lock file beside a socket file: ZeroMQ would silently steal a bound path.

    Returns the descriptor that holds the lock until it is closed. Raises TransportError if there is
    another publisher, or this process may not publish here.
    """
    if len(os.fsencode(path)) > _MAX_PATH:
        raise TransportError(
            f"zmq transport, {service}: expected a socket path of at most {_MAX_PATH} "
            f"bytes, got {path}; choose a shorter directory"
        )
    check_directory(service, path)
    lock_path = Path(f"{path}.lock")
    try:
        lock = _open_lock(lock_path)
    except PermissionError as error:
        raise TransportError(
            f"zmq transport, {service}: expected to open or make {lock_path}, got "
            f"{error.strerror}; {why_refused(lock_path)}"
        ) from error
    except OSError as error:
        raise TransportError(
            f"zmq transport, {service}: expected to make {lock_path}, got {error.strerror}; "
            "choose a directory that can be written"
        ) from error
    try:
        set_mode(lock, SOCKET_MODE)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = holder_of_lock(lock) or "another publisher"
        os.close(lock)
        raise TransportError(
            f"zmq transport, {service}: expected to bind {_SCHEME}{path}, got {error.strerror}: "
            f"its lock is held by {holder}; stop that, or use another directory"
        ) from error
    return lock


def binding_advice(path: Path) -> str:
    """Return what to do where binding a socket file failed; the end of a message."""
    if not os.access(path.parent, os.W_OK, effective_ids=True):
        return f"; {why_refused(path.parent)}"
    if path.is_socket():
        # Left by another user in a sticky directory, where only that user may remove it.
        return f"; remove what is there: {why_refused(path)}"
    return "; remove what is there, or use another directory"


def _open_lock(path: Path) -> int:
    try:
        return os.open(path, _LOCK_FLAGS)
    except FileNotFoundError:
        # Not at first: Linux may refuse O_CREAT on another user's file in a shared directory.
        return os.open(path, _LOCK_FLAGS | os.O_CREAT, SOCKET_MODE)


def _closed(service: str, directory: Path, found: str | None) -> TransportError:
    return TransportError(
        f"zmq transport, {service}: expected to use the directory {directory}, got {found}; "
        f"{why_refused(directory)}"
    )
