"""The cache directory, for files made by the runtime: built programs, PoCL's files, the linker."""

import functools
import logging
import os
import tempfile
from pathlib import Path
from typing import Final

from runtime.files.whole_file import replacing

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
