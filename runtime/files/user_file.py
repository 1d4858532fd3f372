"""Safe access to files that users name: reading without blocking, copying, atomic writing.

`PrivateCopy` reads a file into memory in a thread. `whole_file` writes a file that appears complete
or not at all.
"""

import contextlib
import ctypes
import errno
import mmap
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final, Self

_KINDS: Final[tuple[tuple[Callable[[int], bool], str], ...]] = (
    (stat.S_ISREG, "an ordinary file"),
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISCHR, "a character device"),
    (stat.S_ISBLK, "a block device"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
)


class NotAFileError(OSError):
    """The name does not lead to a regular file; `strerror` has the expectation and the finding."""

    def __init__(self, found: str, path: Path) -> None:
        super().__init__(
            errno.EINVAL, f"expected an ordinary file, found {found}; name a file", str(path)
        )


def what_is(mode: int) -> str:
    """Return the kind of file that `st_mode` describes, with an article."""
    return next((name for test, name in _KINDS if test(mode)), "something that is no file")


def open_given(path: Path, max_bytes: int | None = None) -> BinaryIO:
    """Open a regular file for reading; links are followed.

    Raises:
        NotAFileError: it is a directory, device, FIFO or socket.
        OSError: it cannot be opened, or is longer than `max_bytes` (EFBIG).
    """
    # Opening some devices has side effects, so only regular files are opened.
    _check(path, path.stat(), max_bytes)
    # O_NONBLOCK: opening must not wait for a FIFO that replaced the file after the check.
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb")
    try:
        _check(path, os.fstat(file.fileno()), max_bytes)
    except OSError:
        file.close()
        raise
    return file


def read_given(path: Path, max_bytes: int) -> bytes:
    """Return the content of a regular file of at most `max_bytes`; raises as `open_given`."""
    with open_given(path, max_bytes) as file:
        # The file may have grown, and files in /proc have no size.
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise _too_long(path, len(content), max_bytes)
    return content


def _check(path: Path, status: os.stat_result, max_bytes: int | None) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise NotAFileError(what_is(status.st_mode), path)
    if max_bytes is not None and status.st_size > max_bytes:
        raise _too_long(path, status.st_size, max_bytes)


def _too_long(path: Path, size: int, max_bytes: int) -> OSError:
    return OSError(errno.EFBIG, f"expected at most {max_bytes} bytes, found {size}", str(path))


# --- A private copy of a file in memory, read by a thread -------------------------------------
#     reader   | chunk 0 | chunk 1 | chunk 2 | ...          a separate thread
#     caller             | decodes the bytes read so far, and hashes chunk after chunk

# With larger chunks the last one is hashed without overlap, smaller ones add synchronization. For a
# file of 64 MB, 1 to 4 MiB took the same time.
CHUNK_BYTES: Final = 2 << 20


class FileChangedError(Exception):
    """The file became shorter while it was being copied."""


