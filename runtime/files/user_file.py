"""Files that users name: opened without waiting for a pipe, copied to memory, or written whole."""

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
    """A name that a file cannot have; `strerror` says what was expected and found."""

    def __init__(self, found: str, path: Path) -> None:
        super().__init__(
            errno.EINVAL, f"expected an ordinary file, found {found}; name a file", str(path)
        )


def what_is(mode: int) -> str:
    """Return what has this `st_mode`, with an article."""
    return next((name for test, name in _KINDS if test(mode)), "something that is no file")


def open_given(path: Path, max_bytes: int | None = None) -> BinaryIO:
    """Open an ordinary file for reading; links are followed.

    Raises:
        NotAFileError: it is a directory, device, FIFO or socket.
        OSError: it cannot be opened, or is longer than `max_bytes` (EFBIG).
    """
    # Opening some devices does something, so nothing but a file is opened at all.
    _check(path, path.stat(), max_bytes)
    # Without O_NONBLOCK a FIFO that has come in its place meanwhile would be waited for.
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb")
    try:
        _check(path, os.fstat(file.fileno()), max_bytes)
    except OSError:
        file.close()
        raise
    return file


def read_given(path: Path, max_bytes: int) -> bytes:
    """Return the content of an ordinary file of at most `max_bytes`; raise as `open_given`."""
    with open_given(path, max_bytes) as file:
        # It may have grown, and files of /proc have no size.
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


# --- A file as private memory of this process, which no longer depends on the file ------------
#     reader   | chunk 0 | chunk 1 | chunk 2 | ...          a thread of its own
#     caller             | decodes what is there, and hashes chunk after chunk

# Larger chunks leave the last one to be hashed alone, smaller ones cost more hand-overs; 1 to 4 MiB
# took the same time with a file of 64 MB.
CHUNK_BYTES: Final = 2 << 20


class FileChangedError(Exception):
    """The file became shorter while it was copied."""


class PrivateCopy:
    """The memory that a file is copied to, while that goes on.

    Use it in a `with` block: whatever ends the block ends the copying, too. `memory` has the `size`
    of the file; its bytes are the file's as far as `wait` says so.
    """

    def __init__(self, path: Path, max_bytes: int) -> None:
        """Open an ordinary file; one longer than `max_bytes` gives an empty `memory` and a `size`.

        Raises OSError if it cannot be opened, is no ordinary file, or there is no memory for it.
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
        # A view that outlived this call would keep the memory from being given back.
        with memoryview(self.memory) as view:
            while start < end:
                with view[start:end] as rest:
                    count = os.preadv(self._file, [rest], start)
                if not count:
                    raise FileChangedError
                start += count

    def wait(self, end: int) -> None:
        """Return when bytes 0 to `end` of the memory are those of the file.

        Raises:
            OSError: the file cannot be read.
            FileChangedError: it is shorter than it was.
        """
        for chunk in self._chunks[: -(-end // CHUNK_BYTES)]:
            chunk.result()

    def pieces(self, start: int) -> Iterator[tuple[int, int]]:
        """Yield ranges of bytes from `start` to the end, each when it is there; raise as `wait`."""
        while start < len(self.memory):
            end = min(len(self.memory), (start // CHUNK_BYTES + 1) * CHUNK_BYTES)
            self.wait(end)
            yield start, end
            start = end

    def protect(self) -> None:
        """Let nobody write to the memory any more, kernels on a CPU among them; all is there."""
        libc = ctypes.CDLL(None, use_errno=True)
        with memoryview(self.memory) as view:
            address = ctypes.addressof(ctypes.c_char.from_buffer(view))
        # The result is ignored: a process that may not protect its memory can run.
        libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(len(self.memory)), mmap.PROT_READ)


def _private_memory(size: int) -> mmap.mmap:
    """Return zeros that no other process shares; a mapping has at least one byte."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    memory = mmap.mmap(-1, max(size, 1), flags=flags)
    # Fewer page faults: 38 ms instead of 48 for 64 MB read and hashed. A kernel without large pages
    # refuses, which changes nothing but the time.
    with contextlib.suppress(OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


# --- Output files: written next to their place and renamed, so that they are whole or missing -
# Renaming replaces anything that has the name: a symbolic link, or for root a device. So links are
# followed first, and anything but an ordinary file is refused. Everything that writes a file for a
# user goes through here (`cereal.log_writer` does the same by itself: it knows no runtime).

# As many as Linux follows (path_resolution(7)).
MAX_LINKS: Final = 40
# Characters of the name, up to 4 bytes each, that temporary files show.
MAX_PREFIX: Final = 40


def target_of(path: str | os.PathLike[str]) -> Path:
    """Return where a file of this name lies: symbolic links are followed, missing files too.

    Raises:
        NotAFileError: it leads to a directory, device, pipe or socket, or to a stream of this
            process (/dev/stdout): a file that replaced one would not be what the stream writes to.
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
    """Open a new file that takes its place when the block ends, unless it ends by an exception.

    The file is on the disk before it gets its name, and has the permissions of the umask.

    Raises:
        NotAFileError: see `target_of`.
        OSError: the file cannot be written; nothing is left. Its `filename` is always set.
    """
    target = target_of(path)
    # A name may be as long as the file system takes, so not all of it fits this one.
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
            # A write does not say to what, and nobody asked for the temporary file.
            error.filename = str(path)
        raise


@contextlib.contextmanager
def replacing(target: Path, prefix: str, mode: int) -> Iterator[BinaryIO]:
    """Open a new file beside a target, which it replaces when the block ends without an exception.

    Its name begins with `prefix` until then. The target is an ordinary file or missing. If the file
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
    """Return the process's umask, which tempfile ignores (it creates files as 0600)."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
