"""The file of a frame ring: how it is made, locked and opened, and who may use it.

The lock of the file is its writer's sign of life: the kernel drops it with the process, however
that ends. Modes do not depend on the umask (docs/formats/bus.md, ADR 0092).
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

# Pictures of people: the writer's group may read them, and only the writer may write.
RING_MODE: Final = 0o640
# Empty, and locked by each writer that starts, for which opening it to read is enough.
GUARD_MODE: Final = 0o644
_GUARD: Final = "frames.lock"
# The lock is held while one file is renamed; a longer holder hangs, or is no camera.
_GUARD_WAIT_S: Final = 5.0
_GUARD_POLL_S: Final = 0.01
_READ: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
_MAKE: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
_DENIED: Final = (errno.EACCES, errno.EPERM)
_TOO_MANY: Final = (errno.EMFILE, errno.ENFILE)


def create(path: Path, form: FrameFormat, count: int) -> Mapping:
    """Make a ring file at `path`, replacing one whose writer is gone.

    The file appears under its name only when it is complete and locked, so a reader never sees a
    half-made one. Raises FrameError if another writer lives, memory is short, or permission is
    missing.
    """
    temporary = _beside(path)
    try:
        descriptor = os.open(temporary, _MAKE, RING_MODE)
    except OSError as error:
        raise FrameError(
            f"{path}: expected to make a file beside it, got {error.strerror}; "
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

    False also of a ring that this process may not read: ask `unusable`.
    """
    try:
        descriptor = os.open(path, _READ)
    except OSError:
        return False
    try:
        # A shared lock that is not granted means an exclusive holder; ours goes with the close.
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
    """Return in one line why the ring at `path` cannot be read; None if it can, or is not there.

    The ring of a dead writer counts only if it may not be read: nobody can tell then whether its
    writer lives.
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
    """Rename under a lock of the directory, so that two starting writers see each other."""
    guard = _open_guard(path.with_name(_GUARD))
    try:
        _lock(guard, path.with_name(_GUARD))
        if has_writer(path):
            raise FrameError(
                f"{path}: expected no other writer, got a living one; stop it or choose "
                "another name"
            )
        if not os.access(path, os.R_OK, effective_ids=True) and path.exists():
            # Its lock cannot be asked, so its writer may live.
            raise FrameError(
                f"{path}: expected to replace what another writer left, got a ring that may not be "
                f"read; {why_refused(path)}"
            )
        try:
            temporary.rename(path)
        except PermissionError as error:
            # In a sticky directory like /dev/shm a file is replaced by its owner only.
            raise FrameError(
                f"{path}: expected to replace what another user's writer left, got "
                f"{error.strerror}; let that user or root remove it: {why_refused(path)}"
            ) from error
    finally:
        os.close(guard)


def _open_guard(path: Path) -> int:
    """Open, or make, the lock file of a directory, which every writer of rings there must open."""
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
    # One that was made with another mode, by hand or by an older version.
    set_mode(guard, GUARD_MODE)
    return guard


def _make_guard(path: Path) -> None:
    """Make the lock file with its mode, so that nobody finds it with the umask's."""
    temporary = _beside(path)
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
                "find who holds it with lslocks"
            ) from error
        return


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.{time.monotonic_ns()}")
