"""File operations of the model store: atomic, synced to disk, and under a lock.

A file in the store is either complete or absent, even after a crash. Commands that change the store
hold its lock.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from modeld.errors import StoreError
from runtime.files.user_file import open_given

# Only the owner can write, because the stored artifacts are executed. Others can read.
DIRECTORY_MODE: Final = 0o755
FILE_MODE: Final = 0o644
_WRITABLE_BY_OTHERS: Final = 0o022
_PIECE_BYTES: Final = 1 << 20
_LOCK: Final = ".lock"
_POLL_S: Final = 0.05
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW


def make_directory(path: Path) -> list[Path]:
    """Create a directory and its parents; return the new ones, deepest first.

    Their mode does not depend on the umask. Existing directories keep their mode.
    """
    if path.is_dir():
        return []
    made = make_directory(path.parent)
    with contextlib.suppress(FileExistsError):
        path.mkdir(DIRECTORY_MODE)
        path.chmod(DIRECTORY_MODE)
        sync_directory(path.parent)
        made.insert(0, path)
    return made


def unmake(store: Path, made: list[Path]) -> None:
    """Remove the directories in `made`, created by `make_directory`, if the store is still empty.

    The caller holds the store's lock.
    """
    with contextlib.suppress(OSError):
        if store in made and [*store.iterdir()] == [store / _LOCK]:
            (store / _LOCK).unlink()
            for path in made:
                path.rmdir()


def sync_directory(path: Path) -> None:
    """Sync the entries of a directory to disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_tree(path: Path) -> None:
    """Remove a file, or a directory with its content. Links are not followed."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def write_new(path: Path, data: bytes) -> None:
    """Write a file that must not exist yet, and sync it to disk."""
    with os.fdopen(os.open(path, _NEW, FILE_MODE), "wb") as file:
        os.fchmod(file.fileno(), FILE_MODE)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def replace_file(path: Path, data: bytes) -> None:
    """Replace a small file atomically: after a crash it has either the old or the new content.

    The caller holds the store's lock and has removed temporary files of killed commands.
    """
    beside = path.with_name(f".{path.name}.new")
    try:
        write_new(beside, data)
        beside.rename(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def copy_new(source: Path, target: Path) -> tuple[str, int]:
    """Copy a file to a new one, synced to disk; return its SHA-256 (hexadecimal) and bytes."""
    digest, size = hashlib.sha256(), 0
    with open_given(source) as given, os.fdopen(os.open(target, _NEW, FILE_MODE), "wb") as copy:
        os.fchmod(copy.fileno(), FILE_MODE)
        while piece := given.read(_PIECE_BYTES):
            digest.update(piece)
            copy.write(piece)
            size += len(piece)
        copy.flush()
        os.fsync(copy.fileno())
    return digest.hexdigest(), size


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_bounded(path: Path, limit: int) -> bytes:
    """Return the content of a regular file, at most `limit` + 1 bytes. Links are not followed."""
    # O_NONBLOCK, because opening a pipe would wait for its writer.
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    with os.fdopen(os.open(path, flags), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise StoreError(f"{path.name}: expected an ordinary file; remove it")
        return file.read(limit + 1)


def check_mode(path: Path) -> None:
    """Raise StoreError if a file is missing, a link, or writable by others than its owner.

    Other writers could make this process run code of theirs.
    """
    try:
        status = path.lstat()
    except OSError as error:
        raise StoreError(f"{path}: expected it, got {error.strerror}") from error
    if stat.S_ISLNK(status.st_mode):
        raise StoreError(f"{path}: expected no symbolic link; remove it")
    if status.st_mode & _WRITABLE_BY_OTHERS:
        raise StoreError(
            f"{path}: expected to be writable by its owner only, found mode "
            f"{stat.S_IMODE(status.st_mode):04o}; see that its content is yours, then chmod go-w"
        )


@contextlib.contextmanager
def locked(store: Path, wait_s: float) -> Iterator[None]:
    """Hold the store's lock in the block, so only one command changes the store at a time.

    Raises:
        StoreError: Another command holds it for longer than `wait_s`, or removed the store.
        OSError: The lock file cannot be created.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(store / _LOCK, flags, 0o600)
    try:
        deadline = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() >= deadline:
                    raise StoreError(
                        f"{store}: expected its lock within {wait_s:g} s, but another command "
                        "holds it; try again when that is done"
                    ) from error
                time.sleep(_POLL_S)
        if not os.fstat(descriptor).st_nlink:
            raise StoreError(f"{store}: removed by another command that failed; try again")
        yield
    finally:
        os.close(descriptor)
