"""The file of a ring: found or made, checked, and mapped.

A ring that is there is taken as it is: other processes have mapped it, and would be killed by a
file that shrinks. Every process of a stack writes to it, so all of them run under one user.
"""

import errno
import mmap
import os
import stat
import time
from pathlib import Path
from typing import Final

from cereal.access import why_refused
from cereal.errors import TransportError
from cereal.frame_ring import Fence
from cereal.msgq.ring import HEADER_BYTES

# As the stack's own processes make it, before the umask.
MODE: Final = 0o664
_OPEN: Final = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
# Pointers have 32 bits for the offset.
_LARGEST: Final = 1 << 32
_SMALLEST: Final = 1024
# From making a file to giving it its size; its maker may have been killed in between.
_SIZE_WAIT_S: Final = 0.2
_DENIED: Final = (errno.EACCES, errno.EPERM)


class RingMemory:
    """A mapped ring; a `cereal.msgq.ring.Memory`.

    A new ring gets `size` bytes of data; an existing one keeps its size. `reserve` takes the memory
    now, because a page that is missing later kills the process; a writer goes over all of it
    anyway. Another `inode` at the path is another ring. Raises TransportError if the file cannot be
    made or opened, is no ring, or memory is short.
    """

    def __init__(self, path: Path, size: int, *, reserve: bool = False) -> None:
        self.path = path
        descriptor = _open(path, size)
        try:
            status = os.fstat(descriptor)
            self.size = (status.st_size - HEADER_BYTES) & ~7
            if not stat.S_ISREG(status.st_mode) or not _SMALLEST <= self.size < _LARGEST:
                raise TransportError(
                    f"msgq transport, {path}: expected a ring of {_SMALLEST} bytes to 4 GiB, found "
                    f"{status.st_size} bytes; remove it, and start its processes again"
                )
            self.inode = status.st_ino
            try:
                os.posix_fallocate(descriptor, 0, status.st_size if reserve else HEADER_BYTES)
                flags = mmap.MAP_SHARED | (mmap.MAP_POPULATE if reserve else 0)
                self._mapping = mmap.mmap(descriptor, status.st_size, flags)
            except (OSError, ValueError) as error:
                reason = error.strerror if isinstance(error, OSError) else str(error)
                raise TransportError(
                    f"msgq transport, {path}: expected {status.st_size} bytes of shared memory, "
                    f"got {reason}; free some, or enlarge it"
                ) from error
        finally:
            os.close(descriptor)
        whole = memoryview(self._mapping)
        # Of these an aligned word is read or written by one instruction.
        self.words = whole[:HEADER_BYTES].cast("Q")
        self._data = whole[HEADER_BYTES : HEADER_BYTES + self.size]
        self.sizes = self._data.cast("q")
        self.fence = Fence().order

    def read(self, offset: int, count: int) -> bytes:
        """Return a copy of bytes of the data."""
        return bytes(self._data[offset : offset + count])

    def write(self, offset: int, data: bytes) -> None:
        """Write bytes of the data."""
        self._data[offset : offset + len(data)] = data

    def is_current(self) -> bool:
        """Return whether the file at the path is still this one."""
        try:
            return self.path.stat().st_ino == self.inode
        except OSError:
            return False

    def close(self) -> None:
        """Unmap the file; it stays, as do the messages in it."""
        for view in (self.words, self.sizes, self._data):
            view.release()
        self._mapping.close()


def _open(path: Path, size: int) -> int:
    """Open a ring, or make one."""
    try:
        try:
            descriptor = os.open(path, _OPEN | os.O_CREAT | os.O_EXCL, MODE)
        except FileExistsError:
            descriptor = os.open(path, _OPEN)
            _await_size(descriptor, size)
        else:
            os.ftruncate(descriptor, HEADER_BYTES + size)
    except OSError as error:
        if error.errno in _DENIED:
            advice = f"{why_refused(path)}; all processes of a stack run under one user"
        elif error.errno == errno.ENOENT:
            advice = f"make {path.parent}, or correct OPENPILOT_PREFIX"
        else:
            advice = "remove what is there"
        raise TransportError(
            f"msgq transport, {path}: expected to open a ring, got {error.strerror}; {advice}"
        ) from error
    return descriptor


def _await_size(descriptor: int, size: int) -> None:
    """Wait until the maker of the file has given it its size; else give it one.

    Nobody has mapped an empty file.
    """
    deadline = time.monotonic() + _SIZE_WAIT_S
    while os.fstat(descriptor).st_size == 0:
        if time.monotonic() >= deadline:
            os.ftruncate(descriptor, HEADER_BYTES + size)
            return
        time.sleep(0.001)
