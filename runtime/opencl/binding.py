"""Imports pyopencl, after setting the environment that PoCL and pyopencl read at startup.

Other modules import `cl` from here and never pyopencl itself, so the order is always right.
Importing this module has a side effect, unlike any other in the runtime: it creates PoCL's cache
directory. `import runtime` alone does not import it.
"""

from __future__ import annotations

import atexit
import fcntl
import logging
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Final

from runtime.errors import NoDeviceError, first_line
from runtime.files.cache import cache_dir, is_usable, temporary_dir
from runtime.format.plainpickle import PlainPickleError, decode, encode

logger = logging.getLogger(__name__)

_OURS: Final = "process-"
_NEW: Final = ".new-"
_LOCK: Final = "lock"
# PoCL records here when a program was last built. It recreates the file.
_LAST_ACCESSED: Final = "last_accessed"


def base_of(configured: str) -> Path:
    """Return the base directory of `PoclDirectory`: the one that the user configured.

    `configured` is the value of POCL_CACHE_DIR. A parent process may have set it to its own
    directory inside the user's.
    """
    path = Path(configured).absolute()
    return path.parent if path.name.startswith(_OURS) else path


class PoclDirectory:
    """PoCL's own cache: a directory per process, so that damage in it does not outlive the process.

        <base>/process-XXXXXXXX/     the value of POCL_CACHE_DIR, removed when the process ends
            lock                     locked (flock) for as long as the process lives
            GN/HKFDNED.../           one program: `program.bc`, `<kernel>/<sizes>/<kernel>.so`

    PoCL does not check the files that it reads. A `program.bc` or `.so` truncated by a full disk or
    a power failure aborts this process and every later one. Therefore PoCL never gets the files of
    another process. Reusable files of a program are packed, stored with a digest (`EntryStore`),
    and unpacked when a later process builds the same program. The next process removes the
    directories of killed processes, whose locks it can take (ADR 0003).

    `base` is created private (0700) if it is missing. `path` never changes, because PoCL reads it
    only once. Raises OSError if the directory cannot be written.
    """

    def __init__(self, base: Path) -> None:
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
        _remove_dead(base)
        fresh, self._lock = _make_locked(base)
        # Other processes look for the final name, so rename it only once it is locked.
        self.path = fresh.with_name(_OURS + fresh.name.removeprefix(_NEW))
        fresh.rename(self.path)
        self._owner = os.getpid()
        self._building = threading.RLock()
        atexit.register(self.close)

    def ensure(self) -> None:
        """Create the directory again if it was deleted, because PoCL aborts without it."""
        if self.path.is_dir():
            return
        logger.warning("%s: removed by another process; making it again", self.path)
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh, lock = _make_locked(self.path.parent)
        fresh.rename(self.path)
        os.close(self._lock)
        self._lock = lock

    @contextmanager
    def new_programs(self) -> Iterator[list[str]]:
        """Collect the names of the programs that PoCL adds in the block; complete at its end."""
        found: list[str] = []
        with self._building:
            self.ensure()
            before = self._programs()
            yield found
            found += sorted(self._programs() - before)

    def pack(self, name: str) -> bytes:
        """Return the files of a program; raise OSError if they cannot be read."""
        root = self.path / name
        files = {
            path.relative_to(root).as_posix(): path.read_bytes()
            for path in sorted(root.rglob("*"))
            if path.is_file() and path.name != _LAST_ACCESSED
        }
        return encode({"program": name, "files": files})

    def unpack(self, packed: bytes) -> None:
        """Write the files of a packed program where PoCL looks for them, all or none.

        Raises:
            ValueError: `packed` is not a packed program.
            OSError: the files cannot be written.
        """
        name, files = _read_packed(packed)
        with self._building:
            self.ensure()
            target = self.path / name
            if target.exists():
                return
            fresh = Path(tempfile.mkdtemp(dir=self.path, prefix=_NEW))
            try:
                for relative, content in files.items():
                    path = fresh / relative
                    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                    path.write_bytes(content)
                target.parent.mkdir(mode=0o700, exist_ok=True)
                fresh.rename(target)
            except BaseException:
                shutil.rmtree(fresh, ignore_errors=True)
                raise

    def close(self) -> None:
        """Remove the directory, except in a forked child, whose parent still uses it."""
        if self._owner == os.getpid():
            shutil.rmtree(self.path, ignore_errors=True)

    def _programs(self) -> set[str]:
        """Return the names of the programs in the directory, as "GN/HKFDNED..."."""
        heads = (entry for entry in os.scandir(self.path) if len(entry.name) == 2)
        return {f"{head.name}/{tail.name}" for head in heads for tail in os.scandir(head)}


def _make_locked(base: Path) -> tuple[Path, int]:
    """Create a directory and lock a file in it, because some systems cannot lock directories."""
    fresh = Path(tempfile.mkdtemp(dir=base, prefix=_NEW))
    lock = os.open(fresh / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        # Other processes cannot lock it either, so they leave the directory alone.
        logger.info("%s: no locks here (%s)", base, error)
    return fresh, lock


def _remove_dead(base: Path) -> None:
    """Remove the directories of processes that ended without removing their own."""
    for directory in base.glob(_OURS + "*"):
        try:
            lock = os.open(directory / _LOCK, os.O_RDWR)
        except OSError:
            continue  # its process is just removing it
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            continue  # its process is alive
        else:
            shutil.rmtree(directory, ignore_errors=True)
        finally:
            os.close(lock)


def _read_packed(packed: bytes) -> tuple[str, dict[str, bytes]]:
    try:
        value, _ = decode(packed)
        name, files = value["program"], value["files"]
        parts = [PurePosixPath(name), *map(PurePosixPath, files)]
        whole = all(isinstance(content, bytes) for content in files.values())
    except (PlainPickleError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not the files of a program: {error}") from error
    if not whole or any(part.is_absolute() or ".." in part.parts for part in parts):
        raise ValueError("not the files of a program: a path leads elsewhere, or is no file")
    return name, files


# --- The import -------------------------------------------------------------------------------


def _pocl_directory() -> PoclDirectory:
    """Create PoCL's directory, below POCL_CACHE_DIR or in our cache directory.

    The fallback is a temporary directory, because PoCL aborts the process if it cannot write.
    """
    configured = os.environ.get("POCL_CACHE_DIR")
    base, variable = cache_dir() / "pocl", "MODELD_CACHE_DIR"
    if configured:
        base, variable = base_of(configured), "POCL_CACHE_DIR"
    return PoclDirectory(base if is_usable(base) else temporary_dir(str(base), variable))


pocl_directory: Final = _pocl_directory()
os.environ["POCL_CACHE_DIR"] = str(pocl_directory.path)
# pyopencl's source cache would duplicate ours in another directory, and its key lacks the driver.
os.environ.setdefault("PYOPENCL_NO_CACHE", "1")

try:
    import pyopencl as cl
except ImportError as error:
    raise NoDeviceError(
        f"pyopencl cannot be imported ({first_line(error)}); install modeld's dependencies"
    ) from error

__all__ = ["cl", "pocl_directory"]
