"""Files that somebody named: opened without waiting for a pipe, or reading a device without end."""

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Final

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

    Args:
        path: of the file.
        max_bytes: a longer file is refused; None: any length.

    Raises:
        NotAFileError: it is a directory, device, FIFO or socket.
        OSError: it cannot be opened, or is too long (EFBIG).
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
    """Return what is in an ordinary file of at most so many bytes.

    Raises:
        NotAFileError, OSError: as `open_given`.
    """
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
