"""The file of a frame ring: creates, locks and opens it, and sets who may use it.

A frame ring is the shared memory that hands frames of one camera stream to readers. Its writer
locks the file; the kernel releases the lock when the process ends in any way, so the lock shows
whether the writer is alive. Modes do not depend on the umask (docs/formats/bus.md, ADR 0092).
"""

import errno
import fcntl
import os
import struct
import time
from pathlib import Path
from typing import Final

from cereal.access import set_mode, why_refused
from cereal.errors import FrameError
from cereal.frame_ring import MAGIC, VERSION, FrameFormat, Mapping, ring_bytes

# Frames can show people: only the writer may write, and only its group may read.
RING_MODE: Final = 0o640
# The guard file is empty. Each starting writer locks it, for which read permission is enough.
GUARD_MODE: Final = 0o644
_GUARD: Final = "frames.lock"
# The lock is held only while a file is renamed. A process holding it longer has hung.
_GUARD_WAIT_S: Final = 5.0
_GUARD_POLL_S: Final = 0.01
_READ: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
_MAKE: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
_DENIED: Final = (errno.EACCES, errno.EPERM)
_TOO_MANY: Final = (errno.EMFILE, errno.ENFILE)


def create(path: Path, form: FrameFormat, count: int) -> Mapping:
    """Create a ring file at `path`, replacing that of a dead writer; return it mapped.

    The file appears at `path` only when it is complete and locked, so a reader never sees an
    unfinished one. Raises FrameError if another writer is alive, memory is short, or permission is
    missing.
    """
    temporary = _temporary_path(path)
    try:
        descriptor = os.open(temporary, _MAKE, RING_MODE)
    except OSError as error:
        raise FrameError(
            f"{path}: expected to create a file next to it, got {error.strerror}; "
            + (why_refused(path.parent) if error.errno in _DENIED else "check the directory")
        ) from error
    try:
        set_mode(descriptor, RING_MODE)
        size = ring_bytes(form, count)
        try:
            # Not ftruncate: a sparse file kills the writer with SIGBUS when the memory runs out.
            os.posix_fallocate(descriptor, 0, size)
        except OSError as error:
            raise FrameError(
                f"{path}: expected {size} bytes of shared memory, got {error.strerror}; free some, "
                "enlarge it or use fewer slots"
            ) from error
        header = [MAGIC, VERSION, count, form.width, form.height, form.stride]
        os.pwrite(descriptor, struct.pack("<8Q", *header, form.uv_offset, form.size), 0)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        mapping = Mapping(descriptor, path, writable=True)
        _publish_file(temporary, path)
    except BaseException:
        os.close(descriptor)
        temporary.unlink(missing_ok=True)
        raise
    return mapping


def attach(path: Path) -> Mapping:
    """Map a ring for reading; raise FrameError if it is missing, damaged or not permitted."""
    try:
        descriptor = os.open(path, _READ)
    except OSError as error:
        denied = error.errno in _DENIED
        raise FrameError(
            f"{path}: expected a frame ring, got {error.strerror}; "
            + (why_refused(path) if denied else "start the camera process")
        ) from error
    try:
        return Mapping(descriptor, path, writable=False)
    except BaseException:
        os.close(descriptor)
        raise


def has_writer(path: Path) -> bool:
    """Return whether a living process holds the lock of the ring at `path`.

    Also False if this process cannot read the ring; `unusable` distinguishes that case.
    """
    try:
        descriptor = os.open(path, _READ)
    except OSError:
        return False
    try:
        # A shared lock fails only if a process holds the exclusive one. Ours ends with the close.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return True
        raise
    else:
        return False
    finally:
        os.close(descriptor)


def unusable(path: Path) -> str | None:
    """Return the reason that the ring at `path` cannot be read; None if it can or is missing.

    A ring that this process cannot open is always reported, because its writer may be alive.
    Otherwise the ring of a dead writer is not reported.
    """
    try:
        descriptor = os.open(path, _READ)
    except FileNotFoundError:
        return None
    except OSError as error:
        advice = "remove it, and start the camera process again"
        if error.errno in _DENIED:
            advice = why_refused(path)
        elif error.errno in _TOO_MANY:
            advice = "let this process open more files"
        return f"{path}: expected to read a frame ring, got {error.strerror}; {advice}"
    os.close(descriptor)
    if not has_writer(path):
        return None
    try:
        os.close(attach(path).descriptor)
    except FrameError as error:
        return str(error)
    return None


def _publish_file(temporary: Path, path: Path) -> None:
    """Rename the file while the directory is locked, so that starting writers see each other."""
    guard = _open_guard(path.with_name(_GUARD))
    try:
        _lock(guard, path.with_name(_GUARD))
        if has_writer(path):
            raise FrameError(
                f"{path}: expected no other writer, got a running one; stop it or choose "
                "another name"
            )
        if not os.access(path, os.R_OK, effective_ids=True) and path.exists():
            # Its lock cannot be checked, so its writer may be alive.
            raise FrameError(
                f"{path}: expected to replace the ring of an ended writer, got one that may not be "
                f"read; {why_refused(path)}"
            )
        try:
            temporary.rename(path)
        except PermissionError as error:
            # In a sticky directory such as /dev/shm only the owner can replace a file.
            raise FrameError(
                f"{path}: expected to replace the ring of another user's writer, got "
                f"{error.strerror}; let that user or root remove it: {why_refused(path)}"
            ) from error
    finally:
        os.close(guard)


def _open_guard(path: Path) -> int:
    """Open or create the lock file of a directory, which every writer of rings there locks."""
    try:
        try:
            guard = os.open(path, _READ)
        except FileNotFoundError:
            _make_guard(path)
            guard = os.open(path, _READ)
    except OSError as error:
        denied = error.errno in _DENIED
        raise FrameError(
            f"{path}: expected to lock it, got {error.strerror}; "
            + (why_refused(path) if denied else "remove it")
        ) from error
    # The file may have another mode, if created by hand or by an older version.
    set_mode(guard, GUARD_MODE)
    return guard


def _make_guard(path: Path) -> None:
    """Create the lock file with its final mode, so that no process sees it with another."""
    temporary = _temporary_path(path)
    descriptor = os.open(temporary, _MAKE, GUARD_MODE)
    try:
        set_mode(descriptor, GUARD_MODE)
        os.link(temporary, path)
    except FileExistsError:
        # Another writer was faster.
        return
    finally:
        os.close(descriptor)
        temporary.unlink(missing_ok=True)


def _lock(guard: int, path: Path) -> None:
    deadline = time.monotonic() + _GUARD_WAIT_S
    while True:
        try:
            fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() < deadline:
                time.sleep(_GUARD_POLL_S)
                continue
            raise FrameError(
                f"{path}: expected its lock within {_GUARD_WAIT_S:.0f} s, got {error.strerror}; "
                "find the process that holds it with lslocks"
            ) from error
        return


def _temporary_path(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.{time.monotonic_ns()}")
