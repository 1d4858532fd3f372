"""Allows one writer of an output at a time, by a lock file next to it.

The lock is a `flock`. The kernel releases it when the process ends, so a leftover lock file locks
nothing. The file is removed at the end.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tools.errors import UsageError


def lock_path(output: Path) -> Path:
    """Return the lock file of an output: inside a directory, or next to a file."""
    if os.path.isdir(output):  # noqa: PTH112 - of any name
        return output / ".modeld.lock"
    return output.with_name(f".{output.name[:40]}.lock")


@contextmanager
def output_lock(output: Path) -> Iterator[None]:
    """Hold the lock of an output. Other processes that request it fail immediately.

    `output`: an existing directory, or a file in an existing directory.

    Raises:
        UsageError: another process holds the lock, or the lock file cannot be created.
    """
    path = lock_path(output)
    descriptor = _acquire(output, path)
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        # Removed while the lock is held: other processes can only be waiting for this file.
        with suppress(OSError):
            path.unlink()
        os.close(descriptor)


def _acquire(output: Path, path: Path) -> int:
    """Return the descriptor of the locked file, or raise UsageError."""
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise UsageError(
                f"{output}: cannot be locked ({error.strerror}: {path}); check the directory"
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip()
            os.close(descriptor)
            by = f"process {holder}" if holder else "another process"
            raise UsageError(
                f"{output}: expected to be its only writer, found {by}; wait for it to finish, or "
                "name another output"
            ) from error
        except OSError as error:
            os.close(descriptor)
            raise UsageError(f"{output}: cannot be locked ({error.strerror})") from error
        # The previous holder may have removed the file after we opened it.
        with suppress(OSError):
            if os.fstat(descriptor).st_ino == path.stat().st_ino:
                return descriptor
        os.close(descriptor)
