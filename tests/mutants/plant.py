"""Plants one fault after another and runs the tests that reach it until one fails.

Near tests come first: those whose path says the same words as the file of the fault, then the
quick ones. A fault in a function runs the tests that met its probe; one of a whole module runs the
tests whose files import that module, directly or not.
"""

import os
import re
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

from tests.mutants.faults import Fault
from tests.mutants.reach import Suite

# Tests of one process of pytest; the first few are few, as most faults are caught by a near test.
STEPS_S = (10.0, 30.0, 90.0)
SETUP_S = 60.0  # above what a step's tests took: a process that starts, imports, and compiles anew
HANGS = 4  # times as long as without the fault


@dataclass(frozen=True, slots=True)
class Result:
    """What came of one fault.

    Attributes:
        number: of the fault.
        verdict: `caught`, `survived`, `unreached`, or `undecided` where the time was over.
        by: the test that caught it, or what happened instead.
        tests: how many tests were run, at most.
        seconds: how long that took.
    """

    number: int
    verdict: str
    by: str
    tests: int
    seconds: float

    def row(self) -> dict[str, Any]:
        return asdict(self)


def _words(path: str) -> set[str]:
    """Return the words of a path, of one that belongs to tests without `test`."""
    return set(re.split(r"[/_.]|(?<=\w)(?=s?\.py)", path.partition("::")[0])) - {
        "tests",
        "test",
        "py",
    }


def ordered(fault: Fault, tests: Iterable[str], seconds: dict[str, float]) -> list[str]:
    """Return tests by nearness to a fault, each file's together, then by time."""
    near = _words(fault.file)
    files: dict[str, list[str]] = {}
    for test in tests:
        files.setdefault(test.partition("::")[0], []).append(test)

    def rank(file: str) -> tuple[int, float, str]:
        return -len(near & _words(file)), sum(seconds[test] for test in files[file]), file

    return [
        test
        for file in sorted(files, key=rank)
        for test in sorted(files[file], key=lambda test: (seconds[test], test))
    ]


def _steps(tests: Sequence[str], seconds: dict[str, float]) -> Iterator[list[str]]:
    """Cut tests into the ones of each process: a few seconds' worth first, then more."""
    sizes = iter(STEPS_S)
    step: list[str] = []
    limit, took = next(sizes), 0.0
    for test in tests:
        if step and took + seconds[test] > limit:
            yield step
            limit, step, took = next(sizes, STEPS_S[-1]), [], 0.0
        step.append(test)
        took += seconds[test]
    if step:
        yield step


def judge(
    tree: Path, number: int, fault: Fault, tests: Sequence[str], suite: Suite, limit_s: float
) -> Result:
    """Plant a fault in a tree of its own, run its tests in order, and take it out again."""
    begin, run = time.monotonic(), 0
    path = tree / fault.file
    text = path.read_text(encoding="utf-8")

    def result(verdict: str, by: str) -> Result:
        return Result(number, verdict, by, run, round(time.monotonic() - begin, 1))

    if not tests:
        return result("unreached", "")
    _write(path, fault.plant(text))
    doubtful: set[str] = set()
    try:
        for step in _steps(tests, suite.seconds):
            if time.monotonic() - begin > limit_s:
                return result("undecided", f"{run} of {len(tests)} tests run")
            run += len(step)
            while waiting := [test for test in step if test not in doubtful]:
                limit = HANGS * sum(suite.seconds[test] for test in waiting) + SETUP_S
                by = _fails(tree, waiting, limit)
                if not by:
                    break
                # A test that fails without the fault, too, has caught nothing.
                _write(path, text)
                alone = [by] if by in waiting else waiting
                if not _fails(tree, alone, limit):
                    return result("caught", by)
                doubtful.update(alone)
                _write(path, fault.plant(text))
        return result("survived", "")
    finally:
        _write(path, text)


def _write(path: Path, text: str) -> None:
    """Write a module; its bytecode is known by size and second alone, which may be the same."""
    path.write_text(text, encoding="utf-8")
    Path(cache_from_source(str(path))).unlink(missing_ok=True)


def _fails(tree: Path, tests: Sequence[str], limit_s: float) -> str:
    """Return which test fails, or what else went wrong; an empty text where all pass."""
    listed = tree.parent / "tests.txt"
    listed.write_text("".join(f"{test}\n" for test in tests), encoding="utf-8")
    command = [
        *(str(tree / ".venv/bin/python"), "-m", "pytest", "-x", "-q"),
        *("-p", "no:cacheprovider", "-p", "no:randomly", f"@{listed}"),
    ]
    with subprocess.Popen(
        command, cwd=tree, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True, errors="replace",
    ) as process:  # fmt: skip
        try:
            said, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            return f"no end after {limit_s:.0f} s"
    if process.returncode == 0:
        return ""
    if process.returncode == 4 and not re.search("ERROR collecting|while loading conftest", said):
        # Names of tests that this tree does not have say nothing about the fault.
        raise SystemExit(f"pytest did not find its tests:\n{said[-2000:]}")
    for line in re.findall(r"^(?:FAILED|ERROR) (.+)$", said, re.MULTILINE):
        # Names may hold spaces, and the line goes on with the message.
        named = [test for test in tests if line.startswith(test)]
        if named:
            return max(named, key=len)
    return f"pytest ended with {process.returncode}"
