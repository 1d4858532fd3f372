"""Allows one writer of an output at a time: a lock file next to it, held by the kernel.

The lock is `flock`, which the kernel releases whenever its process ends, so a lock file that was
left behind locks nothing. It is removed when the work is done.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tools.errors import UsageError


def lock_path(output: Path) -> Path:
    """Return the lock file of an output: in a directory, or beside a file."""
    if os.path.isdir(output):  # noqa: PTH112 - of any name
        return output / ".modeld.lock"
    return output.with_name(f".{output.name[:40]}.lock")


@contextmanager
def output_lock(output: Path) -> Iterator[None]:
    """Hold an output; whoever else wants it is refused at once.

    `output`: an existing directory, or a file whose directory exists.

    Raises:
        UsageError: another process writes it, or the lock file cannot be made.
    """
    path = lock_path(output)
    descriptor = _acquire(output, path)
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        # Removed while it is held: nobody can have locked this file, only wait to.
        with suppress(OSError):
            path.unlink()
        os.close(descriptor)


def _acquire(output: Path, path: Path) -> int:
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
                f"{output}: expected to be the only one that writes it, found {by} at it; wait "
                "for that one, or name another output"
            ) from error
        except OSError as error:
            os.close(descriptor)
            raise UsageError(f"{output}: cannot be locked ({error.strerror})") from error
        # The one before may have removed the file after we opened it.
        with suppress(OSError):
            if os.fstat(descriptor).st_ino == path.stat().st_ino:
                return descriptor
        os.close(descriptor)
