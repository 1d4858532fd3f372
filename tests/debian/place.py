"""A root directory of Debian 13 with its Python, the packages of PyPI that we need, and our tree.

It is for this machine's processor or for another one, whose programs qemu runs. Everything is
fetched once and used again; what processes write lies in memory or in the folder of one run.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tests.debian.place_error import PlaceError
from tests.debian.wheels import PYTHON, ROOT, fetch_wheels
from tools.adreno.debian_packages import fetch_root

SUITE: Final = "trixie"
# By the kernel's name of a processor.
ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
EMULATED: Final = "aarch64"
# It has to look like a processor that is there: PoCL asks what it is called.
EMULATED_CPU: Final = "cortex-a76"
# What a bare Debian has without anybody's asking, then what our tests start.
_TOOLS: Final = (
    *("base-files", "base-passwd", "bash", "coreutils", "dash", "grep", "sed", "util-linux"),
    *(f"python{PYTHON}", "binutils", "git", "libstdc++6", "make", "procps"),
)
_ENTER: Final = Path(__file__).with_name("enter.py")
# In the place.
TREE, SCRATCH, PACKAGES, BYTECODE = (
    "/modeld",
    "/scratch",
    f"/usr/local/lib/python{PYTHON}/dist-packages",
    "/var/cache/bytecode",
)
NO_PLACE: Final = 125

# Also that of the compiler for Adreno, which qemu runs, too.
EMULATOR: Final = ROOT / "build/adreno/amd64"

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Done:
    """How a command ended, and what it printed on both streams."""

    returncode: int
    stdout: str


@dataclass(frozen=True, slots=True)
class Place:
    """Where commands run.

    Attributes:
        what: it in a few words.
        machine: its processor.
        root: the root directory.
        packages: those of PyPI.
        scratch: folder of this run, SCRATCH in the place.
        emulator: what runs the programs, if the processor is not this machine's.
        logs: folder of what commands print, while they do.
        log: file there of this part of a run.
    """

    what: str
    machine: str
    root: Path
    packages: Path
    scratch: Path
    emulator: Path | None
    logs: Path
    log: str = "log"

    def logged(self, name: str) -> Place:
        """Return the same place, whose commands print into a file of their own."""
        return replace(self, log=name)

    def python(
        self, *arguments: str, timeout_s: float = 900, environment: Mapping[str, str] | None = None
    ) -> Done:
        """Run Python in our tree, its streams in one; kernels are kept in the run's folder."""
        command = [*self.command(environment or {}), f"/usr/bin/python{PYTHON}", *arguments]
        with (self.logs / f"{self.log}.txt").open("a+", encoding="utf-8", errors="replace") as log:
            began = log.tell()
            try:
                done = subprocess.run(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    timeout=timeout_s,
                    check=False,
                )
            except subprocess.TimeoutExpired as error:
                what = " ".join(arguments)
                raise PlaceError(f"{what}: expected an end, runs after {timeout_s:g} s") from error
            log.seek(began)
            printed = log.read()
        if done.returncode == NO_PLACE:
            raise PlaceError(f"{self.what}: {printed.strip()}")
        return Done(done.returncode, printed)

    def command(self, environment: Mapping[str, str]) -> list[str]:
        """Return the words before a command that runs it in the place, in our tree."""
        variables = {
            # The tree may belong to whoever called sudo.
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": "safe.directory",
            "GIT_CONFIG_VALUE_0": "*",
            "HOME": f"{SCRATCH}/home",
            "LANG": "C.UTF-8",
            "MODELD_CACHE_DIR": f"{SCRATCH}/cache",
            "PATH": "/usr/local/bin:/usr/bin:/usr/sbin",
            "PYTEST_ADDOPTS": os.environ.get("PYTEST_ADDOPTS", ""),
            "PYTHONPATH": TREE,
            "PYTHONPYCACHEPREFIX": BYTECODE,
            "QEMU_CPU": EMULATED_CPU,
            **environment,
        }
        binds = {
            ROOT: TREE,
            self.scratch: SCRATCH,
            self.packages: PACKAGES,
            self.root.parent / "bytecode": BYTECODE,
        }
        return [
            *(sys.executable, str(_ENTER), "--root", str(self.root)),
            *(("--emulator", str(self.emulator)) if self.emulator else ()),
            *(word for source, target in binds.items() for word in ("--bind", str(source), target)),
            *("--", "/usr/bin/env", "-i", "-C", TREE),
            *(f"{name}={value}" for name, value in variables.items()),
        ]


@contextmanager
def place(
    machine: str,
    *,
    debian_packages: Sequence[str],
    requirements: Sequence[str],
    directory: Path,
    say: Say,
) -> Iterator[Place]:
    """Make a place, or find it as an earlier run left it; one process at a time has it."""
    own = os.uname().machine
    if own not in ARCHITECTURES or machine not in (own, EMULATED):
        raise PlaceError(f"{machine}: expected a machine of x86_64 or aarch64, found {own}")
    if os.geteuid() != 0:
        raise PlaceError(f"{machine}: expected root, who may mount, found user {os.geteuid()}")
    home = directory / machine
    home.mkdir(parents=True, exist_ok=True)
    with (home / "lock").open("w") as lock, ThreadPoolExecutor() as threads:
        fcntl.flock(lock, fcntl.LOCK_EX)
        debian = (*_TOOLS, *debian_packages)
        fetched = threads.submit(_debian, ARCHITECTURES[machine], home / "root", debian, say)
        wheels = threads.submit(fetch_wheels, requirements, machine, home / "packages")
        emulator = None
        if machine != own:
            found = _debian(ARCHITECTURES[own], EMULATOR, ("qemu-user",), say)
            emulator = found / f"usr/bin/qemu-{machine}"
        root, packages = fetched.result(), wheels.result()
        say(f"PyPI for Python {PYTHON} on {machine}: {requirements[0]}, ...")
        _complete(root, packages, home)
        scratch = home / "scratch"
        shutil.rmtree(scratch, ignore_errors=True)  # of a run that was killed
        (scratch / "home").mkdir(parents=True)
        how = f"under {emulator.name} as a {EMULATED_CPU}" if emulator else "of this machine"
        what = f"Debian {SUITE} with Python {PYTHON} on {machine} {how}"
        logs = home / "logs"
        shutil.rmtree(logs, ignore_errors=True)
        logs.mkdir()
        try:
            yield Place(what, machine, root, packages, scratch, emulator, logs)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def _debian(architecture: str, folder: Path, names: Sequence[str], say: Say) -> Path:
    fetched = fetch_root(
        names, architecture=architecture, suite=SUITE, directory=folder, progress=lambda *_: None
    )
    say(f"Debian {SUITE} for {architecture}: {names[-1]}, ...")
    return fetched


def _complete(root: Path, packages: Path, home: Path) -> None:
    """Add what scripts of packages would make, and places for mounts; the same each time."""
    for name in (TREE, SCRATCH, PACKAGES, BYTECODE):
        (root / name.lstrip("/")).mkdir(parents=True, exist_ok=True)
    (home / "bytecode").mkdir(exist_ok=True)
    for name in ("passwd", "group"):
        bare = root / f"usr/share/base-passwd/{name}.master"
        (root / "etc" / name).write_bytes(bare.read_bytes())
    (root / "usr/bin/sh").unlink(missing_ok=True)
    (root / "usr/bin/sh").symlink_to("dash")
    # As an editable installation: our packages are found wherever Python is started.
    (packages / "modeld.pth").write_text(f"{TREE}\n", encoding="utf-8")
