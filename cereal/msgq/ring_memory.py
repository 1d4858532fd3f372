"""The file of a msgq ring: opens or creates it, checks it and maps it into memory.

An existing ring keeps its size, because other processes have mapped it and would be killed if the
file shrank. Every process of a stack writes to the ring, so all of them must run as one user.
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

# The mode with which the stack's own processes create rings, before the umask applies.
MODE: Final = 0o664
_OPEN: Final = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
# A pointer has 32 bits for the offset.
_LARGEST: Final = 1 << 32
_SMALLEST: Final = 1024
# Wait for another process that has created the file to set its size. It may have been killed.
_SIZE_WAIT_S: Final = 0.2
_DENIED: Final = (errno.EACCES, errno.EPERM)


class RingMemory:
    """A mapped ring. Implements `cereal.msgq.ring.Memory`.

    `size` is the number of data bytes of a new ring; an existing ring keeps its own. `reserve`
    allocates all memory now, because running out of it later would kill the process; a writer
    uses all of it anyway. `inode` identifies the file: another inode at the path is another ring.
    Raises TransportError if the file cannot be created or opened, is not a ring, or memory runs
    out.
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
        # An aligned access to one of these words is a single instruction.
        self.words = whole[:HEADER_BYTES].cast("Q")
        self._data = whole[HEADER_BYTES : HEADER_BYTES + self.size]
        self.sizes = self._data.cast("q")
        self.fence = Fence().order

    def read(self, offset: int, count: int) -> bytes:
        """Return a copy of `count` bytes of the data, starting at `offset`."""
        return bytes(self._data[offset : offset + count])

    def write(self, offset: int, data: bytes) -> None:
        """Write `data` at `offset` of the ring's data."""
        self._data[offset : offset + len(data)] = data

    def is_current(self) -> bool:
        """Return whether the path still leads to the mapped file."""
        try:
            return self.path.stat().st_ino == self.inode
        except OSError:
            return False

    def close(self) -> None:
        """Unmap the file. The file and its messages stay."""
        for view in (self.words, self.sizes, self._data):
            view.release()
        self._mapping.close()


def _open(path: Path, size: int) -> int:
    """Open a ring, or create one; return its file descriptor."""
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
    """Wait until the process that created the file has set its size; after that, set it here.

    Changing an empty file is safe, because no process can have mapped it.
    """
    deadline = time.monotonic() + _SIZE_WAIT_S
    while os.fstat(descriptor).st_size == 0:
        if time.monotonic() >= deadline:
            os.ftruncate(descriptor, HEADER_BYTES + size)
            return
        time.sleep(0.001)
