"""The cache directory, and stores of entries in it, for files that are made again if they are lost.

It holds built programs, PoCL's files, the linker, kernels, schedules and results of probes.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import shutil
import stat
import tempfile
from pathlib import Path
from typing import Final

from runtime.files.user_file import replacing

logger = logging.getLogger(__name__)

# Several times the size of the first build of a driving program.
MIN_FREE_BYTES: Final = 64 << 20
# How names of files begin that are not whole yet.
NEW: Final = ".new-"


def cache_dir() -> Path:
    """Return the cache directory, created private (0700) if it was missing.

    `$MODELD_CACHE_DIR`, else `$XDG_CACHE_HOME/modeld`, else `~/.cache/modeld`. Where that cannot
    be written (a read-only system) or its disk is nearly full, a temporary directory of this
    process with a warning: what is cached there is lost at exit.
    """
    wanted = _wanted()
    return wanted if is_usable(wanted) else temporary_dir(str(wanted), "MODELD_CACHE_DIR")


def is_usable(directory: Path) -> bool:
    """Return whether a directory, made private if it was missing, can be written and has space."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.access(directory, os.W_OK | os.X_OK) and _has_space(directory)
    except OSError:
        return False


def write_whole(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Write a file of the cache directory; writers of the same one race, each leaves it whole.

    Raises OSError if it cannot be written.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Not synchronised with the disk: a reader finds damage by a crash, and makes the entry again.
    with replacing(path, NEW, mode) as file:
        file.write(content)


def _has_space(directory: Path) -> bool:
    """PoCL aborts the process when a write to its cache fails, so that must not come to happen."""
    disk = os.statvfs(directory)
    # Some network file systems do not know their size and say 0.
    return disk.f_blocks == 0 or disk.f_bavail * disk.f_frsize >= MIN_FREE_BYTES


def _wanted() -> Path:
    explicit = os.environ.get("MODELD_CACHE_DIR")
    if explicit:
        return Path(explicit).absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    if base:
        return Path(base).absolute() / "modeld"
    try:
        return Path.home() / ".cache" / "modeld"
    except RuntimeError:  # no HOME and no entry in the password file
        return Path(tempfile.gettempdir()) / f"modeld-{os.getuid()}"


@functools.cache
def temporary_dir(wanted: str, variable: str) -> Path:
    """Return a directory of this process in place of the unusable one, and log it.

    `variable` is the environment variable that names another one.
    """
    directory = tempfile.TemporaryDirectory(prefix="modeld-cache-")
    _KEEP.append(directory)
    logger.warning(
        "%s: cannot be written or is nearly full; kernels are built again at every start "
        "(set %s to a writable directory)",
        wanted,
        variable,
    )
    return Path(directory.name)


# TemporaryDirectory removes its directory when collected; these live as long as the process.
_KEEP: list[tempfile.TemporaryDirectory[str]] = []

# --- A store of entries: bounded, private, safe with several processes, checked on read -------
#     store.put(key, payload)    ->    <directory>/<key>: magic, digest of key and payload, payload
# An entry is written beside its place and renamed, so a reader sees a whole file or none. One that
# is damaged, or belongs to another key, is removed. The oldest used go first when there is too
# much.

# Bounds of one cache, of which a user has five.
MAX_BYTES: Final = 1 << 30
MAX_FILES: Final = 4096

_MAGIC: Final = b"modeldsc"
# A temporary file this much older than the newest entry was left by a process that died.
_STALE_NS: Final = 3600 * 10**9


class EntryStore:
    """Bytes by key on disk; nothing in it is needed, so no failure of the disk is an error.

    The directory is made private (0700) if it is missing, and not used if others can write to it.
    `what` is one entry, as messages name it. `max_bytes` and `max_files` bound everything in it.
    """

    def __init__(
        self,
        directory: Path,
        what: str,
        max_bytes: int = MAX_BYTES,
        max_files: int = MAX_FILES,
    ) -> None:
        self.directory = directory
        self.what = what
        self.max_bytes = max_bytes
        self.max_files = max_files

    def get(self, key: str) -> bytes | None:
        """Return the payload of an entry and mark it used; None if there is none of use."""
        path = self.directory / key
        if not self._is_private():
            return None
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            logger.warning(
                "%s: cannot read the cached %s (%s); making it again", path, self.what, error
            )
            self.remove(key)
            return None
        payload = content[len(_MAGIC) + 32 :]
        if content[: len(_MAGIC) + 32] != _header(key, payload):
            logger.warning("%s: the cached %s is damaged; making it again", path, self.what)
            self.remove(key)
            return None
        try:
            os.utime(path)  # last use; file systems are often mounted without access times
        except OSError:
            logger.debug("%s: gone or read-only", path)
        return payload

    def put(self, key: str, payload: bytes) -> None:
        """Write an entry and remove the oldest beyond the bounds; a too large one is left out."""
        if len(payload) + len(_MAGIC) + 32 > self.max_bytes:
            return
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not self._is_private():
                return
            write_whole(self.directory / key, _header(key, payload) + payload)
            self._evict()
        except OSError as error:
            logger.warning("%s: cannot cache a %s: %s", self.directory, self.what, error)

    def remove(self, key: str) -> None:
        """Remove an entry, if it is there, or a directory that stands in its place."""
        path = self.directory / key
        try:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        except OSError as error:
            logger.warning("%s: cannot remove a cached %s: %s", path, self.what, error)

    def _is_private(self) -> bool:
        """Whether only this user can write here: an entry is code that the device will run."""
        try:
            found = self.directory.stat()
        except OSError:
            return False
        if found.st_uid == os.getuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return True
        _warn_shared(self.directory, self.what)
        return False

    def _evict(self) -> None:
        entries: list[tuple[int, str, int]] = []
        unfinished: list[tuple[int, str, int]] = []
        with os.scandir(self.directory) as found:
            for entry in found:
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue  # another process removed it
                kind = unfinished if entry.name.startswith(NEW) else entries
                kind.append((status.st_mtime_ns, entry.name, status.st_size))
        newest = max((e[0] for e in entries), default=0)
        for modified, name, _ in unfinished:
            if modified < newest - _STALE_NS:
                self.remove(name)
        entries.sort()
        total, count = sum(e[2] for e in entries), len(entries)
        for _, name, size in entries:
            if total <= self.max_bytes and count <= self.max_files:
                break
            self.remove(name)
            total, count = total - size, count - 1


@functools.lru_cache(maxsize=8)
def _warn_shared(directory: Path, what: str) -> None:
    """Log it once, not for every entry."""
    logger.warning(
        "%s: another user owns it or can write to it, so no %s is cached there; expected mode 0700",
        directory,
        what,
    )


def _header(key: str, payload: bytes) -> bytes:
    digest = hashlib.sha256(key.encode())
    digest.update(payload)
    return _MAGIC + digest.digest()
