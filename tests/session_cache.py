"""Where a session of tests keeps what it builds: never in the user's own caches.

It is one directory, with the tests' temporary files; a keeper removes it when the session has
ended, however it ends. Set before anything is imported that reads it: PoCL learns its directory
once for a process. The user's cache directory, as programs find it where MODELD_CACHE_DIR is not
set, is an empty one of the session, and a session that leaves something there has failed. Workers
and other child processes inherit both.
"""

import os
import shutil
import tempfile
from pathlib import Path

from tests.support import keeper

CACHE = "MODELD_CACHE_DIR"
USER_CACHE = "XDG_CACHE_HOME"
_SESSION = "MODELD_TEST_SESSION"
# Directories below the user's cache that our code, or a library on its behalf, might write to.
WATCHED = ("modeld", "pocl", "pyopencl")


class SessionCache:
    """The directories of this session, made by its first process.

    Attributes:
        root: holds both directories.
        owned: whether this process made them, and removes them.
        chosen: whether the user named the cache, with MODELD_CACHE_DIR.
    """

    def __init__(self) -> None:
        inherited = os.environ.get(_SESSION)
        self.owned = inherited is None
        self.root = Path(inherited or tempfile.mkdtemp(prefix="modeld-tests-"))
        self.chosen = self.owned and CACHE in os.environ
        os.environ[_SESSION] = str(self.root)
        if self.owned:
            self.user.mkdir()
            # Processes of other users, which tests start, may pass through, and read no list.
            self.root.chmod(0o711)
            tempfile.tempdir = os.environ["TMPDIR"] = str(self.root)
            os.environ[USER_CACHE] = str(self.user)
            os.environ.setdefault(CACHE, str(self.root / "cache"))
            keeper.start(_SESSION, self.root)

    @property
    def temporary(self) -> Path:
        """Holds pytest's directories; a short name, as those of sockets have 107 bytes at most."""
        return self.root / "t"

    @property
    def user(self) -> Path:
        """Stands in for `~/.cache`."""
        return self.root / "user-cache"

    def prefer(self, directory: Path) -> None:
        """Use `directory` unless the user named one; for suites that keep what they build."""
        if self.owned and not self.chosen:
            os.environ[CACHE] = str(directory)

    def strays(self) -> list[str]:
        """Return the files that were written into the user's caches."""
        return sorted(
            str(path.relative_to(self.user))
            for name in WATCHED
            for path in (self.user / name).rglob("*")
            if not path.is_dir()
        )

    def remove(self) -> None:
        if self.owned:
            shutil.rmtree(self.root, ignore_errors=True)


SESSION = SessionCache()
