"""Which tests reach which fault: the quick tests once, over a tree with a probe before each.

A probe appends its number and the name of the running test to a file, once for each test. Child
processes inherit both, so what a daemon runs counts for the test that started it, also when it is
killed. A probe that was met while a fixture was set up counts for all tests of that file, which may
share it. What is built once a run counts for the file that asked first, so a share is rather too
small than too large.
"""

import json
import os
import shutil
import subprocess
import sys
import venv
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.faults import Fault

# Not MODELD_...: the daemon refuses variables of its own that it does not know.
REACHED = "MUTANTS_REACHED"
_PROBE = '''"""Appends what is reached, and by which test, to a file."""

import os

_SEEN = set()


def reached(number):
    test = os.environ.get("PYTEST_CURRENT_TEST", "")
    if (number, test) not in _SEEN and "{REACHED}" in os.environ:
        _SEEN.add((number, test))
        try:
            with open(os.environ["{REACHED}"], "a", encoding="utf-8") as file:
                file.write(f"{number}\\t{test}\\n")
        except OSError:
            # A test may forbid its process to write, or fill its disk.
            pass
'''


@dataclass(frozen=True, slots=True)
class Suite:
    """What the run with probes told.

    Attributes:
        reaching: number of a fault -> tests that reach it.
        seconds: test -> how long it takes with its set-up.
        imported: faults that are also met while test modules are imported, by tables of cases.
    """

    reaching: dict[int, set[str]]
    seconds: dict[str, float]
    imported: frozenset[int] = frozenset()


def copy_tree(root: Path, place: Path) -> Path:
    """Copy the files of a checkout to `place/tree`, with an environment of its own.

    The environment finds the packages of this one, but the project's in the copy.
    """
    tree = place / "tree"
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],  # noqa: S607 - whichever git the developer uses
        cwd=root,
        capture_output=True,
        check=True,
    )
    for name in filter(None, os.fsdecode(listed.stdout).split("\0")):
        if (root / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, tree / name)
    if (root.parent / "shared").is_dir():
        (place / "shared").symlink_to((root.parent / "shared").resolve())
    venv.create(tree / ".venv", symlinks=True)
    (packages,) = (tree / ".venv/lib").glob("python*/site-packages")
    (installed,) = {p for p in map(Path, sys.path) if p.name == "site-packages"}
    (packages / "tree.pth").write_text(f"{tree}\n{installed}\n", encoding="utf-8")
    for script in ("modeld",):
        text = (Path(sys.executable).parent / script).read_text(encoding="utf-8")
        copy = tree / ".venv/bin" / script
        copy.write_text(f"#!{tree}/.venv/bin/python\n" + text.partition("\n")[2], encoding="utf-8")
        copy.chmod(0o755)
    (tree / ".venv/.installed").touch()
    return tree


def place_probes(tree: Path, faults: Sequence[Fault]) -> None:
    """Put a probe before the statement of each fault that is not one of a whole module."""
    (tree / "mutant_probe.py").write_text(_PROBE.replace("{REACHED}", REACHED), encoding="utf-8")
    places: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for number, fault in enumerate(faults):
        if fault.statement is not None:
            places[fault.file].append((*fault.statement, number))
    for file, rows in places.items():
        lines = (tree / file).read_text(encoding="utf-8").splitlines(keepends=True)
        for line, column, number in sorted(rows, reverse=True):
            probe = f"__import__('mutant_probe').reached({number})\n"
            lines.insert(line - 1, " " * column + probe)
        (tree / file).write_text("".join(lines), encoding="utf-8")


def run_suite(tree: Path, times: Path, commands: Sequence[Sequence[str]]) -> None:
    """Run commands of pytest in a tree, each test's times and what it reaches into `times`."""
    times.mkdir(parents=True, exist_ok=True)
    reached = times / "reached.txt"
    reached.touch()
    reached.chmod(0o666)  # also for the processes of other users that tests start
    for command in commands:
        subprocess.run(
            [tree / ".venv/bin/python", "-m", "pytest", "-q", "-p", "tests.times.plugin",
             f"--times={times}", *command],
            cwd=tree, env=os.environ | {REACHED: str(reached)}, check=False,
        )  # fmt: skip


def read_suite(times: Path) -> Suite:
    """Return what a run of the suite left in its directory."""
    seconds: dict[str, float] = defaultdict(float)
    for path in sorted(times.glob("tests-*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            test, _, _, took = json.loads(line)
            seconds[test] += took
    of_file: dict[str, set[str]] = defaultdict(set)
    for test in seconds:
        of_file[test.partition("::")[0]].add(test)
    reaching: dict[int, set[str]] = defaultdict(set)
    imported: set[int] = set()
    for line in (times / "reached.txt").read_text(encoding="utf-8").splitlines():
        number, _, said = line.partition("\t")
        test, _, phase = said.rpartition(" (")
        if not said:
            imported.add(int(number))
        elif phase == "setup)":
            reaching[int(number)] |= of_file[test.partition("::")[0]]
        elif test in seconds:
            reaching[int(number)].add(test)
    return Suite(dict(reaching), dict(seconds), frozenset(imported))
