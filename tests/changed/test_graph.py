"""Which tests a changed file reaches: a small tree by hand, then this one."""

from pathlib import Path

import pytest

from tests.changed.graph import Graph, is_test, read_graph

ROOT = Path(__file__).parents[2]
CLOCK, INTERP = "tests/cereal/test_clock.py", "tests/scheduler/ir/test_interp.py"
FILES = (
    *("pyproject.toml", "tests/conftest.py", "lib/a.py", "lib/b.py", "lib/rows.toml", "left.dat"),
    *("tests/test_a.py", "tests/test_b.py"),
)
USERS = {
    "lib/a.py": {"lib/b.py"},
    "lib/b.py": {"tests/test_b.py"},
    "lib/rows.toml": {"lib/a.py"},
    "tests/conftest.py": {"tests/test_a.py", "tests/test_b.py"},
}
SMALL = Graph(frozenset(FILES), {file: frozenset(users) for file, users in USERS.items()})


@pytest.mark.parametrize(
    ("changed", "ways"),
    [
        ("lib/b.py", {"tests/test_b.py": "lib/b.py < tests/test_b.py"}),
        ("lib/rows.toml",
            {"tests/test_b.py": "lib/rows.toml < lib/a.py < lib/b.py < tests/test_b.py"}),
        ("tests/test_a.py", {"tests/test_a.py": "tests/test_a.py"}),
        ("left.dat", dict.fromkeys(("tests/test_a.py", "tests/test_b.py"),
            "left.dat is named nowhere: it may concern all tests")),
        ("pyproject.toml", dict.fromkeys(("tests/test_a.py", "tests/test_b.py"),
            "pyproject.toml configures all tests")),
    ],
)  # fmt: skip
def test_a_change_reaches_tests_by_a_way_that_is_shown(changed: str, ways: dict[str, str]) -> None:
    assert SMALL.tests_of([changed]) == ways


@pytest.fixture(scope="module")
def graph() -> Graph:
    # Also in a copy that is no checkout: there is no list of its files. Hidden folders are CI's,
    # or git's, the environment's and caches.
    folders = [path for path in ROOT.iterdir() if path.is_dir() and path.name != "build"]
    kept = [path for path in folders if path.name[0] != "." or path.name in (".ci", ".github")]
    paths = [*ROOT.glob("*"), *(path for folder in kept for path in folder.rglob("*"))]
    names = [path.relative_to(ROOT).as_posix() for path in paths if path.is_file()]
    return read_graph(ROOT, [name for name in names if "__pycache__" not in name])


@pytest.mark.parametrize(
    ("changed", "reached", "left_out"),
    [
        # A module, by its imports, and a command that the command line imports when it is asked.
        ("cereal/clock.py", CLOCK, INTERP),
        ("tools/commands/status.py", "tests/tools/test_status.py", INTERP),
        # Data: a schema, rows that lie in a folder, golden text, a page's script, documents.
        ("cereal/log.capnp", "tests/modeld/test_fill_message.py", INTERP),
        ("scheduler/driving/interfaces/split-2025.toml",
         "tests/scheduler/driving/test_recognise.py", CLOCK),
        ("tests/golden/kernel_map.txt", "tests/scheduler/render/test_golden.py",
         CLOCK),
        ("tools/live/page/top.js", "tests/tools/live/test_view_command.py", CLOCK),
        ("docs/training.md", "tests/test_docs.py", CLOCK),
        (".ci/run", "tests/test_docs.py", CLOCK),
        # A package's `__init__` runs before its modules; a conftest before the tests below it.
        ("tools/simulator/world/__init__.py", "tests/tools/world/test_truth.py", CLOCK),
        ("tests/modeld/conftest.py", "tests/modeld/test_desire.py", CLOCK),
    ],
)  # fmt: skip
def test_of_this_tree(graph: Graph, changed: str, reached: str, left_out: str) -> None:
    assert changed in graph.files
    found = graph.tests_of([changed])
    assert reached in found
    assert left_out in graph.files
    assert left_out not in found


def test_every_test_reaches_itself_and_what_configures_it(graph: Graph) -> None:
    tests = [file for file in graph.files if is_test(file)]
    assert len(tests) > 100
    assert set(graph.tests_of(["pyproject.toml"])) == set(tests)
    assert set(graph.tests_of(["tests/conftest.py"])) == set(tests)