class PrivateCopy:
    """A copy of a file in memory, which a thread fills in the background.

    Use it in a `with` block, whose end also ends the copying. `size` is the size of the file.
    `memory` holds the file's bytes as far as `wait` has confirmed.
    """

    def __init__(self, path: Path, max_bytes: int) -> None:
        """Open a regular file. If it exceeds `max_bytes`, `memory` is empty but `size` is set.

        Raises OSError if it cannot be opened, is not a regular file, or memory is short.
        """
        with contextlib.ExitStack() as opened:
            file = opened.enter_context(open_given(path))
            self._file = file.fileno()
            self.size = os.fstat(self._file).st_size
            wanted = self.size if self.size <= max_bytes else 0
            self.memory = _private_memory(wanted)
            pool = ThreadPoolExecutor(1, "modeld-read")
            # Chunks that are no longer needed are not read.
            opened.callback(pool.shutdown, cancel_futures=True)
            self._chunks: list[Future[None]] = [
                pool.submit(self._read, start, min(start + CHUNK_BYTES, wanted))
                for start in range(0, wanted, CHUNK_BYTES)
            ]
            self._resources = opened.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._resources.close()

    def _read(self, start: int, end: int) -> None:
        # A view that outlives this call would prevent the memory from being released.
        with memoryview(self.memory) as view:
            while start < end:
                with view[start:end] as rest:
                    count = os.preadv(self._file, [rest], start)
                if not count:
                    raise FileChangedError
                start += count

    def wait(self, end: int) -> None:
        """Wait until bytes 0 to `end` of the memory have been read.

        Raises:
            OSError: the file cannot be read.
            FileChangedError: the file has become shorter.
        """
        for chunk in self._chunks[: -(-end // CHUNK_BYTES)]:
            chunk.result()

    def pieces(self, start: int) -> Iterator[tuple[int, int]]:
        """Yield byte ranges from `start` to the end, once each is read; raises as `wait` does."""
        while start < len(self.memory):
            end = min(len(self.memory), (start // CHUNK_BYTES + 1) * CHUNK_BYTES)
            self.wait(end)
            yield start, end
            start = end

    def protect(self) -> None:
        """Make the complete memory read-only, also for kernels that run on a CPU."""
        libc = ctypes.CDLL(None, use_errno=True)
        with memoryview(self.memory) as view:
            address = ctypes.addressof(ctypes.c_char.from_buffer(view))
        # The result is ignored: a process without this protection can still run.
        libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(len(self.memory)), mmap.PROT_READ)


def _private_memory(size: int) -> mmap.mmap:
    """Return zeroed memory that no other process shares, at least one byte."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    memory = mmap.mmap(-1, max(size, 1), flags=flags)
    # Fewer page faults: reading and hashing 64 MB takes 38 ms instead of 48. The Linux kernel may
    # refuse large pages, which only costs time.
    with contextlib.suppress(OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


# --- Output files: written under a temporary name and renamed, so they are complete or missing -
# Renaming would replace a symbolic link or, for root, a device. Therefore links are followed first,
# and anything but a regular file is refused. All files for users are written by these functions,
# except that `cereal.log_writer`, which must not import runtime, does the same itself.

# The number of links that Linux follows (path_resolution(7)).
MAX_LINKS: Final = 40
# Number of the name's characters, of up to 4 bytes each, to use in temporary file names.
MAX_PREFIX: Final = 40


def target_of(path: str | os.PathLike[str]) -> Path:
    """Return the path of the file that `path` names, which may be missing, following links.

    Raises:
        NotAFileError: it is a directory, device, FIFO or socket, or a stream of this process
            (/dev/stdout): replacing that by a file would not redirect the stream.
        OSError: it cannot be looked up.
    """
    given = place = Path(path)
    for _ in range(MAX_LINKS):
        if Path(os.path.realpath(place.parent)).is_relative_to("/proc"):
            raise NotAFileError("a stream or another file of /proc", given)
        if not place.is_symlink():
            break
        place = place.parent / place.readlink()
    else:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(given))
    try:
        mode = place.stat().st_mode
    except FileNotFoundError:
        return place
    if not stat.S_ISREG(mode):
        raise NotAFileError(what_is(mode), given)
    return place


@contextlib.contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a new file that replaces `path` when the block ends, unless by an exception.

    The file is synced to disk before it is renamed. Its permissions follow the umask.

    Raises:
        NotAFileError: see `target_of`.
        OSError: the file cannot be written; nothing is left. Its `filename` is always set.
    """
    target = target_of(path)
    # A name may have the file system's maximum length, so the temporary name uses only a part.
    prefix = f".{target.name[:MAX_PREFIX]}."
    is_open = False
    try:
        with replacing(target, prefix, 0o666 & ~_umask()) as file:
            is_open = True
            yield file
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        if error.filename is None or not is_open:
            # A failed write does not name its file, and the temporary name would confuse users.
            error.filename = str(path)
        raise


@contextlib.contextmanager
def replacing(target: Path, prefix: str, mode: int) -> Iterator[BinaryIO]:
    """Open a new file next to `target`, which it replaces when the block ends without exception.

    Its temporary name begins with `prefix`. The target is a regular file or missing. If the file
    cannot be written, raises OSError and leaves nothing.
    """
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=prefix, suffix=".tmp")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        temporary.chmod(mode)
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _umask() -> int:
    """Return the process's umask, which tempfile ignores (it creates files with mode 0600)."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
