"""Output files: written next to their place and renamed, so that they are whole or missing.

Renaming replaces anything that has the name: a symbolic link, or for root a device. So links are
followed first, and anything but an ordinary file is refused. Everything that writes
a file for a user goes through here (`cereal.log_writer` does the same by itself: it knows no
runtime).
"""

import contextlib
import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from runtime.files.given_file import NotAFileError, what_is

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
