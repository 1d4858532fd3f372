"""Fresh processes of tests that are about what a process finds when it starts, and what it says."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

# What a command line does: one line and the exit code, never a traceback.
RUN = """
import sys
from runtime import RuntimeFault, run_once
from tests.runtime import tiny
try:
    print(*run_once(tiny.manifest(), tiny.data_blob(), tiny.inputs())["y"])
except RuntimeFault as error:
    print(error, file=sys.stderr)
    sys.exit(error.exit_code)
"""
EXPECTED = "12.0 24.0 36.0 48.0\n"


def _make_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "something").touch()


# What may become of a file in a cache.
DAMAGE: dict[str, Callable[[Path], object]] = {
    "truncated": lambda path: os.truncate(path, path.stat().st_size // 2),
    "empty": lambda path: os.truncate(path, 0),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "directory": _make_directory,
    "unreadable": lambda path: path.chmod(0),  # root reads it nevertheless: then nothing is said
}


def start(code: str, cache: Path, *arguments: object, **environment: str) -> subprocess.Popen[str]:
    """Start a process with its cache in `cache`; it inherits what PoCL of this process was told."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        env={**os.environ, "POCL_CACHE_DIR": "", "MODELD_CACHE_DIR": str(cache), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(code: str, cache: Path, **environment: str) -> tuple[int, str, str]:
    process = start(code, cache, **environment)
    out, err = process.communicate(timeout=240)
    return process.returncode, out, err


def run_bare(code: str, cache: Path, **environment: str) -> tuple[int, str, str]:
    """Do so in a process with nothing in its environment but what is given here."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"MODELD_CACHE_DIR": str(cache), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    return done.returncode, done.stdout, done.stderr


class LinkCounter:
    """A linker before the system's on PATH, which counts its calls."""

    def __init__(self, place: Path) -> None:
        linker = shutil.which("ld")  # choosing a device has made sure that there is one
        assert linker is not None
        place.mkdir()
        self._log = place / "links"
        (place / "ld").write_text(f'#!/bin/sh\necho >> {self._log}\nexec {linker} "$@"\n')
        (place / "ld").chmod(0o755)
        self.path = f"{place}{os.pathsep}{os.environ['PATH']}"

    def take(self) -> int:
        """Return how many there were since the last time."""
        count = len(self._log.read_text(encoding="utf-8")) if self._log.exists() else 0
        self._log.unlink(missing_ok=True)
        return count
