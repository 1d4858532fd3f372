"""pyopencl, imported with the environment that PoCL and pyopencl read when they start.

The other modules take `cl` from here and never import pyopencl themselves, so the order is always
right. Importing this module is the one import in the runtime that does work: it makes PoCL's cache
directory. `import runtime` alone does not.
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
# PoCL notes here when a program was last built; it is made again.
_LAST_ACCESSED: Final = "last_accessed"


def base_of(configured: str) -> Path:
    """Return the directory to make ours in: the user's, also if a parent process set its own.

    `configured` is the value of POCL_CACHE_DIR that this process was started with.
    """
    path = Path(configured).absolute()
    return path.parent if path.name.startswith(_OURS) else path


class PoclDirectory:
    """PoCL's own cache: a directory for each process, so that no damage in it outlives one.

        <base>/process-XXXXXXXX/     what POCL_CACHE_DIR names: of this process, removed at its end
            lock                     held (flock) for as long as the process lives
            GN/HKFDNED.../           one program: `program.bc`, `<kernel>/<sizes>/<kernel>.so`

    PoCL checks nothing that it reads back: a truncated `program.bc` or `.so`, left by a full disk
    or a lost power supply, aborts the process, and the next one. So PoCL never meets files of
    another process. What is worth keeping of a program is packed, stored with a digest
    (`EntryStore`), and unpacked where a later process builds the same. Directories of processes
    that were killed are removed by the next one: their locks can be taken (ADR 0003).

    It is made in `base`, which is made private (0700) if it is missing. PoCL learns `path` once, so
    it never changes. Raises OSError if nothing can be written there.
    """

    def __init__(self, base: Path) -> None:
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
        _remove_dead(base)
        fresh, self._lock = _make_locked(base)
        # Only with its lock held does it get the name that others look for.
        self.path = fresh.with_name(_OURS + fresh.name.removeprefix(_NEW))
        fresh.rename(self.path)
        self._owner = os.getpid()
        self._building = threading.RLock()
        atexit.register(self.close)

    def ensure(self) -> None:
        """Make the directory again, if somebody emptied the cache: PoCL aborts without it."""
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
        """Gather the names of the programs that PoCL adds within; complete at the end."""
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
        """Put the files of a program where PoCL looks for them, all or none.

        Raises:
            ValueError: these are not the files of a program.
            OSError: they cannot be written.
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
        """Remove the directory; not in a forked child, whose parent still uses it."""
        if self._owner == os.getpid():
            shutil.rmtree(self.path, ignore_errors=True)

    def _programs(self) -> set[str]:
        """Return the programs that are here, as "GN/HKFDNED..."."""
        heads = (entry for entry in os.scandir(self.path) if len(entry.name) == 2)
        return {f"{head.name}/{tail.name}" for head in heads for tail in os.scandir(head)}


def _make_locked(base: Path) -> tuple[Path, int]:
    """Make a directory, and take its lock: a file, as some systems lock no directories."""
    fresh = Path(tempfile.mkdtemp(dir=base, prefix=_NEW))
    lock = os.open(fresh / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        # The others cannot take it either and leave the directory alone.
        logger.info("%s: no locks here (%s)", base, error)
    return fresh, lock


def _remove_dead(base: Path) -> None:
    """Remove the directories of processes that ended without doing so themselves."""
    for directory in base.glob(_OURS + "*"):
        try:
            lock = os.open(directory / _LOCK, os.O_RDWR)
        except OSError:
            continue  # its process is removing it just now
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            continue  # its process lives
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
    """Make the directory that PoCL writes to, where the environment says or in our cache.

    PoCL aborts the process if it cannot write there.
    """
    configured = os.environ.get("POCL_CACHE_DIR")
    base, variable = cache_dir() / "pocl", "MODELD_CACHE_DIR"
    if configured:
        base, variable = base_of(configured), "POCL_CACHE_DIR"
    return PoclDirectory(base if is_usable(base) else temporary_dir(str(base), variable))


pocl_directory: Final = _pocl_directory()
os.environ["POCL_CACHE_DIR"] = str(pocl_directory.path)
# pyopencl's own source cache would duplicate ours, in another directory, without the driver in
# its key.
os.environ.setdefault("PYOPENCL_NO_CACHE", "1")

try:
    import pyopencl as cl
except ImportError as error:
    raise NoDeviceError(
        f"pyopencl cannot be imported ({first_line(error)}); install modeld's dependencies"
    ) from error

__all__ = ["cl", "pocl_directory"]
