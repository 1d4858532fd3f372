"""The cache directory, and stores of entries in it. Everything in it can be recreated.

It holds built programs, PoCL's files, the linker script, kernels, schedules and probe results.
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

# Several times the space that the first build of a driving program takes.
MIN_FREE_BYTES: Final = 64 << 20
# Name prefix of unfinished files.
NEW: Final = ".new-"


def cache_dir() -> Path:
    """Return the cache directory, created private (0700) if it is missing.

    It is `$MODELD_CACHE_DIR`, else `$XDG_CACHE_HOME/modeld`, else `~/.cache/modeld`. If that is
    not writable or its disk is nearly full, the result is a temporary directory of this process,
    whose content is lost at exit; a warning is logged.
    """
    wanted = _wanted()
    return wanted if is_usable(wanted) else temporary_dir(str(wanted), "MODELD_CACHE_DIR")


def is_usable(directory: Path) -> bool:
    """Return whether a directory, created private if missing, is writable and has free space."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.access(directory, os.W_OK | os.X_OK) and _has_space(directory)
    except OSError:
        return False


def write_whole(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Write a file of the cache directory atomically, creating the directory if needed.

    Raises OSError if it cannot be written.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Not synced to disk: a reader detects damage after a crash and recreates the entry.
    with replacing(path, NEW, mode) as file:
        file.write(content)


def _has_space(directory: Path) -> bool:
    """Return whether the disk has enough space: PoCL aborts if a write to its cache fails."""
    disk = os.statvfs(directory)
    # Some network file systems do not know their size and report 0.
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
    """Return a temporary directory of this process in place of the unusable `wanted`, and log it.

    `variable` is the environment variable with which the user can choose another directory.
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


# TemporaryDirectory deletes its directory when garbage-collected. These live until exit.
_KEEP: list[tempfile.TemporaryDirectory[str]] = []

# --- Entry stores: bounded, private, safe for concurrent processes, checked when read ---------
#     store.put(key, payload)    ->    <directory>/<key>: magic, digest of key and payload, payload
# An entry is written to a temporary file and renamed, so a reader sees a complete file or none. A
# damaged entry, or one of another key, is removed. When a store is full, the least recently used
# entries are removed.

# Limits of one store; a user has five.
MAX_BYTES: Final = 1 << 30
MAX_FILES: Final = 4096

_MAGIC: Final = b"modeldsc"
# A temporary file older than the newest entry by this much was left by a dead process.
_STALE_NS: Final = 3600 * 10**9


class EntryStore:
    """A persistent store of bytes by key. Failures of the disk are logged and raise no errors.

    The directory is created private (0700) if it is missing, and not used if others can write to
    it. `what` names an entry in messages. `max_bytes` and `max_files` limit the whole store.
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
        """Return the payload of an entry and mark it used; None if it is missing or damaged."""
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
            os.utime(path)  # the last use; file systems are often mounted without access times
        except OSError:
            logger.debug("%s: gone or read-only", path)
        return payload

    def put(self, key: str, payload: bytes) -> None:
        """Write an entry and evict old ones beyond the limits. A too large entry is skipped."""
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
        """Remove an entry if it exists, or a directory of that name."""
        path = self.directory / key
        try:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        except OSError as error:
            logger.warning("%s: cannot remove a cached %s: %s", path, self.what, error)

    def _is_private(self) -> bool:
        """Return whether only this user can write here: entries are code that the device runs."""
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
                    continue  # removed by another process
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
    """Log a directory that others can write to, once instead of for every entry."""
    logger.warning(
        "%s: another user owns it or can write to it, so no %s is cached there; expected mode 0700",
        directory,
        what,
    )


def _header(key: str, payload: bytes) -> bytes:
    digest = hashlib.sha256(key.encode())
    digest.update(payload)
    return _MAGIC + digest.digest()
