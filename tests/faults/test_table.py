"""Each row of docs/faults.md has its test, and each test its row."""

import ast
from pathlib import Path

from tests.faults.table import COLUMNS, DOCUMENT, rows

HERE = Path(__file__).parent
# Of the table and of the harness themselves.
NOT_ROWS = ("test_table.py", "test_harness.py")


def row_tests() -> list[str]:
    return [
        node.name
        for path in sorted(HERE.glob("test_*.py"))
        if path.name not in NOT_ROWS
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]


def test_rows_and_tests_are_the_same() -> None:
    tests = row_tests()
    assert len(tests) == len(set(tests))
    assert set(tests) == set(rows())


def test_columns_are_those_of_the_document() -> None:
    header = f"| {' | '.join(COLUMNS)} |"
    assert header in DOCUMENT.read_text(encoding="utf-8").splitlines()


def test_each_row_says_what_is_logged_or_that_nothing_is() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    for row in rows().values():
        line = next(line for line in text.splitlines() if f"`{row.test}`" in line)
        # A dash: that depends on the moment.
        assert row.logged or row.is_quiet or "| - | " in line, row.fault
