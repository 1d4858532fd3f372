"""Packages of PyPI for another machine's Python: which it needs, and how they get into a folder."""

import json
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from packaging.requirements import Requirement

from tests.debian.place_error import PlaceError

ROOT = Path(__file__).parent.parent.parent
PROJECT: Final[dict[str, Any]] = tomllib.loads(
    (ROOT / "pyproject.toml").read_text(encoding="utf-8")
)["project"]
PYTHON: Final = "3.13"  # of SUITE
GLIBC: Final = range(41, 16, -1)  # 2.41 is that of the suite; 2.17 is manylinux2014's
_STAMP: Final = ".requirements.json"


def requirements(extras: Iterable[str], machine: str) -> list[str]:
    """Return what pip has to install for our package with some extras on a kind of machine.

    Markers are of this function's machine: pip judges them by the one that it runs on.
    """
    found: list[str] = []
    waiting, seen = [*PROJECT["dependencies"], *(f"modeld[{e}]" for e in extras)], set[str]()
    while waiting:
        needed = Requirement(waiting.pop(0))
        where = {"platform_machine": machine, "python_version": PYTHON}
        if needed.marker is not None and not needed.marker.evaluate(where):
            continue
        if needed.name != PROJECT["name"]:
            found.append(f"{needed.name}{needed.specifier}")
            continue
        for extra in sorted(needed.extras - seen):
            seen.add(extra)
            waiting += PROJECT["optional-dependencies"][extra]
    return sorted(set(found))


def pip_command(wanted: Iterable[str], machine: str, *options: str) -> list[str]:
    """Return pip's command that installs wheels for another machine's Python."""
    platforms = [f"--platform=manylinux_2_{minor}_{machine}" for minor in GLIBC]
    return [
        *(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
        *(f"--python-version={PYTHON}", "--only-binary=:all:", *options),
        *(*platforms, f"--platform=manylinux2014_{machine}", *wanted),
    ]


def fetch_wheels(wanted: Sequence[str], machine: str, directory: Path) -> Path:
    """Return a folder with packages for another machine; a complete one is used again."""
    stamp = json.dumps([PYTHON, machine, *wanted])
    if (directory / _STAMP).is_file() and (directory / _STAMP).read_text("utf-8") == stamp:
        return directory
    with tempfile.TemporaryDirectory(prefix=f".{directory.name}-", dir=directory.parent) as new:
        folder = Path(new) / "packages"
        done = subprocess.run(
            pip_command(wanted, machine, f"--target={folder}"),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            said = [line for line in done.stderr.splitlines() if line.startswith("ERROR: ")]
            problem = said[-1].removeprefix("ERROR: ") if said else f"code {done.returncode}"
            raise PlaceError(
                f"packages of PyPI for Python {PYTHON} on {machine}: expected all of "
                f"{', '.join(wanted)}, found: {problem}; try again, or see `pip download`"
            )
        (folder / _STAMP).write_text(stamp, encoding="utf-8")
        if directory.exists():
            directory.rename(Path(new) / "replaced")
        folder.rename(directory)
    return directory
