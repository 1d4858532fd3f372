"""Faults that are planted: what they are, which tests meet them, and what is said of them."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants.faults import PACKAGES, Fault, draw, faults_of
from tests.mutants.plant import judge
from tests.mutants.reach import REACHED, Suite, place_probes, read_suite

ROOT = Path(__file__).parents[2]
MODULE = '''"""Doubles."""
LIMIT = 3

def doubled(values: list[int], name: str = "x") -> int:
    if not values:
        raise ValueError("expected 1 value")
    elif len(values) >= LIMIT and name:
        values.clear()
    return values[0] + 2
'''
TESTS = """from lib import doubled

def test_doubles():
    assert doubled([1]) == 3

def test_nothing():
    pass
"""


@pytest.mark.parametrize(
    ("line", "planted"),
    [
        (2, ["LIMIT = 4"]),
        (5, ["if bool(values):"]),
        (6, []),
        (7, ["elif len(values) > LIMIT and name:", "elif ((len(values) >= LIMIT) or (name)):"]),
        (8, ["pass"]),
        (9, ["return (values[0]) - (2)", "return values[1] + 2", "return values[0] + 3"]),
    ],
)
def test_what_can_be_planted_in_a_line(line: int, planted: list[str]) -> None:
    faults = [fault for fault in faults_of("lib.py", MODULE) if fault.line == line]
    found = {fault.plant(MODULE).splitlines()[line - 1].strip() for fault in faults}
    assert found == set(planted)


def test_a_draw_is_told_by_its_seed_and_takes_as_many_of_each_package(tmp_path: Path) -> None:
    for package in PACKAGES:
        (tmp_path / package).mkdir()
        (tmp_path / package / "lib.py").write_text(MODULE)
    faults = draw(tmp_path, 10, 7)
    assert faults == draw(tmp_path, 10, 7) != draw(tmp_path, 10, 8)
    assert [fault.file.split("/")[0] for fault in faults] == [p for p in PACKAGES for _ in (0, 1)]
    for fault in faults:
        assert ast.dump(ast.parse(fault.plant(MODULE))) != ast.dump(ast.parse(MODULE))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A project of one module and two tests, with an interpreter as `copy_tree` leaves one."""
    python = tmp_path / "tree/.venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    (tmp_path / "tree/lib.py").write_text(MODULE)
    (tmp_path / "tree/test_lib.py").write_text(TESTS)
    (tmp_path / "tree/pytest.ini").write_text("[pytest]\npythonpath = .\n")
    return tmp_path / "tree"


def fault_at(line: int, kind: str) -> Fault:
    found = (f for f in faults_of("lib.py", MODULE) if (f.line, f.kind) == (line, kind))
    return next(found)


@pytest.mark.slow
def test_probes_tell_which_tests_meet_a_fault(tree: Path, tmp_path: Path) -> None:
    faults = [fault_at(9, "operator"), fault_at(7, "condition"), fault_at(2, "constant")]
    place_probes(tree, faults)
    times = tmp_path / "times"
    times.mkdir()
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "tests.times.plugin", f"--times={times}"],
        cwd=tree, env=os.environ | {REACHED: str(times / "reached.txt"), "PYTHONPATH": str(ROOT)},
        check=True, capture_output=True,
    )  # fmt: skip
    suite = read_suite(times)
    assert suite.reaching == {n: {"test_lib.py::test_doubles"} for n in (0, 1)}
    assert set(suite.seconds) == {"test_lib.py::test_doubles", "test_lib.py::test_nothing"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "kind", "verdict", "by"),
    [
        (9, "operator", "caught", "test_lib.py::test_doubles"),
        (7, "comparison", "survived", ""),
    ],
)
def test_a_fault_is_caught_or_survives_and_is_taken_out_again(
    tree: Path, line: int, kind: str, verdict: str, by: str
) -> None:
    tests = ["test_lib.py::test_nothing", "test_lib.py::test_doubles"]
    suite = Suite({0: set(tests)}, dict.fromkeys(tests, 0.1))
    result = judge(tree, 0, fault_at(line, kind), tests, suite, 60.0)
    assert (result.verdict, result.by, result.tests) == (verdict, by, 2)
    assert (tree / "lib.py").read_text() == MODULE


@pytest.mark.slow
def test_a_fault_that_keeps_a_conftest_from_being_imported_is_caught(tree: Path) -> None:
    (tree / "conftest.py").write_text("from lib import LIMIT\n\nassert LIMIT == 3\n")
    tests = ["test_lib.py::test_doubles"]
    suite = Suite({0: set(tests)}, {tests[0]: 0.1})
    result = judge(tree, 0, fault_at(2, "constant"), tests, suite, 60.0)
    assert (result.verdict, result.by) == ("caught", "pytest ended with 4")
